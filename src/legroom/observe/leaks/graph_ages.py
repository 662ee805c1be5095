"""Determines the iteration in which each live autograd node was created.

PyTorch numbers its nodes in order of creation. At the end of an iteration, a loop without a leak keeps only the nodes
of that iteration alive. If a scan finds live nodes from four earlier iterations, some object retains a graph.
"""

import weakref
from bisect import bisect_right
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from legroom.observe.dispatch.backward_engine import ACCUMULATE_GRAD, next_sequence_nr
from legroom.observe.dispatch.storages import storage_of

MIN_ITERATIONS = 4
"""Live nodes from at least this number of earlier iterations indicate a leak. Nodes from fewer iterations may be alive
by coincidence.
"""


class NodeNumbers:
    MAX_ITERATIONS = 512

    def __init__(self) -> None:
        self._iterations: list[int] = []
        self._ends: list[int] = []
        self.count = 0

    def end_iteration(self, iteration: int) -> None:
        self.count += 1
        self._iterations.append(iteration)
        self._ends.append(0 if next_sequence_nr is None else next_sequence_nr())
        if len(self._ends) > 2 * self.MAX_ITERATIONS:
            del self._iterations[: -self.MAX_ITERATIONS], self._ends[: -self.MAX_ITERATIONS]

    def iteration_of(self, number: int) -> int | None:
        """Return the iteration in which a node was created, or None if it was created before the recorded iterations."""
        position = bisect_right(self._ends, number)  # ends[i] is the first number after iteration i
        if not self._iterations or (position == 0 and self._iterations[0] > 0):
            return None
        return self._iterations[min(position, len(self._iterations) - 1)]


class BackwardRoots:
    """Checks at low cost whether the graphs of earlier iterations are freed.

    A token is stored in the metadata of each node from which a backward pass starts, and the token is freed with the
    node. In versions of torch without `metadata` on nodes, no retained graph is found.
    """

    MAX_ITERATIONS = 6
    MAX_PER_ITERATION = 4

    def __init__(self) -> None:
        self.iteration = 0
        self._tokens: dict[int, list[weakref.ref[_Token]]] = {}
        """The tokens by iteration. Iterations without a marked backward pass are missing."""

    def mark(self, root: Any) -> None:
        tokens = self._tokens.setdefault(self.iteration, [])
        if len(tokens) >= self.MAX_PER_ITERATION:
            return
        token = token_in_graph(root)
        if token is not None:
            tokens.append(token)

    def retained_iterations(self) -> int:
        """Return the number of iterations, excluding the last two, that still have a live marked node."""
        if len(self._tokens) > self.MAX_ITERATIONS:
            del self._tokens[next(iter(self._tokens))]
        retained = 0
        for iteration, tokens in self._tokens.items():
            if iteration < self.iteration - 2:
                for token in tokens:
                    if token() is not None:
                        retained += 1
                        break
        return retained


class _Token:
    __slots__ = ("__weakref__",)


def token_in_graph(root: Any) -> "weakref.ref[_Token] | None":
    """Return a reference to an object that is freed with the node of `root`, or None if `root` has no node or the node
    has no metadata.
    """
    node = root.grad_fn if isinstance(root, torch.Tensor) else None
    metadata = getattr(node, "metadata", None)
    if metadata is None:
        return None
    token = metadata.setdefault("legroom", _Token())
    return weakref.ref(token)


class GraphPart(NamedTuple):
    """The part of a tensor's graph that was created in one iteration: its nodes, and the bytes that they retain. The
    part contains only numbers, no references.
    """

    iteration: int
    nodes: frozenset[int]
    storages: dict[int, int]


class NodesByIteration:
    def __init__(self, numbers: NodeNumbers, *, oldest: int, limit: int = 400_000) -> None:
        """Nodes that are older than the iteration `oldest` are not followed."""
        self.nodes: dict[int, list[Any]] = {}
        self._numbers = numbers
        self._oldest = oldest
        self._limit = limit

    def follow(self, starts: Iterable[Any]) -> None:
        stack = list(starts)
        seen: set[Any] = set()
        while stack and len(seen) < self._limit:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            iteration = self.iteration_of(node)
            if iteration is None:
                continue
            self.nodes.setdefault(iteration, []).append(node)
            if iteration >= self._oldest:
                stack.extend(following for following, _ in node.next_functions if following is not None)

    def iteration_of(self, node: Any) -> int | None:
        """Return the iteration in which a node was created. Return None for AccumulateGrad nodes and for nodes created
        before the recorded iterations.
        """
        number = node._sequence_nr()
        return None if number >= ACCUMULATE_GRAD else self._numbers.iteration_of(number)

    def iterations_below(self, node: Any, *, limit: int = 20_000) -> int:
        """Return the number of iterations that created the nodes of the graph below `node`."""
        alone = NodesByIteration(self._numbers, oldest=self._oldest, limit=limit)
        alone.follow([node])
        return len(alone.nodes)

    def iterations(self, before: int) -> list[int]:
        return sorted(iteration for iteration in self.nodes if iteration < before)

    def parts(self, tensors: Iterable[torch.Tensor], before: int) -> dict[int, "GraphPart"]:
        """Return, by the `id` of each tensor, the part of its graph that the newest iteration before `before` created.
        Storages that several iterations saved are weights, so they are excluded.
        """
        iterations = self.iterations(before)
        saved = {iteration: self._saved(iteration) for iteration in iterations[-3:]}
        weights = {
            key for one in saved for key in saved[one] if sum(key in each for each in saved.values()) > 1
        }
        parts = {}
        for tensor, node in with_graph(tensors):
            # Follow the graph of an old tensor as well.
            oldest = min(self._oldest, self.iteration_of(node) or 0)
            alone = NodesByIteration(self._numbers, oldest=oldest, limit=20_000)
            alone.follow([node])
            iteration = max(alone.iterations(before), default=-1)
            nodes = frozenset(id(each) for each in alone.nodes.get(iteration, ()))
            storages = {key: size for key, size in alone._saved(iteration).items() if key not in weights}
            parts[id(tensor)] = GraphPart(iteration, nodes, storages)
        return parts

    def bytes_saved_in(self, iteration: int, other: int) -> int:
        """Return the number of bytes that the nodes of `iteration` saved. Storages that the nodes of `other` also saved
        are weights, so they are excluded.
        """
        saved, shared = (self._saved(each) for each in (iteration, other))
        return sum(size for key, size in saved.items() if key not in shared)

    def _saved(self, iteration: int) -> dict[int, int]:
        from legroom.observe.holders import autograd_graph  # not needed without a leak

        sizes: dict[int, int] = {}
        for node in self.nodes.get(iteration, ()):
            for tensor in autograd_graph.saved_by(node):
                storage = storage_of(tensor)
                if storage is not None:
                    sizes[storage._cdata] = storage.nbytes()
        return sizes


def gradient_iterations(tensors: Iterable[torch.Tensor], graph: NodesByIteration) -> int:
    """Return the number of iterations whose graphs the gradients of `tensors` keep alive."""
    nodes = [tensor.grad.grad_fn for tensor in tensors if tensor.grad is not None]
    created = {graph.iteration_of(node) for node in nodes} - {None}
    return max([len(created), *(graph.iterations_below(node) for node in nodes[-1:])])


def with_graph(tensors: Iterable[torch.Tensor]) -> list[tuple[torch.Tensor, Any]]:
    found = []
    for tensor in tensors:
        try:
            node = tensor.grad_fn
        except RuntimeError:  # a view whose base was modified in place raises here
            continue
        if node is not None:
            found.append((tensor, node))
    return found
