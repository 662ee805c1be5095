"""Where a launch keeps what its ranks leave: their output, how they ended, and their captures.

    train.launch/
        rank-0.out  rank-0.err     what the rank printed
        rank-0.json                how it ended; missing for one that was killed
        rank-0.legroom             its capture, where memory was watched
        restart-1/...              the same of every further attempt

All that is shown about a launch is read from here, whoever started the ranks and wherever they ran.
"""

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from legroom.errors import UsageError
from legroom.memory.capture.capture import SUFFIX as CAPTURE


@dataclass(frozen=True, slots=True)
class RankFiles:
    """What one rank leaves of one attempt."""

    out: Path
    err: Path
    ending: Path
    capture: Path


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of one launch."""

    path: Path

    def files(self, rank: int, attempt: int = 0) -> RankFiles:
        folder = self.path / f"restart-{attempt}" if attempt else self.path
        stem = f"rank-{rank}"
        return RankFiles(
            folder / f"{stem}.out",
            folder / f"{stem}.err",
            folder / f"{stem}.json",
            folder / f"{stem}{CAPTURE}",
        )

    def discard(self) -> None:
        """Nothing was started: take it away again, unless there is something in it."""
        with contextlib.suppress(OSError):
            self.path.rmdir()


def make_folder(wanted: Path | None, stem: str) -> RunFolder:
    """A new folder: `wanted`, which must be new or empty, or a free name made from `stem` in the current one."""
    try:
        if wanted is not None:
            wanted.mkdir(parents=True, exist_ok=True)
            if any(wanted.iterdir()):
                raise UsageError(f"'{wanted}' holds files already: name a new folder with --logs")
            return RunFolder(wanted)
        number = 1
        while True:
            path = Path(f"{stem}.launch" if number == 1 else f"{stem}-{number}.launch")
            try:
                path.mkdir()
            except FileExistsError:
                number += 1
                continue
            return RunFolder(path)
    except OSError as error:
        raise UsageError(
            f"no folder for the ranks' output can be made here ({error.strerror}): name one with --logs"
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnding:
    """The last words of one rank, written by itself: first when an error leaves the script, again when all is over."""

    rank: int
    time: float
    """When it happened, in seconds since the epoch: what comes first is the cause."""
    exit_code: int
    ended: str
    """An `ExitReason` of `legroom.memory.annotations`."""
    error: str = ""
    """The uncaught exception in one line."""
    traceback: str = ""
    log_size: int | None = None
    """How long the error log was before the traceback was written to it."""
    seconds: float = 0.0
    steps: int = 0
    device: int | None = None
    """The GPU that the rank filled most; None where memory was not watched."""
    peak_allocated: int = 0
    peak_reserved: int = 0
    capacity: int = 0

    def write(self, path: Path) -> None:
        """In one piece: a reader finds the old one or the new one."""
        half = path.with_suffix(".part")
        half.write_text(json.dumps(asdict(self)))
        os.replace(half, path)


def read_ending(path: Path) -> RankEnding | None:
    """None where a rank left none."""
    try:
        return RankEnding(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None
