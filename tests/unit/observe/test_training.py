"""The steps and phases of a training loop."""

import gc
import weakref

import pytest
import torch

import legroom
from legroom.observe.training import has_optimizer


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
