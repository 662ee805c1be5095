"""A few looks at all tensors, one after each turn of the loop, until it is clear whether something is kept.

Three signs, each of which a sound loop does not show:
  graph    nodes of several earlier turns are alive. Torch numbers its nodes, so one look tells.
  tensor   storages first seen at each of the last looks are all still there, and there are more of them each time.
  larger   one name leads to a larger tensor at every look, and the source says that it is made from itself.
A sign is followed to who holds it (`holder_paths`) and to the line that stores it (`storing_lines`). What limits itself
there, or is emptied, is no leak.
"""

import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch

from legroom.memory.annotations import DetectedLeak, LeakKind
from legroom.observe.dispatch.storages import storage_of
from legroom.observe.leaks.census import Followed, accounted_for, look_around, of_trained
from legroom.observe.leaks.graph_ages import Births, Share, StepMarks, roots
from legroom.observe.leaks.iterations import Ticks
from legroom.observe.leaks.named_sizes import Named, named_sizes
from legroom.observe.leaks.suspects import (
    MOST_PATHS,
    TURNS_KEPT,
    Found,
    Holders,
    Suspect,
    Targets,
    being_built,
    belongs_to_a_call,
    gathers,
    grown_by,
    is_passing,
    suspects_of,
)
from legroom.observe.source import storing_lines
from legroom.observe.source.reader import Storing
from legroom.observe.source.storing_lines import find_storing

LOOKS = 7
TURNS_BEFORE_STEPPING = 16
"""Before the first optimizer step, the batches of one accumulated step may share a graph."""
LOOKS_OF_TENSORS = 2
"""What was first seen at each of so many looks, after the first one, must all be there."""
LOOKS_LARGER = 4
SLOW_LOOKS = 3
"""Of so many slow looks something must have stayed, and lie in one container."""
ENSEMBLE = 8
"""More models than that are hardly kept on purpose."""
_BACK = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class _Signs:
    """What one look saw; holds no tensor."""

    turns_kept: int = 0
    nodes_per_turn: int = 0
    bytes_per_turn: int = 0
    shares: dict[int, Share] = field(default_factory=dict)
    """`id` of each of `old` and `carrying` → what its graph alone keeps of one turn."""
    old: Targets = field(default_factory=list)
    """Tensors of earlier turns that hold a graph."""
    carrying: Targets = field(default_factory=list)
    """New ones whose graph reaches back into earlier turns."""
    gathered: Targets = field(default_factory=list)
    gathered_sizes: dict[int, int] = field(default_factory=dict)
    """`id` → bytes of everything that one turn left behind."""
    gathers_on_host: bool = False
    """Whether none of these is on a device, while other tensors are."""
    with_graph: frozenset[int] = frozenset()
    """`id`s of those of `gathered` that hold a graph."""
    nodes_of_turn: int = 0
    with_gradient: Targets = field(default_factory=list)
    """Parameters whose gradients hold a graph."""
    made: dict[int, int] = field(default_factory=dict)
    """`id` of a tensor → the turn in which it was made, or first seen."""
    uneasy: bool = False
    """Worth another look."""


