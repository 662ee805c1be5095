from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from legroom.tuning.space.space import Config


class Action(StrEnum):
    CONTINUE = "continue"
    STOP = "stop"
    PAUSE = "pause"
    """End the process of the trial. The trial continues from its checkpoint when a GPU is free."""
    EXPLOIT = "exploit"
    """End the process of the trial. The trial continues from the checkpoint of another trial with a changed
    configuration (the "exploit" step of population-based training).
    """


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision of a scheduler about a trial: an action and its reason."""

    action: Action = Action.CONTINUE
    reason: str = ""
    parent: int | None = None
    config: Config | None = None
    is_done: bool = False


CONTINUE = Decision()


class Scheduler(Protocol):
    """Decides after each report whether a trial continues.

    Like a searcher, a scheduler stores nothing on disk. The same reports in the same order lead to the same decisions.
    Therefore, a resumed study restores the scheduler by repeating the reports.
    """

    def reported(self, number: int, config: Config, step: int, value: float) -> Decision:
        """Decide whether a trial continues. `value` is the metric as the trial reported it, not negated for
        `mode="max"`."""

    def ended(self, number: int) -> None: ...
