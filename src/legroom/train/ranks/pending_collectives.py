"""A rank that fails keeps its appointments.

The collectives of a pass (forward and backward of one micro-batch) are the same on every rank and do not depend on the
size of the batch. So when memory fails on one rank in the middle of a pass, the others are not left waiting: the rank that
failed makes the collectives that remain, with zeros. The others finish a pass that is worth nothing, hear so where all
ranks meet at the end of the step, and all go back.

    appointments.begin("first pass")
    with seen(appointments): forward(); backward()
    appointments.finish()                 # or, after a failure, once its memory is free:
    appointments.keep()

Which collectives remain is known from an earlier pass of the same kind. Of a kind that was not seen yet, or that was
not the same twice, each rank pins its collectives up as it comes to them (see notice_board) and the one that failed follows.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from legroom.diagnose.oom.recognize import is_oom
from legroom.train.ranks.announcements import NoticeBoard
from legroom.train.ranks.collectives import Call, describe, repeat


class Appointments:
    """The collectives of each kind of pass, and where the current pass stands."""

    def __init__(self, groups: Sequence[Any], device: torch.device, board: NoticeBoard) -> None:
        self._groups = groups
        self._device = device
        self._board = board
        self._known: dict[Hashable, tuple[Call, ...]] = {}
        self._varying: set[Hashable] = set()
        self._kind: Hashable = None
        self._place = ""
        self._met: list[Call] = []
        self._pinning = False
        self._pinned: list[tuple[str, int]] = []
        self.lost = False
        """A collective itself failed: another rank is gone, and there is nobody to keep appointments with."""

    def begin(self, kind: Hashable, place: str) -> None:
        """A pass of this kind begins. `place` names it and is the same on all ranks, and new each time."""
        self._kind, self._place, self._met = kind, place, []
        self._pinning = kind not in self._known or kind in self._varying

    def meet(
        self, name: str, make: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        """Make a collective that the program asked for, and note that it was made."""
        call = describe(name, arguments, options, self._groups)
        if call is None:
            return make(*arguments, **options)
        if self._pinning:
            self._board.pin(self._place, len(self._met), call)
        try:
            result = make(*arguments, **options)
        except Exception as error:
            self.lost = not is_oom(error)
            raise
        self._met.append(call)
        return result

    def finish(self) -> int:
        """The pass is over: from now on its kind is known. Returns how many collectives it made."""
        if self._pinning:
            self._board.finished(self._place)
            self._pinned.append((self._place, len(self._met)))
        self._learn(tuple(self._met))
        return len(self._met)

    def keep(self) -> int:
        """Make what remains of the pass with zeros. Nothing of the failed pass is held by now, so there is room."""
        if self._pinning:
            self._board.failed(self._place)
            while (call := self._board.read(self._place, len(self._met))) is not None:
                self._repeat(call)
            self._pinned.append((self._place, len(self._met)))
            if self._board.anyone_finished(self._place):
                self._learn(tuple(self._met))
        else:
            for call in self._known[self._kind][len(self._met) :]:
                self._repeat(call)
        return len(self._met)

    def clear(self, *, wipe: bool) -> None:
        """All ranks are past these passes. `wipe`: this rank takes down what was pinned up (one of them does)."""
        for place, count in self._pinned:
            if wipe:
                self._board.wipe(place, count)
        self._pinned.clear()

    def _repeat(self, call: Call) -> None:
        repeat(call, self._groups, self._device)
        self._met.append(call)

    def _learn(self, calls: tuple[Call, ...]) -> None:
        """A kind that was not the same twice in a row stays pinned up until it is."""
        if self._known.get(self._kind, calls) == calls:
            self._varying.discard(self._kind)
        else:
            self._varying.add(self._kind)
        self._known[self._kind] = calls
