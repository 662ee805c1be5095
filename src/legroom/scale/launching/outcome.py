"""The result of a launch, and the rank that caused a failure.

If one rank fails, the other ranks fail soon after, because they lose their connection to the failed rank or the
launcher terminates them. Therefore the first failure that the operating system reports is often not the cause. The
most likely cause is a rank that raised its own error, then a rank that was killed by a signal, then a rank that lost a
connection. If several ranks raised their own errors, the earliest error is the cause.
"""

import re
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from legroom.errors import LegroomError
from legroom.memory.capture.reader import read_capture
from legroom.memory.ledger import Ledger
from legroom.scale.launching.folder import RankExit, RankFiles

_LOST_CONNECTION = re.compile(
    r"Connection (?:closed|reset|refused) by peer|Connection reset by|Connection was likely closed|Broken pipe"
    r"|ncclRemoteError|NCCL.{0,80}remote (?:process|error)|recvValue failed|sendBytes failed|failed to recv"
    r"|(?:Read|Send|Connect) error|Gloo .{0,40}failed|PeerFailed|RankMissing|RendezvousConnectionError",
    re.IGNORECASE | re.DOTALL,
)
"""Matches messages from gloo, NCCL, torch's stores and Legroom that appear if another rank has failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankResult:
    """The result of one rank in one attempt."""

    rank: int
    exit_code: int
    """The exit code from the operating system, which is negative for a signal."""
    exit_record: RankExit | None
    """The record that the rank wrote, or None if the rank was killed or terminated."""
    files: RankFiles
    died_first: bool = False
    """Whether the rank exited before the launcher terminated the other ranks."""

    @property
    def failed(self) -> bool:
        return self.code != 0

    @property
    def code(self) -> int:
        """The exit code that a shell would report, which is 128 plus the signal for a process that was killed."""
        return self.exit_code if self.exit_code >= 0 else 128 - self.exit_code

    @property
    def signal(self) -> str:
        """The name of the signal that killed the process, such as `SIGKILL`, or "" if the process was not killed by a
        signal."""
        if self.exit_code >= 0:
            return ""
        try:
            return signal.Signals(-self.exit_code).name
        except ValueError:
            return f"signal {-self.exit_code}"

    @property
    def failure(self) -> RankExit | None:
        """The exit record of a rank that failed with an error, or None. A rank that was killed by a signal has no exit
        record.
        """
        return self.exit_record if self.exit_record is not None and self.exit_record.exit_code != 0 else None

    @property
    def was_terminated(self) -> bool:
        """Whether the launcher terminated the rank because another rank failed."""
        return self.signal == "SIGTERM" and self.failure is None

    @property
    def lost_connection(self) -> bool:
        """Whether the rank failed because it lost the connection to another rank."""
        failure = self.failure
        return failure is not None and bool(
            _LOST_CONNECTION.search(failure.error) or _LOST_CONNECTION.search(failure.traceback)
        )

    def as_json(self) -> dict[str, Any]:
        exit_record = self.exit_record
        steps, peak_allocated, peak_reserved = self._figures()
        return {
            "rank": self.rank,
            "exit_code": self.code,
            "signal": self.signal or None,
            "ended": exit_record.ended if exit_record and not self.signal else "killed",
            "error": exit_record.error if exit_record else "",
            "steps": steps,
            "peak_allocated_bytes": peak_allocated,
            "peak_reserved_bytes": peak_reserved,
            "stdout": str(self.files.out),
            "stderr": str(self.files.err),
            "capture": str(self.files.capture) if self.files.capture.exists() else None,
        }

    def _figures(self) -> tuple[int, int, int]:
        """Return the number of steps and the peaks of allocated and reserved memory. A rank that was killed wrote no
        memory sizes to its exit record, so these numbers are read from its capture.
        """
        record = self.exit_record
        if record is not None and record.device is not None:
            return record.steps, record.peak_allocated, record.peak_reserved
        try:
            ledger = Ledger(read_capture(self.files.capture).events)
        except (LegroomError, OSError):
            return 0, 0, 0
        devices = ledger.devices()
        return (
            max((step.step + 1 for step in ledger.steps()), default=0),
            max((ledger.peak(device).bytes for device in devices), default=0),
            max((ledger.peak(device, "reserved").bytes for device in devices), default=0),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchAttempt:
    """An attempt to run the script. All ranks on this node start together."""

    number: int
    """The index of the attempt, starting at 0."""
    seconds: float
    ranks: tuple[RankResult, ...]

    @property
    def cause(self) -> RankResult | None:
        """The rank that most likely caused the failure, or None if no rank failed."""
        return min((rank for rank in self.ranks if rank.failed), key=_precedence, default=None)

    @property
    def followers(self) -> tuple[RankResult, ...]:
        cause = self.cause
        return tuple(rank for rank in self.ranks if rank.failed and rank is not cause)

    @property
    def exited_early(self) -> tuple[RankResult, ...]:
        """The ranks that exited without an error, if the cause of the failure is a lost connection."""
        cause = self.cause
        if cause is None or not cause.lost_connection:
            return ()
        return tuple(rank for rank in self.ranks if not rank.failed)


OnStart = Callable[[int, Mapping[int, int]], None]
"""Called before the ranks start, with the index of the attempt and a map from local ranks to global ranks."""
OnEnd = Callable[[LaunchAttempt], None]
"""Called after all ranks of an attempt have exited."""


def _precedence(rank: RankResult) -> tuple[int, float]:
    """Return a sort key, which is lowest for the rank that most likely caused the failure."""
    if rank.was_terminated:
        return 3, float(rank.rank)
    if rank.failure is None:
        return 1, rank.rank - (1e6 if rank.died_first else 0.0)
    return (2 if rank.lost_connection else 0), rank.failure.time


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchResult:
    """The result of a launch on this node."""

    attempts: tuple[LaunchAttempt, ...]
    interrupted: str = ""
    """The signal that stopped the launcher, for example `SIGINT` for Ctrl-C."""
    host_oom_kills: int = 0
    """The number of processes that the kernel killed during the attempt because host memory ran out."""

    @property
    def last(self) -> LaunchAttempt | None:
        return self.attempts[-1] if self.attempts else None

    @property
    def exit_code(self) -> int:
        """The exit code of the rank that caused the failure, or 130 after Ctrl-C."""
        if self.interrupted:
            return 128 + signal.Signals[self.interrupted]
        cause = self.last.cause if self.last is not None else None
        return cause.code if cause is not None else 0

    def as_json(self) -> dict[str, Any]:
        last = self.last
        cause = last.cause if last is not None else None
        return {
            "exit_code": self.exit_code,
            "interrupted": self.interrupted or None,
            "restarts": max(len(self.attempts) - 1, 0),
            "first_failure": cause.rank if cause is not None else None,
            "ranks": [rank.as_json() for rank in last.ranks] if last is not None else [],
        }


def shared_gpus(ranks: Iterable[RankResult]) -> Mapping[int, Sequence[int]]:
    """Return a dict that maps each GPU that several ranks used to these ranks. The usual reason is that the script did
    not select a GPU for each rank.
    """
    users: dict[int, list[int]] = {}
    for rank in ranks:
        if (
            rank.exit_record is not None
            and rank.exit_record.device is not None
            and rank.exit_record.peak_allocated
        ):
            users.setdefault(rank.exit_record.device, []).append(rank.rank)
    return {device: ranks_on_it for device, ranks_on_it in users.items() if len(ranks_on_it) > 1}
