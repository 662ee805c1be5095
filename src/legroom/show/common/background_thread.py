"""Work done now and then beside the user's run, on a thread that no one notices."""

import threading
from collections.abc import Callable, Iterator


class PeriodicThread(threading.Thread):
    """Does `work` after each of `pauses` (in seconds) until stopped. A daemon: it never keeps a process alive.

    It has a `run` of its own, so that whatever follows the threads of a watched program does not take it for one.
    """

    def __init__(self, work: Callable[[], None], pauses: Iterator[float], *, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._work = work
        self._pauses = pauses
        self._done = threading.Event()

    def run(self) -> None:
        for pause in self._pauses:
            if self._done.wait(pause):
                return
            self._work()

    def stop(self) -> None:
        """No further work begins; what is under way is given a moment to end."""
        self._done.set()
        if self.is_alive() and self is not threading.current_thread():
            self.join(timeout=1)
