"""An estimate as text: the verdict in a sentence, the picture at the peak, the largest batch, what would save memory."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from legroom.diagnose.report.device_memory import snapshot_at_peak
from legroom.diagnose.report.source_lines import read_sources
from legroom.memory.events import Frame
from legroom.memory.ledger import Ledger
from legroom.predict.estimate import Estimate
from legroom.predict.largest_batch import MOST
from legroom.predict.options.plan import Option
from legroom.predict.script_estimate import Told
from legroom.show.common.formatting import clean, format_count, format_location
from legroom.show.common.memory_charts import MemoryBar
from legroom.show.common.sections import section, top_lines
from legroom.show.common.terminal import verbatim
from legroom.units import format_size

STYLES = {"fits": "bold green", "uncertain": "bold yellow", "does-not-fit": "bold red"}


def verdict_words(now: Estimate) -> RenderableType:
    """What one trace tells: does it fit, and who holds the memory."""
    return Group(*_verdict_parts(now))


def further_words(told: Told) -> RenderableType:
    """What further traces tell: the largest batch, and what would save memory."""
    return Group(*_further_parts(told))


def _verdict_parts(now: Estimate) -> Iterator[RenderableType]:
    yield Text(_verdict(now), style=STYLES[now.verdict])
    whole = max(now.gpu.total, now.peak_device)
    other = now.peak_device - now.peak_reserved
    picture = snapshot_at_peak(Ledger(now.trace.events), 0, whole, other=other, reserved=now.peak_reserved)
    if picture is not None:
        yield from section("Who holds the memory at the peak", _gpu_words(now))
        yield MemoryBar(picture)
        frames = [
            Frame(row.file, row.line, row.function or "") for row in picture.top if row.file and row.line
        ]
        yield from top_lines(picture.top, read_sources(frames))


def _further_parts(told: Told) -> Iterator[RenderableType]:
    now = told.estimate
    yield Text(f"\n{_batch(told)}", style="bold")
    if told.options:
        enough = not now.fits and any(option.verdict != "does-not-fit" for option in told.options)
        title = "What would make it fit" if enough else "What would save memory"
        yield from section(title, "each traced, cheapest first")
        yield from _options(told.options, now.gpu.total)
    yield Text("")
    for note in now.notes:
        yield Text(f"{clean(note).rstrip('.')}.", style="yellow")
    if now.mode == "fake" and now.trace.made_up:
        yield Text(
            f"The script read {format_count(now.trace.made_up, 'value')} from the device: made up (1, or False).",
            style="dim",
        )
    yield from _next(told)
    if now.fits and now.trace.trains and not told.planned:
        yield Text("What would save memory:")
        yield verbatim(
            f"  legroom estimate --plan --gpu {now.gpu.name} {told.script}",
            style="bold cyan",
        )


def _verdict(now: Estimate) -> str:
    sizes = f"{format_size(now.peak_device)} of {format_size(now.gpu.total)}"
    bound = f"at most {format_size(now.safe)}"
    top = next((row for row in now.state.top(5) if row.file), None)
    where = "" if top is None else f", the largest part from {format_location(top.file, top.line)}"
    match now.verdict:
        case "fits" if now.peak_device > now.gpu.total:
            return (
                f"Fits into {format_size(now.gpu.total)} because PyTorch gives back its cache in time;"
                f" where there is more it takes {format_size(now.peak_device)}{where}."
            )
        case "fits":
            return f"Fits: needs {sizes} ({bound}){where}."
        case "uncertain":
            return f"May not fit: needs about {sizes}, but up to {format_size(now.safe)}{where}."
    over = now.peak_device - now.gpu.total
    missing = f"{format_size(over)} too much" if over > 0 else "and not in the pieces that are free"
    return f"Does not fit: needs {sizes}, {missing}{where}."


def _batch(told: Told) -> str:
    now = told.estimate
    if now.batch_size is None:
        return (
            "No DataLoader gives its batches and no argument sets their size: no other batch size was tried."
        )
    if told.search is None:
        return f"Traced with a batch of {now.batch_size}."
    if now.max_batch_size is None:
        return f"Not even a batch of {min(told.search.tried)} fits (today: {now.batch_size})."
    if now.max_batch_size > 0.99 * MOST:
        return f"Even a batch of {now.max_batch_size} fits (today: {now.batch_size}); none larger was tried."
    what = f"`{told.batch_argument}`" if told.batch_argument else "batch"
    return f"Largest {what} that fits: {now.max_batch_size} (today: {now.batch_size}); traced at that size."


def _options(options: tuple[Option, ...], memory: int) -> Iterator[RenderableType]:
    widest = max(len(option.means) for option in options)
    for option in options:
        gives_back = option.verdict != "does-not-fit" and option.peak_device > memory
        peak = memory if gives_back else option.peak_device
        head = Text(f"  {option.means:<{widest}}  {format_size(peak):>9}  ")
        word, style = _OPTION_WORDS[option.verdict]
        head.append(f"{word}, by giving back its cache" if gives_back else word, style)
        yield head
        yield Padding(Text(f"{option.how[:1].upper()}{option.how[1:]}."), (0, 0, 0, 6))
        yield Padding(Text(f"Costs {option.price}.", style="dim"), (0, 0, 0, 6))


_OPTION_WORDS = {
    "fits": ("fits", "green"),
    "uncertain": ("just fits", "yellow"),
    "does-not-fit": ("not enough alone", "dim"),
}


def _gpu_words(now: Estimate) -> str:
    size = format_size(now.gpu.total)
    return f"a GPU of {size}" if now.gpu.is_size else f"{now.gpu.name}, {size}"


def _next(told: Told) -> Iterator[RenderableType]:
    yield Text("Next, on a virtual GPU of the same size:")
    yield verbatim(f"  legroom run --gpu {told.estimate.gpu.name} {told.script}", style="bold cyan")
