"""Combines the reports and results of all ranks of a trial. The decision about the report of rank 0 applies to all
ranks. If one rank fails, all ranks end.

An engine forwards the messages of each rank and returns the replies to the ranks. Ranks wait for the decision about a
step, but not for a rank that has ended.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from legroom.tuning.schedule.protocol import Action
from legroom.tuning.trial.process import TrialExit
from legroom.tuning.trial.records import TrialState
from legroom.tuning.trial.trial import ReportMessage

GRACE = 1.0
"""The number of seconds to wait for the other ranks after a rank fails, because another rank may have raised the
original error.
"""

Answers = dict[int, Action]


@dataclass(slots=True)
class RankGroup:
    """The messages of one trial's ranks so far."""

    ranks: int
    ends: dict[int, TrialExit] = field(default_factory=dict)
    _decided: dict[int, Action] = field(default_factory=dict)
    _waiting: dict[int, list[int]] = field(default_factory=dict)
    _deadline: float | None = None

    def reported(
        self, rank: int, message: ReportMessage, decide: Callable[[ReportMessage], Action]
    ) -> Answers:
        """Handle a report of a rank, and return an action for each rank that no longer needs to wait. `decide` is
        called once per step, with the report of rank 0.
        """
        ranks = [rank]
        if rank == 0:
            self._decided[message.step] = decide(message)
            ranks += self._waiting.pop(message.step, [])
        elif message.step not in self._decided:
            if 0 in self.ends:  # rank 0 will not decide any more
                return {rank: Action.STOP}
            self._waiting.setdefault(message.step, []).append(rank)
            return {}
        return dict.fromkeys(ranks, self._decided[message.step])

    def ended(self, rank: int, end: TrialExit) -> Answers:
        """Handle the exit of a rank. If rank 0 has exited, return an action for each rank that waited for its decision."""
        self.ends[rank] = end
        if _went_wrong(end) and self._deadline is None:
            self._deadline = time.monotonic() + GRACE
        if rank != 0:
            return {}
        waiting, self._waiting = self._waiting, {}
        return dict.fromkeys((each for ranks in waiting.values() for each in ranks), Action.STOP)

    @property
    def is_over(self) -> bool:
        """True if all ranks have ended or one rank has failed. After a failure, the other ranks would wait forever for
        the failed rank.
        """
        return len(self.ends) == self.ranks or (
            self._deadline is not None and time.monotonic() >= self._deadline
        )

    @property
    def end(self) -> TrialExit:
        """The result of the trial: the result of the rank that failed first, or of rank 0 if no rank failed. The memory
        is the maximum across all ranks.
        """
        wrong = [end for end in self.ends.values() if _went_wrong(end)]
        chosen = min(wrong, key=lambda end: end.failed_at) if wrong else self.ends[0]
        sizes = [end.actual_bytes for end in self.ends.values() if end.actual_bytes is not None]
        return replace(
            chosen,
            actual_bytes=max(sizes, default=None),
            ooms=max(end.ooms for end in self.ends.values()),
        )


def _went_wrong(end: TrialExit) -> bool:
    return end.state in (TrialState.FAILED, TrialState.OUT_OF_MEMORY)
