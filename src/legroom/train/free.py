"""Frees GPU memory. Lists the freed objects and the variables that still retain memory.

    legroom.free()                        # after an error in a notebook, or between two models in a script
    legroom.free("model", "optimizer")    # deletes these variables first
    legroom.free(outputs=True)            # also clears the notebook's Out and _

`torch.cuda.empty_cache()` alone frees no tensor that is still referenced. After an error, the last traceback references
every frame of the failed call, and each frame references its tensors. `free` deletes variables first, then tracebacks,
reference cycles, the caches of autocast and libraries, and finally the cache of the allocator.
"""

import contextlib
import gc
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any

import torch

from legroom.errors import UsageError
from legroom.memory.events import Holder
from legroom.observe.holders.holders import UNNAMED_ITERATOR, find_holders
from legroom.observe.source.cells import is_shell_variable, shell
from legroom.units import format_size


@dataclass(frozen=True, kw_only=True, repr=False)
class FreeResult:
    """The result of `free`. Sizes are in bytes and are summed over all devices."""

    allocated_before: int
    allocated_after: int
    """The number of bytes that tensors use after the call."""
    reserved_before: int
    reserved_after: int
    """The number of bytes that PyTorch's allocator has reserved after the call, including the memory of tensors."""
    cleared: tuple[str, ...]
    """The variables, tracebacks and outputs that were deleted."""
    holders: tuple[Holder, ...]
    """The variables that retain the remaining memory, largest first. Several variables may retain the same tensors."""
    hint: str = ""
    """The reason why no more memory was freed, if known, or the amount of memory that no variable retains."""

    @property
    def freed_bytes(self) -> int:
        """The total size of the freed tensors in bytes."""
        return self.allocated_before - self.allocated_after

    @property
    def returned_bytes(self) -> int:
        """The number of bytes that were returned to the device for other processes and libraries."""
        return self.reserved_before - self.reserved_after

    def __repr__(self) -> str:
        lines = [
            f"Freed {format_size(self.freed_bytes)} of tensors and released {format_size(self.returned_bytes)} to the device. "
            f"Remaining: {format_size(self.allocated_after)} of tensors, {format_size(self.reserved_after)} reserved."
        ]
        if self.cleared:
            lines.append(f"Deleted: {', '.join(self.cleared)}.")
        if self.holders:
            lines.append("Retained by:")
            lines += [
                f"{format_size(holder.bytes):>11}  {holder.path}{_function(holder)}"
                for holder in self.holders
            ]
        elif self.allocated_after:
            lines.append(
                "Legroom found no variable that retains the remaining memory. A thread, a library or a C++ object may "
                "retain it."
            )
        if self.hint:
            lines.append(self.hint)
        return "\n".join(lines)


def free(*names: str, cache: bool = True, outputs: bool = False) -> FreeResult:
    """Free GPU memory that is no longer needed.

    `names` contains the names of variables to delete first, in the calling module or notebook. `cache=False` keeps the
    allocator's cache. `outputs=True` also clears the results of earlier notebook cells (`Out`, `_`, `__`, `_3`).
    """
    caller: FrameType | None = sys._getframe(1)
    try:
        allocated, reserved = device_memory()
        cleared = [*_delete(names, caller), *_delete_tracebacks()]
        if outputs:
            cleared += _delete_outputs()
        release(cache=cache)
        allocated_after, reserved_after = device_memory()
        holders, attributed = holders_at(caller) if allocated_after else ((), 0)
        return FreeResult(
            allocated_before=allocated,
            allocated_after=allocated_after,
            reserved_before=reserved,
            reserved_after=reserved_after,
            cleared=tuple(cleared),
            holders=holders,
            hint=_hint(sys.exception(), holders, allocated_after, attributed),
        )
    finally:
        del caller  # a frame that references itself is a reference cycle