class Window:
    """Looks taken turn by turn. `look` gives what it is sure of."""

    def __init__(
        self, marks: StepMarks, ticks: Ticks, *, on_device: Callable[[torch.Tensor], bool], slow: bool = False
    ) -> None:
        """`slow`: the looks are not at every turn, but where something may have been added."""
        self.looks = 0
        self.adds = False
        """Whether what the look before the last first saw is still there: what a slow window waits for."""
        self.quiet = True
        """Nothing odd was seen at the last look."""
        self.searched = False
        """Someone who holds something was found at the last look."""
        self.told: set[LeakKind] = set()
        """Signs that were judged to be leaks: not followed again, so that the other signs can still show theirs."""
        self._marks = marks
        self._ticks = ticks
        self._slow = slow
        self._turns: list[int] = []
        """At which turn each look was taken."""
        self._on_device = on_device
        self._named: set[tuple[object, ...]] = set()
        self._followed = Followed()
        self._counts: list[int] = []
        self._sizes: dict[Named, list[int]] = {}
        self._lengths: dict[tuple[str, str | None], int] = {}
        """By name and file of a holder, how long it was when it was first found."""

    def look(self, turn: int) -> list[Suspect]:
        """Call at the end of turn number `turn`."""
        self.looks += 1
        self._turns.append(turn)
        with torch._C.DisableTorchFunction():
            signs = self._signs(turn)
            self._note_sizes()
            holders = Holders()
            suspects = []
            if "graph" not in self.told:
                suspects += self._graphs(signs, holders, turn)
            if "tensor" not in self.told:
                suspects += self._gathered(signs, holders, turn)
            if "larger" not in self.told:
                suspects += self._larger(signs, turn)
            # What was followed to holders that limit themselves is no reason to look again at once.
            self.quiet = not suspects and (not signs.uneasy or holders.found)
            self.searched = holders.found
        return [each for each in suspects if each.warming or self._is_first(each.kept)]

    def _is_first(self, kept: DetectedLeak) -> bool:
        """A list of tensors that hold graphs shows two signs; the first, of the graph, has the fuller figures."""
        known = kept.identity in self._named
        self._named.add(kept.identity)
        return not known

    # --- what can be seen

    def _signs(self, turn: int) -> _Signs:
        around = look_around()
        tensors, evaluating = around.tensors, around.evaluating
        births = Births(self._marks, oldest=turn - _BACK)
        held = roots(tensors)
        births.follow(node for _, node in held)
        accounted = accounted_for(tensors, self._ticks.optimizers)
        # Folds, members of an ensemble, blocks that a network grows by: what was trained is kept on purpose, if it is not too much.
        if self._ticks.models_kept <= ENSEMBLE:
            accounted |= of_trained(around.modules, self._ticks.trained)
        by_birth = self._followed.look(tensors, accounted, self.looks)
        self._counts.append(self._followed.count)
        kept = births.steps(turn)
        newest = by_birth.get(self.looks - 1, [])
        self.adds = bool(newest) and self.looks > 2
        # Results of an evaluation that are gathered on the host are its purpose.
        matters = self._can_tell(evaluating) and (self._ticks.trains or any(map(self._on_device, newest)))
        # Where calls of a model are the turns, a list may be a text that is being written, word by word.
        matters = matters and not self._ticks.by_calls
        gathering = matters and self._rising(3) and bool(newest) and bool(by_birth.get(self.looks - 2))
        made = {id(tensor): self._turns[look - 1] for look, born in by_birth.items() for tensor in born}
        made |= {id(tensor): step for tensor, node in held if (step := births.step_of(node)) is not None}
        signs = _Signs(uneasy=len(kept) >= 2 or gathering, made=made)
        if self._is_kept(kept, turn, evaluating):
            when = [(tensor, births.step_of(node)) for tensor, node in held]
            old = [tensor for tensor, made in when if made is not None and kept[0] <= made <= turn - 2]
            new = [
                (tensor, node)
                for (tensor, node), (_, made) in zip(held, when, strict=True)
                if made is not None and made >= turn - 1
            ]
            old = _spread(old)
            carrying = [t for t, node in new[:200] if births.reached_from(node) >= min(len(kept), 3)]
            # A network that is being unrolled: one graph, and its backward pass is yet to come.
            if self._ticks.by_calls and carrying and not evaluating:
                return signs
            shares = births.shares([*old, *carrying[:MOST_PATHS]], turn)
            for tensor in filter(self._on_device, old):  # one in a container stays there itself
                shares[id(tensor)].storages[id(tensor)] = _bytes_of(tensor)
            signs = replace(
                signs,
                turns_kept=len(kept),
                nodes_per_turn=len(births.nodes[kept[-2]]),
                bytes_per_turn=births.bytes_saved_in(kept[-2], kept[-3]),
                shares=shares,
                old=_referred(old),
                carrying=_referred(carrying),
                with_gradient=_referred([tensor for tensor in tensors if _has_graph_of_gradient(tensor)][:1]),
            )
        generations = self._generations(by_birth)
        if not self._ticks.trains:
            generations = [[tensor for tensor in each if self._on_device(tensor)] for each in generations]
        if generations and all(generations):
            sample = [tensor for generation in generations[1:] for tensor in _spread(generation)]
            if matters:
                signs = replace(
                    signs,
                    gathered=_referred(sample),
                    gathers_on_host=any(map(self._on_device, tensors))
                    and not any(map(self._on_device, sample)),
                    gathered_sizes={id(tensor): _bytes_of(tensor) for tensor in generations[1]},
                    with_graph=frozenset(id(tensor) for tensor, _ in roots(sample)),
                    nodes_of_turn=len(births.nodes.get(turn - 2, ())),
                )
        return signs

    def _generations(self, by_birth: dict[int, list[torch.Tensor]]) -> list[list[torch.Tensor]]:
        """What was first seen at each of some looks and is still there, newest first; none before there is enough to tell."""
        if self._slow:
            looks = [look for look in by_birth if 1 < look < self.looks]
            return [
                by_birth[look]
                for look in sorted(looks, reverse=True)[:SLOW_LOOKS]
                if len(looks) >= SLOW_LOOKS
            ]
        if self.looks <= LOOKS_OF_TENSORS + 1 or not self._rising(LOOKS_OF_TENSORS + 2):
            return []
        return [by_birth.get(self.looks - back, []) for back in range(1, LOOKS_OF_TENSORS + 1)]

    def _is_kept(self, kept: list[int], turn: int, evaluating: bool) -> bool:
        """Whether graphs of enough turns are alive, and of one so lately that there will be more: within the last two turns, or, where
        every so many turns one is kept, within a few more than that."""
        if len(kept) < TURNS_KEPT:
            return False
        apart = max(after - before for before, after in pairwise(kept[-TURNS_KEPT:]))
        return turn - kept[-1] <= 1.5 * apart + 1 and self._can_tell(evaluating)

    def _can_tell(self, evaluating: bool) -> bool:
        """Before the first step, what a model in training keeps may be for the batches of that one step."""
        if self._ticks.has_stepped or self._ticks.by_hand or self._ticks.by_calls or evaluating:
            return True
        return self._marks.count >= TURNS_BEFORE_STEPPING

    def _rising(self, looks: int) -> bool:
        last = self._counts[-looks:]
        return len(last) == looks and all(a < b for a, b in pairwise(last))

    def _note_sizes(self) -> None:
        sizes = named_sizes(sys._getframe(1))
        before, self._sizes = self._sizes, {}
        for named, size in sizes.items():
            series = before.get(named, [])
            if series and size == series[-1] and self._slow:
                self._sizes[named] = series
            else:
                self._sizes[named] = [*series, size] if not series or size > series[-1] else [size]

    # --- what it means

    def _graphs(self, signs: _Signs, holders: Holders, turn: int) -> list[Suspect]:
        """Who holds old tensors with a graph; if no one does, which of the new ones carries the old graph on."""
        if not signs.turns_kept:
            return []
        least = TURNS_KEPT if self._slow else grown_by(turn)
        found = [each for each in holders.of(signs.old, signs.made, least=least) if gathers(each)]
        carrying = [each for each in holders.of(signs.carrying, signs.made) if each.path.how != "unknown"]
        feeding = [each for each in carrying if any(one.feeds_itself for one in each.stored.statements)]
        if found:  # of two leaks at once, one may carry its graph on
            found += feeding[:1]
        else:
            found = (feeding or carrying or self._gradients(signs, holders))[:1]
        if not found and self.looks >= LOOKS - 1:
            found = [Found(being_built(), storing_lines.NOTHING, 0)]
        suspects: list[Suspect] = []
        for each in found:
            nodes, size = signs.nodes_per_turn, signs.bytes_per_turn
            if len(found) > 1:
                nodes, size = _share_of(each, signs)
            suspects += suspects_of(
                each, kind="graph", step=turn, steps=signs.turns_kept, bytes_per_step=size, nodes_per_step=nodes,
                storages_per_step=0, evaluation=not self._ticks.trains,
            )  # fmt: skip
        return suspects

    def _gradients(self, signs: _Signs, holders: Holders) -> list[Found]:
        """Who has the parameters whose gradients carry a graph on, and the line of the backward pass that makes it so."""
        place = self._ticks.graph_of_gradients
        if place is None:
            return []
        line = Storing(place.file, place.line, place.function, True, False, False, False, True)
        return [
            Found(each.path._replace(name=f"{each.path.name}.grad", how="variable", container=0, length=0),
                   storing_lines.NOTHING._replace(statements=(line,)), each.target)
            for each in holders.of(signs.with_gradient, {})
            if each.path.how != "unknown"
        ]  # fmt: skip

    def _gathered(self, signs: _Signs, holders: Holders, turn: int) -> list[Suspect]:
        least = SLOW_LOOKS if self._slow else grown_by(turn)
        held = holders.of(signs.gathered, signs.made, least=least)
        found = [each for each in held if each.path.how != "unknown" and not is_passing(each)]
        if self._slow:
            found = [each for each in found if self._has_grown(each) and not _is_ensemble(each)]
        suspects: list[Suspect] = []
        for each in found:
            sizes = signs.gathered_sizes
            if len(found) > 1:  # to each its own
                within = {each.target, *each.path.contents}
                sizes = {key: size for key, size in sizes.items() if key in within}
            has_graph = each.target in signs.with_graph
            suspects += suspects_of(
                each, kind="graph" if has_graph else "tensor", step=turn, steps=self.looks - 1,
                bytes_per_step=sum(sizes.values()), nodes_per_step=signs.nodes_of_turn if has_graph else 0,
                storages_per_step=max(len(sizes), 1), evaluation=not self._ticks.trains, on_host=signs.gathers_on_host,
            )  # fmt: skip
        return suspects

    def _has_grown(self, found: Found) -> bool:
        """Whether a container has tensors of several looks, or, where they lie too deep in it to be seen, is longer than it was."""
        path = found.path
        before = self._lengths.setdefault((path.name, path.file), path.length)
        return path.turns >= SLOW_LOOKS or (not path.turns and path.length > before)

    def _larger(self, signs: _Signs, turn: int) -> list[Suspect]:
        found = []
        for named, series in self._sizes.items():
            # What grows with its graph was told as a graph.
            if len(series) < LOOKS_LARGER or signs.turns_kept or self._ticks.by_calls:
                continue
            stored = find_storing(
                named.stored_as, is_attribute=named.is_attribute, file=named.file, function=named.function
            )
            # `bank = torch.cat([bank, new])`, or a function of the user's that does it; a sum does not make it larger.
            fed = [
                each
                for each in stored.statements
                if (each.joins or (each.feeds_itself and not each.adds)) and not each.cuts
            ]
            statement = next(iter(sorted(fed, key=lambda each: not each.joins)), None)
            starts_anew = stored.resets or any(
                each.replaces and each.in_loop and not each.is_first for each in stored.statements
            )
            if not named.is_attribute and belongs_to_a_call(named):
                continue
            if statement is not None and not stored.shrinks and not starts_anew and not statement.guarded:
                kept = DetectedLeak(
                    kind="larger", how="variable", name=named.name, described="tensor", file=statement.file,
                    line=statement.line, function=statement.function, nodes_per_step=0, storages_per_step=0,
                    bytes_per_step=(series[-1] - series[0]) // (len(series) - 1), step=turn, steps=len(series),
                )  # fmt: skip
                # What a function of the user's makes of it may be limited in there: then it does not grow for long.
                found.append(Suspect(kept, not statement.joins, turn))
        return found


