"""A few looks at all tensors, one after each turn of the loop, until it is clear whether something is kept.

Three signs, each of which a sound loop does not show:
  graph    nodes of several earlier turns are alive. Torch numbers its nodes, so one look tells.
  tensor   storages first seen at each of the last looks are all still there, and there are more of them each time.
  larger   one name leads to a larger tensor at every look, and the source says that it is made from itself.
A sign is followed to who holds it (`holder_paths`) and to the line that stores it (`storing_lines`). What limits itself
there, or is emptied, is no leak.
"""

import sys
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import FrameType
from typing import Any, NamedTuple

import torch

from legroom.memory.kept import How, Kept, Kind
from legroom.observe import storing_lines
from legroom.observe.attribution import is_user_file
from legroom.observe.holder_paths import find_path, held_by_python
from legroom.observe.holder_words import NO_ONE, HolderPath, StoredName
from legroom.observe.python_names import Variables
from legroom.observe.source_files import built_at, is_in_loop
from legroom.observe.source_reader import Storing
from legroom.observe.storages import storage_of
from legroom.observe.storing_lines import Stored, find_storing
from legroom.observe.watching.census import Followed, accounted_for, look_around
from legroom.observe.watching.graph_births import Births, Share, StepMarks, roots
from legroom.observe.watching.named_sizes import Named, named_sizes
from legroom.observe.watching.ticks import Ticks

LOOKS = 7
TURNS_KEPT = 4
"""Nodes of so many earlier turns are no accident."""
TURNS_BEFORE_STEPPING = 16
"""Before the first optimizer step, the batches of one accumulated step may share a graph."""
LOOKS_OF_TENSORS = 2
"""What was first seen at each of so many looks, after the first one, must all be there."""
LOOKS_LARGER = 4
MOST_PATHS = 4
SECONDS_ENOUGH = 0.4
"""Once someone was found, no further search begins after so long."""
_BACK = 10


@dataclass(frozen=True, slots=True)
class Suspect:
    """What a look found: a leak, or (where `warming`) a cache that may only be filling."""

    kept: Kept
    warming: bool
    length: int
    unplaced: int = 0
    """`id` of the container, where the source does not say which line stores into it."""
    replaced: bool = False
    """Whether what is in that container is replaced by something that has grown, rather than added to."""


