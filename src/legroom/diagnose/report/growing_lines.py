"""Finds memory that grows with every step, and the line of code that allocates it.

The ledger lists the lines whose live bytes increased from step to step in all recent steps. A single mistake can
cause growth at many lines. For example, a stored loss keeps its whole graph alive, so the memory of every line of the
forward pass grows. If the memory of several lines grows together with activations, it is therefore reported as one
leak, at the line that allocates the most memory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from legroom.memory.event_base import Category
from legroom.memory.events import Holder
from legroom.memory.growth import Growth
from legroom.memory.ledger import Ledger

_Line = tuple[str | None, int | None, Category]


@dataclass(frozen=True, slots=True)
class CodeLine:
    """A line of the program."""

    file: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """Memory that a training loop retains and that grows with each step."""

    file: str | None
    line: int | None
    """The line that stores the memory or, if this line is unknown, the line that allocates the most memory. The line
    is the same as in `called_from` if the call passes a value that it should not pass.
    """
    kind: str
    """`graph` for an autograd graph, `tensor` for tensors without a graph, and `larger` for a tensor that each step
    replaces with a larger one.
    """
    bytes: int
    bytes_per_step: int
    nodes_per_step: int | None
    """The number of autograd nodes added per step, or None if they were not counted."""
    holder: str | None
    """The chain of references from a variable to the memory, if known."""
    advice: str
    steps: int
    lines: int
    device: int = 0
    code: str = "LG101"
    name: str = ""
    on_host: bool = False
    stored_at: CodeLine | None = None
    """The line that stores the memory, if it is in a function that is called on only one line."""
    called_from: CodeLine | None = None
    """The line that calls this function."""

    @property
    def is_at_call(self) -> bool:
        """True if `file` and `line` are the call in `called_from`."""
        return self.called_from is not None and (self.file, self.line) == (
            self.called_from.file,
            self.called_from.line,
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def find_leaks(ledger: Ledger, device: int, holders: Sequence[Holder] = ()) -> list[Leak]:
    lines = ledger.growth(device)
    allocated_in = _allocation_steps(ledger, device) if lines else {}
    growing = [line for line in lines if _is_leak(line, allocated_in)]
    graph = [line for line in growing if line.category is Category.ACTIVATION]
    others = [line for line in growing if line.category is not Category.ACTIVATION]
    if graph:
        per_step, steps = sum(line.bytes_per_step for line in graph), graph[0].steps
        in_graph = [
            line for line in others if abs(line.steps - steps) <= 1 and line.bytes_per_step <= per_step
        ]
        others = [line for line in others if line not in in_graph]
        graph += in_graph
    leaks = [_leak(graph, "graph", device, holders)] if graph else []
    leaks += [_leak([line], "tensor", device, holders) for line in others]
    return sorted(leaks, key=lambda leak: -leak.bytes_per_step)


def _is_leak(line: Growth, allocated_in: Mapping[_Line, set[int]]) -> bool:
    """Return True if the growing memory was allocated in several steps.

    Growing results may also be one tensor that each step replaces with a larger tensor (`history = torch.cat(...)`).
    Growing activations or inputs from fewer than three steps are not a leak: the loop probably increases the batch
    size.
    """
    may_be_recreated = line.category in (Category.RESULT, Category.TEMPORARY)
    return may_be_recreated or len(allocated_in.get((line.file, line.line, line.category), ())) >= 3


def _allocation_steps(ledger: Ledger, device: int) -> dict[_Line, set[int]]:
    """Return, for each line of code, the steps whose allocations were still alive at the end of the last step."""
    allocated_in: dict[_Line, set[int]] = {}
    state = ledger.at_last_step(device)
    for each in state.live if state is not None else ():
        file, line, _ = each.frame or (None, None, None)
        allocated_in.setdefault((file, line, each.category), set()).add(each.step)
    return allocated_in


def _leak(lines: Sequence[Growth], kind: str, device: int, holders: Sequence[Holder]) -> Leak:
    largest = lines[0]
    size = sum(line.bytes for line in lines)
    holder = _holder_of(size, holders)
    owner = holder or "A long-lived reference"
    if kind == "graph":
        advice = graph_advice(owner)
    else:
        advice = (
            f"{owner} retains the tensors created on this line. Store host tensors or numbers instead "
            "(`.cpu()`, `.item()`), or delete the tensors before the next step."
        )
    return Leak(
        file=largest.file,
        line=largest.line,
        kind=kind,
        bytes=size,
        bytes_per_step=sum(line.bytes_per_step for line in lines),
        nodes_per_step=None,
        holder=holder,
        advice=advice,
        steps=max(line.steps for line in lines),
        lines=len(lines),
        device=device,
    )


STORE_DETACHED = (
    "Store detached tensors (`.detach()`, and `.cpu()` if no later operation needs them on the GPU)"
)


def graph_advice(owner: str) -> str:
    return f"{owner} retains the autograd graph of every step. {STORE_DETACHED} or numbers (`loss.item()`) instead."


def _holder_of(size: int, holders: Sequence[Holder]) -> str | None:
    containers = [holder for holder in holders if " item" in holder.path and holder.bytes >= size / 2]
    return describe_holder(min(containers, key=lambda holder: holder.bytes)) if containers else None


def describe_holder(holder: Holder) -> str:
    """Return a description such as "`losses` (list, 412 items)"."""
    name, _, kind = holder.path.partition(" ")
    return f"`{name}` {kind}"
