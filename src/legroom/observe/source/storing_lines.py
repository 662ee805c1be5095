"""Which line puts things where they stay: read off the source, for a variable or attribute known to grow.

The objects say who keeps the memory, not who put it there. The source does: the statements that store into that
name are few, mostly one. It also says what the objects cannot: that a container is emptied again or limited in length
(then its growth is no leak), or that a cache looks before it stores (then growth may only be warming up). What stands in
a function that no one calls does not count.
"""

import ast
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from legroom.observe.source.calls import CONSTRUCTORS, Calls, calls_in
from legroom.observe.source.files import (
    family_around,
    function_around,
    functions_in,
    name_around,
    tree_of,
    user_files,
)
from legroom.observe.source.reader import Handed, NameReader, Place, Storing, is_put


class Stored(NamedTuple):
    """All that the source says of a name."""

    statements: tuple[Storing, ...]
    limited: bool
    """Its length is limited, or things are taken out where others are put in."""
    emptied: bool
    """Things are taken out elsewhere: now and then, perhaps."""
    resets: bool
    """It is made anew again and again: once in an epoch, mostly."""
    looks_first: bool
    """Something asks whether a key is in it: a cache."""

    @property
    def shrinks(self) -> bool:
        return self.limited or self.emptied

    @property
    def is_made_anew(self) -> bool:
        """Whether all that the source does is to assign something else with every turn."""
        return bool(self.statements) and all(each.replaces and each.in_loop for each in self.statements)

    @property
    def is_constructed_anew(self) -> bool:
        """Whether a loop makes a new object of a class for it."""
        return any(each.constructs and each.in_loop for each in self.statements)

    def candidates(self, keys: tuple[str, ...] = ()) -> list[Storing]:
        """The statements to name, best first: those that add rather than replace, store no plain number, under one of `keys` where those
        are known, within a loop or a function. What is clearly worse than the first is left out."""

        def weight(each: Storing) -> tuple[bool, ...]:
            elsewhere = bool(keys and each.keys) and not set(keys) & set(each.keys)
            passing = not (each.feeds_itself or each.in_loop or each.function != "")
            begins = each.replaces and (each.is_first or each.function in CONSTRUCTORS)
            return each.stores_number, each.replaces, begins, elsewhere, passing

        ranked = sorted(self.statements, key=lambda each: (weight(each), each.line))
        return [each for each in ranked if weight(each) == weight(ranked[0])]

    @property
    def best(self) -> Storing | None:
        return next(iter(self.candidates()), None)


NOTHING = Stored((), limited=False, emptied=False, resets=False, looks_first=False)


def find_storing(
    name: str,
    *,
    is_attribute: bool,
    file: str | None,
    function: str = "",
    line: int = 0,
    classes: frozenset[str] = frozenset(),
) -> Stored:
    """Search the function that has the variable, else the whole file, else every file of the user's. `classes`: whose attribute
    it is, where known."""
    if not name.isidentifier():
        return NOTHING
    own = [file] if file is not None else []
    others = user_files()
    calls = calls_in(tuple(sorted({*own, *others})))
    for files in (own, others):
        readers = [
            reader
            for each in files
            if (reader := _read(each, name, is_attribute, function if each == file else "", line, classes))
        ]
        if any(reader.statements or reader.limits for reader in readers):
            return _told(readers, {*own, *others}, calls, is_attribute or not function)
        if not is_attribute and file is not None and not file.startswith("<"):
            break
    return NOTHING


def find_feeding(root: str, file: str | None, function: str, line: int) -> Stored:
    """Where no statement names the growing thing itself (it lies inside a library's object): the calls of methods that
    hand something to that object, as in `optimizer.add_param_group(...)`."""
    tree = tree_of(file) if file is not None and root.isidentifier() else None
    if tree is None or file is None:
        return NOTHING
    reader = NameReader(file, root, False, feeding=True)
    reader.read((function_around(tree, function, line, root) if function else None) or tree)
    return NOTHING._replace(statements=tuple(reader.statements))


