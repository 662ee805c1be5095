"""From tensors that should be gone to who keeps them, and whether the source excuses it.

A tensor is followed to its holder (`holder_paths`) and to the line that stores it (`storing_lines`). What limits itself there, is emptied, or belongs
to a call that will end, is no leak; a cache that looks before it stores may only be filling.
"""

import sys
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any, NamedTuple

import torch

from legroom.memory.annotations import DetectedLeak, LeakHolder, LeakKind
from legroom.observe.dispatch.attribution import is_user_file
from legroom.observe.holders.descriptions import NO_ONE, HolderPath, StoredName
from legroom.observe.holders.paths import find_path, held_by_python
from legroom.observe.holders.python_names import Variables
from legroom.observe.leaks.named_sizes import Named
from legroom.observe.source import storing_lines
from legroom.observe.source.files import built_at, is_in_loop, name_around
from legroom.observe.source.reader import Storing
from legroom.observe.source.storing_lines import Stored, find_storing

MOST_PATHS = 4
SECONDS_ENOUGH = 0.4
"""Once someone was found, no further search begins after so long, in this thread's time: others on the machine do not change a verdict."""
TURNS_KEPT = 4
"""Nodes of so many earlier turns are no accident."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """What a look found: a leak, or (where `warming`) a cache that may only be filling."""

    kept: DetectedLeak
    warming: bool
    length: int
    unplaced: int = 0
    """`id` of the container, where the source does not say which line stores into it."""
    replaced: bool = False
    """Whether what is in that container is replaced by something that has grown, rather than added to."""


Targets = list["weakref.ref[torch.Tensor]"]
"""Tensors whose holders are to be found. While the search is on, nothing of ours may hold them."""


def being_built() -> HolderPath:
    """No one in Python holds the graph: a statement at work may (`total = sum(loss(x) for x in data)`)."""
    for file, line, function in Variables(sys._getframe(1)).lines:
        name = built_at(file, line)
        if name is not None:
            function = name_around(file, line) if function.startswith("<") else function
            return NO_ONE._replace(
                name=name or function,
                how="variable",
                described="tensor",
                file=file,
                function=function,
                line=line,
            )
    return NO_ONE


class Found(NamedTuple):
    """Who holds a tensor, what the source says of that name, and the tensor's `id`."""

    path: HolderPath
    stored: Stored
    target: int


class Holders:
    """Finds who holds tensors, each name once."""

    def __init__(self) -> None:
        self._variables: Variables | None = None
        self._explained: set[int] = set()
        self.found = False
        """Whether anyone was found."""

    def of(self, targets: Targets, made: dict[int, int], least: int = 0) -> list[Found]:
        if not targets:
            return []
        if self._variables is None:
            self._variables = Variables(sys._getframe(1))
        held = self._held(targets, self._variables)
        found: dict[tuple[str, str | None], Found] = {}
        searches, began, useful = 0, time.thread_time(), False
        for reference in targets:
            tensor = reference()
            if tensor is None or id(tensor) not in held or id(tensor) in self._explained:
                continue
            if searches >= MOST_PATHS or (useful and time.thread_time() - began > SECONDS_ENOUGH):
                break
            searches += 1
            path, stored = _with_source(find_path(tensor, self._variables, least=least, made=made))
            each = Found(path, stored, id(tensor))
            self._explained |= {id(tensor), *path.contents}
            del tensor
            useful = useful or gathers(each)
            found.setdefault((path.name, path.file), each)
        self.found = self.found or any(each.path.how != "unknown" for each in found.values())
        return list(found.values())

    @staticmethod
    def _held(targets: Targets, variables: Variables) -> set[int]:
        tensors = [tensor for tensor in (reference() for reference in targets) if tensor is not None]
        return held_by_python(tensors, variables)


