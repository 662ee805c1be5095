"""Finds the variables that refer to an object: variables of running functions on all threads, and module globals.

The garbage collector does not track the local variables of running functions, so they are read from the frames.
"""

import contextvars
import inspect
import sys
import threading
from collections import Counter
from types import CodeType, FrameType
from typing import Any, NamedTuple

from legroom.observe.holders.python_names import file_of, locals_of
from legroom.observe.source.loaded_modules import module_namespaces, user_modules
from legroom.observe.source.passing_calls import Callback
from legroom.observe.source.user_files import is_user_file

MIN_THREADS = 4
"""If at least this many threads run the same function, each thread may retain its own tensors."""


class Root(NamedTuple):
    name: str
    file: str | None
    function: str
    line: int
    how: str
    is_attribute: bool = False
    owner: type | None = None
    """The class that has the attribute, if the name is a class attribute."""
    thread: Callback | None = None
    """The function of the thread that has the local variable, if several threads run this function."""
    threads: int = 0
    """The number of threads that run this function."""


class Variables:
    """The variables of running functions and of modules at one moment. Only `id`s are stored."""

    def __init__(self, frame: FrameType | None) -> None:
        """`frame` is the frame of the calling thread. The variables of other threads are read as well."""
        self.running: set[int] = set()
        self.locals: dict[int, list[Root]] = {}
        """The local variables that refer to an object, by the `id` of the object. Variables of the innermost function
        come first.
        """
        self._globals: dict[int, Root] = {}
        self.namespaces = module_namespaces()
        self.names: dict[int, str | None] = {}
        self.lines: list[tuple[str, int, str]] = []
        self._read_stack(frame, self.lines)
        others = sys._current_frames()
        del others[
            threading.get_ident()
        ]  # this frame: a reference to it in its own variable would be a cycle
        functions = Counter(filter(None, map(_outermost_user_code, others.values())))
        for innermost in others.values():
            code = _outermost_user_code(innermost)
            threads = functions[code] if code is not None else 0
            thread = _callback_of_thread(innermost) if threads >= MIN_THREADS else None
            self._read_stack(innermost, [], thread, threads)
        self._read_context(self.lines[0][0] if self.lines else None)

    def _read_stack(
        self,
        frame: FrameType | None,
        lines: list[tuple[str, int, str]],
        thread: Callback | None = None,
        threads: int = 0,
    ) -> None:
        while frame is not None:
            self.running.add(id(frame))
            code = frame.f_code
            if is_user_file(code.co_filename):
                lines.append((code.co_filename, frame.f_lineno or 0, code.co_name))
                if code.co_flags & inspect.CO_OPTIMIZED:
                    for name, value in locals_of(frame):
                        line = frame.f_lineno or 0
                        root = Root(
                            name,
                            code.co_filename,
                            code.co_name,
                            line,
                            "variable",
                            thread=thread,
                            threads=threads,
                        )
                        self.locals.setdefault(id(value), []).append(root)
                        del value
                elif id(frame.f_globals) not in self.namespaces:
                    self.namespaces[id(frame.f_globals)] = "__main__"
                if id(frame.f_globals) not in self.names:
                    self.names[id(frame.f_globals)] = code.co_filename
                    for name, value in list(frame.f_globals.items()):
                        self._globals.setdefault(id(value), Root(name, code.co_filename, "", 0, "variable"))
                        del value
            frame = frame.f_back

    def _read_context(self, file: str | None) -> None:
        """Read the values of context variables, which the garbage collector does not track. A context variable is
        reported in the module that assigns it to a global variable, or in `file` if no module does.
        """
        for variable, value in contextvars.copy_context().items():
            name, defined_in = next(
                (
                    (name, path)
                    for path, module in user_modules()
                    for name, each in list(vars(module).items())
                    if each is variable
                ),
                (variable.name, file),
            )
            self.locals.setdefault(id(value), []).append(Root(name, defined_in, "", 0, "variable"))
            del value

    def others(self, root: Root, item: Any) -> list[Root]:
        """Return other names of an object in running functions and their modules. For example, an argument is also a
        variable of the caller.
        """
        found = [*self.locals.get(id(item), []), self._globals.get(id(item))]
        return [each for each in found if each is not None and each != root]


def _outermost_user_frame(frame: FrameType | None) -> FrameType | None:
    """Return the frame of the function that a thread runs, without the frames of Python's `threading` module."""
    outermost = None
    while frame is not None:
        if is_user_file(frame.f_code.co_filename):
            outermost = frame
        frame = frame.f_back
    return outermost


def _outermost_user_code(frame: FrameType | None) -> CodeType | None:
    outermost = _outermost_user_frame(frame)
    return outermost.f_code if outermost is not None and outermost.f_code.co_name != "<module>" else None


def _callback_of_thread(frame: FrameType) -> Callback | None:
    outermost = _outermost_user_frame(frame)
    if outermost is None:
        return None
    code = outermost.f_code
    classes: frozenset[str] = frozenset()
    for name, value in locals_of(outermost):
        if name == "self" and isinstance(value, threading.Thread):
            own = (each for each in type(value).__mro__ if is_user_file(file_of(each) or ""))
            classes = frozenset(each.__name__ for each in own)
        del value
    return Callback(code.co_name, code.co_filename, code.co_firstlineno, classes)