@lru_cache(maxsize=64)
def limits_itself(file: str, kind: str) -> bool:
    """Whether a class of the user's, made from a list or dict, takes things out of itself."""
    tree = tree_of(file)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.ClassDef) and node.name == kind:
            reader = NameReader(file, "self", False)
            reader.read(node)
            return bool(reader.takes or reader.limits)
    return False


def find_at(file: str, line: int) -> Stored:
    """What the source says of the container that a line stores into, by whatever name it has there."""
    tree = tree_of(file)
    for node in ast.walk(tree) if tree is not None else ():
        if getattr(node, "lineno", 0) != line:
            continue
        owners: list[ast.expr] = []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and is_put(node):
            owners = [node.func.value]
        elif isinstance(node, ast.Assign):
            owners = [target.value for target in node.targets if isinstance(target, ast.Subscript)]
        for owner in owners:
            while isinstance(owner, ast.Subscript):
                owner = owner.value
            name = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
            found = find_storing(
                name, is_attribute=isinstance(owner, ast.Attribute), file=file, function=name_around(file, line),
                line=line, classes=family_around(file, line),
            )  # fmt: skip
            if found.statements:
                return found
    return NOTHING


def _read(
    file: str, name: str, is_attribute: bool, function: str, line: int, classes: frozenset[str]
) -> NameReader | None:
    tree = tree_of(file)
    if tree is None:
        return None
    scope: ast.AST = tree
    if function and not is_attribute:
        scope = function_around(tree, function, line, name) or tree
    reader = NameReader(file, name, is_attribute, classes=classes)
    reader.read(scope)
    return reader


class _Done(NamedTuple):
    """What a function does with something that it is given."""

    takes: list[Place]
    limits: list[Place]


def _done_by(handed: Handed, files: Iterable[str]) -> _Done | None:
    """None where the function is not the user's."""
    for file in files:
        function = functions_in(file).get(handed.function)
        if function is None:
            continue
        names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
        names = names[1:] if names[:1] == ["self"] else names
        if isinstance(handed.argument, str):
            name = handed.argument
        elif handed.argument < len(names):
            name = names[handed.argument]
        else:
            continue
        reader = NameReader(file, name, False, is_second=True)
        reader.read(function)
        return _Done([handed.place] * bool(reader.takes), [handed.place] * bool(reader.limits))
    return None


def _told(readers: list[NameReader], files: Iterable[str], calls: Calls, outlives_calls: bool) -> Stored:
    """`outlives_calls`: whether it is no local variable, which is another one with each call."""
    statements = tuple(
        each._replace(is_first=each.is_first or (each.is_at_start and each.function not in calls.repeated))
        for reader in readers
        for each in reader.statements
    )
    fed_by = {each.function for each in statements}

    def at_work(places: Iterable[Place]) -> list[Place]:
        return [each for each in places if not each.function or each.function in calls.called]

    def within_reach(places: Iterable[Place]) -> list[Place]:
        """What is done once, after the loop that stores, gives nothing back to it."""
        looped = {each.function for each in statements if each.in_loop} - calls.repeated
        return [each for each in at_work(places) if each.in_loop or each.function not in looped]

    handed = [
        done for reader in readers for each in reader.handed if (done := _done_by(each, files)) is not None
    ]
    takes = [place for reader in readers for place in reader.takes] + [
        place for each in handed for place in each.takes
    ]
    limits = [place for reader in readers for place in reader.limits] + [
        place for each in handed for place in each.limits
    ]
    takes, limits = within_reach(takes), at_work(limits)
    renewals = at_work(place for reader in readers for place in reader.renewals)
    emptying = {place.function for place in (*takes, *renewals, *limits)} - {""}
    checks = [check for reader in readers for check in reader.checks]
    return Stored(
        statements,
        limited=bool(limits)
        or any(place.function in fed_by for place in takes)
        or bool({place.function for place in takes} & calls.reached_from(fed_by - {""}))
        or any(calls.reached_from(check.functions) & emptying for check in checks if at_work([check.place])),
        emptied=bool(takes),
        resets=any(
            place.in_loop
            or (outlives_calls and place.function in calls.repeated and place.function not in CONSTRUCTORS)
            for place in renewals
        ),
        looks_first=any(reader.looks_first for reader in readers),
    )
