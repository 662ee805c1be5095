"""How a launch ended, and which rank is to blame.

When one rank fails, the others follow within a moment: they lose their connection to it, or the launcher ends them. So
the rank that the operating system reports first is often not the one that failed first. Here a rank's own error comes
before a lost connection, and a death by a signal before that too; among errors the earliest is the cause.
"""

import re
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from legroom.scale.launching.folder import RankEnding, RankFiles

_LOST_PEER = re.compile(
    r"Connection (?:closed|reset|refused) by peer|Connection reset by|Connection was likely closed|Broken pipe"
    r"|ncclRemoteError|NCCL.{0,80}remote (?:process|error)|recvValue failed|sendBytes failed|failed to recv"
    r"|(?:Read|Send|Connect) error|Gloo .{0,40}failed|PeerFailed|RankMissing|RendezvousConnectionError",
    re.IGNORECASE | re.DOTALL,
)
"""How gloo, NCCL, torch's stores and Legroom's own meetings say that another rank is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankResult:
    """One rank of one attempt, when it was over."""

    rank: int
    exit_code: int
    """As the operating system reports it, below zero for a signal."""
    ending: RankEnding | None
    """What it said itself; None for one that was killed or ended by the launcher."""
    files: RankFiles
    fell_first: bool = False
    """Whether it was seen dead while others still lived. The launcher's own SIGKILL, for those that will not end, comes later."""

    @property
    def failed(self) -> bool:
        return self.code != 0

    @property
    def code(self) -> int:
        """As a shell reports it: 128 and the signal for a process that was killed."""
        return self.exit_code if self.exit_code >= 0 else 128 - self.exit_code

    @property
    def signal(self) -> str:
        """`SIGKILL`; "" for a process that ended by itself."""
        if self.exit_code >= 0:
            return ""
        try:
            return signal.Signals(-self.exit_code).name
        except ValueError:
            return f"signal {-self.exit_code}"

    @property
    def failure(self) -> RankEnding | None:
        """Its own words on why it failed; None for one that was killed, even if its script was done by then."""
        return self.ending if self.ending is not None and self.ending.exit_code != 0 else None

    @property
    def was_ended(self) -> bool:
        """Whether it was told to end, as the launcher tells the others when one has failed."""
        return self.signal == "SIGTERM" and self.failure is None

    @property
    def lost_peer(self) -> bool:
        """Whether its error is that another rank is gone: an effect, not a cause."""
        told = self.failure
        return told is not None and bool(_LOST_PEER.search(told.error) or _LOST_PEER.search(told.traceback))

    def as_json(self) -> dict[str, Any]:
        ending = self.ending
        return {
            "rank": self.rank,
            "exit_code": self.code,
            "signal": self.signal or None,
            "ended": ending.ended if ending and not self.signal else "killed",
            "error": ending.error if ending else "",
            "steps": ending.steps if ending else 0,
            "peak_allocated_bytes": ending.peak_allocated if ending else 0,
            "peak_reserved_bytes": ending.peak_reserved if ending else 0,
            "stdout": str(self.files.out),
            "stderr": str(self.files.err),
            "capture": str(self.files.capture) if self.files.capture.exists() else None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """All ranks of this node, from their start to their end."""

    number: int
    """0 is the first."""
    seconds: float
    ranks: tuple[RankResult, ...]

    @property
    def cause(self) -> RankResult | None:
        """The rank that failed first; None where none failed."""
        return min((rank for rank in self.ranks if rank.failed), key=_order, default=None)

    @property
    def followers(self) -> tuple[RankResult, ...]:
        """The other ranks that failed."""
        cause = self.cause
        return tuple(rank for rank in self.ranks if rank.failed and rank is not cause)

    @property
    def left_early(self) -> tuple[RankResult, ...]:
        """Ranks that ended without an error, while the others still needed them."""
        cause = self.cause
        if cause is None or not cause.lost_peer:
            return ()
        return tuple(rank for rank in self.ranks if not rank.failed)


Starting = Callable[[int, Mapping[int, int]], None]
"""`(attempt, {local rank: rank})`: ranks are about to start."""
Over = Callable[[Attempt], None]
"""All of them have ended."""


def _order(rank: RankResult) -> tuple[int, float]:
    """Least is most to blame."""
    if rank.was_ended:
        return 3, float(rank.rank)
    if rank.failure is None:
        return 1, rank.rank - (1e6 if rank.fell_first else 0.0)
    return (2 if rank.lost_peer else 0), rank.failure.time


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchEnd:
    """The whole launch, as this node saw it."""

    attempts: tuple[Attempt, ...]
    interrupted: str = ""
    """The signal that ended the launcher: `SIGINT` for Ctrl-C."""
    kernel_kills: int = 0
    """How many processes of this machine the kernel killed meanwhile for want of host memory."""

    @property
    def last(self) -> Attempt | None:
        return self.attempts[-1] if self.attempts else None

    @property
    def exit_code(self) -> int:
        """The first failing rank's; 130 after Ctrl-C."""
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


def crowded(ranks: Iterable[RankResult]) -> Mapping[int, Sequence[int]]:
    """GPUs that several ranks filled, with those ranks: mostly a script that never chose its own."""
    users: dict[int, list[int]] = {}
    for rank in ranks:
        if rank.ending is not None and rank.ending.device is not None and rank.ending.peak_allocated:
            users.setdefault(rank.ending.device, []).append(rank.rank)
    return {device: found for device, found in users.items() if len(found) > 1}
