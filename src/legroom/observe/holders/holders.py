"""Who keeps memory alive, by the names in the user's own frames, or by the call that is still at work.

What a call of torch's has made so far may be in no variable of Python's yet: the layers of an LSTM, a block that is computed again.
It is held by that call, so the user's line that made the call is named. That takes knowing where and when storages were made, which
this module is told (`Made`).

Looking must change nothing: no `repr`, no attribute access that could run user code (properties), no reference
kept. Reading a running function's locals makes CPython (up to 3.12) keep a copy of them in the frame, which would
pin the very tensors looked at, so that copy is emptied again.
"""

import inspect
import sys
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import nn

from legroom.memory.events import Category, Frame, Holder
from legroom.observe.dispatch.attribution import is_user_file, user_lines
from legroom.observe.holders import autograd_graph
from legroom.observe.holders.python_names import CONTAINERS, attributes_of, file_of
from legroom.observe.holders.retained_size import Measure, Reach

_OURS = __file__.rpartition("observe")[0]
_COPIES_LOCALS = sys.version_info < (3, 13)


class Made(NamedTuple):
    """A storage that was made in the step at work."""

    key: int
    """As `Measure` gives it."""
    bytes: int
    frame: Frame | None
    """The user's line at which it was made."""
    in_backward: bool


class Holders(NamedTuple):
    """Who holds device memory."""

    largest: list[Holder]
    """The variables that reach most, largest first."""
    reached: int
    """Bytes that all variables and calls at work hold together, each storage counted once."""


class Survey(NamedTuple):
    """Who held what at one moment. Of the program's objects it keeps none."""

    variables: list[Holder]
    named: dict[int, int]
    """Storage key → bytes, of all that the user's variables reach."""
    at_work: dict[Frame, dict[int, int]]
    """The same for each line of the user's, of what variables of a library's functions reach that were called there."""
    lines: list[Frame]
    """The user's lines at work, innermost first."""
    backward_line: Frame | None
    """The one that called the backward pass at work."""
    saved: frozenset[int] = frozenset()
    """Storage keys of what graphs keep that any of these variables reach."""

    def roles(self) -> dict[int, Category]:
        """Storage key → what it is for, by who holds it: an activation if a graph saves it, whoever else holds it; otherwise a result or
        temporary, if the forward pass made it."""
        roles: dict[int, Category] = {}
        if autograd_graph.tells_saved():
            for storages in self.at_work.values():
                roles.update(dict.fromkeys(storages, Category.TEMPORARY))
            roles.update(dict.fromkeys(self.named, Category.RESULT))
        roles.update(dict.fromkeys(self.saved, Category.ACTIVATION))
        return roles

    def holders(self, made: Iterable[Made] = (), module: str = "", most: int = 24) -> Holders:
        """Those that hold most. Of what was `made` in this step, what no variable reaches is held by the call that made it, if that
        is still at work, in `module`; or else by the graph that the backward pass at work goes through."""
        at_work = {line: dict(storages) for line, storages in self.at_work.items()}
        seen = self.named.keys() | {key for storages in at_work.values() for key in storages}
        for each in made:
            made_at_work = not each.in_backward and each.frame in self.lines
            line = each.frame if made_at_work else self.backward_line
            if each.key not in seen and line is not None:
                at_work.setdefault(line, {})[each.key] = each.bytes
        together = dict(self.named)
        found = list(self.variables)
        for line, storages in at_work.items():
            passing = {key: size for key, size in storages.items() if key not in together}
            if passing:
                together.update(passing)
                found.append(Holder(self._call(line, module), sum(passing.values()), len(passing), line))
        found.sort(key=lambda holder: -holder.bytes)
        return Holders(found[:most], sum(together.values()))

    def _call(self, line: Frame, module: str) -> str:
        """In the place of a name."""
        call = "the backward pass at work" if line == self.backward_line else "the call at work"
        return f"({call}, in {module})" if module and line == self.lines[0] else f"({call})"


def find_holders(frame: FrameType | None, measure: Measure, most: int = 8) -> list[Holder]:
    """The user's variables that reach most device memory, from `frame` outwards, largest first."""
    return survey(frame, measure).holders(most=most).largest


def survey(frame: FrameType | None, measure: Measure) -> Survey:
    """What the variables of all functions at work reach, from `frame` outwards."""
    found: list[Holder] = []
    together: dict[int, int] = {}
    at_work: dict[Frame, dict[int, int]] = {}
    lines, backward_line = user_lines(frame)
    reach = Reach(measure)
    for user_frame, variables, is_library in _user_variables(frame):
        where = Frame(user_frame.f_code.co_filename, user_frame.f_lineno or 0, user_frame.f_code.co_name)
        for name, value in _named(variables, with_parts=not is_library):
            storages = reach.of(value)
            if is_library:
                at_work.setdefault(where, {}).update(storages)
            elif storages:
                together.update(storages)
                found.append(Holder(name + _describe(value), sum(storages.values()), len(storages), where))
        value = None
        _forget(user_frame, variables, is_library)
    return Survey(found, together, at_work, lines, backward_line, reach.saved)


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


def _named(variables: Any, *, with_parts: bool) -> Iterator[tuple[str, Any]]:
    """What variables hold. In the place of an object of the user's own, its attributes (`trainer.history`); beside a model, what
    the model gathers in containers."""
    for name, value in variables.items():
        if not isinstance(name, str) or name.startswith("__"):
            continue
        file = file_of(type(value)) if with_parts else None
        attributes = attributes_of(value) if file is not None and is_user_file(file) else None
        if attributes is None or isinstance(value, nn.Module):
            yield name, value
        for part, held in list((attributes or {}).items()):
            if not isinstance(value, nn.Module) or (type(held) in CONTAINERS and not part.startswith("_")):
                yield f"{name}.{part}", held


def _forget(frame: FrameType, variables: Any, is_library: bool = False) -> None:
    """Empty the copy of a function's locals that looking at them made (not a module's or class's own names)."""
    if (
        _COPIES_LOCALS
        and variables is not frame.f_globals
        and (is_library or frame.f_code.co_flags & inspect.CO_OPTIMIZED)
    ):
        variables.clear()


def _describe(value: Any) -> str:
    if isinstance(value, CONTAINERS):
        return f" ({type(value).__name__}, {len(value):,} item{'s' if len(value) != 1 else ''})"
    return f" ({type(value).__name__})"
