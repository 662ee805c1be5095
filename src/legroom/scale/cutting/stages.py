"""Partitions a forward graph into stages, and runs a stage.

A stage sends the tensors that later stages need and cannot compute themselves. Some tensors, such as positions and
masks, depend only on the batch, and not on weights or random numbers. A stage that needs these tensors recomputes them,
because every stage has the batch.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn

from legroom.scale import trees
from legroom.scale.cutting.forward_graph import (
    ForwardGraph,
    GraphNode,
    ModelTensor,
    Slot,
    SlotInfo,
    StageDevice,
    named_tensors,
)

_RANDOM_FUNCTIONS = ("rand", "dropout", "bernoulli", "multinomial", "normal", "poisson", "exponential")


@dataclass(frozen=True, slots=True)
class StageProgram:
    """The nodes that one stage runs, and the tensors that it receives and sends."""

    nodes: tuple[GraphNode, ...]
    receives: tuple[int, ...]
    sends: tuple[int, ...]
    """The slots sent to the next stage. The last stage sends the slots of the model's output."""
    inputs: tuple[int, ...]

    def tensors(self, model: nn.Module) -> set[str]:
        modules = {node.call for node in self.nodes if isinstance(node.call, str)}
        names = {leaf.name for node in self.nodes for leaf in node.inputs() if isinstance(leaf, ModelTensor)}
        for name, _ in named_tensors(model):
            path = name.split(".")
            if any(".".join(path[:depth]) in modules for depth in range(len(path))):
                names.add(name)
        return names


class GraphPartitioner:
    def __init__(self, graph: ForwardGraph) -> None:
        self.graph = graph
        self.leaves = graph.leaves()
        self._modified_at: dict[int, int] = {}
        for node in self.leaves:
            for slot in node.modified_slots:
                self._modified_at[slot] = node.begin
        self._producer: dict[int, GraphNode] = {}
        for node in self.leaves:
            for output in node.outputs():
                self._producer.setdefault(output.number, node)
        self._result = {leaf.number for leaf in graph.root.outputs()}

    @cached_property
    def recomputable(self) -> set[int]:
        """The slot numbers of the tensors that every stage can compute from the batch."""
        found = set(self.graph.inputs)
        for node in self.leaves:
            outputs = [slot.number for slot in node.outputs()]
            is_random = any(word in getattr(node.call, "__name__", "") for word in _RANDOM_FUNCTIONS)
            if (
                not node.is_module
                and not is_random
                and all(isinstance(leaf, Slot) and leaf.number in found for leaf in node.inputs())
                and not any(slot in self._modified_at for slot in outputs)
                and not any(self.graph.slots[slot].requires_grad for slot in outputs)
            ):
                found.update(outputs)
        return found

    @cached_property
    def crossing(self) -> list[tuple[int, ...]]:
        """For every position, the slots that must be sent to a stage that begins at this position."""
        last_use: dict[int, int] = dict.fromkeys(self._result, self.graph.length + 1)
        created: dict[int, int] = {}
        for node in self.leaves:
            for leaf in node.inputs():
                if isinstance(leaf, Slot):
                    last_use[leaf.number] = max(last_use.get(leaf.number, 0), node.begin)
            for output in node.outputs():
                created.setdefault(output.number, node.begin)
        crossing: list[list[int]] = [[] for _ in range(self.graph.length + 1)]
        for slot, begin in created.items():
            if slot not in self.recomputable:
                for position in range(begin + 1, min(last_use.get(slot, begin), self.graph.length) + 1):
                    crossing[position].append(slot)
        return [tuple(slots) for slots in crossing]

    def bytes_crossing(self, position: int) -> int:
        return sum(self.graph.slots[slot].bytes for slot in self.crossing[position])

    def can_cut(self, position: int) -> bool:
        """Return whether the graph can be split here: gradients flow through the sent slots, and no sent slot is
        modified in place afterwards.
        """
        crossing = self.crossing[position]
        return any(self.graph.slots[slot].requires_grad for slot in crossing) and not any(
            self._modified_at.get(slot, -1) >= position for slot in crossing
        )

    def programs(self, boundaries: Sequence[int]) -> list[StageProgram]:
        """Return one program for each pair of consecutive boundaries. The boundaries include 0 and the length of the
        graph.
        """
        spans = list(itertools.pairwise(boundaries))
        programs: list[StageProgram] = []
        needed = set(self._result)  # by later stages
        for number, (begin, end) in reversed(list(enumerate(spans))):
            is_last = number == len(spans) - 1
            sends = tuple(sorted(needed if is_last else needed - self.recomputable))
            nodes = self.graph.nodes(begin, end)
            present = set(map(id, nodes))
            recomputed = self._recomputing_nodes(_required_slots(nodes, sends))
            nodes += [node for node in recomputed if id(node) not in present]
            nodes.sort(key=lambda node: node.begin)
            required = _required_slots(nodes, sends)
            receives = tuple(sorted(required - set(self.graph.inputs)))
            inputs = tuple(index for index, slot in enumerate(self.graph.inputs) if slot in required)
            programs.append(StageProgram(tuple(nodes), receives, sends, inputs))
            needed = set(receives)
        return programs[::-1]

    def _recomputing_nodes(self, slots: Iterable[int]) -> list[GraphNode]:
        """Return the operations that compute these slots from the batch. Slots that depend on weights or random numbers
        are skipped.
        """
        found: dict[int, GraphNode] = {}

        def visit(slot: int) -> None:
            node = self._producer.get(slot)
            if slot in self.recomputable and node is not None and node.begin not in found:
                found[node.begin] = node
                for leaf in node.inputs():
                    if isinstance(leaf, Slot):
                        visit(leaf.number)

        for slot in slots:
            visit(slot)
        return list(found.values())


