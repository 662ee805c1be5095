"""Lets ranks announce their collectives to each other. A failed rank reads which collectives the other ranks will
issue.

In the first step, and in a step of a new kind, a failed rank does not know the collectives of the step. In these
steps, each rank announces each collective in the store of the process group before issuing it. An announcement takes
microseconds and does not wait for other ranks. A failed rank reads the announcements, starting with the collective at
which it failed. It stops when no announcement is left and every other rank has finished or failed.
"""

import contextlib
import pickle
import time
from typing import Any

from legroom.train.ranks.collectives import CollectiveCall
from legroom.train.ranks.rank_errors import RankMissing
from legroom.train.ranks.waiting import waiting

_POLL_SECONDS = 0.001  # other ranks compute in the meantime


class Announcements:
    def __init__(self, store: Any, ranks: int, timeout: float) -> None:
        self._store = store
        self._ranks = ranks
        self._timeout = timeout

    def announce(self, pass_key: str, index: int, call: CollectiveCall) -> None:
        """Announce a collective that this rank is about to issue. All ranks make the same announcements."""
        self._store.set(f"{pass_key}/{index}", pickle.dumps(call))

    def finished(self, pass_key: str) -> None:
        self._store.add(f"{pass_key}/finished", 1)

    def failed(self, pass_key: str) -> None:
        """Record that this rank failed and will announce no more collectives in this pass."""
        self._store.add(f"{pass_key}/failed", 1)

    def read(self, pass_key: str, index: int) -> CollectiveCall | None:
        """Wait for the announcement of the collective with this index, and return the collective. Return None if no
        rank will issue this collective."""
        with waiting("a method of Guard"):
            return self._read(pass_key, index)

    def _read(self, pass_key: str, index: int) -> CollectiveCall | None:
        deadline = time.monotonic() + self._timeout
        key = f"{pass_key}/{index}"
        while True:
            # Count before checking the key: a rank announces all its collectives before it counts as finished or failed.
            all_done = self._count(f"{pass_key}/finished") + self._count(f"{pass_key}/failed") >= self._ranks
            if self._store.check([key]):
                call: CollectiveCall = pickle.loads(
                    self._store.get(key)
                )  # written by processes of the same job
                return call
            if all_done:
                return None
            if time.monotonic() > deadline:
                raise RankMissing(
                    f"No rank issued collective {index} of the step within {self._timeout:.0f} s, and no "
                    "rank finished the step. "
                    "A rank may have hung or exited. Check the output of the other ranks."
                )
            time.sleep(_POLL_SECONDS)

    def any_finished(self, pass_key: str) -> bool:
        """Return True if any rank has finished the pass. In that case, the announcements are complete."""
        return self._count(f"{pass_key}/finished") > 0

    def delete(self, pass_key: str, count: int) -> None:
        """Delete the announcements of a pass, which no rank will read again. If the store does not support deletion,
        nothing is deleted.
        """
        with contextlib.suppress(RuntimeError):
            for name in ("finished", "failed", *range(count)):
                self._store.delete_key(f"{pass_key}/{name}")

    def _count(self, key: str) -> int:
        return int(self._store.add(key, 0))