def suspects_of(found: Found, *, kind: LeakKind, **figures: Any) -> Iterator[Suspect]:
    path, stored, _ = found
    # Four states may be at hand and yet each have the graph of all before it.
    carries_on = kind == "graph" and path.length > 0 and figures["steps"] > path.length + 2
    # One tensor that is cut to a size, or written to slot by slot, has the graph of all that was ever put into it.
    carries_on |= kind == "graph" and not path.length
    limited = path.bounded or (stored.limited and path.how not in ("cache", "exception"))
    # A list into which things are put only in the place of others stays as long as it was made.
    in_places = path.described.startswith("list") and any(each.at_index for each in stored.statements)
    if kind != "graph" and in_places and all(each.at_index or each.replaces for each in stored.statements):
        return
    if kind != "graph" and any(each.comes_again for each in stored.statements):
        return
    if (limited and not carries_on) or (stored.emptied and kind != "graph"):
        return
    how = _how(path, stored)
    candidates = _candidates(path, stored)
    place = candidates[0] if candidates else None
    # Seen is better than read: where the source names several lines, or none that could fill a container, or carry a graph on in a small one
    # (`totals[name].add_(loss)`), the loop is traced.
    small = kind == "graph" and path.length < TURNS_KEPT
    unsure = place is None or (
        path.container
        and (
            (place.replaces and not path.by_iterator)
            or (small and not place.feeds_itself)
            or len({each.line for each in candidates}) > 1
        )
    )
    traceable = path.container and path.how in ("container", "variable", "closure", "generator")
    kept = DetectedLeak(
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
    # Queues that are each limited fill a dict up to the number of its keys.
    filling = (looks and path.is_mapping) or path.within_bounded
    ends = place is not None and place.guarded and bool(path.container)
    yield Suspect(
        kept,
        filling or ends or stored.emptied,
        path.length,
        path.container if unsure and traceable else 0,
        replaced=path.length < TURNS_KEPT,
    )


def _how(path: HolderPath, stored: Stored) -> LeakHolder:
    if path.how == "variable" or (path.how == "container" and path.length < TURNS_KEPT):
        carried = any(each.feeds_itself and not each.adds and not each.joins for each in stored.statements)
        return "carried" if carried else "variable"
    return path.how  # type: ignore[return-value]


def _candidates(path: HolderPath, stored: Stored) -> list[Storing]:
    """The lines that may have stored it, best first."""
    if path.how == "cache":
        return []  # the cached function itself
    candidates = stored.candidates(path.keys)
    if path.by_iterator:
        return [each for each in stored.statements if each.replaces] or candidates
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


def gathers(found: Found) -> bool:
    """Whether a holder can hold things of many turns. A plain variable holds those of one, unless it feeds itself; so does what
    is made anew with every turn, such as a sample of a buffer."""
    path, stored, _ = found
    if stored.is_made_anew:
        return False
    if path.how in ("variable", "unknown") or (path.how == "container" and path.length < TURNS_KEPT - 1):
        return any(each.feeds_itself for each in stored.statements)
    return True


def grown_by(turn: int) -> int:
    """How long a container is at least that took something in with every turn (what began late may be shorter)."""
    return min(max(turn - 1, 3), 64)


def is_passing(found: Found) -> bool:
    """Whether tensors are held for a while only: until the next epoch, the end of a call, the next sample."""
    path, stored, _ = found
    if path.described.startswith("tuple") and not any(each.feeds_itself for each in stored.statements):
        return True
    if stored.resets or stored.is_made_anew or (path.names and belongs_to_a_call(path.names[-1])):
        return True
    if not path.stored_as.isidentifier() and is_in_loop(path.file or "", path.line, itself=False):
        return True  # a list that a statement in a loop builds and gives no name
    return any(_stored_in(name).is_constructed_anew for name in path.names if not name.is_attribute)


def belongs_to_a_call(root: StoredName | Named) -> bool:
    """Whether a local variable, or what it has, belongs to a function that a loop calls, directly or by way of others: it dies with
    the call."""
    frame: FrameType | None = sys._getframe(1)
    within = taken_along = False
    while frame is not None:
        code = frame.f_code
        if within and is_user_file(code.co_filename) and is_in_loop(code.co_filename, frame.f_lineno or 0):
            return True
        has_it = root.name in code.co_cellvars if taken_along else code.co_name == root.function
        if not within and has_it and code.co_filename == root.file:
            if root.name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
                return False  # an argument, such as `self`, is the caller's
            # A comprehension or an inner function may have it from the one around it.
            taken_along = root.name in code.co_freevars
            within = not taken_along
        # What runs the script is no loop of its own.
        frame = frame.f_back if code.co_name != "<module>" else None
    return False
