"""Plays what CUDA's kernels take beyond their results (`cuda_rules` says what and when) through the allocator."""

from collections.abc import Iterator
from typing import Any, Protocol

import torch

from legroom.memory.events import Category
from legroom.observe.attribution import Place
from legroom.observe.cuda_rules.plan import Give, Keep, Output, Plan, Take
from legroom.observe.cuda_rules.rules import CudaRules


class Ledgerkeeper(Protocol):
    """The recorder, as far as it is needed here."""

    def take(self, nbytes: int, device: int, place: Place, func: Any) -> tuple[int, Any]: ...

    def give(self, number: int, block: Any, device: int) -> None: ...

    def born(
        self,
        key: int,
        storage: Any,
        device: int,
        place: Place,
        func: Any,
        category: Category | None = None,
        nbytes: int | None = None,
    ) -> None: ...

    def note_doubt(self, number: int, others: tuple[int, ...]) -> None: ...

    def note_spare(self, number: int) -> None: ...


class KernelMemory:
    """The memory of kernels over one run: what libraries keep, once taken, stays taken."""

    def __init__(self, rules: CudaRules) -> None:
        self.rules = rules
        self._kept: set[tuple[int, str]] = set()

    def play(
        self,
        plan: Plan,
        recorder: Ledgerkeeper,
        device: int,
        place: Place,
        func: Any,
        out: Any,
        fresh: dict[int, Any],
    ) -> None:
        """One operation, step by step. `fresh`: key → storage of its results that are new memory."""
        by_index = _keys_by_index(out)
        named = {by_index.get(step.index) for step in plan.steps if isinstance(step, Output)}
        for key in [key for key in fresh if key not in named]:
            recorder.born(key, fresh.pop(key), device, place, func)
        taken: dict[str, tuple[int, Any]] = {}
        try:
            for step in plan.steps:
                if isinstance(step, Output):
                    key = by_index.get(step.index, 0)
                    if key in fresh:
                        recorder.born(key, fresh.pop(key), device, place, func, nbytes=step.bytes)
                elif isinstance(step, Take):
                    taken[step.name] = recorder.take(step.bytes, device, place, func)
                    if step.others:
                        recorder.note_doubt(taken[step.name][0], step.others)
                    if step.spare:
                        recorder.note_spare(taken[step.name][0])
                elif isinstance(step, Give):
                    recorder.give(*taken.pop(step.name), device)
                elif isinstance(step, Keep) and (device, step.name) not in self._kept:
                    recorder.take(step.bytes, device, place, func)
                    self._kept.add((device, step.name))
        finally:
            for number, block in reversed(taken.values()):  # as C++ destroys what a function holds
                recorder.give(number, block, device)


def _keys_by_index(out: Any) -> dict[int, int]:
    """Which storage is the operation's n-th result, lists of results counted through."""
    return {index: tensor.untyped_storage()._cdata for index, tensor in enumerate(_flat(out))}


def _flat(out: Any) -> Iterator[torch.Tensor]:
    if isinstance(out, torch.Tensor):
        yield out
    elif isinstance(out, tuple | list):
        for item in out:
            yield from _flat(item)
