"""Memory that grows with every step, by the line that makes it.

What grows is read off the ledger: lines whose live bytes rose at the end of each of the last steps. One mistake shows
as many lines: a kept loss keeps the whole graph behind it, so every line of the model's forward grows at once, and the
inputs and results in that graph with them. Lines that grow in step with activations are therefore one leak, named by
the line that weighs most, which is what a person looks for: one thing to change.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from legroom.memory.events import Category, Holder
from legroom.memory.growth import Growth
from legroom.memory.ledger import Ledger

_Line = tuple[str | None, int | None, Category]
"""File, line and what is made there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """Something that a training loop keeps, a little more of it with each step."""

    file: str | None
    line: int | None
    """Where it is stored; where that is not known, where the largest part of it is made."""
    kind: str
    """`graph`: an autograd graph; `tensor`: plain tensors; `larger`: one tensor, born larger with each step."""
    bytes: int
    """Alive by now."""
    bytes_per_step: int
    nodes_per_step: int | None
    """Autograd nodes a step; None where no one counted them."""
    holder: str | None
    """The path by which a variable keeps it, where known."""
    advice: str
    steps: int
    """For how many steps it has been growing."""
    lines: int
    """How many lines of code grow together."""
    device: int = 0
    code: str = "LG101"
    """The page that explains it."""
    name: str = ""
    """The variable alone, where the holder is known."""
    on_host: bool = False
    """Whether the host's memory grows, not the device's."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def find_leaks(ledger: Ledger, device: int, holders: Sequence[Holder] = ()) -> list[Leak]:
    """Every leak on a device, largest first."""
    rows = ledger.growth(device)
    born = _steps_of_birth(ledger, device) if rows else {}
    growing = [row for row in rows if _is_kept(row, born)]
    graph = [row for row in growing if row.category is Category.ACTIVATION]
    others = [row for row in growing if row.category is not Category.ACTIVATION]
    if graph:
        weight, length = sum(row.bytes_per_step for row in graph), graph[0].steps
        in_graph = [row for row in others if abs(row.steps - length) <= 1 and row.bytes_per_step <= weight]
        others = [row for row in others if row not in in_graph]
        graph += in_graph
    leaks = [_leak(graph, "graph", device, holders)] if graph else []
    leaks += [_leak([row], "tensor", device, holders) for row in others]
    return sorted(leaks, key=lambda leak: -leak.bytes_per_step)


def _is_kept(row: Growth, born: Mapping[_Line, set[int]]) -> bool:
    """Whether what grows comes from several steps. Results may also be one tensor reborn larger with each step
    (`history = torch.cat(...)`); of activations and inputs that is a loop whose batches happen to grow."""
    may_be_reborn = row.category in (Category.RESULT, Category.TEMPORARY)
    return may_be_reborn or len(born.get((row.file, row.line, row.category), ())) >= 3


def _steps_of_birth(ledger: Ledger, device: int) -> dict[_Line, set[int]]:
    """The steps from which each line still had something when the last step ended."""
    born: dict[_Line, set[int]] = {}
    state = ledger.at_last_step(device)
    for each in state.live if state is not None else ():
        file, line, _ = each.frame or (None, None, None)
        born.setdefault((file, line, each.category), set()).add(each.step)
    return born


def _leak(rows: Sequence[Growth], kind: str, device: int, holders: Sequence[Holder]) -> Leak:
    largest = rows[0]
    per_step = sum(row.bytes_per_step for row in rows)
    steps = max(row.steps for row in rows)
    size = sum(row.bytes for row in rows)
    holder = _holder_of(size, holders)
    keeps = f"{holder} keeps" if holder else "Something outlives its step and keeps"
    if kind == "graph":
        advice = (
            f"{keeps} the autograd graph of every step: store numbers (`loss.item()`) or detached tensors "
            f"(`output.detach()`), not tensors that still know how they were computed."
        )
    else:
        advice = (
            f"{keeps} what is made on this line: move what you need to the host (`.cpu()`, `.item()`) "
            f"or drop it before the next step."
        )
    return Leak(
        file=largest.file,
        line=largest.line,
        kind=kind,
        bytes=size,
        bytes_per_step=per_step,
        nodes_per_step=None,
        holder=holder,
        advice=advice,
        steps=steps,
        lines=len(rows),
        device=device,
    )


def _holder_of(size: int, holders: Sequence[Holder]) -> str | None:
    """The container that reaches at least half of what grew; of several, the one that reaches least besides."""
    containers = [holder for holder in holders if " item" in holder.path and holder.bytes >= size / 2]
    return describe_holder(min(containers, key=lambda holder: holder.bytes)) if containers else None


def describe_holder(holder: Holder) -> str:
    """`losses` (list, 412 items)."""
    name, _, kind = holder.path.partition(" ")
    return f"`{name}` {kind}"
