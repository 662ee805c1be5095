"""Divides the CPU cores among the running trials by setting the number of threads of each trial.

The dispatcher writes the number of threads per trial to a file whenever the number changes. A trial's process reads
the file when it starts, after optimizer steps, and after each report. A trial that runs alone therefore uses all
cores.

Without a limit on the number of threads, the threads of the trials would compete. In PyTorch's CPU operations, the
threads of a trial wait for each other. On two cores, two trials with two threads each take nine times as long as one
trial alone. For the same reason, one core is left free while a configuration is traced.

If the user sets the number of threads (`OMP_NUM_THREADS`, or `torch.set_num_threads` in the function), the number is
not changed.
"""

import contextlib
import ctypes
import functools
import os
import time
from pathlib import Path
from typing import Any

from legroom.gpus.machine import processors

CHECK_SECONDS = 0.1
"""The minimum time in seconds between two reads of the file during training steps."""
OPENMP = ("libgomp", "libomp", "libiomp")


class CpuShare:
    def __init__(self, file: Path, ranks: int) -> None:
        self.file, self._ranks, self._written = file, ranks, 0

    def divide(self, trials: int, *, is_tracing: bool) -> None:
        share = max(1, (processors() - int(is_tracing)) // (max(1, trials) * self._ranks))
        if share == self._written:
            return
        with contextlib.suppress(OSError):  # a full disk is reported by the storage
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self.file.write_text(str(share))
            self._written = share


class TrialThreads:
    def __init__(self, file: str) -> None:
        self._file, self._count, self._last_check = Path(file), 0, 0.0

    def update_after_steps(self) -> None:
        """Register a hook that updates the number of threads after optimizer steps, because the next report may be
        minutes away."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_optimizer_step_post_hook(lambda *_: self._update_if_due())

    def update(self) -> None:
        import torch

        if os.environ.get("OMP_NUM_THREADS"):
            return
        if self._count not in (0, torch.get_num_threads()):
            _allow_openmp_threads(True)  # the number set by the function applies to all libraries
            return
        try:
            share = int(self._file.read_text())
        except (OSError, ValueError):  # it is being written: the next read follows soon
            return
        if share != self._count:
            torch.set_num_threads(share)
            _allow_openmp_threads(share > 1)
            self._count = share

    def _update_if_due(self) -> None:
        now = time.monotonic()
        if now - self._last_check >= CHECK_SECONDS:
            self._last_check = now
            self.update()


def _allow_openmp_threads(allowed: bool) -> None:
    """Set whether OpenMP may use several threads. On ARM, linear layers and convolutions use all cores regardless of
    `torch.set_num_threads`. With several OpenMP threads, two parallel trials would therefore take 1.3 times as long.
    If no OpenMP library is found, nothing changes.
    """
    for library, most in _openmp():
        library.omp_set_max_active_levels(most if allowed else 0)


@functools.cache
def _openmp() -> list[tuple[Any, int]]:
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
