"""Reports ranks that wait for each other for more than ten seconds, or that wait for a rank that has exited.

    with waiting("checkpoints.save()"):
        dist.all_gather_object(...)

Legroom communicates with other ranks only inside such a block, and a thread observes how long a block lasts. After ten
seconds, the thread asks the other ranks, through the store of the process group, which line of code they are running.
The lowest waiting rank logs the answers. Every rank answers, even outside a `waiting` block. A rank that exits or
destroys its process group writes a record to the store.

In a rank of `legroom launch`, the thread also observes the main thread (see `observe_main_thread`), because DDP and
FSDP2 wait without running any Legroom code.
"""

import collections
import contextlib
import json
import math
import multiprocessing.util
import sys
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch.distributed as dist
from torch.distributed import HashStore, distributed_c10d  # type: ignore[attr-defined]

from legroom.diagnose.oom.recognize import is_oom
from legroom.log import log
from legroom.observe.virtual.single_rank import has_no_peers
from legroom.train.ranks.main_thread import MainThreadActivity, user_line
from legroom.train.ranks.rank_errors import RankMissing

TIMEOUT = 1800.0
"""The number of seconds to wait for another rank. The value is the same as gloo's default timeout."""
REPORT_SECONDS = 10.0
_STALL_FACTOR = 3
"""A main thread without progress is reported after this multiple of REPORT_SECONDS, because it may be computing or
loading data. If a rank has exited, the main thread is reported earlier.
"""
_POLL_SECONDS = 2.0
"""The number of seconds between two checks for requests from other ranks."""
_ANSWER_SECONDS = 6.0
_EXIT_SECONDS = 2.0
"""The maximum time in seconds, after communication has failed, to wait for the store to show that another rank has exited."""
_ADVICE = "All ranks must make the same calls."
State = Literal["waits", "stalls", "idles", "runs", "gone"]
"""The state of a rank. A rank `waits` inside Legroom, `stalls` inside torch, `idles` in other code, `runs` if it makes
progress, or is `gone`.
"""
_observer: "_Observer | None" = None
_lock = threading.Lock()


@contextmanager
def waiting(call: str) -> Iterator[None]:
    """Inside the block, report if this rank waits too long for other ranks. `call` is the name of the function that
    the user called.

    If communication fails because a rank has exited, raise RankMissing, whose message names that rank.
    """
    observer = _current_observer()
    if observer is None:
        yield
        return
    thread = threading.get_ident()
    outer = observer.waits.get(thread)
    observer.waits[thread] = outer or _Wait(call, time.monotonic(), thread)
    try:
        yield
    except RuntimeError as error:
        deadline = time.monotonic() + (0.0 if is_oom(error) else _EXIT_SECONDS)
        while time.monotonic() < deadline:
            observer.raise_if_gone(call, cause=error)
            time.sleep(0.1)
        raise
    finally:
        if outer is None:
            observer.waits.pop(thread, None)


def wait_for_ranks(
    call: str, name: str, ranks: Collection[int] | None = None, *, timeout: float = TIMEOUT
) -> None:
    """Wait until all ranks, or the given ranks, have called this function with the same name. Raise RankMissing if a
    rank has exited.

    Call this function before a torch function such as `new_group`, which would wait for a missing rank until its
    timeout.
    """
    observer = _current_observer()
    if observer is not None:
        with waiting(call):
            observer.meet(call, name, ranks, timeout)


def gone_ranks() -> dict[int, str]:
    """Return the ranks that have exited or destroyed their process group, each with a phrase such as `no longer
    responds`. A rank that has never waited for other ranks does not record its exit.
    """
    observer = _current_observer()
    return {} if observer is None else observer.gone()


def log_on_all_ranks(message: str) -> None:
    """Log an error on this rank. Within seconds, the error is also logged on every other rank that has waited for ranks
    before.
    """
    observer = _current_observer()
    if observer is not None:
        observer.announce(message)


def observe_main_thread() -> None:
    """Start reporting a main thread that waits inside torch. Without this call, a wait inside DDP or FSDP2 is not
    reported.

    The wait is reported if a rank has exited or if no rank makes progress.
    """
    observer = _current_observer()
    if observer is not None and observer.activity is None:
        observer.activity = MainThreadActivity()


def group_store(prefix: str) -> Any | None:
    """Return the store of the default process group, with a prefix for its keys. Return None if torch lacks the private
    function that returns the store.

    The returned store has its own connection, so it is not delayed by a blocking operation in another thread. If a
    single rank is traced without the others, return a new store.
    """
    if has_no_peers():
        return distributed_c10d.PrefixStore(prefix, HashStore())
    default_store = getattr(distributed_c10d, "_get_default_store", None)
    if default_store is None:
        return None
    store = default_store()
    with contextlib.suppress(AttributeError, RuntimeError):  # not all stores can be cloned
        store = store.clone()
    return distributed_c10d.PrefixStore(prefix, store)


