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
from typing import Any

import torch
from torch import nn

from legroom.memory.events import Frame, Holder
from legroom.observe import autograd_graph
from legroom.observe.attribution import is_user_file

Measure = Callable[[torch.Tensor], tuple[int, int] | None]
"""A tensor → (key of its storage, device bytes), or None when it is not on a device."""

_MOST_OBJECTS = 200_000
_COPIES_LOCALS = sys.version_info < (3, 13)


def find_holders(frame: FrameType | None, measure: Measure, most: int = 8) -> list[Holder]:
    """The user's variables that reach most device memory, from `frame` outwards, largest first."""
    found: list[Holder] = []
    for user_frame, variables in _user_variables(frame):
        where = Frame(user_frame.f_code.co_filename, user_frame.f_lineno or 0, user_frame.f_code.co_name)
        for name, value in variables.items():
            if isinstance(name, str) and not name.startswith("__"):
                storages = _reach(value, measure)
                if storages:
                    found.append(
                        Holder(name + _describe(value), sum(storages.values()), len(storages), where)
                    )
        value = None
        _forget(user_frame, variables)
    found.sort(key=lambda holder: -holder.bytes)
    return found[:most]


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


def _user_variables(frame: FrameType | None) -> Iterator[tuple[FrameType, dict[str, Any]]]:
    seen_modules: set[int] = set()
    while frame is not None:
        if is_user_file(frame.f_code.co_filename):
            variables = frame.f_locals
            is_function = variables is not frame.f_globals
            yield frame, variables  # asking for them again afterwards would fill the copy that was emptied
            if id(frame.f_globals) not in seen_modules and is_function:
                seen_modules.add(id(frame.f_globals))
                if frame.f_back is None or frame.f_back.f_globals is not frame.f_globals:
                    yield frame, frame.f_globals
        frame = frame.f_back


def _forget(frame: FrameType, variables: Any) -> None:
    """Empty the copy of a function's locals that looking at them made (not a module's or class's own names)."""
    if _COPIES_LOCALS and frame.f_code.co_flags & inspect.CO_OPTIMIZED and variables is not frame.f_globals:
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


def _reach(value: Any, measure: Measure) -> dict[int, int]:
    """Storage key → bytes, of everything on a device that `value` keeps alive."""
    if isinstance(value, _LEAVES):
        return {}
    storages: dict[int, int] = {}
    seen: set[int] = set()
    stack: list[Any] = [value]
    while stack and len(seen) < _MOST_OBJECTS:
        item = stack.pop()
        if isinstance(item, _LEAVES) or id(item) in seen:
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
    return storages


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
