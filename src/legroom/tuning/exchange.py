"""What all share who speak to the stage of a study on Ray: the two adapters that Ray Tune asks, and those who look after trials that did not wait for Ray."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from legroom.errors import LegroomError
from legroom.tuning.conductor import Conductor
from legroom.tuning.early_trials import EarlyTrials
from legroom.tuning.staging import Stage


@dataclass(slots=True)
class Exchange:
    """One study's."""

    stage: Stage
    conductor: Conductor
    server: str | None = None
    """Where trials are forked that run beside Ray's workers."""
    numbers: dict[str, int] = field(default_factory=dict)
    """Ray's name of a trial → our number."""
    refusal: Exception | None = None
    """Why the study ends here: Ray would wrap it into an error of its own, with a traceback in its text."""
    early: EarlyTrials | None = None
    """Trials that were started before Ray was there."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held by whoever speaks to the stage: Ray, or those who look after the early ones."""

    @property
    def running_on_ray(self) -> int:
        return self.stage.running - (0 if self.early is None else self.early.running)

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        with self.lock:
            try:
                if self.refusal is not None:
                    raise self.refusal
                yield
            except LegroomError as error:
                self.refusal = error
                raise
