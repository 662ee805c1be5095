"""One thread that writes while training goes on. An error in it is raised by the next call, or told when the program
ends.
"""

import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from legroom.log import log


class Background:
    """At most one piece of work at a time."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="legroom-checkpoint")
        self._pending: list[Future[None]] = []
        # The end of the program, or of the owner, whichever comes first: a failure must not go unsaid.
        self._at_end = weakref.finalize(self, _end, self._pool, self._pending)

    def start(self, work: Callable[[], None]) -> None:
        self.wait()
        self._pending.append(self._pool.submit(work))

    def wait(self) -> None:
        """Until it is done; raises what it raised."""
        if self._pending:
            self._pending.pop().result()

    def close(self) -> None:
        try:
            self.wait()
        finally:
            self._at_end()


def _end(pool: ThreadPoolExecutor, pending: "list[Future[None]]") -> None:
    pool.shutdown(wait=True)
    for future in pending:
        error = future.exception()
        if error is not None:
            log.error("The last checkpoint was not written: %s", error)
    pending.clear()
