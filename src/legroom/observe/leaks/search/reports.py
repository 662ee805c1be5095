"""Reports leaks, with the line that stores the tensors and the call of the function that contains this line.

If the source does not show which line stores the tensors, the user's lines are traced for a few iterations before the
report (see `storing_trace`).
"""

import sys
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from legroom.memory.detected_leak import DetectedLeak
from legroom.memory.event_base import Frame
from legroom.observe.leaks.graph_ages import token_in_graph
from legroom.observe.leaks.search.holder_source import with_caller
from legroom.observe.leaks.search.storing_trace import StoringTrace
from legroom.observe.leaks.search.suspects import Suspect, is_part_of
from legroom.observe.source.storing_lines import usage_at_line


class LeakReports:
    def __init__(
        self, leaks: dict[tuple[object, ...], DetectedLeak], on_leak: Callable[[DetectedLeak], None]
    ) -> None:
        """Reported leaks are added to `leaks` by their identity, and `on_leak` is called with each of them."""
        self._leaks = leaks
        self._on_leak = on_leak
        self._traced: tuple[Suspect, StoringTrace, int] | None = None
        self._traced_lines: dict[tuple[str, str | None], Frame] = {}
        self._retained: dict[tuple[object, ...], weakref.ref[Any]] = {}
        """A tensor that each leak retained when it was reported, by the identity of the leak."""
        self._graphs: dict[tuple[object, ...], weakref.ref[Any]] = {}
        """An object that is freed with the graph of each leak, by the identity of the leak."""
        self.released: set[tuple[object, ...]] = set()
        """The identities of the leaks whose tensor or graph was freed later."""

    @property
    def is_tracing(self) -> bool:
        return self._traced is not None

    def end_iteration(self, iteration: int) -> None:
        self.finish_trace(iteration)
        for identity in [each for each, retained in self._retained.items() if retained() is None]:
            del self._retained[identity]
            self.released.add(identity)

    def report(self, leak: DetectedLeak, suspect: Suspect | None = None) -> None:
        leak = with_caller(leak, is_scalar=suspect is not None and suspect.is_scalar)
        same_line = [
            each for each in self._leaks.values() if (each.file, each.line) == (leak.file, leak.line)
        ]
        if any(each.name != leak.name and "linked" in (each.how, leak.how) for each in same_line):
            return  # linked objects were reported under their link, or under the variable of the newest object
        for each in same_line:
            if each.how == leak.how == "cycle" and each.name != leak.name:  # another tensor in the same cycle
                size = max(leak.bytes_per_step, each.bytes_per_step)
                leak = replace(leak, name=each.name, bytes_per_step=size)
            # The same statement in another layer of the model, or gradients of another parameter.
            if each.how == leak.how == "gradient" or is_part_of(leak.name, each.name):
                leak = replace(leak, name=each.name)
        self._leaks[leak.identity] = leak
        if suspect is not None and suspect.retained is not None:
            self._note_retained(leak, suspect.retained)
        self._on_leak(leak)

    def _note_retained(self, leak: DetectedLeak, retained: "weakref.ref[torch.Tensor]") -> None:
        if leak.kind != "graph":
            self._retained.setdefault(leak.identity, retained)
        elif not leak.evaluation and (freed_with_graph := token_in_graph(retained())) is not None:
            self._graphs[leak.identity] = freed_with_graph
            self._retained.pop(leak.identity, None)
            self.released.discard(leak.identity)

    def iterations_corrected(self) -> None:
        """Record that the iterations so far were only parts of a step. A graph that is freed with this step was not a
        leak.
        """
        self._retained |= self._graphs
        self._graphs.clear()

    def report_at_end(self, suspect: Suspect) -> None:
        """Report a suspect at the end of the run, unless the traced line limits the length of the container."""
        leak, line = suspect.leak, self._line_of(suspect)
        if line is None or not _is_limited(suspect, line):
            self.report(leak if line is None else _with_line(leak, line), suspect)

    # --- tracing, if the source does not show which line stores the tensors

    def needs_trace(self, suspect: Suspect) -> bool:
        return bool(suspect.container_to_trace) and self._line_of(suspect) is None

    def trace(self, suspect: Suspect, until: int) -> bool:
        """Trace the program up to the iteration `until` at most. Return whether the leak was reported or will be
        reported.
        """
        leak, line = suspect.leak, self._line_of(suspect)
        if line is not None:
            if _is_limited(suspect, line):
                return False
            self.report(_with_line(leak, line), suspect)
        elif self._traced is not None:
            return False  # one trace at a time
        else:
            trace = StoringTrace(
                suspect.container_to_trace,
                replaced=suspect.replaced,
                key=suspect.key_to_trace,
                only_graphs=leak.kind == "graph",
            )
            if trace.begin(sys._getframe()):
                self._traced = suspect, trace, until
            elif not suspect.at_end:
                self.report(leak, suspect)
        return True

    def finish_trace(self, iteration: int, *, now: bool = False) -> None:
        """End the trace and report the leak, if the line was found or the last traced iteration is over, or with
        `now`.
        """
        if self._traced is None:
            return
        suspect, trace, until = self._traced
        leak = suspect.leak
        if trace.line is None and iteration <= until and not now:
            return
        self.stop_trace()
        if trace.line is not None:
            self._traced_lines[leak.name, leak.file] = trace.line
            if _is_limited(suspect, trace.line):
                return
            leak = _with_line(leak, trace.line)
        if not suspect.at_end:
            self.report(leak, suspect)

    def stop_trace(self) -> None:
        if self._traced is not None:
            self._traced[1].end()
            self._traced = None

    def _line_of(self, suspect: Suspect) -> Frame | None:
        return self._traced_lines.get((suspect.leak.name, suspect.leak.file))


def _is_limited(suspect: Suspect, line: Frame) -> bool:
    """Return whether the source limits the length of the container in which this line stores tensors. The container is
    identified by its name at this line.
    """
    if suspect.exceeds_limit:
        return False
    found = usage_at_line(line.file, line.line)
    if suspect.at_end:  # code that removes items has not stopped the growth
        return found.has_limit
    return found.limited or (found.emptied and suspect.leak.kind != "graph")


def _with_line(leak: DetectedLeak, line: Frame) -> DetectedLeak:
    return replace(leak, file=line.file, line=line.line, function=line.function)
