"""Who keeps memory alive, by the names in the user's own frames.

Looking must change nothing: no `repr`, no attribute access that could run user code (properties), no reference
kept. Reading a running function's locals makes CPython (up to 3.12) keep a copy of them in the frame, which would
pin the very tensors looked at, so that copy is emptied again.
"""

import gc
import inspect
import sys
from collections.abc import Callable, Iterator
from types import FrameType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import nn

from legroom.memory.events import Frame, Holder
from legroom.observe import autograd_graph
from legroom.observe.attribution import is_user_file

Measure = Callable[[torch.Tensor], tuple[int, int] | None]
"""A tensor → (key of its storage, device bytes), or None when it is not on a device."""

_MOST_OBJECTS = 200_000
AT_WORK = "(the call at work)"
"""In the place of a name: what only a library's functions, called on a line of the user's, hold while they run."""
_OURS = __file__.rpartition("observe")[0]
_COPIES_LOCALS = sys.version_info < (3, 13)


class Holders(NamedTuple):
    """Who holds device memory."""

    largest: list[Holder]
    """The variables that reach most, largest first."""
    reached: int
    """Bytes that all variables reach together, each storage counted once."""


def find_holders(frame: FrameType | None, measure: Measure, most: int = 8) -> list[Holder]:
    """The user's variables that reach most device memory, from `frame` outwards, largest first."""
    return survey_holders(frame, measure, most).largest


def survey_holders(frame: FrameType | None, measure: Measure, most: int = 8) -> Holders:
    """The same, with how much all variables reach together."""
    found: list[Holder] = []
    together: dict[int, int] = {}
    at_work: dict[Frame, dict[int, int]] = {}
    barren: set[int] = set()  # what was walked through and led to no device memory need not be walked again
    for user_frame, variables, is_library in _user_variables(frame):
        where = Frame(user_frame.f_code.co_filename, user_frame.f_lineno or 0, user_frame.f_code.co_name)
        for name, value in variables.items():
            if isinstance(name, str) and not name.startswith("__"):
                storages = _reach(value, measure, barren)
                if is_library:
                    at_work.setdefault(where, {}).update(storages)
                elif storages:
                    together.update(storages)
                    found.append(
                        Holder(name + _describe(value), sum(storages.values()), len(storages), where)
                    )
        value = None
        _forget(user_frame, variables, is_library)
    for where, storages in at_work.items():
        passing = {key: size for key, size in storages.items() if key not in together}
        if passing:
            together.update(passing)
            found.append(Holder(AT_WORK, sum(passing.values()), len(passing), where))
    found.sort(key=lambda holder: -holder.bytes)
    return Holders(found[:most], sum(together.values()))


def tensors_in_frames(frame: FrameType | None) -> Iterator[torch.Tensor]:
    """The tensors that local variables of any frame at or above `frame` hold, directly or in a container."""
    while frame is not None:
        variables = frame.f_locals
        for value in list(variables.values()):
            if isinstance(value, torch.Tensor):
                yield value
            elif isinstance(value, tuple | list) and len(value) < 1000:
                yield from (item for item in value if isinstance(item, torch.Tensor))
        value = None
        _forget(frame, variables)
        frame = frame.f_back


def _user_variables(frame: FrameType | None) -> Iterator[tuple[FrameType, Any, bool]]:
    """The variables of the user's functions and modules; and those of a library's functions, as of the user's frame that
    called them (True)."""
    seen_modules: set[int] = set()
    library: list[FrameType] = []
    while frame is not None:
        if not is_user_file(frame.f_code.co_filename):
            library.append(frame)
            frame = frame.f_back
            continue
        for inner in library:
            if inner.f_code.co_flags & inspect.CO_OPTIMIZED and not inner.f_code.co_filename.startswith(
                _OURS
            ):
                yield frame, inner.f_locals, True
        library.clear()
        variables = frame.f_locals
        is_function = variables is not frame.f_globals
        yield frame, variables, False  # asking for them again afterwards would fill the copy that was emptied
        if id(frame.f_globals) not in seen_modules and is_function:
            seen_modules.add(id(frame.f_globals))
            if frame.f_back is None or frame.f_back.f_globals is not frame.f_globals:
                yield frame, frame.f_globals, False
        frame = frame.f_back


def _forget(frame: FrameType, variables: Any, is_library: bool = False) -> None:
    """Empty the copy of a function's locals that looking at them made (not a module's or class's own names)."""
    if (
        _COPIES_LOCALS
        and variables is not frame.f_globals
        and (is_library or frame.f_code.co_flags & inspect.CO_OPTIMIZED)
    ):
        variables.clear()


def _describe(value: Any) -> str:
    if isinstance(value, list | tuple | dict | set):
        return f" ({type(value).__name__}, {len(value):,} item{'s' if len(value) != 1 else ''})"
    return f" ({type(value).__name__})"


_LEAVES = (
    str,
    bytes,
    int,
    float,
    bool,
    complex,
    type(None),
    ModuleType,
    type,
    torch.dtype,
    torch.device,
    FrameType,
)


def _reach(value: Any, measure: Measure, barren: set[int]) -> dict[int, int]:
    """Storage key → bytes, of everything on a device that `value` keeps alive."""
    if isinstance(value, _LEAVES) or id(value) in barren:
        return {}
    storages: dict[int, int] = {}
    seen: set[int] = set()
    stack: list[Any] = [value]
    while stack and len(seen) < _MOST_OBJECTS:
        item = stack.pop()
        if isinstance(item, _LEAVES) or id(item) in seen or id(item) in barren:
            continue
        seen.add(id(item))
        if isinstance(item, torch.Tensor):
            measured = measure(item)
            if measured is not None:
                storages[measured[0]] = measured[1]
            if item.is_leaf:
                gradient = item.grad
                if gradient is not None:
                    stack.append(gradient)
            elif item.grad_fn is not None:
                for saved in autograd_graph.saved_tensors([item.grad_fn]):
                    measured = measure(saved)
                    if measured is not None:
                        storages[measured[0]] = measured[1]
        elif isinstance(item, torch.optim.Optimizer):
            stack.append(item.state)
        elif isinstance(item, nn.Module):
            stack.extend((item._parameters, item._buffers, item._modules))
            stack.extend(v for k, v in vars(item).items() if not k.startswith("_"))
        elif isinstance(item, dict):
            stack.extend(item.values())
        elif isinstance(item, list | tuple | set | frozenset):
            stack.extend(item)
        elif isinstance(item, FunctionType):
            stack.extend(cell.cell_contents for cell in item.__closure__ or () if _filled(cell))
        elif isinstance(item, MethodType):
            stack.append(item.__self__)
        else:
            stack.extend(
                r for r in gc.get_referents(item) if isinstance(r, dict | list | tuple | torch.Tensor)
            )
    if not storages:
        barren |= seen
    return storages


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
