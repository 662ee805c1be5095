"""A score divided among stages: what each plays, what it hands on, and which weights it needs; and the playing.

A stage hands on what later ones need and cannot make themselves. What comes from the batch alone, without weights and without chance
(positions, masks), is made again where it is needed, since every stage has the batch.
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
from legroom.scale.cutting.forward_graph import Entry, Here, Like, Named, Score, Slot, tensors_of

_CHANCE = ("rand", "dropout", "bernoulli", "multinomial", "normal", "poisson", "exponential")


@dataclass(frozen=True, slots=True)
class Part:
    """What one stage does."""

    entries: tuple[Entry, ...]
    receives: tuple[int, ...]
    """Slots, from the stage before."""
    sends: tuple[int, ...]
    """Slots, to the next stage; of the last one, what the model's result is made of."""
    inputs: tuple[int, ...]
    """Of the model's inputs, by place, those it reads."""

    def tensors(self, model: nn.Module) -> set[str]:
        """Names of the parameters and buffers that it needs."""
        modules = {entry.call for entry in self.entries if isinstance(entry.call, str)}
        found = {leaf.name for entry in self.entries for leaf in entry.reads() if isinstance(leaf, Named)}
        for name, _ in tensors_of(model):
            ways = name.split(".")
            if any(".".join(ways[:depth]) in modules for depth in range(len(ways))):
                found.add(name)
        return found


class Sheet:
    """What can be asked of a score about cuts."""

    def __init__(self, score: Score) -> None:
        self.score = score
        self.single = score.single()
        self._changed: dict[int, int] = {}
        for entry in self.single:
            for slot in entry.changes:
                self._changed[slot] = entry.begin
        self._maker: dict[int, Entry] = {}
        for entry in self.single:
            for given in entry.gives():
                self._maker.setdefault(given.number, entry)
        self._result = {leaf.number for leaf in score.whole.gives()}

    @cached_property
    def remade(self) -> set[int]:
        """Slots that any stage can make by itself from the batch."""
        found = set(self.score.inputs)
        for entry in self.single:
            reads = list(entry.reads())
            gives = [slot.number for slot in entry.gives()]
            by_chance = any(word in getattr(entry.call, "__name__", "") for word in _CHANCE)
            if (
                not entry.is_module
                and not by_chance
                and all(isinstance(leaf, Slot) and leaf.number in found for leaf in reads)
                and not any(slot in self._changed for slot in gives)
                and not any(self.score.likes[slot].requires_grad for slot in gives)
            ):
                found.update(gives)
        return found

    @cached_property
    def crossing(self) -> list[tuple[int, ...]]:
        """Of every position: the slots that would have to be handed on if a stage began there."""
        last: dict[int, int] = dict.fromkeys(self._result, self.score.length + 1)
        first: dict[int, int] = {}
        for entry in self.single:
            for leaf in entry.reads():
                if isinstance(leaf, Slot):
                    last[leaf.number] = max(last.get(leaf.number, 0), entry.begin)
            for given in entry.gives():
                first.setdefault(given.number, entry.begin)
        found: list[list[int]] = [[] for _ in range(self.score.length + 1)]
        for slot, born in first.items():
            if slot not in self.remade:
                for position in range(born + 1, min(last.get(slot, born), self.score.length) + 1):
                    found[position].append(slot)
        return [tuple(slots) for slots in found]

    def bytes_crossing(self, position: int) -> int:
        return sum(self.score.likes[slot].bytes for slot in self.crossing[position])

    def can_cut(self, position: int) -> bool:
        """Something is handed on that gradients flow through, and none of it is changed in place afterwards."""
        crossing = self.crossing[position]
        return any(self.score.likes[slot].requires_grad for slot in crossing) and not any(
            self._changed.get(slot, -1) >= position for slot in crossing
        )

    def parts(self, boundaries: Sequence[int]) -> list[Part]:
        """One part between each two of the boundaries, the first being 0 and the last the length."""
        spans = list(itertools.pairwise(boundaries))
        made: list[Part] = []
        needed = set(self._result)  # by whatever comes after
        for number, (begin, end) in reversed(list(enumerate(spans))):
            is_last = number == len(spans) - 1
            sends = tuple(sorted(needed if is_last else needed - self.remade))
            entries = self.score.entries(begin, end)
            present = set(map(id, entries))
            entries += [entry for entry in self._again(_wants(entries, sends)) if id(entry) not in present]
            entries.sort(key=lambda entry: entry.begin)
            wants = _wants(entries, sends)
            receives = tuple(sorted(wants - set(self.score.inputs)))
            inputs = tuple(place for place, slot in enumerate(self.score.inputs) if slot in wants)
            made.append(Part(tuple(entries), receives, sends, inputs))
            needed = set(receives)
        return made[::-1]

    def _again(self, wanted: Iterable[int]) -> list[Entry]:
        """The operations that make these slots from the batch, as far as they can be."""
        found: dict[int, Entry] = {}

        def make(slot: int) -> None:
            entry = self._maker.get(slot)
            if slot in self.remade and entry is not None and entry.begin not in found:
                found[entry.begin] = entry
                for leaf in entry.reads():
                    if isinstance(leaf, Slot):
                        make(leaf.number)

        for slot in wanted:
            make(slot)
        return list(found.values())


