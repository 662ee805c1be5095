"""An optimizer step that runs out of memory at any point has the same result as a step without failures."""

import pytest
import torch
from torch import nn

from legroom import VirtualGPU
from legroom.errors import UsageError
from legroom.train.guarding.optimizer_step import OptimizerStep

OPTIMIZERS = {
    "SGD": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "AdamW": lambda groups: torch.optim.AdamW(groups, lr=0.1, amsgrad=True),
    "Adam loop": lambda groups: torch.optim.Adam(groups, lr=0.1, foreach=False, weight_decay=0.1),
    "Rprop": lambda groups: torch.optim.Rprop(groups, lr=0.1),
}
CASES = [("SGD", 1 << 20), ("AdamW", 1 << 20), ("AdamW", 0), ("Adam loop", 0), ("Rprop", 1 << 20)]
"""The optimizer, and how many bytes may be copied before a step. With 0, each function is retried instead."""


def two_steps(make, *, max_copy_bytes, failed_step=0, fail=None):
    """Return the state after two steps, the number of allocations in the failed step, and the number of retries."""
    torch.manual_seed(0)
    with VirtualGPU("1GiB") as gpu:
        parameters = [nn.Parameter(torch.randn(size, 3, device="cuda")) for size in (2, 3)]
        optimizer = make([{"params": parameters[:1]}, {"params": parameters[1:], "lr": 0.02}])
        optimizer_step = OptimizerStep(optimizer, torch.device("cuda:0"), max_copy_bytes=max_copy_bytes)
        allocations = 0
        for step in range(2):
            for parameter in parameters:
                parameter.grad = torch.randn_like(parameter)
            before = gpu.allocations
            if fail is not None and step == failed_step:
                gpu.fail_allocation(fail)
            optimizer_step.run(lambda each: each.step())
            if step == failed_step:
                allocations = gpu.allocations - before
        state = [parameter.detach().cpu() for parameter in parameters]
        for parameter in parameters:
            state += [torch.as_tensor(value).cpu() for value in optimizer.state[parameter].values()]
        return state, allocations, optimizer_step.retries


@pytest.mark.slow
@pytest.mark.parametrize(("name", "max_copy_bytes"), CASES)
def test_a_failure_at_any_allocation_does_not_change_the_result(name, max_copy_bytes):
    make = OPTIMIZERS[name]
    for failed_step in (0, 1):
        expected, allocations, _ = two_steps(make, max_copy_bytes=max_copy_bytes, failed_step=failed_step)
        for number in range(1, allocations + 1):
            state, _, retries = two_steps(
                make, max_copy_bytes=max_copy_bytes, failed_step=failed_step, fail=number
            )
            assert retries
            assert all(torch.equal(ours, theirs) for ours, theirs in zip(state, expected, strict=True)), (
                number
            )


def test_a_step_that_does_not_fit_uses_host_memory():
    size = 1 << 18  # 1 MiB each: parameter, gradient, two moments and a temporary need 10 of 8 MiB
    with VirtualGPU("8MiB"):
        torch.manual_seed(0)
        parameters = [nn.Parameter(torch.randn(size, device="cuda")) for _ in range(2)]
        gradients = [torch.randn(size) for _ in parameters]
        expected = [parameter.detach().cpu().clone().requires_grad_() for parameter in parameters]
        plain = torch.optim.Adam(expected, foreach=True)
        optimizer = torch.optim.Adam(parameters)
        optimizer_step = OptimizerStep(optimizer, torch.device("cuda:0"))
        for mine, theirs, gradient in zip(parameters, expected, gradients, strict=True):
            mine.grad, theirs.grad = gradient.cuda(), gradient.clone()
        optimizer_step.run(lambda each: each.step())
        plain.step()
        assert optimizer_step.retries
        for mine, theirs in zip(parameters, expected, strict=True):
            assert torch.equal(mine.detach().cpu(), theirs.detach())
            assert torch.equal(optimizer.state[mine]["exp_avg_sq"].cpu(), plain.state[theirs]["exp_avg_sq"])


def test_random_numbers_of_an_optimizer_are_drawn_once():
    class Langevin(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.add_(torch.randn_like(parameter)).sub_(parameter.grad * 0.1)

    expected, allocations, _ = two_steps(Langevin, max_copy_bytes=0)
    for number in range(1, allocations + 1):
        state, _, retries = two_steps(Langevin, max_copy_bytes=0, fail=number)
        assert retries
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(state, expected, strict=True)), number


def test_other_errors_are_raised_unchanged():
    class Broken(torch.optim.SGD):
        def step(self, closure=None):
            raise RuntimeError("broken optimizer")

    with VirtualGPU("1GiB"):
        parameter = nn.Parameter(torch.ones(2, device="cuda"))
        optimizer = Broken([parameter], lr=0.1)
        with pytest.raises(RuntimeError, match="broken optimizer"):
            OptimizerStep(optimizer, torch.device("cuda:0")).run(lambda each: each.step())
        assert "step" not in vars(optimizer)


def test_lbfgs_is_rejected():
    with pytest.raises(UsageError, match="LBFGS runs the model inside optimizer.step"):
        OptimizerStep(torch.optim.LBFGS([nn.Parameter(torch.ones(2))]), torch.device("cpu"))
