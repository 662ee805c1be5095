"""`legroom.summary(model, batch)`: shows the layers of a model as text or as a notebook table, and returns them as
data."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from torch import nn

from legroom.arguments import check_names
from legroom.errors import UsageError
from legroom.predict.layers.shape_mismatch import ShapeMismatch, format_shape
from legroom.predict.layers.summary import LayerRow, LayerSummary, summarize
from legroom.show.common import notebook_html as html
from legroom.show.common.formatting import clean, format_location
from legroom.show.common.terminal import render_to_string
from legroom.units import format_size


def summary(
    model: nn.Module,
    batch: Any = None,
    *,
    input_size: Sequence[int] | Sequence[Sequence[int]] | None = None,
    dtype: torch.dtype = torch.float32,
) -> "Summary":
    """Return the output shape, the number of parameters and the bytes saved for the backward pass of each layer of
    `model`. No GPU is needed.

    `batch` is a tensor, a tuple `(inputs, target)`, or a dict of named inputs, as in `legroom.estimate`. A size such
    as (3, 224, 224) describes one image, as in torchsummary. `input_size` is the whole shape including the batch size,
    as in torchinfo. For several inputs, pass several shapes. The model is not modified. Print the result, or read
    `.rows`.
    """
    if (batch is None) == (input_size is None):
        raise UsageError(
            "Pass a batch or a size: `legroom.summary(model, batch)` or `legroom.summary(model, input_size=(32, 3, 224, 224))`."
        )
    if input_size is not None:
        sizes = (
            [input_size]
            if _is_size(input_size)
            else check_names("input_size", input_size, "(32, 3, 224, 224)")
        )
        tensors = [torch.empty(*_checked(size), dtype=dtype, device="meta") for size in sizes]
        batch = tensors[0] if len(tensors) == 1 else (*tensors, None)
    elif _is_size(batch):
        batch = torch.empty(1, *_checked(batch), dtype=dtype, device="meta")
    result = summarize(model, batch)
    return Summary(**{field.name: getattr(result, field.name) for field in fields(result)})


def _is_size(value: Any) -> bool:
    return (
        isinstance(value, list | tuple | torch.Size)
        and bool(value)
        and all(type(size) is int for size in value)
    )


def _checked(size: Any) -> list[int]:
    if not _is_size(size) or any(length <= 0 for length in size):
        raise UsageError("A size must be a tuple of positive integers, such as `(32, 3, 224, 224)`.")
    return list(size)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Summary(LayerSummary):
    """The layers of a model. The `repr` is a table."""

    def __repr__(self) -> str:
        return render_to_string(render_summary(self)).rstrip()

    def _repr_html_(self) -> str:
        rows = ([html.text(cell) for cell in _cells(row, indent="\u2003")] for row in self.rows)
        table = html.table(rows, align="lrrrr", head=_TITLES) if self.rows else ""
        errors = () if self.mismatch is None else map(_one_line, _mismatch(self.mismatch))
        sentences = (html.sentence(each, bold=at == 0) for at, each in enumerate(errors))
        return html.block(*sentences, table, *map(html.sentence, map(_one_line, _totals(self))))


def _one_line(part: RenderableType) -> str:
    return " ".join(render_to_string(part).split())


_TITLES = ("layer", "output", "parameters", "saved", "of peak")


def render_summary(summary: LayerSummary) -> RenderableType:
    return Group(*_parts(summary))


def _parts(summary: LayerSummary) -> Iterator[RenderableType]:
    if summary.mismatch is not None:
        yield from _mismatch(summary.mismatch)
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    table.add_column(_TITLES[0], no_wrap=True, overflow="ellipsis", ratio=1)
    for title in _TITLES[1:]:
        table.add_column(title, justify="right", no_wrap=True)
    for row in summary.rows:
        style = "dim" if row.is_operation else ("bold" if row.has_children else "")
        table.add_row(*(Text(clean(cell), style=style) for cell in _cells(row)))
    if summary.rows:
        yield table
    yield from _totals(summary)


def _cells(row: LayerRow, indent: str = "  ") -> tuple[str, str, str, str, str]:
    last = row.name.rpartition(".")[2]
    label = row.kind if row.is_operation or not last else f"{row.kind} {last}"
    outputs = " ".join(format_shape(shape) for shape in row.outputs[:1]) + (
        " …" if len(row.outputs) > 1 else ""
    )
    shows_saved = not row.has_children and row.saved
    return (
        f"{indent * row.depth}{label}",
        outputs or "--",
        f"{row.own_parameters:,}" if row.own_parameters else "--",
        format_size(row.saved) if shows_saved else "--",
        _percent(row.share) if shows_saved else "--",
    )


def _percent(share: float) -> str:
    return f"{share:.1%}" if share >= 0.001 else "<0.1%"


def _totals(summary: LayerSummary) -> Iterator[RenderableType]:
    frozen = summary.parameters - summary.trainable
    aside = f" ({frozen:,} frozen)" if frozen else ""
    yield Text(
        f"\nParameters: {summary.parameters:,}{aside}, {format_size(summary.parameter_bytes)}. "
        f"Input: {format_size(summary.input_bytes)}."
    )
    if summary.peak:
        yield Text(
            f"Saved for the backward pass: {format_size(summary.saved)}. "
            f"Peak memory of a training step with AdamW: {format_size(summary.peak)}."
        )


def _mismatch(mismatch: ShapeMismatch) -> Iterator[RenderableType]:
    layer = clean(f"{mismatch.kind} {mismatch.layer}".strip())
    where = f" ({format_location(mismatch.file, mismatch.line)})" if mismatch.file else ""
    if mismatch.expects:
        message = f"Shape mismatch in {layer}{where}: expected {mismatch.expects}, got {mismatch.got}."
    else:
        message = f"{layer} failed{where} with input {mismatch.got}."
    yield Text(message, style="bold red")
    if mismatch.edit:
        yield Text(f"Fix: {mismatch.edit}", style="bold")
    yield Text(f"{clean(mismatch.error)}\n", style="dim")
