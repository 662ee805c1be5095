"""Trials that do not wait for Ray: it takes seconds to start, and what is needed for the first trials is there before it.

A thread starts them as the local engine does, and looks after them until they end. Ray is started behind the first of them, since it would take its processor time: what it loads is as much as what a trial
loads. Once Ray is there it starts what comes next; then both tell the same stage what happens, so whoever speaks to it holds the lock that they share.
"""

import threading
from types import TracebackType
from typing import TYPE_CHECKING, Self

from legroom.tuning.local_trials import LocalTrials

if TYPE_CHECKING:
    from legroom.tuning.exchange import Exchange

LOOK = 0.1
"""Seconds between two looks at estimates while nothing is said."""
PATIENCE = 15.0
"""Seconds that Ray is kept from starting at most: an estimate may take long."""


class EarlyTrials:
    """Inside, trials run."""

    def __init__(self, exchange: "Exchange", server: str) -> None:
        self._exchange = exchange
        self._trials = LocalTrials(exchange.stage, server)
        self._ray_is_there = self._is_closed = False
        self._first = threading.Event()
        """One has started, or none will."""
        self._thread = threading.Thread(target=self._work, name="legroom-early-trials", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._is_closed = True
        self._thread.join()
        self._trials.kill_all()

    @property
    def running(self) -> int:
        return self._trials.running

    def wait_for_the_first(self) -> None:
        """Until one has started, not for ever."""
        self._first.wait(PATIENCE)

    def leave_the_rest_to_ray(self) -> None:
        """None starts here any more."""
        with self._exchange.lock:
            self._ray_is_there = True

    def _work(self) -> None:
        stage, conductor, trials = self._exchange.stage, self._exchange.conductor, self._trials
        try:
            while not self._is_closed and not (self._ray_is_there and not trials.running):
                with self._exchange.lock:
                    while not self._ray_is_there and (orders := stage.hand_out()) is not None:
                        trials.start(orders)
                        self._first.set()
                if trials.running:
                    speakers = trials.wait(LOOK)
                    with self._exchange.lock:
                        trials.hear(speakers)
                else:
                    conductor.wait(LOOK)
        except Exception as error:  # Ray asks for the next trial, and is told
            self._exchange.refusal = error
        finally:
            self._first.set()
