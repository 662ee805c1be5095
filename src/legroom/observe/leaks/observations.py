"""The results of one heap scan."""

from dataclasses import dataclass, field

from legroom.observe.leaks.graph_ages import GraphPart
from legroom.observe.leaks.suspects import FoundHolder, Targets


@dataclass(eq=False, repr=False)
class Observations:
    """The results of one scan, without references to tensors."""

    iterations_retained: int = 0
    nodes_per_iteration: int = 0
    bytes_per_iteration: int = 0
    parts: dict[int, GraphPart] = field(default_factory=dict)
    """Maps the `id` of each tensor in `old` and `carrying` to the part of its graph (nodes and bytes) that one
    iteration created."""
    old: Targets = field(default_factory=list)
    """Tensors from earlier iterations that still have a graph."""
    carrying: Targets = field(default_factory=list)
    """New tensors whose graph includes nodes of earlier iterations."""
    accumulated: Targets = field(default_factory=list)
    accumulated_sizes: dict[int, int] = field(default_factory=dict)
    """Maps the `id` of each tensor that was added between two scans, and stayed alive, to its size in bytes."""
    iterations_between: int = 1
    """The number of iterations in which the tensors in `accumulated_sizes` were added."""
    renews: bool = False
    """Whether each iteration frees all tensors in `accumulated` and creates a larger number of tensors instead."""
    views: dict[int, int] = field(default_factory=dict)
    """Maps the `id` of a tensor in `accumulated` to the `id` of the tensor in `accumulated_sizes` with the same
    storage."""
    accumulates_on_host: bool = False
    """Whether all accumulated tensors are on the host, although the program also has tensors on a device."""
    with_graph: frozenset[int] = frozenset()
    """The `id`s of the tensors in `accumulated` that have a graph."""
    nodes_of_iteration: int = 0
    only_sums: bool = False
    """Whether only a sum of losses counts as a leak, because the calls to the model may be the steps of one sequence."""
    with_gradient_graph: Targets = field(default_factory=list)
    """Parameters whose gradients have a graph: the oldest and the newest parameter."""
    gradient_iterations: int = 0
    """The number of iterations whose graphs are kept alive by the gradients of parameters."""
    created_in: dict[int, int] = field(default_factory=dict)
    """Maps the `id` of a tensor to the iteration in which it was created or first found."""
    suspicious: bool = False
    """Whether another scan should follow."""


def retained_by(holder: FoundHolder, seen: Observations) -> tuple[int, int]:
    """Return the number of nodes and bytes that a variable retains from one iteration. The newest iteration is used,
    because some nodes of older iterations may already be freed.
    """
    within = {holder.target, *holder.path.contents}
    retained = [part for key, part in seen.parts.items() if key in within]
    newest = max((part.iteration for part in retained), default=-1)
    parts = [part for part in retained if part.iteration == newest]
    storages = {key: size for part in parts for key, size in part.storages.items()}
    return len({node for part in parts for node in part.nodes}), sum(storages.values())
