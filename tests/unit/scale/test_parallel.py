"""`legroom.parallel` in one process: the same script on one device, and rejected arguments."""

import logging
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import legroom
from legroom.errors import UsageError
from legroom.scale.optimizers import replace_parameters


def parts() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(8, 3, generator=generator), torch.randint(0, 2, (8,), generator=generator)


@pytest.mark.parametrize("strategy", ["auto", "ddp", "fsdp", "pipeline", "split", "dp"])
def test_every_strategy_is_plain_training_on_one_device(strategy: Any) -> None:
    model, optimizer = parts()
    run = legroom.parallel(model, optimizer, strategy)
    assert (run.strategy, run.rank, run.world_size, run.is_main) == ("single", 0, 1, True)
    assert run.model is model

    by_hand, by_hand_optimizer = parts()
    x, y = batch()
    for _ in range(3):
        loss = run.step(lambda x, y: nn.functional.cross_entropy(run.model(x), y), x, y)
        expected = nn.functional.cross_entropy(by_hand(x), y)
        expected.backward()
        by_hand_optimizer.step()
        by_hand_optimizer.zero_grad()
        assert run.gather(loss).mean() == expected
    assert torch.equal(model.weight, by_hand.weight)  # type: ignore[arg-type]


def test_the_batch_is_moved_to_the_gpu_of_the_model() -> None:
    with legroom.VirtualGPU("64MiB"):
        model, optimizer = parts()
        run = legroom.parallel(model, optimizer)
        assert run.device == torch.device("cuda", 0)
        for x, y in run.loader(TensorDataset(*batch()), 4):
            assert x.device == y.device == run.device
        loss = run.step(lambda x, y: nn.functional.cross_entropy(run.model(x), y), *batch())
        assert loss.device == run.device


def test_precision_bf16_runs_in_bfloat16() -> None:
    model, optimizer = parts()
    run = legroom.parallel(model, optimizer, precision="bf16")
    seen: list[torch.dtype] = []

    def loss_fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        output = run.model(x)
        seen.append(output.dtype)
        return nn.functional.cross_entropy(output.float(), y)

    run.step(loss_fn, *batch())
    assert seen == [torch.bfloat16]


def test_loaders_resume_at_their_position() -> None:
    run = legroom.parallel(*parts())
    loader = run.loader(TensorDataset(torch.arange(8)), 2)
    batches = iter(loader)
    next(batches)
    state = run.state_dict()
    rest = [samples.tolist() for (samples,) in batches]

    again = legroom.parallel(*parts())
    resumed = again.loader(TensorDataset(torch.arange(8)), 2)
    again.load_state_dict(state)
    assert [samples.tolist() for (samples,) in resumed] == rest


def test_epochs_iterates_over_the_remaining_epochs() -> None:
    run = legroom.parallel(*parts())
    loader = run.loader(TensorDataset(torch.arange(4)), 2)
    epochs = []
    for epoch in loader.epochs(3):
        epochs.append(epoch)
        for _ in loader:
            if epoch == 1:
                break
    assert epochs == [0, 1, 2]
    assert loader.epoch == 3


def test_an_optimizer_can_be_created_by_a_function() -> None:
    model, _ = parts()
    run = legroom.parallel(model, lambda parameters: torch.optim.SGD(parameters, lr=0.5))
    assert run.optimizer is not None
    assert run.optimizer.param_groups[0]["params"][0] is model.weight


