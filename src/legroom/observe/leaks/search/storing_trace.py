"""Finds the line that stores items in a container by tracing the program, if the source code does not show the line.

The detector first searches the source code for the name of the container, which does not slow down the loop. This
search finds no line if items are stored under a different name (an alias, a helper's argument) or if there is no
source code. The search finds too many lines if several lines store items under the same name. In these cases, the
user's lines are traced for at most two iterations, until the container grows once. If the tensors in a small container
are replaced and none are added, the trace ends when a tensor is replaced. The trace always ends after `MAX_EVENTS`,
because a program may run for a long time after its last iteration. A tuple cannot grow, so the attribute that refers
to the tuple is traced instead. A trace function that is already set (by a debugger or a coverage tool) is not
replaced. The trace keeps a reference to the container. The trace drops this reference when no other object references
the container.
"""

import gc
import sys
from types import FrameType
from typing import Any

import torch

from legroom.memory.event_base import Frame
from legroom.observe.holders.python_names import attributes_of
from legroom.observe.source.graph_values import may_store_graph
from legroom.observe.source.user_files import is_user_file

MAX_EVENTS = 1_000_000
"""The maximum number of trace events. Tracing this many events takes about a second."""


class StoringTrace:
    """Traces one container from `begin` to `end`. `line` is the storing line once it is found."""

    def __init__(
        self, container: int, *, replaced: bool = False, key: str = "", only_graphs: bool = False
    ) -> None:
        """`container` is the `id` of the container. `replaced` means that the items of the container are replaced and
        that the container does not grow. With `key`, only the item with this key is traced, if there is one. With
        `only_graphs`, only tensors with an autograd graph are traced, because the other items do not leak.
        """
        self.line: Frame | None = None
        self._container_id = container
        self._container: Any = None
        self._replaced = replaced
        self._key = key
        self._only_graphs = only_graphs
        self._attribute = ""
        """The attribute that refers to the container, if the container is a tuple. In this case, `_container` is the
        object that has the attribute.
        """
        self._state: Any = 0
        self._events = 0
        self._lines: dict[int, int] = {}
        self._trace = self._event  # one bound method, so that it can be compared by identity

    def begin(self, frame: FrameType | None) -> bool:
        """Start tracing in `frame` and its callers. Return False if tracing is not possible."""
        if sys.gettrace() is not None:
            return False
        self._container = next((each for each in gc.get_objects() if id(each) == self._container_id), None)
        if isinstance(self._container, tuple | frozenset):
            self._container, self._attribute = _owner_of(self._container)
        if self._container is None:
            return False
        if isinstance(self._container, dict) and self._key not in self._container:
            self._key = ""
        self._state = self._measure()
        while frame is not None:
            if is_user_file(frame.f_code.co_filename) and frame.f_trace is None:
                frame.f_trace = self._trace
                self._lines[id(frame)] = frame.f_lineno or 0
            frame = frame.f_back
        sys.settrace(self._trace)
        return True

    def end(self) -> None:
        self._container = None
        if sys.gettrace() is self._trace:
            sys.settrace(None)
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            if frame.f_trace is self._trace:
                frame.f_trace = None
            frame = frame.f_back

    def _event(self, frame: FrameType, event: str, argument: Any) -> Any:
        self._events += 1
        if self._container is None or self._events > MAX_EVENTS:  # also if another thread ended the trace
            self.end()
            return None
        if not is_user_file(frame.f_code.co_filename):
            return None
        state, before = self._measure(), self._state
        self._state = state
        is_stored = (state != before) if self._replaced and not self._attribute else (state > before)
        if is_stored and self._found_in(frame.f_back if event == "call" else frame):
            return None
        if sys.getrefcount(self._container) <= 2:  # our reference, and the argument of this call
            self._container = None
            return None
        if event == "line":
            self._lines[id(frame)] = frame.f_lineno or 0
        elif event == "return":
            self._lines.pop(id(frame), None)
        return self._trace

    def _measure(self) -> Any:
        """Return a value that changes when an item is stored: the length of the container, or the identities and
        versions of its tensors.
        """
        if self._attribute:
            value = (attributes_of(self._container) or {}).get(self._attribute)
            return len(value) if isinstance(value, tuple | frozenset) else 0
        if not self._replaced:
            return len(self._container)
        values = self._container.values() if isinstance(self._container, dict) else self._container
        if self._key and isinstance(self._container, dict):
            values = [self._container.get(self._key)]
        return [
            (id(value), _version_of(value))
            for value in list(values)
            if isinstance(value, torch.Tensor) and (value.requires_grad or not self._only_graphs)
        ]

    def _found_in(self, frame: FrameType | None) -> bool:
        """Record that the previous line of this frame, or of its nearest caller in the user's code, stored the item.
        Return False if the line stores no graph, but only graphs are traced.
        """
        while frame is not None and not is_user_file(frame.f_code.co_filename):
            frame = frame.f_back
        line = self._lines.get(id(frame), frame.f_lineno or 0) if frame is not None else 0
        if frame is not None and self._only_graphs and not may_store_graph(frame.f_code.co_filename, line):
            return False
        self._container = None
        if frame is not None:
            self.line = Frame(frame.f_code.co_filename, line, frame.f_code.co_name)
        return True


def _owner_of(container: Any) -> tuple[Any, str]:
    """Return the object that refers to the container, and the name of the attribute. The result is (None, "") if the
    container is not the value of an attribute.
    """
    for owner in gc.get_referrers(container):
        namespaces = gc.get_referrers(owner) if isinstance(owner, dict) else [owner]
        for each in namespaces:
            attributes = None if isinstance(each, FrameType | StoringTrace) else attributes_of(each)
            for name, value in (attributes or {}).items():
                if value is container:
                    return each, name
    return None, ""


def _version_of(tensor: torch.Tensor) -> int:
    """Return how often a tensor was modified in place (`total.add_(loss)`), or 0 for inference tensors, which have no
    version counter.
    """
    return 0 if tensor.is_inference() else tensor._version
