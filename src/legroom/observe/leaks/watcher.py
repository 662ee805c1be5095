"""Watches a training loop for memory that it keeps, at a cost that is not felt.

After a turn little is done: two counters are read (device bytes, bytes of the C heap) and it is asked whether the nodes from
which earlier backward passes began are gone; after turns of a few milliseconds not even that each time (see `attention`). When a counter has
reached a new height at two turns in a row, or such nodes stay, a window of looks is opened (see `window`);
also shortly after the start, and now and then later, for what the counters do not show. A window that finds nothing
closes after three looks, and the same growth that led to it must then last longer to open the next one. What grows at a few turns only
is left to looks that are far apart (see `slow_looks`). Where the source does
not say which line stores, the verdict waits for a turn or two in which the loop's lines are traced (see `storing_trace`).
"""

import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

import torch

from legroom.memory.annotations import DetectedLeak
from legroom.observe.leaks.counters import Counters
from legroom.observe.leaks.graph_ages import Roots, StepMarks
from legroom.observe.leaks.iterations import Ticks
from legroom.observe.leaks.rare_growth import SlowLooks
from legroom.observe.leaks.scan_budget import Attention
from legroom.observe.leaks.storing_trace import TURNS as TRACED_TURNS
from legroom.observe.leaks.storing_trace import Place, StoringTrace
from legroom.observe.leaks.suspects import Suspect
from legroom.observe.leaks.window import LOOKS, LOOKS_OF_TENSORS, Window
from legroom.observe.source.storing_lines import find_at

_SIGNS = ("device", "host", "graph")
FIRST_LOOK = 2
RISES = 2
"""So many new heights in a row open a window."""
HEIGHT_OVER = 8
"""A new height is one above the last so many turns."""
GRAPHS_KEPT = 2
"""Graphs of so many earlier turns open a window."""
QUIET_LOOKS = 3
LOOKS_AFTER_ALL = LOOKS_OF_TENSORS + 3
"""So many looks show every sign there is: a window that found one leak stays open until then, for there may be another."""
LONG_LOOKS = 18
"""Before the first optimizer step, a graph must grow for longer."""
SLOWLY_TRACED_TURNS = 12
"""What is added seldom must be waited for."""
WARMING_TURNS = 13
"""A cache that still takes something in with every turn after so many more is no longer warming up."""


