"""Every door of torch's that the CUDA history goes through; most are private, so each has a probe.

What is lost without one:

    _lazy_call                  CUDA is initialised at once, before the script does it itself
    _record_memory_history      everything but the figures of each step
    skip_actions                a third of the history's length
    clear_history               nothing: recording is stopped and started again
    _set_memory_metadata        exactness at the borders of phases, and of modules (see `cuda_marks`)
    OutOfMemoryError.__init__   torch's own words, and failures that a library swallows are then reported too
    the OOM observer            what the driver had free when an allocation failed

Nothing here synchronises the device, and nothing here allocates on it.
"""

import contextlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

Observer = Callable[[int, int, int, int], None]
"""Device, bytes wanted from it, bytes that this process may have of it, bytes it has free."""


class AllocatorStats(NamedTuple):
    """The allocator's own statistics of one device."""

    allocated: int = 0
    reserved: int = 0
    peak_allocated: int = 0
    peak_reserved: int = 0
    active: int = 0
    """Allocated, or given back but still in use by another stream."""
    inactive_split: int = 0
    """Free, but inside segments in use."""
    entries: int = 0
    """How many entries the history has been given so far, overwritten ones included."""


class CudaApi:
    """The real allocator. Tests put one of their own in its place."""

    def __init__(self) -> None:
        self._entries_per_free = 2
        self._options: dict[str, Any] = {}

    # --- when

    def when_ready(self, callback: Callable[[], None]) -> None:
        """Calls back once CUDA is initialised: now, or when the script does it."""
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            callback()
            return
        later = getattr(torch.cuda, "_lazy_call", None)
        if later is not None:
            later(callback)
        else:
            torch.cuda.init()  # type: ignore[no-untyped-call]
            callback()

    def device_count(self) -> int:
        return torch.cuda.device_count()

    # --- the history

    def start(self, entries: int) -> str | None:
        """Record the last `entries` of each device, with Python stacks. The reason, where that is impossible."""
        record = getattr(torch.cuda.memory, "_record_memory_history", None)
        if record is None:
            return "this torch keeps no history of the CUDA allocator"
        parameters = inspect.signature(record).parameters
        self._options = {"context": "alloc", "stacks": "python", "max_entries": entries}
        if "skip_actions" in parameters:
            self._options["skip_actions"] = ["free_completed"]
            self._entries_per_free = 1
        try:
            record("all", **self._options)
        except (RuntimeError, TypeError) as error:
            return f"torch keeps no history here: {str(error).splitlines()[0]}"
        return None

    def grow(self, entries: int) -> None:
        """Let the history become longer. Only while nothing has been overwritten: torch would mix up the order."""
        self._options["max_entries"] = entries
        torch.cuda.memory._record_memory_history("all", **self._options)

    def snapshot(self, entries: int) -> dict[str, Any]:
        """All blocks, and the history since the last call of this; from now on, record the last `entries`."""
        with _without_compiler_import():
            taken: dict[str, Any] = torch.cuda.memory._snapshot()
        self._options["max_entries"] = entries
        record = torch.cuda.memory._record_memory_history
        if "clear_history" in inspect.signature(record).parameters:
            record("all", clear_history=True, **self._options)
        else:
            record(None)
            record("all", **self._options)
        return taken

    def stop(self) -> None:
        torch.cuda.memory._record_memory_history(None)

    def stamp_setter(self) -> Callable[[str], None] | None:
        """What sets the text that this thread's entries are stamped with."""
        if not hasattr(torch.cuda.memory, "_set_memory_metadata"):
            return None
        stamp: Callable[[str], None] | None = getattr(torch._C, "_cuda_setMemoryMetadata", None)
        return stamp

    # --- figures

    def statistics(self, device: int) -> dict[str, Any]:
        """The allocator's statistics of one device, as torch nests them."""
        nested: dict[str, Any] = torch._C._cuda_memoryStats(device)
        return nested

    def figures(self, device: int) -> AllocatorStats:
        return self.parse_stats(self.statistics(device))

    def parse_stats(self, statistics: dict[str, Any]) -> AllocatorStats:
        allocated, reserved = statistics["allocated_bytes"]["all"], statistics["reserved_bytes"]["all"]
        blocks, segments = statistics["allocation"]["all"], statistics["segment"]["all"]
        entries = blocks["allocated"] + self._entries_per_free * blocks["freed"]
        entries += segments["allocated"] + segments["freed"]
        return AllocatorStats(
            allocated["current"],
            reserved["current"],
            allocated["peak"],
            reserved["peak"],
            statistics["active_bytes"]["all"]["current"],
            statistics["inactive_split_bytes"]["all"]["current"],
            entries,
        )

    def capacity(self, device: int) -> int:
        return int(torch.cuda.get_device_properties(device).total_memory)

    def workspace_sizes(self, device: int) -> frozenset[int]:
        return workspace_sizes(torch.cuda.get_device_capability(device), os.environ)

    # --- failures

    def on_failed_allocation(self, observer: Observer) -> None:
        """`observer` is called at each failed allocation, before anything is raised. It can never be taken away."""
        attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
        if attach is not None:
            attach(observer)

    def on_oom_error(self, watcher: Callable[[str], None]) -> Callable[[], None] | None:
        """`watcher(text)` is called for each `torch.OutOfMemoryError` that comes into being in Python, and so for
        each failure that a script can see. Gives what ends that, or None where it is impossible."""
        error = torch.OutOfMemoryError
        original = error.__init__

        def made(self: Any, *args: Any) -> None:
            original(self, *args)
            watcher(str(args[0]) if args else "")

        try:
            error.__init__ = made  # type: ignore[method-assign]
        except TypeError:
            return None

        def restore() -> None:
            if error.__init__ is made:
                del error.__init__

        return restore


@contextlib.contextmanager
def _without_compiler_import() -> Iterator[None]:
    """To name frames, torch asks whether its compiler is there in a way that imports it, which takes seconds.

    A program that has not imported it has no code that it wrote, so there is nothing to ask.
    """
    if "torch._inductor" in sys.modules:
        yield
        return
    vars(torch)["_inductor"] = SimpleNamespace()
    try:
        yield
    finally:
        vars(torch).pop("_inductor", None)


def workspace_sizes(capability: tuple[int, int], environ: Any) -> frozenset[int]:
    """The sizes of what cuBLAS and cuBLASLt keep for themselves, taken from the caching allocator.

    As torch chooses them: for cuBLAS 32 MiB on Hopper and Blackwell, 8320 KiB before, or what
    CUBLAS_WORKSPACE_CONFIG says (`:KiB:count:KiB:count`); for cuBLASLt 1 MiB or CUBLASLT_WORKSPACE_SIZE KiB.
    """
    words = environ.get("CUBLAS_WORKSPACE_CONFIG", "").strip(":").split(":")
    if len(words) % 2 == 0 and all(word.isdecimal() for word in words):
        numbers = [int(word) for word in words]
        cublas = sum(size * count for size, count in zip(numbers[::2], numbers[1::2], strict=True))
    else:
        cublas = 32 * 1024 if capability[0] >= 9 else 8320
    words_of_lt = environ.get("CUBLASLT_WORKSPACE_SIZE", "")
    cublas_lt = int(words_of_lt) if words_of_lt.isdecimal() else 1024
    return frozenset(size * 1024 for size in (cublas, cublas_lt) if size)
