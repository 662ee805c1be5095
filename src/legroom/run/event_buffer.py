"""Collects the events of a run and passes them to a consumer in batches.

A program with tiny operations emits more than 100,000 events per second. Recording an event must cost as little as
possible, so `add` is the `append` method of a list. Batches are passed to the consumer at the end of each step, and
periodically by a background thread.
"""

import time
from collections.abc import Callable
from threading import Lock, get_ident

from legroom.memory.events import Event, Sink
from legroom.memory.interrupts import delayed_interrupts

MAX_PENDING = 4096
MAX_FRACTION = 0.05
"""The maximum fraction of the run time that `step_ended` uses. If steps are short, the events of several steps are
passed on together.
"""


class EventBuffer:
    """Collects events. Both `add` and `write` can be used as event sinks.

    Events may be added at any time, on any thread, even while the consumer runs.
    """

    def __init__(self, consume: Callable[[list[Event]], None]) -> None:
        """`consume(batch)` receives all events in order. Calls to `consume` do not overlap."""
        self._consume = consume
        self._pending: list[Event] = []
        self.add: Sink = self._pending.append
        """Adds an event without running Python code. The caller must call `step_ended` or `flush` regularly."""
        self._lock = Lock()
        self._owner: int | None = None
        self._next_drain = 0.0

    def write(self, event: Event) -> None:
        self._pending.append(event)
        if len(self._pending) >= MAX_PENDING:
            self._drain(wait=False)

    def step_ended(self) -> None:
        """Pass the pending events to the consumer. If steps are short, events are not passed on in every call."""
        started = time.perf_counter()
        if started >= self._next_drain:
            self._drain(wait=False)
            now = time.perf_counter()
            self._next_drain = now + (now - started) / MAX_FRACTION

    def flush(self) -> None:
        self._drain(wait=True)

    def _drain(self, *, wait: bool) -> None:
        """Pass the pending events to the consumer. If another thread is already passing events and `wait` is False,
        return immediately. The events then stay pending until the next call.
        """
        me = get_ident()
        if not self._pending or self._owner == me:
            return
        with delayed_interrupts():
            if self._lock.acquire(blocking=wait):
                self._owner = me
                try:
                    # Other threads may append at the same time. Each of these two lines is atomic.
                    batch = self._pending[:]
                    del self._pending[: len(batch)]
                    self._consume(batch)
                finally:
                    self._owner = None
                    self._lock.release()