Targets = list["weakref.ref[torch.Tensor]"]
"""Tensors whose holders are to be found. While the search is on, nothing of ours may hold them."""


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

    def __init__(self, marks: StepMarks, ticks: Ticks, *, on_device: Callable[[torch.Tensor], bool]) -> None:
        self.looks = 0
        self.quiet = True
        """Nothing odd was seen at the last look."""
        self.told: set[Kind] = set()
        """Signs that were judged to be leaks: not followed again, so that the other signs can still show theirs."""
        self._marks = marks
        self._ticks = ticks
        self._on_device = on_device
        self._named: set[tuple[object, ...]] = set()
        self._followed = Followed()
        self._counts: list[int] = []
        self._sizes: dict[Named, list[int]] = {}

    def look(self, turn: int) -> list[Suspect]:
        """Call at the end of turn number `turn`."""
        self.looks += 1
        with torch._C.DisableTorchFunction():
            signs = self._signs(turn)
            self._note_sizes()
            holders = _Holders()
            suspects = []
            if "graph" not in self.told:
                suspects += self._graphs(signs, holders, turn)
            if "tensor" not in self.told:
                suspects += self._gathered(signs, holders, turn)
            if "larger" not in self.told:
                suspects += self._larger(signs, turn)
            # What was followed to holders that limit themselves is no reason to look again at once.
            self.quiet = not suspects and (not signs.uneasy or holders.found)
        return [each for each in suspects if each.warming or self._is_first(each.kept)]

    def _is_first(self, kept: Kept) -> bool:
        """A list of tensors that hold graphs shows two signs; the first, of the graph, has the fuller figures."""
        known = kept.identity in self._named
        self._named.add(kept.identity)
        return not known

    # --- what can be seen

    def _signs(self, turn: int) -> _Signs:
        tensors, evaluating = look_around()
        births = Births(self._marks, oldest=turn - _BACK)
        held = roots(tensors)
        births.follow(node for _, node in held)
        by_birth = self._followed.look(tensors, accounted_for(tensors, self._ticks.optimizers), turn)
        self._counts.append(self._followed.count)
        kept = births.steps(turn)
        newest = by_birth.get(turn - 1, [])
        # Results of an evaluation that are gathered on the host are its purpose.
        matters = self._can_tell(evaluating) and (self._ticks.trains or any(map(self._on_device, newest)))
        # Where calls of a model are the turns, a list may be a text that is being written, word by word.
        matters = matters and not self._ticks.by_calls
        gathers = matters and self._rising(3) and bool(newest) and bool(by_birth.get(turn - 2))
        made = {id(tensor): birth for birth, born in by_birth.items() for tensor in born}
        made |= {id(tensor): step for tensor, node in held if (step := births.step_of(node)) is not None}
        signs = _Signs(uneasy=len(kept) >= 2 or gathers, made=made)
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
            if self._ticks.by_calls and carrying and not evaluating:
                return (
                    signs  # a network that is being unrolled: one graph, and its backward pass is yet to come
                )
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
        generations = [by_birth.get(turn - back, []) for back in range(1, LOOKS_OF_TENSORS + 1)]
        if not self._ticks.trains:
            generations = [[tensor for tensor in each if self._on_device(tensor)] for each in generations]
        if self.looks > LOOKS_OF_TENSORS + 1 and all(generations) and self._rising(LOOKS_OF_TENSORS + 2):
            sample = [tensor for generation in generations[1:] for tensor in _spread(generation)]
            if matters:
                signs = replace(
                    signs,
                    gathered=_referred(sample),
                    gathered_sizes={id(tensor): _bytes_of(tensor) for tensor in generations[1]},
                    with_graph=frozenset(id(tensor) for tensor, _ in roots(sample)),
                    nodes_of_turn=len(births.nodes.get(turn - 2, ())),
                )
        return signs

    def _is_kept(self, kept: list[int], turn: int, evaluating: bool) -> bool:
        if len(kept) < TURNS_KEPT or kept[-1] < turn - 2:
            return False
        return self._can_tell(evaluating)

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
            self._sizes[named] = [*series, size] if not series or size > series[-1] else [size]

    # --- what it means

    def _graphs(self, signs: _Signs, holders: "_Holders", turn: int) -> list[Suspect]:
        """Who holds old tensors with a graph; if no one does, which of the new ones carries the old graph on."""
        if not signs.turns_kept:
            return []
        found = [each for each in holders.of(signs.old, signs.made, least=_grown_by(turn)) if _gathers(each)]
        carrying = [each for each in holders.of(signs.carrying, signs.made) if each.path.how != "unknown"]
        feeding = [each for each in carrying if any(one.feeds_itself for one in each.stored.statements)]
        if found:  # of two leaks at once, one may carry its graph on
            found += feeding[:1]
        else:
            found = (feeding or carrying or self._gradients(signs, holders))[:1]
        if not found and self.looks >= LOOKS - 1:
            found = [_Found(_being_built(), storing_lines.NOTHING, 0)]
        suspects: list[Suspect] = []
        for each in found:
            nodes, size = signs.nodes_per_turn, signs.bytes_per_turn
            if len(found) > 1:
                nodes, size = _share_of(each, signs)
            suspects += _suspect(
                each, kind="graph", step=turn, steps=signs.turns_kept, bytes_per_step=size, nodes_per_step=nodes,
                storages_per_step=0, evaluation=not self._ticks.trains,
            )  # fmt: skip
        return suspects

    def _gradients(self, signs: _Signs, holders: "_Holders") -> list["_Found"]:
        """Who has the parameters whose gradients carry a graph on, and the line of the backward pass that makes it so."""
        place = self._ticks.graph_of_gradients
        if place is None:
            return []
        line = Storing(place.file, place.line, place.function, True, False, False, False, True)
        return [
            _Found(each.path._replace(name=f"{each.path.name}.grad", how="variable", container=0, length=0),
                   storing_lines.NOTHING._replace(statements=(line,)), each.target)
            for each in holders.of(signs.with_gradient, {})
            if each.path.how != "unknown"
        ]  # fmt: skip

    def _gathered(self, signs: _Signs, holders: "_Holders", turn: int) -> list[Suspect]:
        held = holders.of(signs.gathered, signs.made, least=_grown_by(turn))
        found = [each for each in held if each.path.how != "unknown" and not _is_passing(each)]
        suspects: list[Suspect] = []
        for each in found:
            sizes = signs.gathered_sizes
            if len(found) > 1:  # to each its own
                within = {each.target, *each.path.contents}
                sizes = {key: size for key, size in sizes.items() if key in within}
            has_graph = each.target in signs.with_graph
            suspects += _suspect(
                each, kind="graph" if has_graph else "tensor", step=turn, steps=self.looks - 1,
                bytes_per_step=sum(sizes.values()), nodes_per_step=signs.nodes_of_turn if has_graph else 0,
                storages_per_step=max(len(sizes), 1), evaluation=not self._ticks.trains,
            )  # fmt: skip
        return suspects

    def _larger(self, signs: _Signs, turn: int) -> list[Suspect]:
        found = []
        for named, series in self._sizes.items():
            if (
                len(series) < LOOKS_LARGER or signs.turns_kept or self._ticks.by_calls
            ):  # what grows with its graph was told as a graph
                continue
            stored = find_storing(
                named.stored_as, is_attribute=named.is_attribute, file=named.file, function=named.function
            )
            # `bank = torch.cat([bank, new])`, or a function of the user's that does it; a sum does not make it larger.
            fed = [each for each in stored.statements if each.joins or (each.feeds_itself and not each.adds)]
            statement = next(iter(sorted(fed, key=lambda each: not each.joins)), None)
            starts_anew = stored.resets or any(each.replaces and each.in_loop for each in stored.statements)
            if statement is not None and not stored.shrinks and not starts_anew and not statement.guarded:
                kept = Kept(
                    kind="larger", how="variable", name=named.name, described="tensor", file=statement.file,
                    line=statement.line, function=statement.function, nodes_per_step=0, storages_per_step=0,
                    bytes_per_step=(series[-1] - series[0]) // (len(series) - 1), step=turn, steps=len(series),
                )  # fmt: skip
                # What a function of the user's makes of it may be limited in there: then it does not grow for long.
                found.append(Suspect(kept, not statement.joins, turn))
        return found


