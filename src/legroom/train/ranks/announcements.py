"""Where ranks write down what they are about to do, so that one that has failed can do it too.

While the collectives of a step are not known yet (the first step, or one of a new kind), each rank pins up the next
collective before it makes it. A rank that has failed reads on from where it stopped. It may stop reading when every
rank has either finished or failed and nothing more is pinned up. The board is the store through which the processes of
a job found each other: writing takes microseconds and does not wait.
"""

import contextlib
import pickle
import time
from typing import Any

from legroom.train.ranks.collectives import Call
from legroom.train.ranks.lost_ranks import RankMissing

_PAUSE = 0.001  # seconds between two looks at the board: others are computing meanwhile


class NoticeBoard:
    """One place per pass of a step; every rank writes to it, those that failed read."""

    def __init__(self, store: Any, ranks: int, patience: float) -> None:
        self._store = store
        self._ranks = ranks
        self._patience = patience

    def pin(self, place: str, index: int, call: Call) -> None:
        """The next collective of this rank, before it is made. All ranks would pin up the same."""
        self._store.set(f"{place}/{index}", pickle.dumps(call))

    def finished(self, place: str) -> None:
        """This rank made every collective of the pass."""
        self._store.add(f"{place}/finished", 1)

    def failed(self, place: str) -> None:
        """This rank will pin up no more."""
        self._store.add(f"{place}/failed", 1)

    def read(self, place: str, index: int) -> Call | None:
        """The collective with that index, when some rank comes to it; None when none will."""
        deadline = time.monotonic() + self._patience
        key = f"{place}/{index}"
        while True:
            # Counted before looked: a rank pins up all it will do before it counts as finished or failed.
            over = self._count(f"{place}/finished") + self._count(f"{place}/failed") >= self._ranks
            if self._store.check([key]):
                call: Call = pickle.loads(self._store.get(key))  # written by other processes of this very job
                return call
            if over:
                return None
            if time.monotonic() > deadline:
                raise RankMissing(
                    f"No rank came to collective {index} of the step within {self._patience:.0f} s, and none finished. "
                    "One of them hangs or died: look at its own output."
                )
            time.sleep(_PAUSE)

    def anyone_finished(self, place: str) -> bool:
        """Whether what was pinned up is the whole pass."""
        return self._count(f"{place}/finished") > 0

    def wipe(self, place: str, count: int) -> None:
        """Nobody will look at this place again. A store that cannot forget keeps it."""
        with contextlib.suppress(RuntimeError):
            for name in ("finished", "failed", *range(count)):
                self._store.delete_key(f"{place}/{name}")

    def _count(self, key: str) -> int:
        return int(self._store.add(key, 0))