class Player(nn.Module):
    """One part as a module: `player(*received, inputs)` gives what the part sends."""

    def __init__(self, score: Score, part: Part, model: nn.Module, device: torch.device) -> None:
        super().__init__()
        self._score, self._part, self._device = score, part, device
        self._model = [model]  # in a list: the model's parameters are not the player's own
        self._dying = _last_uses(part)

    def likes(self, slots: Iterable[int]) -> list[Like]:
        return [self._score.likes[slot] for slot in slots]

    @property
    def part(self) -> Part:
        return self._part

    def play(
        self,
        received: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        after: Callable[[Entry], None] | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """`inputs`: all tensors that the model is given. `after` is called when an entry is done."""
        values = dict(zip(self._part.receives, received, strict=True))
        for place in self._part.inputs:
            values[self._score.inputs[place]] = inputs[place]
        for entry, dying in zip(self._part.entries, self._dying, strict=True):
            self._play(entry, values)
            for slot in dying:
                values.pop(slot, None)
            if after is not None:
                after(entry)
        own = {slot.number for entry in self._part.entries for slot in entry.gives()}
        return tuple(
            (
                values[slot] if slot in own else values[slot].view_as(values[slot])
            ).contiguous()  # or it cannot be sent
            for slot in self._part.sends
        )

    def result(self, sent: Sequence[torch.Tensor]) -> Any:
        """The model's result, from what the last part sent."""
        values = dict(zip(self._part.sends, sent, strict=True))
        return trees.tree_map(
            lambda leaf: values[leaf.number] if isinstance(leaf, Slot) else leaf, self._score.whole.result
        )

    def _play(self, entry: Entry, values: dict[int, torch.Tensor]) -> None:
        def found(leaf: Any) -> Any:
            if isinstance(leaf, Slot):
                return values[leaf.number]
            if isinstance(leaf, Named):
                return attribute(self._model[0], leaf.name)
            return self._device if isinstance(leaf, Here) else leaf

        arguments, named = trees.tree_map(found, (entry.arguments, entry.named))
        call = self._model[0].get_submodule(entry.call) if isinstance(entry.call, str) else entry.call
        with contextlib.nullcontext() if entry.with_gradients else torch.no_grad():
            result = call(*arguments, **named)
        for leaf, value in _matched(entry.result, result):
            values[leaf] = value


def _wants(entries: Sequence[Entry], sends: Iterable[int]) -> set[int]:
    """Slots that these entries read, or that are to be sent, before any of them has made it."""
    wants: set[int] = set()
    made: set[int] = set()
    for entry in entries:
        wants.update(
            leaf.number for leaf in entry.reads() if isinstance(leaf, Slot) and leaf.number not in made
        )
        made.update(slot.number for slot in entry.gives())
    return wants | (set(sends) - made)


def _matched(template: Any, result: Any) -> Iterator[tuple[int, torch.Tensor]]:
    for leaf, value in zip(trees.tree_leaves(template), trees.tree_leaves(result), strict=True):
        if isinstance(leaf, Slot):
            yield leaf.number, value


def _last_uses(part: Part) -> list[tuple[int, ...]]:
    """For every entry, the slots that nobody needs afterwards: what is held longer than needed is memory."""
    needed = set(part.sends)
    dying: list[tuple[int, ...]] = []
    for entry in reversed(part.entries):
        touched = {leaf.number for leaf in entry.reads() if isinstance(leaf, Slot)}
        touched.update(slot.number for slot in entry.gives())
        dying.append(tuple(touched - needed))
        needed |= touched
    return dying[::-1]


def attribute(model: nn.Module, name: str) -> Any:
    """A parameter, buffer or other attribute by its full name."""
    prefix, _, last = name.rpartition(".")
    return getattr(model.get_submodule(prefix), last)
