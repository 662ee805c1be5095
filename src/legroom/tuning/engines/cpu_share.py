"""The processors, shared among the trials that are at work on this machine: each has as many threads as its share has processors.

The stage writes down how many that is whenever it changes; a trial's process reads it when it starts, after a step of its optimizer and after each report. So one that is alone has
the whole machine, and two do not stand in each other's way: a trial's threads wait for each other, so one that is held up holds up all, and two trials of two threads on two processors
take nine times as long as one. For the same reason one processor is left while a configuration is traced. Whoever chose a number (`OMP_NUM_THREADS`, or `torch.set_num_threads` in the function) keeps it.
"""

import contextlib
import ctypes
import functools
import os
import time
from pathlib import Path
from typing import Any

from legroom.gpus.machine import processors

SECONDS_BETWEEN_LOOKS = 0.1
"""At what the stage has written, while a trial makes steps."""
OPENMP = ("libgomp", "libomp", "libiomp")
"""How files of its libraries begin."""


class ProcessorShare:
    """The stage's side."""

    def __init__(self, file: Path, ranks: int) -> None:
        self.file, self._ranks, self._written = file, ranks, 0

    def divide(self, trials: int, *, traces: bool) -> None:
        """So many trials are at work from now on. `traces`: while a configuration is traced."""
        share = max(1, (processors() - int(traces)) // (max(1, trials) * self._ranks))
        if share == self._written:
            return
        with contextlib.suppress(OSError):  # a full disk is told by what must be written
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self.file.write_text(str(share))
            self._written = share


class Threads:
    """A trial's side."""

    def __init__(self, file: str) -> None:
        self._file, self._taken, self._looked = Path(file), 0, 0.0

    def follow(self) -> None:
        """Take what there is from now on, whenever an optimizer has made a step: a report may be minutes away."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_optimizer_step_post_hook(lambda *_: self._take_if_due())

    def take(self) -> None:
        """As many as there are for it now."""
        import torch

        if os.environ.get("OMP_NUM_THREADS"):
            return
        if self._taken not in (0, torch.get_num_threads()):
            _allow_teams(True)  # the function's own choice counts everywhere
            return
        try:
            share = int(self._file.read_text())
        except (OSError, ValueError):  # it is being written: the next look is not far
            return
        if share != self._taken:
            torch.set_num_threads(share)
            _allow_teams(share > 1)
            self._taken = share

    def _take_if_due(self) -> None:
        now = time.monotonic()
        if now - self._looked >= SECONDS_BETWEEN_LOOKS:
            self._looked = now
            self.take()


def _allow_teams(allowed: bool) -> None:
    """Whether work is done by several threads of OpenMP at all. On ARM linear layers and convolutions have one for each processor, whatever torch is told: two trials beside each other
    take 1.3 times as long as they need. Where OpenMP is not found (other systems), this is not changed."""
    for library, most in _openmp():
        library.omp_set_max_active_levels(most if allowed else 0)


@functools.cache
def _openmp() -> list[tuple[Any, int]]:
    """Each library of OpenMP that is loaded, and how deep its teams of threads may nest."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    files = {line.split()[-1] for line in lines if Path(line.split()[-1]).name.startswith(OPENMP)}
    found = []
    for file in sorted(files):
        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.CDLL(file)
            found.append((library, max(1, library.omp_get_max_active_levels())))
    return found
