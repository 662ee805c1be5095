"""All torch functions that the CUDA history uses.

Most of these functions are private, so each function is checked before use. The table shows what happens if a function
is missing.

| missing function | effect |
|---|---|
| `_lazy_call` | CUDA is initialized at once, before the script initializes it |
| `_record_memory_history` | only the totals of each step are recorded |
| `skip_actions` | the history is a third shorter |
| `clear_history` | none: recording is stopped and started again |
| `_set_memory_metadata` | the boundaries of phases and modules are not exact (see `markers`) |
| `OutOfMemoryError.__init__` | the error message is missing, and failures that a library hides are reported too |
| the OOM observer | the free device memory at a failed allocation is unknown |

No function in this module synchronizes the device or allocates device memory.
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
"""A function that receives the device, the requested bytes, the memory limit of this process, and the free bytes."""


class AllocatorStats(NamedTuple):
    allocated: int = 0
    reserved: int = 0
    peak_allocated: int = 0
    peak_reserved: int = 0
    active: int = 0
    """Bytes of blocks that are allocated, or that are freed but still in use by another stream."""
    inactive_split: int = 0
    """Free bytes in segments that also contain blocks in use."""
    entries: int = 0


class CudaApi:
    """All calls to torch are in this class, so that tests can replace it with a simulation."""

    def __init__(self) -> None:
        self._entries_per_free = 2
        self._options: dict[str, Any] = {}

    # --- initialization

    def when_ready(self, callback: Callable[[], None]) -> None:
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
        """Record the last `entries` entries of each device with Python stacks. Return the reason if recording is
        impossible, or None if it has started.
        """
        record = getattr(torch.cuda.memory, "_record_memory_history", None)
        if record is None:
            return "this torch version does not record the allocator history"
        parameters = inspect.signature(record).parameters
        self._options = {"context": "alloc", "stacks": "python", "max_entries": entries}
        if "skip_actions" in parameters:
            self._options["skip_actions"] = ["free_completed"]
            self._entries_per_free = 1
        try:
            record("all", **self._options)
        except (RuntimeError, TypeError) as error:
            return f"torch cannot record the allocator history ({str(error).splitlines()[0]})"
        return None

    def grow(self, entries: int) -> None:
        """Increase the length of the history. Call this method only before entries are overwritten: if the length
        changes later, torch returns the entries in the wrong order.
        """
        self._options["max_entries"] = entries
        torch.cuda.memory._record_memory_history("all", **self._options)

    def snapshot(self, entries: int) -> dict[str, Any]:
        """Return all blocks, and the history since the last call. The new history keeps the last `entries` entries."""
        with _without_compiler_import():
            snapshot: dict[str, Any] = torch.cuda.memory._snapshot()
        self._options["max_entries"] = entries
        record = torch.cuda.memory._record_memory_history
        if "clear_history" in inspect.signature(record).parameters:
            record("all", clear_history=True, **self._options)
        else:
            record(None)
            record("all", **self._options)
        return snapshot

    def stop(self) -> None:
        torch.cuda.memory._record_memory_history(None)

    def stamp_setter(self) -> Callable[[str], None] | None:
        """Return the function that sets the user-defined string of history entries from this thread."""
        if not hasattr(torch.cuda.memory, "_set_memory_metadata"):
            return None
        stamp: Callable[[str], None] | None = getattr(torch._C, "_cuda_setMemoryMetadata", None)
        return stamp

    # --- statistics

    def statistics(self, device: int) -> dict[str, Any]:
        nested: dict[str, Any] = torch._C._cuda_memoryStats(device)
        return nested

    def stats(self, device: int) -> AllocatorStats:
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

    def on_failed_allocation(self, observer: Observer) -> Callable[[], None]:
        """Call `observer` at each failed allocation, before an exception is raised. Return a function that stops these
        calls. Torch cannot remove an observer, so only one function is attached to torch, and it calls all observers.
        """
        global _is_attached
        attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
        if attach is not None and not _is_attached:
            attach(_call_observers)
            _is_attached = True
        _observers.append(observer)
        return lambda: _observers.remove(observer) if observer in _observers else None

    def on_oom_error(self, watcher: Callable[[str], None]) -> Callable[[], None] | None:
        """Call `watcher(text)` for each `torch.OutOfMemoryError` that is created in Python, because such an error
        reaches the script. Return a function that stops these calls, or None if watching is impossible.
        """
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


_observers: list[Observer] = []
_is_attached = False


def _call_observers(device: int, requested: int, limit: int, free: int) -> None:
    for observer in list(_observers):
        observer(device, requested, limit, free)


@contextlib.contextmanager
def _without_compiler_import() -> Iterator[None]:
    """Prevent `_snapshot` from importing torch's compiler, which takes seconds.

    `_snapshot` uses the compiler to name the frames of compiled code. If the compiler was never imported, such frames
    do not exist.
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
    """Return the sizes of the cuBLAS and cuBLASLt workspaces. Torch allocates these workspaces in the caching
    allocator.

    A cuBLAS workspace is 32 MiB on Hopper and Blackwell, and 8320 KiB on older GPUs. CUBLAS_WORKSPACE_CONFIG
    (`:KiB:count:KiB:count`) overrides this size. A cuBLASLt workspace is 1 MiB, or CUBLASLT_WORKSPACE_SIZE KiB.
    """
    values = environ.get("CUBLAS_WORKSPACE_CONFIG", "").strip(":").split(":")
    if len(values) % 2 == 0 and all(value.isdecimal() for value in values):
        numbers = [int(value) for value in values]
        cublas = sum(size * count for size, count in zip(numbers[::2], numbers[1::2], strict=True))
    else:
        cublas = 32 * 1024 if capability[0] >= 9 else 8320
    lt_size = environ.get("CUBLASLT_WORKSPACE_SIZE", "")
    cublas_lt = int(lt_size) if lt_size.isdecimal() else 1024
    return frozenset(size * 1024 for size in (cublas, cublas_lt) if size)
