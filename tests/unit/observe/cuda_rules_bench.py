"""Runs operations on tensors without data, with CUDA's rules in force, and tells what was run and what it took."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from legroom.gpus.catalog import find_gpu
from legroom.observe.cuda_rules.plan import Give, Keep, Output, Plan, Take
from legroom.observe.cuda_rules.rules import CudaRules


class Log(TorchDispatchMode):
    """What ran, in order, and what the rules say of it."""

    def __init__(self, rules: CudaRules) -> None:
        super().__init__()
        self.rules = rules
        self.calls: list[tuple[str, Plan | None, Any]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        plan = self.rules.plan(func, args, kwargs, out)
        self.calls.append((func.overloadpacket._qualified_op_name.removeprefix("aten::"), plan, _shapes(out)))
        return out

    @property
    def names(self) -> list[str]:
        return [name for name, _, _ in self.calls if name != "detach"]

    def plan_of(self, name: str) -> Plan | None:
        return next(plan for called, plan, _ in self.calls if called == name)

    def results_of(self, name: str) -> Any:
        return next(shapes for called, _, shapes in self.calls if called == name)


@contextlib.contextmanager
def traced(gpu: str = "h200", **options: Any) -> Iterator[Log]:
    """Within the block tensors have no data and stand for CUDA's."""
    rules = CudaRules(find_gpu(gpu), **options)
    log = Log(rules)
    with FakeTensorMode(), log, rules.installed(lambda tensor: isinstance(tensor, FakeTensor)):
        yield log


def taken(plan: Plan | None) -> dict[str, int]:
    return {step.name: step.bytes for step in plan.steps if isinstance(step, Take)} if plan else {}


def kept(plan: Plan | None) -> dict[str, int]:
    return {step.name: step.bytes for step in plan.steps if isinstance(step, Keep)} if plan else {}


def order(plan: Plan | None) -> list[Any]:
    """Indices of results and names of scratch, in the order in which they are taken."""
    assert plan is not None
    return [
        step.index if isinstance(step, Output) else f"-{step.name}" if isinstance(step, Give) else step.name
        for step in plan.steps
    ]


def _shapes(out: Any) -> Any:
    if isinstance(out, torch.Tensor):
        return (tuple(out.shape), out.dtype)
    return [_shapes(item) for item in out] if isinstance(out, list | tuple) else out
