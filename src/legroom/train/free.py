"""Gives GPU memory back, in the order that works, and says what was freed and what still holds the rest.

    legroom.free()                        # after an error in a notebook, or between two models in a script
    legroom.free("model", "optimizer")    # deletes these variables first
    legroom.free(outputs=True)            # and what the notebook's Out and _ hold

`torch.cuda.empty_cache()` alone frees nothing that is still referred to, and after an error much is: the last traceback
holds every frame of the failed call, and each frame its tensors. So: names first, then tracebacks, then what only
reference cycles hold, then the caches of autocast and the libraries, and only then the allocator's own.
"""

import contextlib
import gc
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from legroom.errors import UsageError
from legroom.memory.events import Holder
from legroom.observe.holders.holders import find_holders
from legroom.units import format_size


@dataclass(frozen=True, kw_only=True, repr=False)
class Freed:
    """What `free` did. Sizes in bytes, over all devices."""

    allocated_before: int
    allocated_after: int
    """By tensors."""
    reserved_before: int
    reserved_after: int
    """By PyTorch's allocator, tensors included: what the device is short of."""
    cleared: tuple[str, ...]
    """What was dropped to get there."""
    holders: tuple[Holder, ...]
    """The variables that reach most of what is left, largest first; two may reach the same."""
    hint: str = ""
    """Why not more, where that is known."""

    @property
    def freed_bytes(self) -> int:
        """Of tensors that are gone."""
        return self.allocated_before - self.allocated_after

    @property
    def returned_bytes(self) -> int:
        """Given back to the device, for other processes and libraries to use."""
        return self.reserved_before - self.reserved_after

    def __repr__(self) -> str:
        lines = [
            f"Freed {format_size(self.freed_bytes)} of tensors, gave {format_size(self.returned_bytes)} back to the device; "
            f"{format_size(self.allocated_after)} of tensors are left, {format_size(self.reserved_after)} reserved."
        ]
        if self.cleared:
            lines.append(f"Cleared: {', '.join(self.cleared)}.")
        if self.holders:
            lines.append("Still holding memory:")
            lines += [
                f"{format_size(holder.bytes):>11}  {holder.path}{_place(holder)}" for holder in self.holders
            ]
        elif self.allocated_after:
            lines.append(
                "No variable of yours reaches what is left: a thread, a library or a C++ object holds it."
            )
        if self.hint:
            lines.append(self.hint)
        return "\n".join(lines)


def free(*names: str, cache: bool = True, outputs: bool = False) -> Freed:
    """Give back GPU memory that nothing needs. `names`: variables of the calling module or notebook to delete first.
    `cache=False` keeps the allocator's cache, which PyTorch would use again. `outputs=True` also clears what a notebook
    keeps of earlier cells' results (`Out`, `_`, `__`, `_3`)."""
    caller: FrameType | None = sys._getframe(1)
    try:
        allocated, reserved = device_figures()
        cleared = [*_delete(names, caller), *_forget_tracebacks()]
        if outputs:
            cleared += _forget_outputs()
        release(cache=cache)
        allocated_after, reserved_after = device_figures()
        holders = _holders(caller) if allocated_after else ()
        return Freed(
            allocated_before=allocated,
            allocated_after=allocated_after,
            reserved_before=reserved,
            reserved_after=reserved_after,
            cleared=tuple(cleared),
            holders=holders,
            hint=_hint(sys.exception(), holders),
        )
    finally:
        del caller  # a frame that refers to itself would be the next leak


def release(*, cache: bool = True) -> None:
    """Collect what only reference cycles hold, then empty the caches. No search, no change to the user's variables."""
    for _ in range(3):  # a collected object's own end may leave others to collect
        if not gc.collect():
            break
    torch.clear_autocast_cache()
    if cache:
        for empty in _caches():
            empty()


def device_figures() -> tuple[int, int]:
    """Allocated and reserved bytes, over all devices in use; zeros where there are none."""
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


# --- what is dropped


