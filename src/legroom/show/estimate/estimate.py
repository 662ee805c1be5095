"""An estimate as text: the verdict, memory at the peak, the largest batch size, and options that save memory."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from legroom.diagnose.report.device_memory import MemorySnapshot, snapshot_at_peak
from legroom.diagnose.report.source_lines import Sources, read_sources
from legroom.memory.event_base import Frame
from legroom.memory.ledger import Ledger
from legroom.predict.estimate import Estimate, evaluation_note
from legroom.predict.largest_batch import MAX_BATCH
from legroom.predict.options.plan import PlannedOption
from legroom.predict.script_estimate import NO_VALIDATION_NOTE, SEARCH_SECONDS, ScriptEstimate
from legroom.predict.uncertainty import version_note
from legroom.show.common.formatting import clean, format_count, format_location
from legroom.show.common.memory_charts import MemoryBar, rows_of_largest
from legroom.show.common.one_screen import MAX_LINES, Commands, Cropped, FirstThatFits
from legroom.show.common.sections import largest_lines, section, top_lines
from legroom.show.common.terminal import verbatim
from legroom.units import format_size

VERDICT_LINES = 13
STYLES = {"fits": "bold green", "uncertain": "bold yellow", "does-not-fit": "bold red"}


def render_verdict(estimate: Estimate) -> RenderableType:
    """Render the result of the first trace: whether the script fits, and how the memory is used."""
    return Group(*_verdict_parts(estimate))


def render_details(result: ScriptEstimate) -> RenderableType:
    """Render the results of further traces: the largest batch size, and the options that save memory."""
    return Group(*_detail_parts(result))


def render_short_verdict(estimate: Estimate) -> RenderableType:
    snapshot = snapshot_of(estimate)
    rows = 3 if snapshot is None else rows_of_largest(snapshot)
    # The numbers of categories and lines. Lines are omitted before categories that use much memory.
    sizes = [(6, 3), (rows, 3), (rows, 2), *((fewer, 2) for fewer in range(rows - 1, 2, -1))]
    versions = (Group(*_short_verdict_parts(estimate, *size, gap)) for gap in ("\n", "") for size in sizes)
    return FirstThatFits(versions, _verdict_lines(estimate))


def _verdict_lines(estimate: Estimate) -> int:
    """Return the maximum number of lines of the verdict. If the script does not fit, the options that save memory need
    the other lines.
    """
    return VERDICT_LINES if estimate.verdict == "does-not-fit" else VERDICT_LINES + 1


def render_short_details(result: ScriptEstimate) -> RenderableType:
    """Render the results of further traces in the lines that the verdict leaves free on one screen. The results are
    the largest batch size, the first options that save memory, and the next commands.
    """
    sizes = ((4, 3, 2, 4), (2, 3, 2, 4), (1, 2, 1, 4), (1, 0, 1, 4), (1, 0, 1, 2))
    versions = (
        Group(*gap, *_short_detail_parts(result, *each)) for each in sizes for gap in ([Text("")], [])
    )
    return FirstThatFits(versions, MAX_LINES - _verdict_lines(result.estimate))


def _short_verdict_parts(estimate: Estimate, rows: int, lines: int, gap: str) -> Iterator[RenderableType]:
    yield Cropped(Text(format_verdict(estimate), style=STYLES[estimate.verdict]), 3)
    yield from _verdict_notes(estimate)
    snapshot = snapshot_of(estimate)
    if snapshot is not None:
        yield from section("Memory at the peak", format_gpu(estimate))
        yield MemoryBar(snapshot, rows=rows)
        yield Text(f"{gap}Memory by line", style="bold")
        yield largest_lines(snapshot.top, sources_of(snapshot), lines)


def _short_detail_parts(
    result: ScriptEstimate, options: int, option_lines: int, commands: int, note_lines: int
) -> Iterator[RenderableType]:
    """Yield the details, with at most `options` options that save memory. The description of the first option has at
    most `option_lines` lines. The sentence about the batch size and the note have at most `note_lines` lines each. If
    an option makes the script fit, the options that do not are omitted.
    """
    estimate = result.estimate
    yield Cropped(Text(_batch(result), style="bold"), note_lines)
    if result.options:
        suitable = [each for each in result.options if estimate.fits or each.verdict != "does-not-fit"]
        suitable = suitable or list(result.options)
        first, *others = suitable[:options]
        remark = _options_remark(1 + len(others), len(suitable))
        heading = Text(_options_title(result), style="bold")
        heading.append(f"  {remark}", style="not bold dim")
        yield heading
        widest = max(len(option.name) for option in (first, *others))
        yield _option(first, widest, estimate.gpu.total)
        if option_lines and _how(first) not in _batch(result):
            yield Cropped(Padding(Text(_how(first)), (0, 0, 0, 6)), option_lines)
        for option in others:
            yield _option(option, widest, estimate.gpu.total)
    notes = _other_notes(estimate)
    if notes:
        version = version_note(estimate.trace.differing_versions)
        note = min(notes, key=lambda each: (each == NO_VALIDATION_NOTE, each == version))
        # The safe bound already includes the margin for the versions, so options are more important than this note.
        has_room = note != version or options > 2 or not result.options
        if note != NO_VALIDATION_NOTE and has_room:
            yield Cropped(_note(note), note_lines)
    yield Text("Next:")
    yield Commands(list(_next_commands(result))[:commands])


def _next_commands(result: ScriptEstimate) -> Iterator[tuple[str, str]]:
    estimate = result.estimate
    fitting = "" if estimate.fits else result.fitting_command
    if fitting:
        is_smaller = result.virtual_batch_size != result.recommended
        yield (
            f"legroom run --gpu {estimate.gpu.name} {fitting}",
            "a virtual GPU may need more memory, so run a smaller batch"
            if is_smaller
            else "run the batch size that fits on a virtual GPU",
        )
    elif result.fits_virtual_gpu:
        yield f"legroom run --gpu {estimate.gpu.name} {result.script}", _remark(result)
    else:
        yield (
            f"legroom run {result.script}",
            "run it on a real GPU; a virtual GPU may need more memory",
        )
    if result.options or estimate.notes:
        yield (
            f"legroom estimate --verbose --gpu {estimate.gpu.name} {result.script}",
            "the complete estimate",
        )
    elif estimate.fits and estimate.trace.trains and not result.options_tried:
        yield (
            f"legroom estimate --plan --gpu {estimate.gpu.name} {result.script}",
            "list options that save memory",
        )


def _remark(result: ScriptEstimate) -> str:
    """Return the remark for the command that runs the script with its current batch size on a virtual GPU."""
    match result.estimate.verdict:
        case "fits" if result.estimate.growth is not None:
            return "names the variable that retains memory"
        case "fits":
            return "run it on a virtual GPU"
        case "uncertain":
            return result.next_change or "check on a virtual GPU whether it fits"
    return result.next_change or "see on a virtual GPU where it runs out of memory"


def _verdict_parts(estimate: Estimate) -> Iterator[RenderableType]:
    yield Text(format_verdict(estimate), style=STYLES[estimate.verdict])
    yield from _verdict_notes(estimate)
    snapshot = snapshot_of(estimate)
    if snapshot is not None:
        yield from section("Memory at the peak", format_gpu(estimate))
        yield MemoryBar(snapshot)
        yield from top_lines(snapshot.top, sources_of(snapshot))


def _verdict_notes(estimate: Estimate) -> Iterator[RenderableType]:
    """Yield the notes about an evaluation that was not traced and about memory that grows from step to step. They belong
    to the verdict, because the script may run out of memory even if the traced steps fit.
    """
    if estimate.growth is not None:
        yield _note(estimate.growth.note)
    if estimate.trace.untraced_evaluation:
        yield _note(evaluation_note(estimate.trace.untraced_evaluation))


def _other_notes(estimate: Estimate) -> list[str]:
    shown = {evaluation_note(estimate.trace.untraced_evaluation)}
    if estimate.growth is not None:
        shown.add(estimate.growth.note)
    return [note for note in estimate.notes if note not in shown]


def _note(note: str) -> Text:
    return Text(f"{clean(note).rstrip('.')}.", style="yellow")


def snapshot_of(estimate: Estimate) -> MemorySnapshot | None:
    return snapshot_at_peak(
        Ledger(estimate.trace.events),
        0,
        max(estimate.gpu.total, estimate.peak_device),
        other=estimate.peak_device - estimate.peak_reserved,
        reserved=estimate.peak_reserved,
    )


def sources_of(snapshot: MemorySnapshot) -> Sources:
    frames = [Frame(row.file, row.line, row.function or "") for row in snapshot.top if row.file and row.line]
    return read_sources(frames)


def _detail_parts(result: ScriptEstimate) -> Iterator[RenderableType]:
    estimate = result.estimate
    yield Text(f"\n{_batch(result)}", style="bold")
    if result.options:
        yield from section(_options_title(result), "each traced, cheapest first")
        yield from _options(result.options, estimate.gpu.total)
    yield Text("")
    for note in _other_notes(estimate):
        yield _note(note)
    if estimate.mode == "fake" and estimate.trace.values_substituted:
        count = format_count(estimate.trace.values_substituted, "value")
        yield Text(
            f"The script read {count} computed by the model. The estimate used 1 or False instead.",
            style="dim",
        )
    if not result.fits_virtual_gpu:
        yield Text(
            "A virtual GPU may need more memory than a real GPU, for example for dropout, so the script may not fit on a "
            "virtual GPU of the same size.",
            style="dim",
        )
    fitting = "" if estimate.fits else result.fitting_command
    change = f", {result.next_change}" if result.next_change else ""
    if not (estimate.fits or fitting or change):
        yield Text("To see where the script runs out of memory on a virtual GPU of the same size:")
    else:
        yield Text(f"To run the script on a virtual GPU of the same size{change}:")
    yield verbatim(f"  legroom run --gpu {estimate.gpu.name} {fitting or result.script}", style="bold cyan")
    if estimate.fits and estimate.trace.trains and not result.options_tried:
        yield Text("To list options that save memory:")
        yield verbatim(
            f"  legroom estimate --plan --gpu {estimate.gpu.name} {result.script}", style="bold cyan"
        )


def format_verdict(estimate: Estimate) -> str:
    """Return the first sentence: whether the step fits, how much memory it needs, and the line that uses the most
    memory."""
    total = format_size(estimate.gpu.total)
    needs = f"{format_size(estimate.peak_device)} of {total}"
    top = next((row for row in estimate.state.top(5) if row.file), None)
    where = "" if top is None else f" Largest part: {format_location(top.file, top.line)}."
    match estimate.verdict:
        case "fits" if estimate.peak_device > estimate.gpu.total:
            return (
                f"Fits in {total}, because PyTorch frees its cache before memory runs out. "
                f"On a GPU with more memory, the script would use {format_size(estimate.peak_device)}.{where}"
            )
        case "fits":
            fits = "Training fits" if estimate.trace.untraced_evaluation else "Fits"
            fits = "Fits at first" if estimate.growth is not None else fits
            return f"{fits}: needs {needs} (at most {format_size(estimate.safe)}).{where}"
        case "uncertain":
            return f"May not fit: needs about {needs}, possibly up to {format_size(estimate.safe)}.{where}"
    over = estimate.peak_device - estimate.gpu.total
    if over > 0:
        return f"Does not fit: needs {needs}, which is {format_size(over)} over the limit.{where}"
    return f"Does not fit: needs {needs}, but the free memory is fragmented.{where}"


def _batch(result: ScriptEstimate) -> str:
    estimate = result.estimate
    size, largest = estimate.batch_size, estimate.max_batch_size
    if size is None:
        return f"Only this batch size was traced, because {result.only_size_reason}."
    if result.search is None:
        because = f", because {result.only_size_reason}" if result.only_size_reason else ""
        hint = _smaller_size(result) if result.only_size_reason else ""
        return f"Only batch size {size} was traced{because}.{hint}"
    if largest is None and result.estimate.decided_by == "validation":
        cause = "validation" if estimate.trace.validates else "the code after the training steps"
        return f"No training batch size fits, because {cause} alone needs too much memory."
    if largest is None and not result.search.is_complete:
        stopped = f"because the search stopped after {SEARCH_SECONDS:.0f} seconds"
        smallest = min(result.search.tried)
        if smallest >= size:
            return f"No smaller batch size than {size} was traced, {stopped}.{_smaller_size(result)}"
        return (
            f"Batch size {smallest} does not fit either (current: {size}). Smaller sizes were not traced, {stopped}."
            f"{_smaller_size(result)}"
        )
    if largest is None:
        return f"Not even batch size {min(result.search.tried)} fits (current: {size})."
    if largest > 0.99 * MAX_BATCH:
        return (
            f"All batch sizes that were traced fit, from {min(result.search.tried)} to {largest} (current: {size}). "
            "Memory use may not depend on the batch size, for example if the data set is smaller than a batch."
        )
    change = f" {result.batch_change}." if result.batch_change else ""
    if not result.search.is_complete:
        over = result.search.smallest_too_large
        bound = f" Batch size {over} does not fit." if over is not None else ""
        return (
            f"Batch size {largest} fits (current: {size}).{bound} Other sizes were not traced, because the search "
            f"stopped after {SEARCH_SECONDS:.0f} seconds.{change}"
        )
    safe = result.recommended
    fits = "Largest batch size that fits"
    if estimate.growth is not None:
        fits = "Largest batch size whose first steps fit"
        change = "" if estimate.fits else change
    if safe is None:
        return (
            f"{fits}: {largest} (current: {size}). Confirmed by a trace, but no batch size "
            "that was traced fits with a safety margin."
        )
    if safe < largest:
        return (
            f"{fits}: {largest}, or {safe} with a safety margin (current: {size}). "
            f"Confirmed by traces.{change}"
        )
    return f"{fits}: {largest} (current: {size}). Confirmed by a trace.{change}"


def _smaller_size(result: ScriptEstimate) -> str:
    """Return how to estimate a smaller batch size than those that were traced, or "" if the script fits or has no
    DataLoader.
    """
    tried = result.search.tried if result.search is not None else ()
    size = min((*tried, result.estimate.batch_size or 1))
    if result.estimate.fits or size < 2 or result.estimate.trace.batch_size is None:
        return ""
    return f" To estimate a smaller batch, set it with `legroom estimate --batch-size {size // 2}`."


def _options_title(result: ScriptEstimate) -> str:
    enough = any(option.verdict != "does-not-fit" for option in result.options)
    return (
        "Options that make the script fit"
        if enough and not result.estimate.fits
        else "Options that save memory"
    )


def _options_remark(shown: int, traced: int) -> str:
    if shown < traced:
        return f"the cheapest {shown} of {traced}" if shown > 1 else f"the cheapest of {traced}"
    return "cheapest first" if shown > 1 else ""


def _options(options: tuple[PlannedOption, ...], total: int) -> Iterator[RenderableType]:
    widest = max(len(option.name) for option in options)
    for option in options:
        yield _option(option, widest, total)
        yield Padding(Text(_how(option)), (0, 0, 0, 6))
        yield Padding(Text(f"Cost: {option.cost}.", style="dim"), (0, 0, 0, 6))


def _option(option: PlannedOption, name_width: int, total: int) -> Text:
    frees_cache = option.verdict != "does-not-fit" and option.peak_device > total
    peak = total if frees_cache else option.peak_device
    head = Text(f"  {option.name:<{name_width}}  {format_size(peak):>9}  ")
    verdict, style = _OPTION_VERDICTS[option.verdict]
    head.append(f"{verdict}, because PyTorch frees its cache" if frees_cache else verdict, style)
    return head


def _how(option: PlannedOption) -> str:
    return f"{option.how[:1].upper()}{option.how[1:]}."


_OPTION_VERDICTS = {
    "fits": ("fits", "green"),
    "uncertain": ("may fit", "yellow"),
    "does-not-fit": ("not enough alone", "dim"),
}


def format_gpu(estimate: Estimate) -> str:
    size = format_size(estimate.gpu.total)
    return f"a GPU of {size}" if estimate.gpu.is_size else f"{estimate.gpu.name}, {size}"
