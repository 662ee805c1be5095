"""The predicted memory of each rank as a table, for `legroom launch --dry-run`."""

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from legroom.scale.launching.memory_prediction import RankPrediction
from legroom.show.common.formatting import clean, format_count
from legroom.show.common.sections import section
from legroom.show.estimate.estimate import STYLES
from legroom.units import format_size

MAX_RANKS = 8
_VERDICTS = {"fits": "fits", "uncertain": "may not fit", "does-not-fit": "does not fit"}


def render_predictions(predictions: Sequence[RankPrediction], *, verbose: bool = False) -> RenderableType:
    """Render the predicted memory of each rank, or the reason why it has no prediction. Without `verbose`, only the
    ranks with the highest predictions are shown.
    """
    return Group(*_parts(predictions, None if verbose else MAX_RANKS))


def _parts(predictions: Sequence[RankPrediction], number: int | None) -> Iterator[RenderableType]:
    if not predictions:
        yield Text("")
        yield Text(
            "Dry run: nothing was started. To predict the memory of each rank, add --gpu 24GiB or --gpu rtx4090."
        )
        return
    estimated = [prediction for prediction in predictions if prediction.estimate is not None]
    if estimated:
        yield from section("Predicted memory", "including kernel workspaces")
        yield _table(sorted(sorted(estimated, key=_peak, reverse=True)[:number], key=lambda each: each.rank))
        if number is not None and len(estimated) > number:
            more = format_count(len(estimated) - number, "rank")
            yield Text(f"  and {more} with the same or a lower prediction (--verbose shows all)", style="dim")
    notes = dict.fromkeys(note for prediction in estimated for note in prediction.estimate.notes)  # type: ignore[union-attr]
    if estimated and (notes or len(estimated) < len(predictions)):
        yield Text("")
    for reason, ranks in _reasons(predictions).items():
        yield Text(
            f"No prediction for rank {', '.join(map(str, ranks))}: {clean(reason).rstrip('.')}.",
            style="yellow",
        )
    for note in notes:
        yield Text(f"{clean(note).rstrip('.')}.", style="dim")
    yield Text("\nDry run: nothing was started. Remove --dry-run to launch.")


def _peak(prediction: RankPrediction) -> int:
    return prediction.estimate.peak_device if prediction.estimate is not None else 0


def _table(predictions: Sequence[RankPrediction]) -> Table:
    table = Table(box=None, padding=(0, 2), show_edge=False, header_style="dim")
    for heading in ("rank", "batch", "predicted", "at most", "of"):  # batch: the per-rank batch size
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    for prediction in predictions:
        estimate = prediction.estimate
        assert estimate is not None
        table.add_row(
            str(prediction.rank),
            str(estimate.batch_size or "?"),
            format_size(estimate.peak_device),
            format_size(estimate.safe),
            format_size(prediction.gpu.total),
            Text(_VERDICTS[estimate.verdict], style=STYLES[estimate.verdict]),
        )
    return table


def _reasons(predictions: Sequence[RankPrediction]) -> dict[str, list[int]]:
    reasons: dict[str, list[int]] = {}
    for prediction in predictions:
        if prediction.estimate is None:
            reasons.setdefault(prediction.error, []).append(prediction.rank)
    return reasons