@pytest.mark.slow
def test_the_strategy_of_the_command_line_overrides_that_of_the_script(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LEGROOM_STRATEGY", "split")
    with legroom.VirtualGPU("64MiB", "64MiB"), caplog.at_level(logging.WARNING):
        model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
        run = legroom.parallel(model, torch.optim.SGD(model.parameters(), lr=0.1), "dp", batch=batch())
    assert run.strategy == "split"
    assert "LEGROOM_STRATEGY=split overrides strategy='dp' in the script" in caplog.text


def test_dp_recommends_ddp(caplog: pytest.LogCaptureFixture) -> None:
    with legroom.VirtualGPU("64MiB", "64MiB"), caplog.at_level(logging.WARNING):
        legroom.parallel(*parts(), "dp")
    assert "legroom launch --nproc 2 --strategy ddp" in caplog.text.replace("\n", " ")


@pytest.mark.slow
def test_the_coordinator_gets_fewer_samples_and_uses_no_more_memory_than_the_others() -> None:
    model = nn.Sequential(
        *[layer for _ in range(8) for layer in (nn.Linear(64, 64), nn.Tanh())], nn.Linear(64, 4)
    )
    x, y = torch.randn(2048, 64), torch.zeros(2048, dtype=torch.long)
    with legroom.VirtualGPU("64MiB", "64MiB", "64MiB"):
        run = legroom.parallel(model, torch.optim.AdamW(model.parameters()), "dp", batch=(x, y))
        for _ in range(2):
            run.step(lambda x, y: nn.functional.cross_entropy(run.model(x), y), x, y)
        peaks = [torch.cuda.max_memory_allocated(index) for index in range(3)]
    assert 0 < run.model.shares[0] < 2048 / 3  # type: ignore[index]
    assert 0.9 < peaks[0] / (sum(peaks[1:]) / 2) < 1.1
    assert run.choice.peaks == pytest.approx(peaks, rel=0.03)


def test_a_model_that_cannot_be_recorded_is_split_by_the_size_of_its_weights(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class ReadsValues(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x) if x.sum() < 1e9 else x
            return x

    torch.manual_seed(0)
    model = ReadsValues()
    whole = model(batch()[0])
    with legroom.VirtualGPU("64MiB", "64MiB"), caplog.at_level(logging.WARNING):
        run = legroom.parallel(model, torch.optim.SGD(model.parameters(), lr=0.1), "split", batch=batch())
        assert {parameter.device.index for parameter in model.parameters()} == {0, 1}
        assert torch.equal(run.model(batch()[0].cuda()).cpu(), whole)
    assert (
        "weights only, because in its own forward, the control flow depends on values"
        in caplog.text.replace("\n", " ")
    )


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("model",), {}, "expects the model"),
        (
            (nn.Linear(1, 1), 3),
            {},
            "optimizer= must be a torch.optim.Optimizer or a function that creates an optimizer from the parameters, not int",
        ),
        ((nn.Linear(1, 1), torch.optim.SGD([torch.zeros(1)], lr=1)), {}, "has no parameters of this model"),
        ((nn.Linear(1, 1), None, "zero"), {}, "strategy='zero' is not valid. Use one of auto, ddp"),
        ((nn.Linear(1, 1),), {"schedule": "2f2b"}, "Use '1f1b' or 'gpipe'"),
        ((nn.Linear(1, 1),), {"micro_batches": 0}, "micro_batches=0 is not valid"),
        ((nn.Linear(1, 1),), {"micro_batches": "2"}, "micro_batches='2' is not valid"),
        ((nn.Linear,), {}, "not the class Linear"),
        (
            (nn.Linear(1, 1),),
            {"batch": 64},
            "batch=64 contains no tensors. Pass one batch .*The batch size is",
        ),
        ((nn.Linear(1, 1),), {"batch": (64, 3)}, r"batch=\(64, 3\) contains no tensors"),
        ((nn.Linear(1, 1),), {"batch": DataLoader([1])}, "batch= must be one batch, not DataLoader"),
        ((nn.Linear(1, 1),), {"shares": 3}, "shares=3 is not valid. Pass one number per GPU"),
        ((nn.Linear(1, 1),), {"shares": "ab"}, "shares='ab' is not valid"),
        (
            (nn.Linear(1, 1),),
            {"weight": 3},
            "weight= must be a function that counts the elements of a batch, not int",
        ),
        ((nn.Linear(1, 1),), {"clip_norm": -1}, "clip_norm=-1 is not valid"),
    ],
)
def test_invalid_arguments_of_parallel_are_rejected(
    arguments: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        legroom.parallel(*arguments, **options)


@pytest.mark.parametrize(
    ("dataset", "batch_size", "message"),
    [
        (64, 4, "The first argument must be a dataset, not int"),
        (DataLoader([1]), 4, "Pass the dataset of the loader"),
        ([1], "4", "batch_size='4' is not valid. Pass an integer"),
    ],
)
def test_invalid_arguments_of_the_loader_are_rejected(dataset: Any, batch_size: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        legroom.parallel(nn.Linear(1, 1)).loader(dataset, batch_size)


def test_a_step_without_an_optimizer_is_rejected() -> None:
    run = legroom.parallel(nn.Linear(3, 2))
    with pytest.raises(UsageError, match="The run has no optimizer"):
        run.step(lambda x, y: run.model(x).sum(), *batch())


def test_a_batch_in_place_of_the_function_is_rejected() -> None:
    run = legroom.parallel(*parts())
    with pytest.raises(UsageError, match="The first argument must be the loss function, not Tensor"):
        run.step(*batch())  # type: ignore[arg-type]


def test_an_optimizer_with_state_is_rejected_for_sharded_parameters() -> None:
    model, _ = parts()
    optimizer = torch.optim.Adam(model.parameters())
    model(batch()[0]).sum().backward()
    optimizer.step()
    replacements = {parameter: nn.Parameter(parameter.detach().clone()) for parameter in model.parameters()}
    with pytest.raises(UsageError, match="then load the optimizer state"):
        replace_parameters(optimizer, replacements)
