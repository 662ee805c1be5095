"""The steps and phases of a training loop."""

import contextlib
import gc
import weakref

import pytest
import torch

import legroom
from legroom.observe import training
from legroom.observe.training import TrainingClock, has_optimizer


def test_the_shapes_belong_to_the_model_that_was_called_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "MAX_MODELS", 1)
    clock, known, other = TrainingClock(), torch.nn.Identity(), torch.nn.Identity()
    clock.model_called(known, [torch.ones(2)])
    clock.model_called(other, [torch.ones(3)])
    assert clock.input_shapes == ((3,), (3,))
    clock.model_called(known, [torch.ones(4)])
    assert clock.input_shapes == ((2,), (4,))
    clock.model_called(known)
    assert clock.input_shapes is None


def test_the_search_for_optimizers_keeps_no_references():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    module = torch.nn.Linear(1, 1)
    reference = weakref.ref(module)
    gc.disable()
    try:
        assert has_optimizer()
        del module
        assert reference() is None
    finally:
        gc.enable()
    assert optimizer.param_groups


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.LBFGS])
def test_the_closure_of_an_optimizer_is_in_the_forward_and_backward_pass(
    optimizer: type[torch.optim.Optimizer],
) -> None:
    model = torch.nn.Linear(8, 8)
    trained = optimizer(model.parameters(), lr=0.1)

    def closure() -> torch.Tensor:
        trained.zero_grad()
        loss = model(torch.ones(4, 8)).exp().sum()
        loss.backward()
        return loss

    with legroom.record() as recording:
        assert trained.step(closure) > 0
        trained.step(closure=closure)
    rows = recording.to_dataframe()
    phases = rows[rows["function"] == "closure"].groupby("operation")["phase"].unique()
    assert {*phases["aten.addmm"]} == {*phases["aten.exp"]} == {"forward"}
    assert recording.steps == 2


@pytest.mark.parametrize("gpu", [None, "1GiB"])
def test_every_backward_pass_is_a_step_without_an_optimizer(
    gpu: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("legroom.observe.training.has_optimizer", lambda: False)
    device = "cpu" if gpu is None else "cuda"
    with legroom.VirtualGPU(gpu) if gpu is not None else contextlib.nullcontext():
        model = torch.nn.Linear(8, 8).to(device)
        counted = []
        for passes in (1, 2):
            with legroom.record(leaks=False) as recording:
                for _ in range(passes):
                    model(torch.ones(4, 8, device=device)).sum().backward()
            counted.append(recording.steps)
    assert counted == [1, 2]


def test_a_backward_pass_that_runs_out_of_memory_is_not_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("legroom.observe.training.has_optimizer", lambda: False)
    with legroom.VirtualGPU("1GiB") as gpu:
        model = torch.nn.Linear(8, 8).cuda()
        with pytest.raises(torch.OutOfMemoryError), legroom.record(leaks=False) as recording:
            output = model(torch.ones(4, 8, device="cuda"))
            output.register_hook(lambda gradient: gpu.fail_allocation() and None)
            output.sum().backward()
    assert recording.steps == 0


class Transformed(torch.utils.data.Dataset[torch.Tensor]):
    """A dataset whose transform is a module, as in torchvision."""

    def __init__(self) -> None:
        self.transform = torch.nn.Identity()

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.transform(torch.ones(8))


def test_transform_of_a_dataset_is_not_a_model() -> None:
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with legroom.record() as recording:
        for batch in list(torch.utils.data.DataLoader(Transformed(), batch_size=2)):
            model(batch).sum().backward()
            optimizer.step()
    assert recording.steps == 3
