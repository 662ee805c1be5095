"""Runs operations on fake tensors with the CUDA rules, and returns the operations and their memory plans."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from legroom.gpus.catalog import find_gpu
from legroom.observe.cuda_rules.plan import (
    MemoryPlan,
    OutputAlloc,
    PersistentAlloc,
    ScratchAlloc,
    ScratchFree,
)
from legroom.observe.cuda_rules.rules import MEASURED_RELEASE, CudaRules


class OpLog(TorchDispatchMode):
    """Records the operations that run, in order, and their memory plans."""

    def __init__(self, rules: CudaRules) -> None:
        super().__init__()
        self.rules = rules
        self.calls: list[tuple[str, MemoryPlan | None, Any]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        plan = self.rules.plan(func, args, kwargs, out)
        self.calls.append((func.overloadpacket._qualified_op_name.removeprefix("aten::"), plan, _shapes(out)))
        return out

    @property
    def names(self) -> list[str]:
        return [name for name, _, _ in self.calls if name != "detach"]

    def plan_of(self, name: str) -> MemoryPlan | None:
        return next(plan for called, plan, _ in self.calls if called == name)

    def results_of(self, name: str) -> Any:
        return next(shapes for called, _, shapes in self.calls if called == name)


@contextlib.contextmanager
def traced(gpu: str = "h200", **options: Any) -> Iterator[OpLog]:
    """Record operations in the block. All tensors are fake and are treated as CUDA tensors of the measured torch
    release."""
    rules = CudaRules(find_gpu(gpu), **{"release": MEASURED_RELEASE, **options})
    log = OpLog(rules)
    with FakeTensorMode(), log, rules.installed(lambda tensor: isinstance(tensor, FakeTensor)):
        yield log


def scratch_bytes(plan: MemoryPlan | None) -> dict[str, int]:
    return {step.name: step.bytes for step in plan.steps if isinstance(step, ScratchAlloc)} if plan else {}


def persistent_bytes(plan: MemoryPlan | None) -> dict[str, int]:
    return {step.name: step.bytes for step in plan.steps if isinstance(step, PersistentAlloc)} if plan else {}


def step_order(plan: MemoryPlan | None) -> list[Any]:
    """Return the indices of results and the names of scratch memory, in the order of the steps. `-name` means that the
    scratch memory is freed."""
    assert plan is not None
    return [
        step.index
        if isinstance(step, OutputAlloc)
        else f"-{step.name}"
        if isinstance(step, ScratchFree)
        else step.name
        for step in plan.steps
    ]


def _shapes(out: Any) -> Any:
    if isinstance(out, torch.Tensor):
        return (tuple(out.shape), out.dtype)
    return [_shapes(item) for item in out] if isinstance(out, list | tuple) else out
