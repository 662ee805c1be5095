"""The public `legroom.estimate`: the estimate (see `legroom.predict.api`) as text, and as HTML in a notebook."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import ParamSpec

from legroom.diagnose.report.source_lines import Sources
from legroom.memory.state import Holding
from legroom.predict import api
from legroom.predict.estimate import Estimate
from legroom.show.common import notebook_html as html
from legroom.show.common.code_frame import source_line
from legroom.show.common.formatting import format_location
from legroom.show.common.memory_svg import CATEGORY_FILLS, bar_svg
from legroom.show.common.terminal import render_to_string
from legroom.show.estimate.estimate import (
    format_gpu,
    format_verdict,
    render_verdict,
    snapshot_of,
    sources_of,
)
from legroom.units import format_size

P = ParamSpec("P")
TOP_LINES = 5


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ShownEstimate(Estimate):
    """An estimate whose text is the report of `legroom estimate`."""

    def __str__(self) -> str:
        return render_to_string(render_verdict(self)).rstrip()

    def _repr_html_(self) -> str:
        return html.block(*_html_parts(self))


def _html_parts(estimate: Estimate) -> Iterator[str]:
    yield html.sentence(format_verdict(estimate), bold=True)
    if estimate.max_batch_size is not None:
        yield html.sentence(
            f"Largest batch size that fits: {estimate.max_batch_size} (current: {estimate.batch_size})."
        )
    snapshot = snapshot_of(estimate)
    if snapshot is not None:
        yield html.heading("Memory at the peak", format_gpu(estimate))
        yield bar_svg(snapshot, label="Memory by category. The table below shows the same values.")
        yield html.legend(snapshot)
        if snapshot.top:
            sources = sources_of(snapshot)
            yield html.heading("Memory by line")
            yield html.table((_row(each, sources) for each in snapshot.top[:TOP_LINES]), align="rlll")
    for note in estimate.notes:
        yield html.sentence(f"{note.rstrip('.')}.", muted=True)


def _row(holding: Holding, sources: Sources) -> tuple[str, str, str, str]:
    code = source_line(sources, holding.file, holding.line)
    return (
        format_size(holding.bytes),
        html.swatch(CATEGORY_FILLS[holding.category]) + html.text(str(holding.category)),
        html.text(format_location(holding.file, holding.line)),
        html.code(code) if code else html.text(holding.module),
    )


def _shown(predict: Callable[P, Estimate]) -> Callable[P, ShownEstimate]:
    @functools.wraps(predict)
    def shown(*args: P.args, **kwargs: P.kwargs) -> ShownEstimate:
        result = predict(*args, **kwargs)
        return ShownEstimate(**{each.name: getattr(result, each.name) for each in fields(result)})

    return shown


estimate = _shown(api.estimate)