class Watcher:
    """Tells `on_leak` of each thing that is kept; `attach` and `detach` begin and end it.

    The same leak may be told again later, with newer figures: `DetectedLeak.identity` says that it is the same.
    """

    def __init__(
        self,
        on_leak: Callable[[DetectedLeak], None],
        *,
        allocated: Callable[[], int] | None = None,
        on_device: Callable[[torch.Tensor], bool] | None = None,
        share: float = 0.003,
    ) -> None:
        """`allocated`, `on_device`: where another than the CUDA allocator knows of device memory. `share`: the most that
        it may take of the time while nothing grows."""
        self.leaks: dict[tuple[object, ...], DetectedLeak] = {}
        self.turn = 0
        self.seconds_looking = 0.0
        """Spent in windows, for the curious."""
        self.trouble = ""
        """Why watching was given up; "" while it goes on."""
        self._roots = Roots()
        self.ticks = Ticks(self._turn_ended, self._roots.mark)
        self._on_leak = on_leak
        self._on_device = on_device or _is_on_accelerator
        self._counters = Counters(allocated)
        self._marks = StepMarks()
        self._window: Window | None = None
        self._attention = Attention(share)
        self._recent: dict[str, deque[int]] = {sign: deque(maxlen=HEIGHT_OVER) for sign in ("device", "host")}
        self._rises = {"device": 0, "host": 0}
        self._highest = {"device": 0, "host": 0}
        self._records = 0
        """At so many turns in a row one of them was reached."""
        self._slow_looks = self._look_slowly()
        self._opened_by: list[str] = []
        self._has_stepped = False
        self._patience = dict.fromkeys(_SIGNS, 0)
        self._next_by_chance = FIRST_LOOK
        self._not_before = dict.fromkeys(_SIGNS, 0)
        self._warming: dict[tuple[object, ...], tuple[int, int]] = {}
        self._traced: tuple[DetectedLeak, StoringTrace, int] | None = None
        self._places: dict[tuple[str, str | None], Place] = {}
        """By holder and its file, what tracing has shown."""

    def begin_loop(self) -> None:
        """Another loop begins: what was quiet, or told, before says nothing about it."""
        self._next_by_chance = self.turn + FIRST_LOOK
        self._patience, self._not_before = dict.fromkeys(_SIGNS, 0), dict.fromkeys(_SIGNS, 0)

    def attach(self) -> None:
        self.ticks.attach()

    def detach(self) -> None:
        self.ticks.detach()
        self._window = None
        self._place_traced(at_once=True)

    def _turn_ended(self) -> None:
        # After every turn of every loop: what is above `_is_busy` must stay as little as it is.
        now, turn = time.perf_counter(), self.turn
        self.turn = self._roots.turn = turn + 1
        if self.ticks.has_stepped is not self._has_stepped:
            self._begin_anew(turn)
        self._marks.end_step(turn)
        if not (self._attention.is_due(now) or self._is_busy(turn)):
            self.ticks.muted = not self._attention.expects
            return
        began = time.thread_time()
        if self._traced is not None:
            self._place_traced()
        signs, unsure = self._count()
        self._attention.paid(now, time.thread_time() - began, again=unsure)
        self.ticks.muted = not self._attention.expects
        record = self._records == 1 and self._window is None  # of several in a row, a window sees more
        if self.ticks.trains and self._slow_looks.is_due(turn, record=record):
            self._looking(self._look_now_and_then, turn)
        if self._window is None:
            due = [sign for sign in signs if turn >= self._not_before[sign]]
            if turn >= self._next_by_chance:
                self._next_by_chance = max(4 * turn, 32)
            elif not due:
                return
            self._opened_by = due
            self._window = Window(self._marks, self.ticks, on_device=self._on_device)
        self._looking(self._look, turn)

    def _looking(self, look: Callable[[int], None], turn: int) -> None:
        began = time.perf_counter()
        try:
            look(turn)
        except Exception as error:  # whatever goes wrong in looking, the user's loop goes on
            self.trouble = f"{type(error).__name__}: {error}"
            self.detach()
        self.seconds_looking += time.perf_counter() - began

    def _look_now_and_then(self, turn: int) -> None:
        for suspect in self._slow_looks.look(turn):
            if suspect.kept.identity not in self.leaks:
                self._judge(suspect, turn, traced=SLOWLY_TRACED_TURNS)

    def _look_slowly(self) -> SlowLooks:
        window = Window(self._marks, self.ticks, on_device=self._on_device, slow=True)
        return SlowLooks(window, share=self._attention.share * 2 / 3)

    def _begin_anew(self, turn: int) -> None:
        """The first optimizer step: the batches before it were parts of that step."""
        self._has_stepped = True
        self._marks = StepMarks()
        self._window = None
        self._slow_looks = self._look_slowly()
        self._next_by_chance = turn + FIRST_LOOK

    def _is_busy(self, turn: int) -> bool:
        """Whether something other than the counters wants this turn."""
        return self._window is not None or self._traced is not None or turn >= self._next_by_chance

    def _count(self) -> tuple[list[str], bool]:
        """What grows (`graph` where graphs are kept, `device` or `host` where that counter has risen for some turns), and whether
        something may be about to."""
        unsure, grown = False, []
        records, self._records = self._records, 0
        for sign, figure in zip(("device", "host"), self._counters.read(), strict=True):
            recent = self._recent[sign]
            self._rises[sign] = self._rises[sign] + 1 if len(recent) >= 3 and figure > max(recent) else 0
            recent.append(figure)
            if figure > self._highest[sign]:
                self._highest[sign] = figure
                self._records = records + 1
            if self._rises[sign] >= RISES:
                grown.append(sign)
            elif self._rises[sign]:
                unsure = True
        kept = self._roots.turns_kept()
        return ([*grown, "graph"] if kept >= GRAPHS_KEPT else grown), unsure or kept == 1

    def _look(self, turn: int) -> None:
        window = self._window
        assert window is not None
        for suspect in window.look(turn):
            if self._judge(suspect, turn):
                window.told.add(suspect.kept.kind)
        found = bool(window.told)
        long = not self.ticks.has_stepped and not window.quiet
        waits = any(first <= turn <= first + WARMING_TURNS for first, _ in self._warming.values())
        if (
            (found and window.looks >= LOOKS_AFTER_ALL)
            or window.looks >= (LONG_LOOKS if long else LOOKS)
            or (window.quiet and not found and window.looks >= QUIET_LOOKS + (turn < 8 or waits))
        ):
            self._window = None
            self._rises = dict.fromkeys(self._rises, 0)
            # Each sign loses credit by itself: floats that fill the heap must not hide a graph.
            for sign in _SIGNS if found else self._opened_by:
                self._patience[sign] = min(self._patience[sign] + 1, 6)
                self._not_before[sign] = turn + 4 * 2 ** self._patience[sign]
            if self._next_by_chance <= turn + WARMING_TURNS and self._warming:
                self._not_before = {
                    sign: max(until, self._next_by_chance) for sign, until in self._not_before.items()
                }

    def _judge(self, suspect: Suspect, turn: int, *, traced: int = TRACED_TURNS) -> bool:
        kept = suspect.kept
        if suspect.warming:
            first, length = self._warming.setdefault(kept.identity, (turn, suspect.length))
            # The next window begins so that its looks have shown every sign when the time is over, and none before.
            self._next_by_chance = max(first + WARMING_TURNS - LOOKS_OF_TENSORS - 1, turn + 1)
            if turn < first + WARMING_TURNS or suspect.length - length < 0.9 * (turn - first):
                return False
        if suspect.unplaced:
            return self._trace(kept, suspect, traced)
        self._tell(kept)
        return True

    def _tell(self, kept: DetectedLeak) -> None:
        self.leaks[kept.identity] = kept
        self._on_leak(kept)

    # --- where the source does not say which line stores

    def _trace(self, kept: DetectedLeak, suspect: Suspect, turns: int) -> bool:
        """For so many turns at most. True once it is told, or will be."""
        place = self._places.get((kept.name, kept.file))
        if place is not None:
            if _is_limited(kept, place):
                return False
            self._tell(_placed(kept, place))
        elif self._traced is not None:
            return False  # one at a time
        else:
            trace = StoringTrace(suspect.unplaced, replaced=suspect.replaced)
            if trace.begin(sys._getframe()):
                self._traced = kept, trace, self.turn + turns
            else:
                self._tell(kept)
        return True

    def _place_traced(self, *, at_once: bool = False) -> None:
        """Tell what was traced, if its line was seen or the time is over."""
        if self._traced is None:
            return
        kept, trace, until = self._traced
        if trace.place is None and self.turn <= until and not at_once:
            return
        trace.end()
        self._traced = None
        if trace.place is not None:
            self._places[kept.name, kept.file] = trace.place
            if _is_limited(kept, trace.place):
                return
            kept = _placed(kept, trace.place)
        self._tell(kept)


def _is_limited(kept: DetectedLeak, place: Place) -> bool:
    """Whether the source limits what is stored there, by the name that it has there."""
    found = find_at(place.file, place.line)
    return found.limited or (found.emptied and kept.kind != "graph")


def _placed(kept: DetectedLeak, place: Place) -> DetectedLeak:
    return replace(kept, file=place.file, line=place.line, function=place.function)


def _is_on_accelerator(tensor: torch.Tensor) -> bool:
    """On a device, or standing for a tensor of the virtual GPU that is in use (there is one only if its module was loaded)."""
    module = sys.modules.get("legroom.observe.virtual.gpu")
    virtual = module.VirtualGPU._active if module is not None else None
    if virtual is not None:
        return virtual.recorder.measure(tensor) is not None
    return tensor.device.type not in ("cpu", "meta")