def release(*, cache: bool = True) -> None:
    for _ in range(3):  # finalizers may leave more objects to collect
        if not gc.collect():
            break
    torch.clear_autocast_cache()
    if cache:
        for empty in _caches():
            empty()


def device_memory() -> tuple[int, int]:
    if _cuda_is_in_use():
        devices = range(torch.cuda.device_count())
        return (
            sum(torch.cuda.memory_allocated(index) for index in devices),
            sum(torch.cuda.memory_reserved(index) for index in devices),
        )
    if torch.xpu.is_available():
        devices = range(torch.xpu.device_count())
        return (
            sum(torch.xpu.memory_allocated(index) for index in devices),
            sum(torch.xpu.memory_reserved(index) for index in devices),
        )
    if torch.backends.mps.is_available():
        return torch.mps.current_allocated_memory(), torch.mps.driver_allocated_memory()
    return 0, 0


def _cuda_is_in_use() -> bool:
    return torch.cuda.is_available() and bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


# --- deletion


def _delete(names: tuple[str, ...], caller: FrameType | None) -> list[str]:
    assert caller is not None
    variables = caller.f_globals
    for name in names:
        if not isinstance(name, str):
            raise UsageError(
                f"free() deletes variables by name. Pass the name as a string, not the {type(name).__name__} itself."
            )
        if caller.f_locals is not variables and name in caller.f_code.co_varnames:
            raise UsageError(
                f"'{name}' is a local variable of {caller.f_code.co_name}(). Run `del {name}` before legroom.free()."
            )
        if name not in variables:
            raise UsageError(f"There is no variable '{name}'.")
    for name in names:
        del variables[name]
    return list(names)


_LAST_ERROR = ("last_exc", "last_value", "last_traceback", "last_type")


def _delete_tracebacks() -> list[str]:
    """Delete the last uncaught error and return the deleted names. Python and IPython keep this error for debuggers."""
    error = getattr(sys, "last_value", None)
    found = getattr(sys, "last_traceback", None) or (error.__traceback__ if error is not None else None)
    active = shell()
    interactive = getattr(active, "InteractiveTB", None)
    for trace in (found, getattr(interactive, "tb", None)):
        # A variable may also reference the error, so clear the variables of its frames.
        clear_frames(trace)
    for name in _LAST_ERROR:
        if hasattr(sys, name):
            delattr(sys, name)
    if interactive is not None:
        for name in ("tb", "evalue", "etype", "_value"):
            if hasattr(interactive, name):
                setattr(interactive, name, None)
    return ["the traceback of the last error"] if found is not None else []


def clear_error(error: BaseException) -> None:
    """Clear the frames of an error and of the errors that led to it, and delete the tracebacks. The tracebacks must be
    deleted too, because a cleared frame still references the variables of inner functions.
    """
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        each = pending.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            clear_frames(each.__traceback__)
            each.__traceback__ = None
            pending += [each.__cause__, each.__context__]


def clear_frames(trace: TracebackType | None) -> None:
    traceback.clear_frames(trace)
    while trace is not None:
        _ = (
            trace.tb_frame.f_locals
        )  # Python 3.11 and 3.12 keep a copy of the variables, which this access updates
        trace = trace.tb_next


_OUTPUT = re.compile(r"_{1,3}|_\d+")


def _delete_outputs() -> list[str]:
    """Delete the results of all notebook cells and return their names. IPython's own `flush` method does not remove
    the results from `user_ns_hidden`.
    """
    active = shell()
    if active is None:
        return []
    count = len(active.user_ns.get("Out", ()))
    with contextlib.suppress(ValueError):  # the output cache is disabled
        active.displayhook.flush()
    for names in (active.user_ns, getattr(active, "user_ns_hidden", {})):
        for name in [name for name in names if _OUTPUT.fullmatch(name)]:
            del names[name]
    return [f"{count} notebook output{'s' if count != 1 else ''}"] if count else []


