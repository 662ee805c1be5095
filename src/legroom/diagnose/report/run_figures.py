"""The data of a run's HTML report: the report, the memory over time, and the live memory at selected moments.

The data is aggregated here, so that the page stays small even with millions of events.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from legroom.diagnose.report.run_report import RunReport, allocator_settings, report_from_capture
from legroom.memory.capture.capture import Capture
from legroom.memory.columns import Columns, History, final_categories, history_of
from legroom.memory.detected_leak import DetectedLeak
from legroom.memory.event_base import Phase
from legroom.memory.events import Event, Oom, Step
from legroom.memory.layout import Layout, layout_after
from legroom.memory.moments import LiveSites, Site, live_sites

MAX_MOMENTS = 160
"""The maximum number of steps, and of equal intervals of the run, whose peaks the user can select on the page."""
MAX_OOMS = 20
"""The maximum number of out-of-memory errors on the page. A script that catches these errors may raise thousands of
them.
"""
MAX_SITES = 300_000
"""The maximum number of allocation sites on the page, summed over all moments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectableMoment:
    """A moment of the run that the user can select on the page."""

    label: str
    """`peak`, `out of memory`, or "" for any other moment."""
    step: int
    phase: Phase
    live: LiveSites
    between_passes: bool = False
    """True if the moment is between the forward and the backward pass. `phase` is then `Phase.OTHER`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    """The data of the HTML page of a run."""

    report: RunReport
    history: History | None
    sites: list[Site]
    moments: list[SelectableMoment]
    main: int
    """The position in `moments` of the out-of-memory error that ended the run, or of the peak."""
    layout: Layout | None
    """The segments and blocks at the peak, or at the out-of-memory error if one ended the run. None for host memory.
    """
    ooms: list[Oom]
    leaks: list[DetectedLeak]


def figures_from_capture(
    capture: Capture, *, path: str | None = None, chosen_device: int | None = None
) -> RunFigures:
    report = report_from_capture(capture, path=path, device=chosen_device)
    device = report.device
    events = capture.events
    tags = final_categories(events)
    history = history_of(events, device.index, tags) if device is not None and report.peak else None
    if device is None or history is None or not len(history.levels[0]):
        return RunFigures(
            report=report, history=None, sites=[], moments=[], main=0, layout=None, ooms=[], leaks=[]
        )
    ooms = _last_ooms(events, device.index)
    peak = _highest(history.levels[0], range(len(history.levels[0])))
    special = {peak: "peak"} | dict.fromkeys(ooms, "out of memory")
    chosen = sorted({*special, *_step_peaks(history, report.history), *_highest_points(history)})
    sites, live = live_sites(events, device.index, tags, chosen)
    live = _within_budget(live, special)
    ends = [step.time for step in report.history]
    failed_at = next(
        (index for index, event in ooms.items() if report.oom and event is report.oom.event), None
    )
    main_index = failed_at if failed_at is not None and report.failed_with_oom else peak
    reported = {main_index: report.oom.snapshot if report.oom and main_index == failed_at else report.peak}

    def moment(each: LiveSites) -> SelectableMoment:
        snapshot = reported.get(each.index)
        step, phase = _step_at(each.time, ends, report.history), _phase_at(each.time, history)
        if snapshot is not None:  # the sentence at the top of the page describes this moment
            step, phase = snapshot.step, Phase(snapshot.phase)
        elif each.index in ooms:
            step, phase = ooms[each.index].step, ooms[each.index].phase
        return SelectableMoment(
            label=special.get(each.index, ""),
            step=step,
            phase=phase,
            between_passes=snapshot is not None and snapshot.between_passes,
            live=each,
        )

    moments = [moment(each) for each in live]
    return RunFigures(
        report=report,
        history=history,
        sites=sites,
        moments=moments,
        main=next(position for position, each in enumerate(live) if each.index == main_index),
        layout=(
            layout_after(events, main_index, device.index, tags, allocator_settings(capture.run))
            if device.kind != "host"
            else None
        ),
        ooms=list(ooms.values()),
        leaks=_first_reports(events),
    )


def _last_ooms(events: Sequence[Event], device: int) -> dict[int, Oom]:
    """Return the last out-of-memory errors of a device. The keys are the indices of the events."""
    ooms = [
        (index, event)
        for index, event in enumerate(events)
        if isinstance(event, Oom) and event.device == device
    ]
    return dict(ooms[-MAX_OOMS:])


def _first_reports(events: Sequence[Event]) -> list[DetectedLeak]:
    reports: dict[object, DetectedLeak] = {}
    for event in events:
        if isinstance(event, DetectedLeak):
            reports.setdefault(event.identity, event)
    return list(reports.values())


def _highest(columns: Columns, positions: Sequence[int]) -> int:
    """Return the index of the event with the most allocated memory in the columns at `positions`."""
    return columns.indices[max(positions, key=lambda position: sum(columns.sums[position]))]


def _highest_points(history: History) -> Iterator[int]:
    """Divide the run into equal intervals, and yield the index of the event at the peak of each interval."""
    columns = history.levels[0]
    size = max(1, -(-len(columns) // MAX_MOMENTS))
    for start in range(0, len(columns), size):
        yield _highest(columns, range(start, min(start + size, len(columns))))


def _step_peaks(history: History, steps: Sequence[Step]) -> Iterator[int]:
    """Yield the index of the event at the peak of each step. In a long run, some steps are omitted."""
    columns = history.levels[0]
    every = max(1, -(-len(steps) // MAX_MOMENTS))
    for step in steps[::every]:
        inside = range(
            bisect_left(columns.times, step.time - step.seconds), bisect_left(columns.times, step.time)
        )
        if inside:
            yield _highest(columns, inside)


def _within_budget(live: list[LiveSites], special: dict[int, str]) -> list[LiveSites]:
    """Drop every second moment until all moments together have at most `MAX_SITES` allocation sites.

    The moments in `special` are kept.
    """
    while sum(len(each.sites) for each in live) > MAX_SITES and len(live) > len(special):
        live = [each for position, each in enumerate(live) if position % 2 or each.index in special]
    return live


def _step_at(time: float, ends: Sequence[float], steps: Sequence[Step]) -> int:
    position = bisect_left(ends, time)
    if position < len(steps):
        return steps[position].step
    return steps[-1].step + 1 if steps else 0


def _phase_at(time: float, history: History) -> Phase:
    position = bisect_right(history.phases, time, key=lambda change: change[0])
    return history.phases[position - 1][1] if position else Phase.OTHER
