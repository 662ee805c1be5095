"""Between Ray's workers and the launcher: an actor that takes what ranks leave, and who brings it into the folder."""

import contextlib
import signal
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from legroom.scale.launching.folder import RunFolder, read_ending
from legroom.scale.launching.outcome import Attempt, Over, RankResult, Starting

LOOK_SECONDS = 0.2


@dataclass
class _Letters:
    """What happened since the launcher looked last."""

    pieces: list[tuple[int, int, str, bytes]] = field(default_factory=list)
    """Attempt, rank, which file, and what to add to it."""
    codes: list[tuple[int, int, int]] = field(default_factory=list)
    """Attempt, rank, exit code."""
    attempt: int = -1
    """The newest that has begun."""


class Mailbox:
    """An actor: workers put, the launcher takes."""

    def __init__(self) -> None:
        self._letters = _Letters()

    def begin(self) -> int:
        self._letters.attempt += 1
        return self._letters.attempt

    def put(self, attempt: int, rank: int, name: str, data: bytes) -> None:
        self._letters.pieces.append((attempt, rank, name, data))

    def leave(self, attempt: int, rank: int, code: int) -> None:
        self._letters.codes.append((attempt, rank, code))

    def take(self) -> _Letters:
        taken, self._letters = self._letters, _Letters(attempt=self._letters.attempt)
        return taken


class Delivery:
    """Takes what is in the mailbox into the folder of the launch, and keeps the attempts."""

    def __init__(
        self, ray: Any, mailbox: Any, world_size: int, folder: RunFolder, starting: Starting, over: Over
    ) -> None:
        self._ray, self._mailbox, self._world_size, self._folder = ray, mailbox, world_size, folder
        self._starting, self._over = starting, over
        self._attempt = -1
        self._began = 0.0
        self._codes: dict[int, int] = {}
        self.attempts: list[Attempt] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="legroom-delivery", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(timeout=10)
        with contextlib.suppress(Exception):  # the cluster may be gone
            self._look()
        self._close()

    def _run(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            try:
                self._look()
            except Exception:
                return

    def _look(self) -> None:
        letters = self._ray.get(self._mailbox.take.remote())
        if letters.attempt > self._attempt:
            self._close()
            self._open(letters.attempt)
        for attempt, rank, name, data in letters.pieces:
            path = getattr(self._folder.files(rank, attempt), name)
            with path.open("wb" if name in ("ending", "capture") else "ab") as file:
                file.write(data)
        for attempt, rank, code in letters.codes:
            if attempt == self._attempt:
                self._codes[rank] = code

    def _open(self, attempt: int) -> None:
        self._attempt, self._began, self._codes = attempt, time.monotonic(), {}
        ranks = range(self._world_size)
        for rank in ranks:
            files = self._folder.files(rank, attempt)
            files.out.parent.mkdir(exist_ok=True)
            files.out.touch()
            files.err.touch()
        self._starting(attempt, {rank: rank for rank in ranks})

    def _close(self) -> None:
        if self._attempt < 0 or len(self.attempts) > self._attempt:
            return
        results = []
        for rank in range(self._world_size):
            files = self._folder.files(rank, self._attempt)
            # Ray ends the other workers when one fails: of those nobody reports a code.
            code = self._codes.get(rank, -signal.SIGTERM)
            results.append(
                RankResult(rank=rank, exit_code=code, ending=read_ending(files.ending), files=files)
            )
        attempt = Attempt(number=self._attempt, seconds=time.monotonic() - self._began, ranks=tuple(results))
        self.attempts.append(attempt)
        self._over(attempt)
