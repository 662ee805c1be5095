"""The ranks of a trial as one trial: rank 0's report decides for all of them, and one that goes wrong ends all.

An engine brings what each rank says, from whatever process it runs in, and carries the answers back. Ranks that have to wait for a decision
wait, and nobody waits for a rank that is gone.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from legroom.tuning.schedule.schedulers import Action
from legroom.tuning.trial.process import TrialEnd
from legroom.tuning.trial.records import TrialState
from legroom.tuning.trial.trial import Reported

GRACE = 1.0
"""Seconds for the others' last words when a rank went wrong: theirs may be the error that came first."""

Answers = dict[int, Action]
"""Rank → what it is to do after its report."""


@dataclass(slots=True)
class RankGroup:
    """What the ranks of one trial have said so far."""

    ranks: int
    ends: dict[int, TrialEnd] = field(default_factory=dict)
    """Rank → how it ended."""
    _decided: dict[int, Action] = field(default_factory=dict)
    """Step → what all ranks do after it."""
    _waiting: dict[int, list[int]] = field(default_factory=dict)
    """Step → ranks that wait for that."""
    _deadline: float | None = None

    def reported(self, rank: int, told: Reported, decide: Callable[[Reported], Action]) -> Answers:
        """A rank reports: whom that lets go on, and how. `decide` is asked once for each step, with rank 0's report."""
        ranks = [rank]
        if rank == 0:
            self._decided[told.step] = decide(told)
            ranks += self._waiting.pop(told.step, [])
        elif told.step not in self._decided:
            if 0 in self.ends:  # nobody will decide any more
                return {rank: Action.STOP}
            self._waiting.setdefault(told.step, []).append(rank)
            return {}
        return dict.fromkeys(ranks, self._decided[told.step])

    def ended(self, rank: int, end: TrialEnd) -> Answers:
        """A rank is over: who need not wait any longer."""
        self.ends[rank] = end
        if _went_wrong(end) and self._deadline is None:
            self._deadline = time.monotonic() + GRACE
        if rank != 0:
            return {}
        waiting, self._waiting = self._waiting, {}
        return dict.fromkeys((each for ranks in waiting.values() for each in ranks), Action.STOP)

    @property
    def is_over(self) -> bool:
        """All ranks have ended, or one went wrong: the others would wait for it for ever."""
        return len(self.ends) == self.ranks or (
            self._deadline is not None and time.monotonic() >= self._deadline
        )

    @property
    def end(self) -> TrialEnd:
        """How the trial ended: as the rank that went wrong first, or as rank 0. Its memory is that of the rank that took most."""
        wrong = [end for end in self.ends.values() if _went_wrong(end)]
        chosen = min(wrong, key=lambda end: end.failed_at) if wrong else self.ends[0]
        sizes = [end.actual_bytes for end in self.ends.values() if end.actual_bytes is not None]
        return replace(
            chosen,
            actual_bytes=max(sizes, default=None),
            ooms=max(end.ooms for end in self.ends.values()),
        )


def _went_wrong(end: TrialEnd) -> bool:
    return end.state in (TrialState.FAILED, TrialState.OUT_OF_MEMORY)
