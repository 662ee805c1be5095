"""A daemon thread for periodic work while the user's script runs."""

import threading
from collections.abc import Callable, Iterator


class PeriodicThread(threading.Thread):
    """A daemon thread that calls `work` repeatedly until the thread is stopped. Before each call, the thread waits for
    the next value of `pauses` (in seconds).

    The class overrides `run`, so that hooks on `Thread.run`, which track the threads of the script, do not affect it.
    """

    def __init__(self, work: Callable[[], None], pauses: Iterator[float], *, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._work = work
        self._pauses = pauses
        self._stopped = threading.Event()

    def run(self) -> None:
        for pause in self._pauses:
            if self._stopped.wait(pause):
                return
            self._work()

    def stop(self) -> None:
        """Stop the thread. Wait up to one second for a running call to `work` to return."""
        self._stopped.set()
        if self.is_alive() and self is not threading.current_thread():
            self.join(timeout=1)
