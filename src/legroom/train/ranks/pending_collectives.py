"""Completes the collectives of a pass on a failed rank, so that the other ranks do not hang.

The collectives of a pass (the forward and backward pass of one micro-batch) are the same on every rank and do not
depend on the batch size. If memory runs out on one rank during a pass, this rank issues the remaining collectives with
zeros. The other ranks finish the pass, but its result is invalid. In the exchange at the end of the step, all ranks
learn of the failure and roll back.

    pending.begin("first pass", pass_key)
    with intercept_collectives(pending): forward(); backward()
    pending.finish()                      # or, after a failure, once its memory is free:
    pending.complete_with_zeros()

The remaining collectives are known from an earlier pass of the same kind. If the kind of pass is new or its collectives
vary, each rank announces its collectives (see `announcements`). A failed rank issues the collectives that the other
ranks announced.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from legroom.diagnose.oom.recognize import is_oom
from legroom.train.ranks.announcements import Announcements
from legroom.train.ranks.collectives import CollectiveCall, describe, repeat_with_zeros


class PendingCollectives:
    def __init__(self, groups: Sequence[Any], device: torch.device, announcements: Announcements) -> None:
        self._groups = groups
        self._device = device
        self._announcements = announcements
        self._known: dict[Hashable, tuple[CollectiveCall, ...]] = {}
        self._varying: set[Hashable] = set()
        self._kind: Hashable = None
        self._pass_key = ""
        self._issued: list[CollectiveCall] = []
        self._announces = False
        self._announced: list[tuple[str, int]] = []
        self.lost = False
        """True if a collective failed because another rank failed, in which case pending collectives cannot be
        completed."""

    def begin(self, kind: Hashable, pass_key: str) -> None:
        """Begin a pass of this kind. `pass_key` is unique for each pass and equal on all ranks."""
        self._kind, self._pass_key, self._issued = kind, pass_key, []
        self._announces = kind not in self._known or kind in self._varying

    def issue(
        self, name: str, collective: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        call = describe(name, arguments, options, self._groups)
        if call is None:
            return collective(*arguments, **options)
        if self._announces:
            self._announcements.announce(self._pass_key, len(self._issued), call)
        try:
            result = collective(*arguments, **options)
        except Exception as error:
            self.lost = not is_oom(error)
            raise
        self._issued.append(call)
        return result

    def finish(self) -> int:
        if self._announces:
            self._announcements.finished(self._pass_key)
            self._announced.append((self._pass_key, len(self._issued)))
        self._learn(tuple(self._issued))
        return len(self._issued)

    def complete_with_zeros(self) -> int:
        """Issue the remaining collectives of the pass with zeros. Call this method after the memory of the failed pass
        has been freed."""
        if self._announces:
            self._announcements.failed(self._pass_key)
            while (call := self._announcements.read(self._pass_key, len(self._issued))) is not None:
                self._repeat(call)
            self._announced.append((self._pass_key, len(self._issued)))
            if self._announcements.any_finished(self._pass_key):
                self._learn(tuple(self._issued))
        else:
            for call in self._known[self._kind][len(self._issued) :]:
                self._repeat(call)
        return len(self._issued)

    def clear(self, *, delete: bool) -> None:
        """Discard the record of announced passes after all ranks have finished them. Only one rank sets `delete`,
        which deletes the announcements from the store.
        """
        for pass_key, count in self._announced:
            if delete:
                self._announcements.delete(pass_key, count)
        self._announced.clear()

    def _repeat(self, call: CollectiveCall) -> None:
        repeat_with_zeros(call, self._groups, self._device)
        self._issued.append(call)

    def _learn(self, calls: tuple[CollectiveCall, ...]) -> None:
        """Store the collectives of the current pass for later passes of the same kind. If two consecutive passes of a
        kind issue different collectives, the collectives of this kind are announced until two passes match.
        """
        if self._known.get(self._kind, calls) == calls:
            self._varying.discard(self._kind)
        else:
            self._varying.add(self._kind)
        self._known[self._kind] = calls
