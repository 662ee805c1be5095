"""What each rank will need, as a table: for `legroom launch --dry-run`."""

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from legroom.scale.launching.memory_prediction import Forecast
from legroom.show.common.formatting import clean
from legroom.show.common.sections import section
from legroom.show.estimate.estimate import STYLES
from legroom.units import format_size

_VERDICTS = {"fits": "fits", "uncertain": "may not fit", "does-not-fit": "does not fit"}


def render_predictions(forecasts: Sequence[Forecast]) -> RenderableType:
    """The predicted memory of each rank, or why there is none."""
    return Group(*_parts(forecasts))


def _parts(forecasts: Sequence[Forecast]) -> Iterator[RenderableType]:
    if not forecasts:
        yield Text("")
        yield Text(
            "Nothing was started. To see the memory of each rank, name the GPU: --gpu 24GiB or --gpu rtx4090."
        )
        return
    told = [forecast for forecast in forecasts if forecast.estimate is not None]
    if told:
        yield from section("Predicted memory", "kernel workspaces included")
        yield _table(told)
    for trouble, ranks in _troubles(forecasts).items():
        yield Text(f"No prediction for rank {', '.join(map(str, ranks))}: {clean(trouble)}.", style="yellow")
    for note in dict.fromkeys(note for forecast in told for note in forecast.estimate.notes):  # type: ignore[union-attr]
        yield Text(f"{clean(note).rstrip('.')}.", style="dim")
    yield Text("\nNothing was started: leave --dry-run away to do that.")


def _table(forecasts: Sequence[Forecast]) -> Table:
    table = Table(box=None, padding=(0, 2), show_edge=False, header_style="dim")
    for heading in ("rank", "batch", "needs", "at most", "of"):  # the batch is the rank's own
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    for forecast in forecasts:
        told = forecast.estimate
        assert told is not None
        table.add_row(
            str(forecast.rank),
            str(told.batch_size or "?"),
            format_size(told.peak_device),
            format_size(told.safe),
            format_size(forecast.gpu.total),
            Text(_VERDICTS[told.verdict], style=STYLES[told.verdict]),
        )
    return table


def _troubles(forecasts: Sequence[Forecast]) -> dict[str, list[int]]:
    """Ranks mostly fail alike: each reason once."""
    found: dict[str, list[int]] = {}
    for forecast in forecasts:
        if forecast.estimate is None:
            found.setdefault(forecast.trouble, []).append(forecast.rank)
    return found