def delete_device_outputs() -> list[str]:
    """Delete the results of earlier notebook cells that contain tensors on a device, and return their names."""
    active = shell()
    if active is None:
        return []
    results: dict[int, Any] = active.user_ns.get("Out", {})
    numbers = [number for number, value in list(results.items()) if _has_device_tensor(value)]
    deleted = [results.pop(number) for number in numbers]
    identities = {id(value) for value in deleted}
    for names in (active.user_ns, getattr(active, "user_ns_hidden", {})):
        for name in [name for name in names if _OUTPUT.fullmatch(name) and id(names[name]) in identities]:
            del names[name]
    hook = active.displayhook
    for name in ("_", "__", "___"):
        if id(getattr(hook, name, None)) in identities:
            setattr(hook, name, "")
    return [f"Out[{number}]" for number in numbers]


def _has_device_tensor(value: Any, depth: int = 3) -> bool:
    if isinstance(value, torch.Tensor):
        return _measure(value) is not None
    if depth and type(value) in (list, tuple, dict):
        items = value.values() if isinstance(value, dict) else value
        return any(_has_device_tensor(item, depth - 1) for item in items)
    return False


def _caches() -> list[Callable[[], Any]]:
    """Return the functions that empty the caches, with the allocator's cache last.

    Two of the functions are private. If torch lacks them, a few MiB of library workspaces stay on the device, and
    page-locked host memory stays reserved.
    """
    found: list[Callable[[], Any]] = []
    if _cuda_is_in_use():
        for name in ("_cuda_clearCublasWorkspaces", "_host_emptyCache"):
            private = getattr(torch._C, name, None)
            if private is not None:
                found.append(private)
        found += [torch.cuda.ipc_collect, torch.cuda.empty_cache]
    if torch.xpu.is_available():
        found.append(torch.xpu.empty_cache)
    if torch.backends.mps.is_available():
        found.append(torch.mps.empty_cache)
    return found


# --- remaining memory


MIN_UNATTRIBUTED = 0.05
"""The minimum fraction of the remaining memory that is reported as memory without a known holder. The rounding of
allocations is smaller.
"""


def _hint(handled: BaseException | None, holders: tuple[Holder, ...], remaining: int, attributed: int) -> str:
    unattributed = remaining - attributed
    if handled is not None:
        kind = type(handled).__name__
        return (
            f"The error being handled ({kind}) keeps its frames alive. Call free() after the `except` block."
        )
    if any(holder.path.startswith("Out ") for holder in holders):
        return "Results of earlier cells retain some of this memory. To delete these results, call legroom.free(outputs=True)."
    if any(holder.path.startswith(UNNAMED_ITERATOR) for holder in holders):
        return (
            "An iterator without a name usually belongs to a running `for` loop. Call free() after the loop."
        )
    if holders and unattributed > MIN_UNATTRIBUTED * remaining:
        return (
            f"Legroom found no variable that retains the other {format_size(unattributed)}. A library or a C++ object may "
            "retain it."
        )
    return ""


MAX_HOLDERS = 8
_SHELL_VARIABLES = 4


def holders_at(caller: FrameType | None) -> tuple[tuple[Holder, ...], int]:
    """Return the largest holders, and the number of bytes that all holders retain together."""
    found, total = find_holders(caller, _measure, MAX_HOLDERS + _SHELL_VARIABLES)
    return tuple(holder for holder in found if not is_shell_variable(holder.path))[:MAX_HOLDERS], total


def _measure(tensor: torch.Tensor) -> tuple[int, int] | None:
    try:
        if tensor.device.type in ("cpu", "meta"):
            return None
        storage = tensor.untyped_storage()
        return storage.data_ptr(), storage.nbytes()
    except (RuntimeError, NotImplementedError):  # a tensor subclass without storage
        return None


def _function(holder: Holder) -> str:
    function = "<" if holder.frame is None else holder.frame.function
    return "" if function.startswith("<") else f" in {function}()"
