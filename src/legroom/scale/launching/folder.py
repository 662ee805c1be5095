"""The folder of a launch, with the output, the exit records and the captures of the ranks.

    train.launch/
        rank-0.out  rank-0.err     the output of the rank
        rank-0.json                the exit record; missing if the rank was killed
        rank-0.legroom             the capture, if memory was recorded
        restart-1/...              the same files for each further attempt

Reports about a launch are created from this folder, for all engines.
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
    """The files of one rank and attempt."""

    out: Path
    err: Path
    exit_record: Path
    capture: Path


@dataclass(frozen=True, slots=True)
class LaunchFolder:
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
        with contextlib.suppress(OSError):
            self.path.rmdir()


def make_folder(chosen: Path | None, stem: str) -> LaunchFolder:
    """Create the folder `chosen`, which must be new or empty. If `chosen` is None, create a folder in the current
    directory with an unused name that starts with `stem`.
    """
    try:
        if chosen is not None:
            chosen.mkdir(parents=True, exist_ok=True)
            if any(chosen.iterdir()):
                raise UsageError(f"`{chosen}` is not empty. Pass a new folder to `--logs`.")
            return LaunchFolder(chosen)
        number = 1
        while True:
            path = Path(f"{stem}.launch" if number == 1 else f"{stem}-{number}.launch")
            try:
                path.mkdir()
            except FileExistsError:
                number += 1
                continue
            return LaunchFolder(path)
    except OSError as error:
        raise UsageError(
            f"Cannot create a folder for the output in the current directory ({error.strerror}). Pass "
            "another folder with `--logs`."
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankExit:
    """The exit record of a rank. The rank writes this record when an exception is raised, and again at exit."""

    rank: int
    time: float
    """The time of the failure or the exit, in seconds since the epoch. The rank with the earliest failure is reported
    as the cause."""
    exit_code: int
    ended: str
    """An `ExitReason` of `legroom.memory.annotations`."""
    error: str = ""
    traceback: str = ""
    log_size: int | None = None
    seconds: float = 0.0
    steps: int = 0
    device: int | None = None
    """The GPU that the rank used most, or None if memory was not recorded."""
    peak_allocated: int = 0
    peak_reserved: int = 0
    capacity: int = 0

    def write(self, path: Path) -> None:
        temporary = path.with_suffix(".part")
        temporary.write_text(json.dumps(asdict(self)))
        os.replace(temporary, path)


def read_exit(path: Path) -> RankExit | None:
    try:
        return RankExit(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None
