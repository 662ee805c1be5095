"""Transfers the output of ranks from Ray workers to the folder of the launch, through an actor."""

import contextlib
import signal
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from legroom.scale.launching.folder import LaunchFolder, read_exit
from legroom.scale.launching.outcome import LaunchAttempt, OnEnd, OnStart, RankResult

POLL_SECONDS = 0.2


@dataclass
class _Messages:
    """The messages that the launcher has not read yet."""

    chunks: list[tuple[int, int, str, bytes]] = field(default_factory=list)
    """The output of ranks. Each item contains the attempt, the rank, the file, and the data to append to the file."""
    codes: list[tuple[int, int, int]] = field(default_factory=list)
    """The exit codes of ranks. Each item contains the attempt, the rank and the exit code."""
    attempt: int = -1


class Mailbox:
    def __init__(self) -> None:
        self._messages = _Messages()

    def begin(self) -> int:
        self._messages.attempt += 1
        return self._messages.attempt

    def put(self, attempt: int, rank: int, name: str, data: bytes) -> None:
        self._messages.chunks.append((attempt, rank, name, data))

    def exited(self, attempt: int, rank: int, code: int) -> None:
        self._messages.codes.append((attempt, rank, code))

    def take(self) -> _Messages:
        messages, self._messages = self._messages, _Messages(attempt=self._messages.attempt)
        return messages


class MailboxReader:
    def __init__(
        self, ray: Any, mailbox: Any, world_size: int, folder: LaunchFolder, on_start: OnStart, on_end: OnEnd
    ) -> None:
        self._ray, self._mailbox, self._world_size, self._folder = ray, mailbox, world_size, folder
        self._on_start, self._on_end = on_start, on_end
        self._attempt = -1
        self._start_time = 0.0
        self._codes: dict[int, int] = {}
        self.attempts: list[LaunchAttempt] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="legroom-mailbox", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(timeout=10)
        with contextlib.suppress(Exception):  # the cluster may have stopped
            self._read()
        self._end_attempt()

    def _run(self) -> None:
        while not self._stopped.wait(POLL_SECONDS):
            try:
                self._read()
            except Exception:
                return

    def _read(self) -> None:
        messages = self._ray.get(self._mailbox.take.remote())
        if messages.attempt > self._attempt:
            self._end_attempt()
            self._begin_attempt(messages.attempt)
        for attempt, rank, name, data in messages.chunks:
            path = getattr(self._folder.files(rank, attempt), name)
            with path.open("wb" if name in ("exit_record", "capture") else "ab") as file:
                file.write(data)
        for attempt, rank, code in messages.codes:
            if attempt == self._attempt:
                self._codes[rank] = code

    def _begin_attempt(self, attempt: int) -> None:
        self._attempt, self._start_time, self._codes = attempt, time.monotonic(), {}
        ranks = range(self._world_size)
        for rank in ranks:
            files = self._folder.files(rank, attempt)
            files.out.parent.mkdir(exist_ok=True)
            files.out.touch()
            files.err.touch()
        self._on_start(attempt, {rank: rank for rank in ranks})

    def _end_attempt(self) -> None:
        if self._attempt < 0 or len(self.attempts) > self._attempt:
            return
        results = []
        for rank in range(self._world_size):
            files = self._folder.files(rank, self._attempt)
            # Ray terminates the other workers if one fails, so they report no code.
            code = self._codes.get(rank, -signal.SIGTERM)
            results.append(
                RankResult(rank=rank, exit_code=code, exit_record=read_exit(files.exit_record), files=files)
            )
        attempt = LaunchAttempt(
            number=self._attempt, seconds=time.monotonic() - self._start_time, ranks=tuple(results)
        )
        self.attempts.append(attempt)
        self._on_end(attempt)