def _being_built() -> HolderPath:
    """No one in Python holds the graph: a statement at work may (`total = sum(loss(x) for x in data)`)."""
    for file, line, function in Variables(sys._getframe(1)).lines:
        name = built_at(file, line)
        if name is not None:
            function = "" if function.startswith("<") else function
            return NO_ONE._replace(
                name=name or function,
                how="variable",
                described="tensor",
                file=file,
                function=function,
                line=line,
            )
    return NO_ONE


class _Found(NamedTuple):
    """Who holds a tensor, what the source says of that name, and the tensor's `id`."""

    path: HolderPath
    stored: Stored
    target: int


def _share_of(found: _Found, signs: _Signs) -> tuple[int, int]:
    """Nodes and bytes that one of several holders keeps of a turn: all that it holds of the turn in which the tensor it
    was found by was made."""
    made = signs.shares[found.target].turn if found.target in signs.shares else -1
    within = {found.target, *found.path.contents}
    shares = [share for key, share in signs.shares.items() if key in within and share.turn == made]
    storages = {key: size for share in shares for key, size in share.storages.items()}
    return len({node for share in shares for node in share.nodes}), sum(storages.values())


class _Holders:
    """Finds who holds tensors, each name once."""

    def __init__(self) -> None:
        self._variables: Variables | None = None
        self._explained: set[int] = set()
        self.found = False
        """Whether anyone was found."""

    def of(self, targets: Targets, made: dict[int, int], least: int = 0) -> list[_Found]:
        if not targets:
            return []
        if self._variables is None:
            self._variables = Variables(sys._getframe(1))
        held = self._held(targets, self._variables)
        found: dict[tuple[str, str | None], _Found] = {}
        searches, began, useful = 0, time.perf_counter(), False
        for reference in targets:
            tensor = reference()
            if tensor is None or id(tensor) not in held or id(tensor) in self._explained:
                continue
            if searches >= MOST_PATHS or (useful and time.perf_counter() - began > SECONDS_ENOUGH):
                break
            searches += 1
            path, stored = _with_source(find_path(tensor, self._variables, least=least, made=made))
            each = _Found(path, stored, id(tensor))
            self._explained |= {id(tensor), *path.contents}
            del tensor
            useful = useful or _gathers(each)
            found.setdefault((path.name, path.file), each)
        self.found = self.found or any(each.path.how != "unknown" for each in found.values())
        return list(found.values())

    @staticmethod
    def _held(targets: Targets, variables: Variables) -> set[int]:
        tensors = [tensor for tensor in (reference() for reference in targets) if tensor is not None]
        return held_by_python(tensors, variables)


