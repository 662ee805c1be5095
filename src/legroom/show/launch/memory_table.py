"""The predicted memory of each rank as a table, for `legroom launch --dry-run`."""

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from legroom.scale.launching.memory_prediction import RankPrediction
from legroom.show.common.formatting import clean
from legroom.show.common.sections import section
from legroom.show.estimate.estimate import STYLES
from legroom.units import format_size

_VERDICTS = {"fits": "fits", "uncertain": "may not fit", "does-not-fit": "does not fit"}


def render_predictions(predictions: Sequence[RankPrediction]) -> RenderableType:
    """Render the predicted memory of each rank, or the reason why there is no prediction."""
    return Group(*_parts(predictions))


def _parts(predictions: Sequence[RankPrediction]) -> Iterator[RenderableType]:
    if not predictions:
        yield Text("")
        yield Text(
            "Dry run: nothing was started. To predict the memory of each rank, add --gpu 24GiB or --gpu rtx4090."
        )
        return
    estimated = [prediction for prediction in predictions if prediction.estimate is not None]
    if estimated:
        yield from section("Predicted memory", "including kernel workspaces")
        yield _table(estimated)
    for reason, ranks in _reasons(predictions).items():
        yield Text(
            f"No prediction for rank {', '.join(map(str, ranks))}: {clean(reason).rstrip('.')}.",
            style="yellow",
        )
    for note in dict.fromkeys(note for prediction in estimated for note in prediction.estimate.notes):  # type: ignore[union-attr]
        yield Text(f"{clean(note).rstrip('.')}.", style="dim")
    yield Text("\nDry run: nothing was started. Remove --dry-run to launch.")


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
    """Return the ranks without a prediction, by reason."""
    reasons: dict[str, list[int]] = {}
    for prediction in predictions:
        if prediction.estimate is None:
            reasons.setdefault(prediction.error, []).append(prediction.rank)
    return reasons
