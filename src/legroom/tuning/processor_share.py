"""The processors, shared among the trials that are at work on this machine: each has as many threads as its share has processors.

The stage writes down how many that is whenever a trial comes, reports or goes; a trial's process reads it when it starts and after each report. So one that is alone has
the whole machine, and two do not stand in each other's way. While a configuration is traced one processor is left for that: a trial's threads wait for each other, so one that is held up
holds up all. Whoever chose a number (`OMP_NUM_THREADS`, or `torch.set_num_threads` in the function) keeps it.
"""

import contextlib
import os
from pathlib import Path

from legroom.observe.devices import processors


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
        self._file, self._taken = Path(file), 0

    def take(self) -> None:
        """As many as there are for it now."""
        import torch

        if os.environ.get("OMP_NUM_THREADS") or self._taken not in (0, torch.get_num_threads()):
            return
        try:
            share = int(self._file.read_text())
        except (OSError, ValueError):  # it is being written: the next report is not far
            return
        if share != self._taken:
            torch.set_num_threads(share)
            self._taken = share