def _suspect(found: _Found, *, kind: Kind, **figures: Any) -> Iterator[Suspect]:
    path, stored, _ = found
    # Four states may be at hand and yet each have the graph of all before it.
    carries_on = kind == "graph" and path.length > 0 and figures["steps"] > path.length + 2
    limited = path.bounded or (stored.limited and path.how not in ("cache", "exception"))
    # A list into which things are put only in the place of others stays as long as it was made.
    in_places = path.described.startswith("list") and any(each.at_index for each in stored.statements)
    if kind != "graph" and in_places and all(each.at_index or each.replaces for each in stored.statements):
        return
    if (limited and not carries_on) or (stored.emptied and kind != "graph"):
        return
    how = _how(path, stored)
    candidates = _candidates(path, stored)
    place = candidates[0] if candidates else None
    # Seen is better than read: where the source names several lines, or none that could fill a container, the loop is traced.
    unsure = place is None or (
        path.container and (place.replaces or len({each.line for each in candidates}) > 1)
    )
    traceable = path.container and path.how in ("container", "variable", "closure", "generator")
    kept = Kept(
        kind=kind,
        how=how,
        name=path.name,
        described=path.described,
        file=place.file if place else path.file,
        line=place.line if place else None if traceable else path.line or None,
        function=place.function if place else path.function,
        **figures,
    )
    looks = path.how == "cache" or (stored.looks_first and how in ("container", "closure"))
    filling = looks and path.is_mapping
    ends = place is not None and place.guarded and bool(path.container)
    yield Suspect(
        kept,
        filling or ends or stored.emptied,
        path.length,
        path.container if unsure and traceable else 0,
        replaced=path.length < TURNS_KEPT,
    )


def _how(path: HolderPath, stored: Stored) -> How:
    if path.how == "variable" or (path.how == "container" and path.length < TURNS_KEPT):
        carried = any(each.feeds_itself and not each.adds and not each.joins for each in stored.statements)
        return "carried" if carried else "variable"
    return path.how  # type: ignore[return-value]


def _candidates(path: HolderPath, stored: Stored) -> list[Storing]:
    """The lines that may have stored it, best first."""
    if path.how == "cache":
        return []  # the cached function itself
    candidates = stored.candidates(path.keys)
    if path.how in ("variable", "container") and path.length < TURNS_KEPT:
        feeding = stored._replace(statements=tuple(each for each in stored.statements if each.feeds_itself))
        return feeding.candidates(path.keys) or candidates
    return candidates