def _delete(names: tuple[str, ...], caller: FrameType | None) -> list[str]:
    assert caller is not None
    variables = caller.f_globals
    for name in names:
        if not isinstance(name, str):
            raise UsageError(
                f"free() deletes variables by name, so it needs the name in quotes, not the {type(name).__name__} itself"
            )
        if caller.f_locals is not variables and name in caller.f_code.co_varnames:
            raise UsageError(
                f"'{name}' is a local variable of {caller.f_code.co_name}(): write `del {name}` before legroom.free()"
            )
        if name not in variables:
            raise UsageError(f"there is no variable '{name}' to delete")
    for name in names:
        del variables[name]
    return list(names)


_LAST_ERROR = ("last_exc", "last_value", "last_traceback", "last_type")


def _forget_tracebacks() -> list[str]:
    """Python and IPython keep the last uncaught error for debuggers."""
    error = getattr(sys, "last_value", None)
    found = getattr(sys, "last_traceback", None) or (error.__traceback__ if error is not None else None)
    shell = _shell()
    keeper = getattr(shell, "InteractiveTB", None)
    for held in (found, getattr(keeper, "tb", None)):
        if held is not None:
            # The error may be in a variable too: what its frames hold goes all the same.
            traceback.clear_frames(held)
    for name in _LAST_ERROR:
        if hasattr(sys, name):
            delattr(sys, name)
    if keeper is not None:
        for name in ("tb", "evalue", "etype", "_value"):
            if hasattr(keeper, name):
                setattr(keeper, name, None)
    return ["the last error's traceback"] if found is not None else []


_OUTPUT = re.compile(r"_{1,3}|_\d+")


def _forget_outputs() -> list[str]:
    """A notebook keeps every cell's result under a number, and the last three as well. Its own way to clear them
    forgets a second table of names."""
    shell = _shell()
    if shell is None:
        return []
    kept = len(shell.user_ns.get("Out", ()))
    with contextlib.suppress(ValueError):  # it was told to keep none
        shell.displayhook.flush()
    for names in (shell.user_ns, getattr(shell, "user_ns_hidden", {})):
        for name in [name for name in names if _OUTPUT.fullmatch(name)]:
            del names[name]
    return [f"{kept} output{'s' if kept != 1 else ''} of the notebook"] if kept else []


def _shell() -> Any:
    """IPython's shell, in a notebook or its terminal; None elsewhere."""
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()


def _caches() -> list[Callable[[], Any]]:
    """What empties the caches, the allocator's last. Two are private to torch: without them some MiB of the libraries'
    workspaces stay on the device, and page-locked host memory stays with PyTorch."""
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


# --- what is left


def _hint(handled: BaseException | None, holders: tuple[Holder, ...]) -> str:
    if handled is not None:
        kind = type(handled).__name__
        return (
            f"An error is being handled ({kind}) and keeps its frames: call free() after the `except` block."
        )
    if any(holder.path.startswith("Out ") for holder in holders):
        return "Results of earlier cells hold some of it: legroom.free(outputs=True) forgets them."
    return ""


MOST_HOLDERS = 8
_SHELL_NAMES = ("get_ipython ", "exit ", "quit ", "_oh ")
"""Variables of a notebook that reach everything in it, or the same as `Out`."""


def _holders(caller: FrameType | None) -> tuple[Holder, ...]:
    found = find_holders(caller, _measure, MOST_HOLDERS + len(_SHELL_NAMES))
    return tuple(holder for holder in found if not holder.path.startswith(_SHELL_NAMES))[:MOST_HOLDERS]


def _measure(tensor: torch.Tensor) -> tuple[int, int] | None:
    """The address and bytes of a tensor's storage, unless it is the host's."""
    try:
        if tensor.device.type in ("cpu", "meta"):
            return None
        storage = tensor.untyped_storage()
        return storage.data_ptr(), storage.nbytes()
    except (RuntimeError, NotImplementedError):  # a kind of tensor that has no storage of its own
        return None


def _place(holder: Holder) -> str:
    """Which function's variable it is; a module's or a notebook's own need no place."""
    function = "<" if holder.frame is None else holder.frame.function
    return "" if function.startswith("<") else f" in {function}()"
