"""Memory that other programs hold on the GPUs of a study: read when it begins and again before each trial.

Trials can be given what is left. Which part of what is used belongs to our own trials the driver tells by process; where it does not (a
container that cannot see its own processes' numbers), others hold at least what is used beyond all that trials were given, and
what they held when last none of ours ran.
"""

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence

from legroom.gpus.machine import NotAvailable, VisibleGpu
from legroom.gpus.usage import gpus_in_use
from legroom.tuning.memory.admission import Place
from legroom.units import format_size

NOTEWORTHY = 50
"""Less than this part of a GPU (a fiftieth) that comes or goes is not told: drivers and displays do that."""

RESTS, NO_TIME = 10, 0.05
"""After a look of more than `NO_TIME` seconds, none for so many times as long: where CUDA must be asked in a process of its own, trials would
wait for it at every report."""
FRESH = 2.0
"""Seconds after which a look is too old to start a trial by."""


class Neighbours:
    """What others hold of each place. Virtual GPUs have none; of a cluster's it is known what they held at the beginning."""

    def __init__(
        self,
        places: Sequence[Place],
        look: Callable[[], Sequence[VisibleGpu]] = gpus_in_use,
        our_processes: Callable[[], set[int]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._places = [place for place in places if place.memory and not place.virtual]
        self._here = [place for place in self._places if not place.machine]
        self._look, self._our_processes = look, our_processes or _descendants
        self._before = self._our_processes() if self._here else set()
        """What this program had started before the study is no trial of it."""
        self._held = {place.index: place.held for place in self._places}
        self._undisturbed = dict(self._held)
        """What they held when last none of our trials ran there."""
        self._told = dict.fromkeys(self._held, 0)
        self._clock = clock
        self._looked = self._not_before = -math.inf

    def held(self, place: Place) -> int:
        """Bytes of a place that others have, as last seen."""
        return self._held.get(place.index, 0)

    def look(self, given: Mapping[int, int], *, before_start: bool = False) -> None:
        """Read it anew, unless that was just done. `given`: bytes that running trials were given, by place's index.

        `before_start`: a trial is about to start by what is seen.
        """
        began = self._clock()
        not_before = min(self._not_before, self._looked + FRESH) if before_start else self._not_before
        if not self._here or began < not_before:
            return
        seen = {gpu.index: gpu for gpu in self._look()}
        self._looked = self._clock()
        seconds = self._looked - began
        self._not_before = began + (1 + RESTS) * seconds if seconds > NO_TIME else -math.inf
        for place in self._here:
            gpu = seen.get(place.index)
            if gpu is not None and not isinstance(gpu.used, NotAvailable):
                self._held[place.index] = min(place.memory, self._of_others(gpu, given.get(gpu.index, 0)))

    def news(self) -> list[str]:
        """A sentence for each place of which others have taken or given back a good part since this was last asked."""
        sentences = []
        for place in self._places:
            held = self.held(place)
            if abs(held - self._told[place.index]) * NOTEWORTHY > place.memory:
                self._told[place.index] = held
                left = format_size(place.memory - held)
                who = f"other programs hold {format_size(held)} of {place.name}"
                if held * NOTEWORTHY <= place.memory:
                    who = f"other programs have left {place.name}"
                sentences.append(f"{who}: trials share the remaining {left}")
        return sentences

    def _of_others(self, gpu: VisibleGpu, given: int) -> int:
        assert not isinstance(gpu.used, NotAvailable)
        ours = self._known_as_ours(gpu)
        if ours is not None:
            return max(0, gpu.used - ours)
        if not given:
            self._undisturbed[gpu.index] = gpu.used
            return gpu.used
        return max(gpu.used - given, min(self._undisturbed[gpu.index], gpu.used))

    def _known_as_ours(self, gpu: VisibleGpu) -> int | None:
        """Bytes of our trials, if the driver names their processes."""
        if isinstance(gpu.processes, NotAvailable):
            return None
        pids = self._our_processes() - self._before
        sizes = [process.bytes for process in gpu.processes if process.pid in pids]
        known = [size for size in sizes if not isinstance(size, NotAvailable)]
        return sum(known) if known and len(known) == len(sizes) else None


def _descendants() -> set[int]:
    """Processes that this one started, and those that they started: trials, whichever engine on this machine runs them."""
    import psutil

    try:
        return {process.pid for process in psutil.Process(os.getpid()).children(recursive=True)}
    except psutil.Error:
        return set()
