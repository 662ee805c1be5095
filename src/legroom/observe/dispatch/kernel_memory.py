"""Plays what CUDA's kernels take beyond their results (`cuda_rules` says what and when) through the allocator."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch

from legroom.observe.cuda_rules.plan import Give, Keep, Move, Output, Plan, Take
from legroom.observe.cuda_rules.rules import CudaRules
from legroom.observe.dispatch.allocations import Charges
from legroom.observe.dispatch.attribution import Place
from legroom.observe.dispatch.storages import storage_of


class Born(Protocol):
    """Tells that a storage is allocated now, with so many bytes."""

    def __call__(
        self, key: int, storage: Any, device: int, place: Place, func: Any, *, nbytes: int | None = None
    ) -> None: ...


class KernelMemory:
    """The memory of kernels over one run: what libraries keep, once taken, stays taken."""

    def __init__(self, rules: CudaRules) -> None:
        self.rules = rules
        self._kept: set[tuple[int, str]] = set()

    def play(
        self,
        plan: Plan,
        charges: Charges,
        born: Born,
        move: Callable[[int, Place, Any], None],
        device: int,
        place: Place,
        func: Any,
        out: Any,
        fresh: dict[int, Any],
    ) -> None:
        """One operation, step by step. `fresh`: key → storage of its results that are new memory; `move(key, place, func)` gives a storage
        other memory."""
        by_index = _keys_by_index(out)
        named = {by_index.get(step.index) for step in plan.steps if isinstance(step, Output)}
        for key in [key for key in fresh if key not in named]:
            born(key, fresh.pop(key), device, place, func)
        taken: dict[str, tuple[int, Any]] = {}
        try:
            for step in plan.steps:
                if isinstance(step, Output):
                    key = by_index.get(step.index, 0)
                    if key in fresh:
                        born(key, fresh.pop(key), device, place, func, nbytes=step.bytes)
                elif isinstance(step, Take):
                    taken[step.name] = charges.take(step.bytes, device, place, func)
                    if step.others:
                        charges.note_doubt(taken[step.name][0], step.others)
                    if step.spare:
                        charges.note_spare(taken[step.name][0])
                elif isinstance(step, Give):
                    charges.give(*taken.pop(step.name), device)
                elif isinstance(step, Move):
                    move(by_index[step.index], place, func)
                elif isinstance(step, Keep) and (device, step.name) not in self._kept:
                    charges.take(step.bytes, device, place, func)
                    self._kept.add((device, step.name))
        finally:
            for number, block in reversed(taken.values()):  # as C++ destroys what a function holds
                charges.give(number, block, device)


def _keys_by_index(out: Any) -> dict[int, int]:
    """Which storage is the operation's n-th result, lists of results counted through."""
    storages = map(storage_of, _flat(out))
    return {index: storage._cdata for index, storage in enumerate(storages) if storage is not None}


def _flat(out: Any) -> Iterator[torch.Tensor]:
    if isinstance(out, torch.Tensor):
        yield out
    elif isinstance(out, tuple | list):
        for item in out:
            yield from _flat(item)