def _with_source(path: HolderPath) -> tuple[HolderPath, Stored]:
    """The path, up to the name that things are put into, with what the source says of that name."""
    if path.how in ("cache", "unknown"):
        return path, storing_lines.NOTHING
    stored = find_storing(
        path.stored_as, is_attribute=path.is_attribute, file=path.file, function=path.function, line=path.line,
        classes=path.classes,
    )  # fmt: skip
    if not is_user_file(path.file or "<user>") and (told := _by_users_name(path)) is not None:
        return told
    if path.how == "variable" or (path.how == "container" and path.length < TURNS_KEPT):
        # Too small to gather much: a name that feeds itself, further up or down (`node = Node(state, node)`, `meters["loss"].total`).
        for name in path.names:
            found = _stored_in(name, path.line)
            if any(each.feeds_itself for each in found.statements):
                return path._replace(name=name.name, stored_as=name.stored_as), found
    if not stored.statements:
        for alias in path.aliases:
            found = _stored_in(alias)
            if any(not each.replaces for each in found.statements):
                return path._replace(name=alias.name, stored_as=alias.stored_as, file=alias.file), found
    if not stored.shrinks and not stored.statements and path.names:
        root = path.names[-1]
        stored = storing_lines.find_feeding(root.name, root.file, root.function, path.line)
    return path, stored


def _stored_in(name: StoredName, line: int = 0) -> Stored:
    return find_storing(
        name.stored_as, is_attribute=name.is_attribute, file=name.file, function=name.function, line=line,
        classes=name.classes,
    )  # fmt: skip


def _by_users_name(path: HolderPath) -> tuple[HolderPath, Stored] | None:
    """What grows inside a library's object (`Queue.queue`) is put there by the name that the user has for that object."""
    for name in path.names:
        if name.file is None or not is_user_file(name.file):
            continue
        stored = _stored_in(name)
        if any(not each.replaces for each in stored.statements):
            # `get` looks a key up in a dict; from a queue it takes something out.
            stored = stored._replace(limited=stored.limited or stored.looks_first, looks_first=False)
            return path._replace(name=name.name, stored_as=name.stored_as, file=name.file), stored
    return None


def _gathers(found: _Found) -> bool:
    """Whether a holder can hold things of many turns. A plain variable holds those of one, unless it feeds itself; so does what
    is made anew with every turn, such as a sample of a buffer."""
    path, stored, _ = found
    if stored.is_made_anew:
        return False
    if path.how in ("variable", "unknown") or (path.how == "container" and path.length < TURNS_KEPT - 1):
        return any(each.feeds_itself for each in stored.statements)
    return True


def _grown_by(turn: int) -> int:
    """How long a container is at least that took something in with every turn (what began late may be shorter)."""
    return min(max(turn - 1, 3), 64)


def _is_passing(found: _Found) -> bool:
    """Whether tensors are held for a while only: until the next epoch, the end of a call, the next sample."""
    path, stored, _ = found
    if path.described.startswith("tuple") and not any(each.feeds_itself for each in stored.statements):
        return True
    if stored.resets or stored.is_made_anew or _belongs_to_a_call(path):
        return True
    return any(_stored_in(name).is_constructed_anew for name in path.names if not name.is_attribute)


def _belongs_to_a_call(path: HolderPath) -> bool:
    """Whether a local variable, or what it has, belongs to a function that a loop calls, directly or by way of others: it dies with
    the call."""
    if not path.names:
        return False
    root = path.names[-1]
    frame: FrameType | None = sys._getframe(1)
    within = False
    while frame is not None:
        code = frame.f_code
        if within and is_user_file(code.co_filename) and is_in_loop(code.co_filename, frame.f_lineno or 0):
            return True
        if not within and code.co_filename == root.file and code.co_name == root.function:
            if root.name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
                return False  # an argument, such as `self`, is the caller's
            within = True
        frame = (
            frame.f_back if code.co_name != "<module>" else None
        )  # what runs the script is no loop of its own
    return False


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
