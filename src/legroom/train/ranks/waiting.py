"""Reports ranks that wait for each other for more than ten seconds.

    with waiting("checkpoints.save()"):
        dist.all_gather_object(...)

Every communication between ranks that Legroom starts is inside such a block. A thread in each process observes the
block. After ten seconds, the thread asks the other ranks through the store of the process group where they are, and
the waiting rank with the lowest number logs the answers. A rank answers even if it is not inside such a block.
"""

import atexit
import contextlib
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from legroom.log import log
from legroom.observe.source.user_files import is_user_file

REPORT_SECONDS = 10.0
_POLL_SECONDS = 4.0
"""The interval in seconds at which a rank looks for questions of other ranks."""
_ANSWER_SECONDS = 6.0
_observer: "_Observer | None" = None


@contextmanager
def waiting(call: str) -> Iterator[None]:
    """Report a wait for other ranks inside the block. `call` is the function that the user called."""
    observer = _current_observer()
    if observer is None:
        yield
        return
    thread = threading.get_ident()
    outer = observer.waits.get(thread)
    observer.waits[thread] = outer or _Wait(call, time.monotonic(), thread)
    try:
        yield
    finally:
        if outer is None:
            observer.waits.pop(thread, None)


def log_on_all_ranks(message: str) -> None:
    """Log an error on every rank that has waited for other ranks before. Other ranks log the error within seconds."""
    observer = _current_observer()
    if observer is not None:
        observer.announce(message)


def group_store(prefix: str) -> Any | None:
    """Return the store of the default process group, with a prefix for its keys. Return None if the private function of
    torch that returns the store does not exist.

    The result has a separate connection, so that a blocking operation in another thread does not delay it.
    """
    default_store = getattr(distributed_c10d, "_get_default_store", None)
    if default_store is None:
        return None
    store = default_store()
    with contextlib.suppress(AttributeError, RuntimeError):  # not all stores can be cloned
        store = store.clone()
    return distributed_c10d.PrefixStore(prefix, store)


@dataclass(slots=True)
class _Wait:
    """A wait of one thread."""

    call: str
    since: float
    thread: int
    is_reported: bool = False


class _Observer:
    """Observes the waits of this process, and answers the other ranks."""

    def __init__(self, store: Any) -> None:
        self.waits: dict[int, _Wait] = {}
        self.group: Any = dist.group.WORLD
        self._store = store
        self._rank, self._size = dist.get_rank(), dist.get_world_size()
        self._answered = self._announced = 0
        atexit.register(self._exited)
        threading.Thread(target=self._observe, name="legroom-waiting", daemon=True).start()

    def announce(self, message: str) -> None:
        with contextlib.suppress(RuntimeError):
            self._announced = self._store.add("messages", 1)
            self._store.set(f"message/{self._announced}", message)

    def _observe(self) -> None:
        polled = 0.0
        while dist.is_initialized() and self.group is dist.group.WORLD:
            time.sleep(min(1.0, _POLL_SECONDS))
            late = [wait for wait in list(self.waits.values()) if self._is_late(wait)]
            try:
                if late or time.monotonic() - polled >= _POLL_SECONDS:
                    polled = time.monotonic()
                    self._answer()
                if late:
                    self._report(late[0])
            except RuntimeError:  # the store is closed
                if late:
                    log.warning(
                        "Rank %d has waited in %s, and rank 0 no longer responds.",
                        self._rank,
                        _place(late[0]),
                    )
                return

    def _is_late(self, wait: _Wait) -> bool:
        return not wait.is_reported and time.monotonic() - wait.since >= REPORT_SECONDS

    def _answer(self) -> None:
        """Write the location of this rank to the store if a rank asks for it, and log new messages of other ranks."""
        asked = self._store.add("asked", 0)
        if asked > self._answered:
            self._answered = asked
            wait = next(iter(self.waits.values()), None)
            text = (
                f"waits in {_place(wait)}" if wait else f"is at {_user_line(threading.main_thread().ident)}"
            )
            self._store.set(f"rank/{self._rank}", json.dumps([asked, wait is not None, text]))
        messages = self._store.add("messages", 0)
        while self._announced < messages:
            self._announced += 1
            log.error("%s", self._store.get(f"message/{self._announced}").decode())

    def _report(self, wait: _Wait) -> None:
        wait.is_reported = True
        question = self._store.add("asked", 1)
        self._answer()
        others = [rank for rank in range(self._size) if rank != self._rank]
        answers: dict[int, tuple[bool, str]] = {}
        deadline = time.monotonic() + _ANSWER_SECONDS
        while len(answers) < len(others) and time.monotonic() < deadline:
            time.sleep(0.1)
            for rank in others:
                if self._store.check([f"rank/{rank}"]):
                    number, waits, text = json.loads(self._store.get(f"rank/{rank}"))
                    if number >= question:
                        answers[rank] = (waits, text)
        if wait not in self.waits.values() or any(
            waits for rank, (waits, _) in answers.items() if rank < self._rank
        ):
            return  # over, or reported by that rank
        states = [
            f"Rank {rank} {answers[rank][1] if rank in answers else 'does not respond'}." for rank in others
        ]
        log.warning(
            "Rank %d has waited for %.0f s in %s. %s All ranks must make the same calls.",
            self._rank, time.monotonic() - wait.since, _place(wait), " ".join(states[:8]),
        )  # fmt: skip

    def _exited(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._store.set(f"rank/{self._rank}", json.dumps([sys.maxsize, False, "has exited"]))


def _current_observer() -> _Observer | None:
    """Return the observer of the current process group, or None for a single process."""
    global _observer
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return None
    if _observer is None or _observer.group is not dist.group.WORLD:
        store = group_store("legroom/waiting")
        if store is None:
            return None
        _observer = _Observer(store)
    return _observer


def _place(wait: _Wait) -> str:
    return f"{wait.call} at {_user_line(wait.thread)}"


def _user_line(thread: int | None) -> str:
    """Return the innermost line of the user's code in a thread."""
    frame: FrameType | None = sys._current_frames().get(thread or 0)
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    return "an unknown line" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
