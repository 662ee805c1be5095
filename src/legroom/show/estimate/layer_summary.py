"""`legroom.summary(model, batch)`: a model layer by layer, as a table in 80 columns, in a notebook, and as data."""

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from torch import nn

from legroom.errors import UsageError
from legroom.predict.layers.shape_mismatch import Mismatch, shape_words
from legroom.predict.layers.summary import LayerSummary, Row, summarize
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
    """What each layer of `model` makes and keeps for the backward pass, without a GPU and without arithmetic.

    `batch`: as for `legroom.estimate`: a tensor, (inputs, target), or a dict of named inputs. A plain size such as (3, 224, 224)
    stands for one image, as in torchsummary. `input_size`: the whole shape, batch first, as in torchinfo; several for several inputs.
    The model is not changed. Print what comes back, or read `.rows`.
    """
    if (batch is None) == (input_size is None):
        raise UsageError(
            "give a batch or a size: legroom.summary(model, batch) or legroom.summary(model, input_size=(32, 3, 224, 224))"
        )
    if input_size is not None:
        sizes = [input_size] if _is_size(input_size) else list(input_size)
        made = [torch.empty(*_checked(size), dtype=dtype, device="meta") for size in sizes]
        batch = made[0] if len(made) == 1 else (*made, None)
    elif _is_size(batch):
        batch = torch.empty(1, *_checked(batch), dtype=dtype, device="meta")
    told = summarize(model, batch)
    return Summary(**{part.name: getattr(told, part.name) for part in fields(told)})


def _is_size(value: Any) -> bool:
    return (
        isinstance(value, list | tuple | torch.Size)
        and bool(value)
        and all(type(size) is int for size in value)
    )


def _checked(size: Any) -> list[int]:
    if not _is_size(size) or any(each <= 0 for each in size):
        raise UsageError("a size is a tuple of whole numbers above zero, such as (32, 3, 224, 224)")
    return list(size)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Summary(LayerSummary):
    """A model, layer by layer; prints as a table."""

    def __repr__(self) -> str:
        return render_to_string(summary_words(self)).rstrip()

    def _repr_html_(self) -> str:
        cells = "".join(
            "<tr>"
            + "".join(
                f"<td style='text-align:{'left' if at == 0 else 'right'}'>{html.escape(cell)}</td>"
                for at, cell in enumerate(_cells(row, indent="\u2003"))
            )
            + "</tr>"
            for row in self.rows
        )
        head = "".join(f"<th>{title}</th>" for title in _TITLES)
        below = html.escape(render_to_string(Group(*_totals(self))).strip())
        return f"<table><thead><tr>{head}</tr></thead><tbody>{cells}</tbody></table><pre>{below}</pre>"


_TITLES = ("layer", "output", "parameters", "kept", "of peak")


def summary_words(told: LayerSummary) -> RenderableType:
    return Group(*_parts(told))


def _parts(told: LayerSummary) -> Iterator[RenderableType]:
    if told.mismatch is not None:
        yield from _mismatch_words(told.mismatch)
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    table.add_column(_TITLES[0], no_wrap=True, overflow="ellipsis", ratio=1)
    for title in _TITLES[1:]:
        table.add_column(title, justify="right", no_wrap=True)
    for row in told.rows:
        style = "dim" if row.is_operation else ("bold" if row.has_children else "")
        table.add_row(*(Text(clean(cell), style=style) for cell in _cells(row)))
    if told.rows:
        yield table
    yield from _totals(told)


def _cells(row: Row, indent: str = "  ") -> tuple[str, str, str, str, str]:
    last = row.name.rpartition(".")[2]
    label = row.kind if row.is_operation or not last else f"{row.kind} {last}"
    outputs = " ".join(shape_words(shape) for shape in row.outputs[:1]) + (
        " …" if len(row.outputs) > 1 else ""
    )
    told = not row.has_children
    return (
        f"{indent * row.depth}{label}",
        outputs or "--",
        f"{row.own_parameters:,}" if row.own_parameters else "--",
        format_size(row.kept) if told and row.kept else "--",
        _percent(row.share) if told and row.kept else "--",
    )


def _percent(share: float) -> str:
    return f"{share:.1%}" if share >= 0.001 else "<0.1%"


def _totals(told: LayerSummary) -> Iterator[RenderableType]:
    frozen = told.parameters - told.trainable
    aside = f" ({frozen:,} frozen)" if frozen else ""
    yield Text(
        f"\nParameters {told.parameters:,}{aside}, {format_size(told.parameter_bytes)}; input {format_size(told.input_bytes)}."
    )
    if told.peak:
        yield Text(
            f"Kept for the backward pass: {format_size(told.kept)}. Peak of a training step with AdamW: {format_size(told.peak)}."
        )


def _mismatch_words(told: Mismatch) -> Iterator[RenderableType]:
    layer = f"{told.kind} {told.layer}".strip()
    where = f", {format_location(told.file, told.line)}" if told.file else ""
    wants = f", and wants {told.wants}" if told.wants else ""
    did = "cannot take what it is given" if told.wants else "failed"
    yield Text(f"{clean(layer)} {did}{where}: it got {told.got}{wants}.", style="bold red")
    if told.edit:
        yield Text(f"What fits: {told.edit}", style="bold")
    yield Text(f"{clean(told.error)}\n", style="dim")
