"""An optimizer step in which memory fails, wherever that is, ends as if it had not."""

import pytest
import torch
from torch import nn

from legroom import VirtualGPU
from legroom.errors import UsageError
from legroom.train.guarding.optimizer_step import Updating

pytestmark = pytest.mark.usefixtures("frozen_heap")

OPTIMIZERS = {
    "SGD": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "AdamW": lambda groups: torch.optim.AdamW(groups, lr=0.1, amsgrad=True),
    "Adam loop": lambda groups: torch.optim.Adam(groups, lr=0.1, foreach=False, weight_decay=0.1),
    "Rprop": lambda groups: torch.optim.Rprop(groups, lr=0.1),
}
CASES = [("SGD", 1 << 20), ("AdamW", 1 << 20), ("AdamW", 0), ("Adam loop", 0), ("Rprop", 1 << 20)]
"""Which optimizer, and how many bytes may be copied before a step: with none, room is made for each function."""


def two_steps(make, *, small_bytes, failed_step=0, fail=None):
    """Everything two steps leave behind, how many allocations the failed one makes, and how often it was retried."""
    torch.manual_seed(0)
    with VirtualGPU("1GiB") as gpu:
        parameters = [nn.Parameter(torch.randn(rows, 3, device="cuda")) for rows in (2, 3)]
        optimizer = make([{"params": parameters[:1]}, {"params": parameters[1:], "lr": 0.02}])
        updating = Updating(optimizer, torch.device("cuda:0"), small_bytes=small_bytes)
        made = 0
        for step in range(2):
            for parameter in parameters:
                parameter.grad = torch.randn_like(parameter)
            before = gpu.allocations
            if fail is not None and step == failed_step:
                gpu.fail_allocation(fail)
            updating.run(lambda chosen: chosen.step())
            if step == failed_step:
                made = gpu.allocations - before
        state = [parameter.detach().cpu() for parameter in parameters]
        for parameter in parameters:
            state += [torch.as_tensor(value).cpu() for value in optimizer.state[parameter].values()]
        return state, made, updating.retries


@pytest.mark.parametrize(("name", "small_bytes"), CASES)
def test_failing_at_any_allocation_changes_nothing(name, small_bytes):
    make = OPTIMIZERS[name]
    for failed_step in (0, 1):
        expected, made, _ = two_steps(make, small_bytes=small_bytes, failed_step=failed_step)
        for number in range(1, made + 1):
            state, _, retries = two_steps(make, small_bytes=small_bytes, failed_step=failed_step, fail=number)
            assert retries
            assert all(torch.equal(ours, theirs) for ours, theirs in zip(state, expected, strict=True)), (
                number
            )


def test_a_step_that_really_does_not_fit_goes_through_host_memory():
    size = 1 << 18  # one MiB each: parameter, gradient, two moments and a temporary take 10 MiB of 8
    with VirtualGPU("8MiB"):
        torch.manual_seed(0)
        parameters = [nn.Parameter(torch.randn(size, device="cuda")) for _ in range(2)]
        gradients = [torch.randn(size) for _ in parameters]
        expected = [parameter.detach().cpu().clone().requires_grad_() for parameter in parameters]
        plain = torch.optim.Adam(expected, foreach=True)
        optimizer = torch.optim.Adam(parameters)
        updating = Updating(optimizer, torch.device("cuda:0"))
        for mine, theirs, gradient in zip(parameters, expected, gradients, strict=True):
            mine.grad, theirs.grad = gradient.cuda(), gradient.clone()
        updating.run(lambda chosen: chosen.step())
        plain.step()
        assert updating.retries
        for mine, theirs in zip(parameters, expected, strict=True):
            assert torch.equal(mine.detach().cpu(), theirs.detach())
            assert torch.equal(optimizer.state[mine]["exp_avg_sq"].cpu(), plain.state[theirs]["exp_avg_sq"])


def test_noise_drawn_by_an_optimizer_is_drawn_once():
    class Langevin(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.add_(torch.randn_like(parameter)).sub_(parameter.grad * 0.1)

    expected, made, _ = two_steps(Langevin, small_bytes=0)
    for number in range(1, made + 1):
        state, _, retries = two_steps(Langevin, small_bytes=0, fail=number)
        assert retries
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(state, expected, strict=True)), number


def test_an_error_that_is_not_about_memory_passes():
    class Broken(torch.optim.SGD):
        def step(self, closure=None):
            raise RuntimeError("no such luck")

    with VirtualGPU("1GiB"):
        parameter = nn.Parameter(torch.ones(2, device="cuda"))
        optimizer = Broken([parameter], lr=0.1)
        with pytest.raises(RuntimeError, match="no such luck"):
            Updating(optimizer, torch.device("cuda:0")).run(lambda chosen: chosen.step())
        assert "step" not in vars(optimizer)


def test_lbfgs_is_refused_in_words():
    with pytest.raises(UsageError, match="LBFGS runs the model inside its own step"):
        Updating(torch.optim.LBFGS([nn.Parameter(torch.ones(2))]), torch.device("cpu"))