@dataclass(slots=True)
class _Wait:
    """A thread that waits for other ranks. `call` is empty for a main thread that makes no progress outside Legroom."""

    call: str
    since: float
    thread: int | None
    report_after: float = 0.0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.since

    @property
    def is_late(self) -> bool:
        return self.seconds >= (self.report_after or REPORT_SECONDS)

    def place(self) -> str:
        return f"{f'in {self.call} ' if self.call else ''}at {user_line(self.thread)}"


class _Observer:
    def __init__(self, store: Any) -> None:
        self.waits: dict[int, _Wait] = {}
        self.activity: MainThreadActivity | None = None
        self.group: Any = dist.group.WORLD
        self._store = store
        self._rank, self._size = dist.get_rank(), dist.get_world_size()
        self._answered = self._announced = 0
        self._meetings: collections.Counter[str] = collections.Counter()
        self._stall: _Wait | None = None
        self._is_store_lost = False
        with contextlib.suppress(RuntimeError):
            self._write(0, "runs", "")  # the store may contain the state of an earlier process group
        # Unlike `atexit`, this also runs in a process that multiprocessing forked, but not in forks of this process.
        multiprocessing.util.Finalize(None, self._exit, exitpriority=10)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._observe, name="legroom-waiting", daemon=True)
        self._thread.start()

    def announce(self, message: str) -> None:
        with contextlib.suppress(RuntimeError):
            self._announced = self._store.add("messages", 1)
            self._store.set(f"message/{self._announced}", message)

    def gone(self) -> dict[int, str]:
        try:
            if not self._store.add("gone", 0):
                return {}
            states = {rank: self._read(rank) for rank in range(self._size) if rank != self._rank}
        except RuntimeError:  # the store is closed
            return {0: "no longer responds"} if self._rank else {}
        return {rank: state[2] for rank, state in states.items() if state and state[1] == "gone"}

    def raise_if_gone(
        self, call: str, ranks: Collection[int] | None = None, cause: Exception | None = None
    ) -> None:
        gone = [rank for rank in self.gone().items() if ranks is None or rank[0] in ranks]
        if gone:
            states = " ".join(f"Rank {rank} {text}." for rank, text in gone)
            line = user_line(threading.get_ident())
            raise RankMissing(f"{states} Rank {self._rank} waited in {call} at {line}. {_ADVICE}") from cause

    def meet(self, call: str, name: str, ranks: Collection[int] | None, timeout: float) -> None:
        members = sorted(range(self._size) if ranks is None else ranks)
        name = f"met/{name}/{'-'.join(map(str, members))}"
        self._meetings[name] += 1
        keys = {rank: f"{name}/{self._meetings[name]}/{rank}" for rank in members}
        self._store.set(keys[self._rank], b"")
        deadline, checked = time.monotonic() + timeout, time.monotonic()
        while not self._store.check(list(keys.values())):
            if time.monotonic() - checked > 0.2:
                checked = time.monotonic()
                self.raise_if_gone(call, [rank for rank, key in keys.items() if not self._store.check([key])])
            if time.monotonic() > deadline:
                missing = [str(rank) for rank, key in keys.items() if not self._store.check([key])]
                raise RankMissing(
                    f"Rank {self._rank} has waited for {timeout:.0f} s in {call} for "
                    f"rank{'s' if len(missing) > 1 else ''} {', '.join(missing)}. {_ADVICE}"
                )
            time.sleep(0.002)

    def _observe(self) -> None:
        polled = 0.0
        while dist.is_initialized() and self.group is dist.group.WORLD:
            if self._stopped.wait(min(1.0, _POLL_SECONDS)):
                return
            late = next((wait for wait in list(self.waits.values()) if wait.is_late), None)
            stall = None if self.activity is None else self._find_stall(self.activity)
            if late is None and stall is not None and stall.is_late:
                late = stall
            try:
                if self._is_store_lost:
                    if late is not None and (late.call or self._state() == "stalls"):
                        self._report_without_store(late)
                    continue
                if late is not None or time.monotonic() - polled >= _POLL_SECONDS:
                    polled = time.monotonic()
                    self._answer()
                if late is not None:
                    self._report(late)
            except RuntimeError:
                self._is_store_lost = True
        self._leave("has destroyed its process group")

    def _find_stall(self, activity: MainThreadActivity) -> _Wait | None:
        thread = threading.main_thread().ident
        seconds = activity.sample()
        if thread in self.waits or seconds < REPORT_SECONDS / 2:
            self._stall = None
        elif self._stall is None:
            self._stall = _Wait("", activity.since, thread)
        return self._stall

    def _answer(self) -> None:
        asked = self._store.add("asked", 0)
        if asked > self._answered:
            self._answered = asked
            wait = next(iter(self.waits.values()), None)
            if wait is not None:
                self._write(asked, "waits", f"waits {wait.place()}")
            else:
                line = user_line(threading.main_thread().ident)
                self._write(asked, self._state(), f"is at {line}")
        messages = self._store.add("messages", 0)
        while self._announced < messages:
            self._announced += 1
            log.error("%s", self._store.get(f"message/{self._announced}").decode())

    def _state(self) -> State:
        if self._stall is None or self.activity is None:
            return "runs"
        return "stalls" if self.activity.may_wait_for_ranks() else "idles"

    def _report(self, wait: _Wait) -> None:
        is_gone = bool(self.gone())
        if not wait.call and (
            self._state() != "stalls" or not (is_gone or wait.seconds >= _STALL_FACTOR * REPORT_SECONDS)
        ):
            return
        wait.report_after = math.inf
        answers = self._ask(_ANSWER_SECONDS / 3 if is_gone else _ANSWER_SECONDS)
        if wait is not self._stall and wait not in self.waits.values():
            return  # the wait is over
        if any(
            state == "waits" or (state == "stalls" and not wait.call)
            for rank, (state, _) in answers.items()
            if rank < self._rank or (state == "waits" and not wait.call)
        ):
            return  # reported by that rank
        if not (wait.call or is_gone) and not _is_deadlock(wait, list(answers.values()), self._size - 1):
            wait.report_after = wait.seconds + _STALL_FACTOR * REPORT_SECONDS
            return
        others = (rank for rank in range(self._size) if rank != self._rank)
        states = [
            f"Rank {rank} {answers[rank][1] if rank in answers else 'does not respond'}." for rank in others
        ]
        log.warning(
            "Rank %d has waited for %.0f s %s. %s %s",
            self._rank, wait.seconds, wait.place(), " ".join(states[:8]), _ADVICE,
        )  # fmt: skip

    def _report_without_store(self, wait: _Wait) -> None:
        wait.report_after = math.inf
        log.warning(
            "Rank %d has waited for %.0f s %s. The process group's store no longer responds, probably because rank 0 "
            "or the launcher has exited. %s",
            self._rank, wait.seconds, wait.place(), _ADVICE,
        )  # fmt: skip

    def _ask(self, seconds: float) -> dict[int, tuple[State, str]]:
        question = self._store.add("asked", 1)
        self._answer()
        others = [rank for rank in range(self._size) if rank != self._rank]
        answers: dict[int, tuple[State, str]] = {}
        deadline = time.monotonic() + seconds
        while len(answers) < len(others) and time.monotonic() < deadline and not self._stopped.wait(0.1):
            for rank in others:
                state = self._read(rank)
                if state is not None and state[0] >= question:
                    answers[rank] = (state[1], state[2])
        return answers

    def _read(self, rank: int) -> tuple[int, State, str] | None:
        if not self._store.check([f"rank/{rank}"]):
            return None
        number, state, text = json.loads(self._store.get(f"rank/{rank}"))
        return number, state, text

    def _write(self, number: int, state: State, text: str) -> None:
        self._store.set(f"rank/{self._rank}", json.dumps([number, state, text]))

    def _exit(self) -> None:
        """Stop the thread. The process would abort if the thread used the store while the interpreter shuts down."""
        self._stopped.set()
        self._thread.join(timeout=2)
        self._leave("has exited")

    def _leave(self, how: str) -> None:
        with contextlib.suppress(RuntimeError):
            self._write(sys.maxsize, "gone", how)
            self._store.add("gone", 1)


def _is_deadlock(wait: _Wait, others: list[tuple[State, str]], number: int) -> bool:
    """Return True if no rank makes progress and the ranks are at different lines. If all ranks are at the same line of
    code, they are possibly computing or loading data.
    """
    return (
        len(others) == number
        and all(state != "runs" for state, _ in others)
        and any(text != f"is {wait.place()}" for _, text in others)
    )


def _current_observer() -> _Observer | None:
    global _observer
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1) or has_no_peers():
        return None
    with _lock:
        if _observer is None or _observer.group is not dist.group.WORLD:
            store = group_store("legroom/waiting")
            if store is None:
                return None
            _observer = _Observer(store)
        return _observer
