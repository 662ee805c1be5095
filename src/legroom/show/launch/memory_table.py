"""The predicted memory of each rank as a table, for `legroom launch --dry-run`."""

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
    """The predicted memory of each rank, or why there is no prediction."""
    return Group(*_parts(forecasts))


def _parts(forecasts: Sequence[Forecast]) -> Iterator[RenderableType]:
    if not forecasts:
        yield Text("")
        yield Text(
            "Dry run: nothing was started. To predict the memory of each rank, add --gpu 24GiB or --gpu rtx4090."
        )
        return
    estimated = [forecast for forecast in forecasts if forecast.estimate is not None]
    if estimated:
        yield from section("Predicted memory", "including kernel workspaces")
        yield _table(estimated)
    for reason, ranks in _reasons(forecasts).items():
        yield Text(
            f"No prediction for rank {', '.join(map(str, ranks))}: {clean(reason).rstrip('.')}.",
            style="yellow",
        )
    for note in dict.fromkeys(note for forecast in estimated for note in forecast.estimate.notes):  # type: ignore[union-attr]
        yield Text(f"{clean(note).rstrip('.')}.", style="dim")
    yield Text("\nDry run: nothing was started. Remove --dry-run to launch.")


def _table(forecasts: Sequence[Forecast]) -> Table:
    table = Table(box=None, padding=(0, 2), show_edge=False, header_style="dim")
    for heading in ("rank", "batch", "predicted", "at most", "of"):  # batch: the per-rank batch size
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    for forecast in forecasts:
        estimate = forecast.estimate
        assert estimate is not None
        table.add_row(
            str(forecast.rank),
            str(estimate.batch_size or "?"),
            format_size(estimate.peak_device),
            format_size(estimate.safe),
            format_size(forecast.gpu.total),
            Text(_VERDICTS[estimate.verdict], style=STYLES[estimate.verdict]),
        )
    return table


def _reasons(forecasts: Sequence[Forecast]) -> dict[str, list[int]]:
    """The ranks without a prediction, by reason."""
    reasons: dict[str, list[int]] = {}
    for forecast in forecasts:
        if forecast.estimate is None:
            reasons.setdefault(forecast.trouble, []).append(forecast.rank)
    return reasons