def _is_ensemble(found: Found) -> bool:
    """Whether a few models are gathered, which may be all there will be."""
    return found.path.of_models and found.path.length < ENSEMBLE


def _share_of(found: Found, signs: _Signs) -> tuple[int, int]:
    """Nodes and bytes that one of several holders keeps of a turn: all that it holds of the turn in which the tensor it
    was found by was made."""
    made = signs.shares[found.target].turn if found.target in signs.shares else -1
    within = {found.target, *found.path.contents}
    shares = [share for key, share in signs.shares.items() if key in within and share.turn == made]
    storages = {key: size for share in shares for key, size in share.storages.items()}
    return len({node for share in shares for node in share.nodes}), sum(storages.values())


def _spread(tensors: list[torch.Tensor], most: int = 4 * MOST_PATHS) -> list[torch.Tensor]:
    """Some of many, from both ends: what is held by one name tends to stand together."""
    return tensors if len(tensors) <= most else [*tensors[: most // 2], *tensors[-most // 2 :]]


def _referred(tensors: list[torch.Tensor]) -> Targets:
    return [weakref.ref(tensor) for tensor in tensors]


def _has_graph_of_gradient(tensor: torch.Tensor) -> bool:
    return (
        tensor.requires_grad
        and tensor.is_leaf
        and tensor.grad is not None
        and tensor.grad.grad_fn is not None
    )


def _bytes_of(tensor: torch.Tensor) -> int:
    storage = storage_of(tensor)
    return 0 if storage is None else int(storage.nbytes())
