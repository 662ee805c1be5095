"""When the nodes of the autograd graphs now alive were made: torch numbers them as it makes them.

A sound loop ends a step with the nodes of that step at most. Nodes of four earlier steps in a row say at one look that
something keeps a graph, without anything having been counted before.
"""

import weakref
from bisect import bisect_right
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from legroom.observe.dispatch.backward_engine import ACCUMULATE_GRAD, next_sequence_nr
from legroom.observe.dispatch.storages import storage_of
from legroom.observe.holders import autograd_graph


class StepMarks:
    """Which numbers the nodes of each step have."""

    KEEP = 512

    def __init__(self) -> None:
        self._steps: list[int] = []
        self._ends: list[int] = []
        self.count = 0
        """Steps that have ended so far."""

    def end_step(self, step: int) -> None:
        self.count += 1
        self._steps.append(step)
        self._ends.append(0 if next_sequence_nr is None else next_sequence_nr())
        if len(self._ends) > 2 * self.KEEP:
            del self._steps[: -self.KEEP], self._ends[: -self.KEEP]

    def step_of(self, number: int) -> int | None:
        """The step in which a node was made; None for what is older than the marks."""
        position = bisect_right(self._ends, number)  # ends[i] is the first number after step i
        if not self._steps or (position == 0 and self._steps[0] > 0):
            return None
        return self._steps[min(position, len(self._steps) - 1)]


class Roots:
    """Tells, for next to nothing, whether the graphs of earlier turns are gone: the nodes from which backward passes
    began carry a token, which dies with them. Without torch's `metadata` on nodes, it never tells anything."""

    KEEP = 6
    """So many turns are remembered."""
    MOST_IN_TURN = 4

    def __init__(self) -> None:
        self.turn = 0
        """The one at work."""
        self._tokens: dict[int, list[weakref.ref[_Token]]] = {}
        """By turn; only of turns whose backward passes were marked."""

    def mark(self, started_from: Any) -> None:
        """A backward pass begins from this tensor."""
        tokens = self._tokens.setdefault(self.turn, [])
        if len(tokens) >= self.MOST_IN_TURN:
            return
        node = started_from.grad_fn if isinstance(started_from, torch.Tensor) else None
        metadata = getattr(node, "metadata", None)
        if metadata is not None:
            token = _Token()
            metadata["legroom"] = token
            tokens.append(weakref.ref(token))

    def turns_kept(self) -> int:
        """How many of the turns before the last two still have a node that is alive."""
        if len(self._tokens) > self.KEEP:
            del self._tokens[next(iter(self._tokens))]
        kept = 0
        for turn, tokens in self._tokens.items():
            if turn < self.turn - 2:
                for token in tokens:
                    if token() is not None:
                        kept += 1
                        break
        return kept


class _Token:
    __slots__ = ("__weakref__",)


class Share(NamedTuple):
    """What one tensor's graph keeps of one turn; plain numbers."""

    turn: int
    nodes: frozenset[int]
    storages: dict[int, int]
    """Bytes by storage."""


class Births:
    """The nodes below some tensors, by the step in which they were made."""

    def __init__(self, marks: StepMarks, *, oldest: int, most: int = 400_000) -> None:
        """Graphs are followed down to nodes of step `oldest`, not further: older ones are old news."""
        self.nodes: dict[int, list[Any]] = {}
        self._marks = marks
        self._oldest = oldest
        self._most = most

    def follow(self, starts: Iterable[Any]) -> None:
        """Every node below `starts`."""
        stack = list(starts)
        seen: set[Any] = set()
        while stack and len(seen) < self._most:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            step = self.step_of(node)
            if step is None:
                continue
            self.nodes.setdefault(step, []).append(node)
            if step >= self._oldest:
                stack.extend(following for following, _ in node.next_functions if following is not None)

    def step_of(self, node: Any) -> int | None:
        """When a node was made; None for what is older than the marks, or adds up a gradient."""
        number = node._sequence_nr()
        return None if number >= ACCUMULATE_GRAD else self._marks.step_of(number)

    def reached_from(self, node: Any, *, most: int = 20_000) -> int:
        """How many steps have nodes below this one."""
        alone = Births(self._marks, oldest=self._oldest, most=most)
        alone.follow([node])
        return len(alone.nodes)

    def steps(self, now: int) -> list[int]:
        """The earlier steps that still have nodes."""
        return sorted(step for step in self.nodes if step < now)

    def shares(self, tensors: Iterable[torch.Tensor], now: int) -> dict[int, "Share"]:
        """`id` of each tensor → what its own graph keeps of its newest step before `now`. Weights, which several steps
        save, are left out."""
        steps = self.steps(now)
        saved = {step: self._saved(step) for step in steps[-3:]}
        common = {
            key for one in saved for key in saved[one] if sum(key in each for each in saved.values()) > 1
        }
        found = {}
        for tensor, node in roots(tensors):
            # An old tensor's own graph is followed as well.
            oldest = min(self._oldest, self.step_of(node) or 0)
            alone = Births(self._marks, oldest=oldest, most=20_000)
            alone.follow([node])
            step = max(alone.steps(now), default=-1)
            nodes = frozenset(id(each) for each in alone.nodes.get(step, ()))
            storages = {key: size for key, size in alone._saved(step).items() if key not in common}
            found[id(tensor)] = Share(step, nodes, storages)
        return found

    def bytes_saved_in(self, step: int, beside: int) -> int:
        """What the nodes of one step saved and those of another did not: weights are saved by both."""
        there, shared = (self._saved(each) for each in (step, beside))
        return sum(size for key, size in there.items() if key not in shared)

    def _saved(self, step: int) -> dict[int, int]:
        sizes: dict[int, int] = {}
        for node in self.nodes.get(step, ()):
            for tensor in autograd_graph.saved_by(node):
                storage = storage_of(tensor)
                if storage is not None:
                    sizes[storage._cdata] = storage.nbytes()
        return sizes


def roots(tensors: Iterable[torch.Tensor]) -> list[tuple[torch.Tensor, Any]]:
    """The tensors that hold a graph, each with its node."""
    found = []
    for tensor in tensors:
        try:
            node = tensor.grad_fn
        except RuntimeError:  # a view whose base was changed in place raises when asked
            continue
        if node is not None:
            found.append((tensor, node))
    return found