class StageRunner(nn.Module):
    def __init__(
        self, graph: ForwardGraph, program: StageProgram, model: nn.Module, device: torch.device
    ) -> None:
        super().__init__()
        self.program = program
        self._graph, self._device = graph, device
        self._model = [model]  # in a list, so that its parameters are not registered
        self._last_uses = _last_uses(program)

    def slot_infos(self, slots: Iterable[int]) -> list[SlotInfo]:
        return [self._graph.slots[slot] for slot in slots]

    def run(
        self,
        received: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        after: Callable[[GraphNode], None] | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """Return the tensors that the stage sends. `inputs` contains all input tensors of the model. `after` is called
        after each node.
        """
        values = dict(zip(self.program.receives, received, strict=True))
        for index in self.program.inputs:
            values[self._graph.inputs[index]] = inputs[index]
        for node, last_used in zip(self.program.nodes, self._last_uses, strict=True):
            self._run_node(node, values)
            for slot in last_used:
                values.pop(slot, None)
            if after is not None:
                after(node)
        computed = {slot.number for node in self.program.nodes for slot in node.outputs()}
        return tuple(
            # Only contiguous tensors can be sent.
            (values[slot] if slot in computed else values[slot].view_as(values[slot])).contiguous()
            for slot in self.program.sends
        )

    def result(self, sent: Sequence[torch.Tensor]) -> Any:
        """Return the output of the model, built from the tensors that the last stage sent."""
        values = dict(zip(self.program.sends, sent, strict=True))
        return trees.tree_map(
            lambda leaf: values[leaf.number] if isinstance(leaf, Slot) else leaf, self._graph.root.result
        )

    def _run_node(self, node: GraphNode, values: dict[int, torch.Tensor]) -> None:
        def resolve(leaf: Any) -> Any:
            if isinstance(leaf, Slot):
                return values[leaf.number]
            if isinstance(leaf, ModelTensor):
                return attribute(self._model[0], leaf.name)
            return self._device if isinstance(leaf, StageDevice) else leaf

        arguments, named = trees.tree_map(resolve, (node.arguments, node.named))
        call = self._model[0].get_submodule(node.call) if isinstance(node.call, str) else node.call
        with contextlib.nullcontext() if node.with_gradients else torch.no_grad():
            result = call(*arguments, **named)
        for slot, value in _result_slots(node.result, result):
            values[slot] = value


def _required_slots(nodes: Sequence[GraphNode], sends: Iterable[int]) -> set[int]:
    """Return the slots that these nodes read or send, but do not compute."""
    required: set[int] = set()
    computed: set[int] = set()
    for node in nodes:
        required.update(
            leaf.number for leaf in node.inputs() if isinstance(leaf, Slot) and leaf.number not in computed
        )
        computed.update(slot.number for slot in node.outputs())
    return required | (set(sends) - computed)


def _result_slots(template: Any, result: Any) -> Iterator[tuple[int, torch.Tensor]]:
    for leaf, value in zip(trees.tree_leaves(template), trees.tree_leaves(result), strict=True):
        if isinstance(leaf, Slot):
            yield leaf.number, value


def _last_uses(program: StageProgram) -> list[tuple[int, ...]]:
    """Return the slots whose memory can be freed after each node, because no later node needs them."""
    needed = set(program.sends)
    last_uses: list[tuple[int, ...]] = []
    for node in reversed(program.nodes):
        used = {leaf.number for leaf in node.inputs() if isinstance(leaf, Slot)}
        used.update(slot.number for slot in node.outputs())
        last_uses.append(tuple(used - needed))
        needed |= used
    return last_uses[::-1]


def attribute(model: nn.Module, name: str) -> Any:
    prefix, _, last = name.rpartition(".")
    return getattr(model.get_submodule(prefix), last)
