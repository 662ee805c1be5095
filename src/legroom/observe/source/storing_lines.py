"""Finds the lines that store tensors in a growing variable or attribute, by reading the source code.

The live objects show which variable retains the memory, but not which line stored the tensors. Usually, only one
statement in the source code stores values under the name of this variable, and this statement is the result. The source
code also shows whether code empties a container or limits its length. A container that is emptied or limited is not a
leak. If code checks for a key before it stores a value in a cache, the cache stops growing when it contains all keys.
Code in a function that is never called is ignored.
"""

import ast
import builtins
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from legroom.observe.source.calls import CONSTRUCTORS, Calls, calls_in
from legroom.observe.source.files import (
    LOOPS,
    contains,
    find_function,
    find_function_at,
    function_at,
    functions_in,
    own_nodes,
    related_classes_at,
    tree_of,
    user_files,
)
from legroom.observe.source.graph_values import may_store_graph
from legroom.observe.source.reader import NameReader
from legroom.observe.source.statements import Occurrence, PassedArgument, StoringStatement
from legroom.observe.source.syntax import called_name, is_storing_call, last_name, literal_keys


class NameUsage(NamedTuple):
    statements: tuple[StoringStatement, ...]
    limited: bool
    """Whether code limits the length, or whether a function that adds items also removes items."""
    emptied: bool
    resets: bool
    """Whether an empty value is assigned repeatedly, for example once per epoch."""
    checks_membership: bool
    """Whether code checks that the object contains a key, which suggests that the object is a cache."""
    looks_up: bool = False
    """Whether some code calls `get` and other code adds items. If the object is a queue, `get` removes the item that
    it returns.
    """
    drains: bool = False
    """Whether items are removed only one by one and the length is not checked. The container still grows if more items
    are added than removed.
    """
    may_reset: bool = False
    """Whether an empty value is assigned in a function that is not a constructor."""
    has_limit: bool = False
    """Whether a check of the length or a slice limits the length. The container may grow for a long time before it
    reaches the limit.
    """
    only_at: frozenset[str] = frozenset()
    """The limits of a container that is shortened only if its length is exactly equal to a limit (see
    `Occurrence.only_at`).
    """

    @property
    def misses_limit(self) -> bool:
        """Whether the container is longer than its limits in `only_at`, so `without_limits` was applied."""
        return bool(self.only_at) and not self.shrinks

    def without_limits(self) -> "NameUsage":
        return self._replace(
            limited=False, emptied=False, resets=False, drains=False, may_reset=False, has_limit=False
        )

    def with_graphs(self) -> "NameUsage":
        """Return the usage without the statements that cannot store a tensor with a graph."""
        return self._replace(
            statements=tuple(each for each in self.statements if may_store_graph(each.file, each.line))
        )

    @property
    def shrinks(self) -> bool:
        return self.limited or self.emptied

    @property
    def is_reassigned_in_loop(self) -> bool:
        return bool(self.statements) and all(each.replaces and each.in_loop for each in self.statements)

    @property
    def is_recreated_in_loop(self) -> bool:
        return any(each.constructs and each.in_loop for each in self.statements)

    def candidates(self, keys: tuple[str, ...] = ()) -> list[StoringStatement]:
        """Return the statements that most likely stored the tensors. Several statements are returned only if they are
        equally likely.

        The most likely statements add items instead of replacing them, and store tensors instead of numbers or initial
        values. The most likely statements also use one of `keys`, and are in a loop or a function.
        """

        def rank(each: StoringStatement) -> tuple[bool, ...]:
            other_key = bool(keys and each.keys) and not set(keys) & set(each.keys)
            runs_once = not (each.uses_itself or each.in_loop or each.function != "")
            initializes = each.replaces and (each.only_if_missing or each.function in CONSTRUCTORS)
            is_initial = each.stores_number, each.stores_initial_value
            return *is_initial, each.replaces, initializes, other_key, runs_once

        ranked = sorted(self.statements, key=lambda each: (rank(each), each.line))
        return [each for each in ranked if rank(each) == rank(ranked[0])]

    @property
    def best(self) -> StoringStatement | None:
        return next(iter(self.candidates()), None)


NO_USAGE = NameUsage((), limited=False, emptied=False, resets=False, checks_membership=False)


def find_usage(
    name: str,
    *,
    is_attribute: bool,
    file: str | None,
    function: str = "",
    line: int = 0,
    classes: frozenset[str] = frozenset(),
    keys: tuple[str, ...] = (),
) -> NameUsage:
    """Find the uses of a name: first in the function that contains the variable, then in the whole file, then in all of
    the user's files. `classes` contains the classes that have the attribute, if known. `keys` are the literal keys of
    the growing item, as in `cache["train"]`. Code that removes items with other keys is ignored.
    """
    if not name.isidentifier():
        return NO_USAGE
    return find_usage_in(tuple(user_files()), name, is_attribute, file, function, line, classes, keys)


@lru_cache(maxsize=256)
def find_usage_in(
    others: tuple[str, ...],
    name: str,
    is_attribute: bool,
    file: str | None,
    function: str,
    line: int,
    classes: frozenset[str],
    keys: tuple[str, ...],
) -> NameUsage:
    own = (file,) if file is not None else ()
    calls = calls_in(tuple(sorted({*own, *others})))
    for files in (own, others):
        readers = [
            reader
            for each in files
            if (reader := _read(each, name, is_attribute, function if each == file else "", line, classes))
        ]
        if any(reader.statements or reader.limits for reader in readers):
            return _combine(readers, {*own, *others}, calls, is_attribute or not function, keys)
        if not is_attribute and file is not None and not file.startswith("<"):
            break
    return NO_USAGE


def find_feeding_calls(
    name: str, file: str, function: str, line: int, *, is_attribute: bool = False
) -> NameUsage:
    """Find calls that pass a value to a library's object, as in `optimizer.add_param_group(...)`. If the growing
    container is inside that object, no statement in the user's code refers to the container itself.
    """
    tree = tree_of(file) if name.isidentifier() else None
    if tree is None:
        return NO_USAGE
    reader = NameReader(file, name, is_attribute, feeding=True)
    reader.read((find_function(tree, function, line, name) if function else None) or tree)
    return NO_USAGE._replace(statements=tuple(reader.statements))


@lru_cache(maxsize=64)
def class_limits_itself(file: str, class_name: str) -> bool:
    """Return whether a user-defined class that inherits from list or dict removes its own items."""
    tree = tree_of(file)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            reader = NameReader(file, "self", False)
            reader.read(node)
            return bool(reader.removals or reader.limits)
    return False


def usage_at_line(file: str, line: int) -> NameUsage:
    tree = tree_of(file)
    for node in ast.walk(tree) if tree is not None else ():
        if getattr(node, "lineno", 0) != line:
            continue
        owners: list[ast.expr] = []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and is_storing_call(node):
            owners = [node.func.value]
        elif isinstance(node, ast.Assign):
            owners = [target.value for target in node.targets if isinstance(target, ast.Subscript)]
        for owner in owners:
            keys = literal_keys(owner)
            while isinstance(owner, ast.Subscript):
                owner = owner.value
            name = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
            found = find_usage(
                name, is_attribute=isinstance(owner, ast.Attribute), file=file, function=function_at(file, line),
                line=line, classes=related_classes_at(file, line), keys=keys,
            )  # fmt: skip
            if found.statements:
                return found
    return NO_USAGE


def is_passed_in_loop(name: str, file: str, line: int) -> bool:
    """Return whether a line is in exactly one loop, and whether this loop passes the variable or attribute to user
    code. An example is `out, cache = model(token, cache)`. Library functions are ignored. The result is False in
    nested loops, because the value stays alive after the inner loop ends.
    """
    tree = tree_of(file)
    if tree is None:
        return False
    function = find_function_at(tree, line)
    loops = [
        node
        for node in own_nodes(function)
        if isinstance(node, LOOPS) and node.lineno < line <= (node.end_lineno or 0)
    ]
    if len(loops) != 1:
        return False
    for node in own_nodes(loops[0]):
        if not isinstance(node, ast.Call) or _root_of(node.func) in _LIBRARY_NAMES:
            continue
        values = [*node.args, *(each.value for each in node.keywords)]
        if any(last_name(each) == name for each in values) and not is_storing_call(node):
            return True
    return False


def is_training_data(name: str, file: str, line: int) -> bool:
    """Return whether the items of a variable are used for training in a loop that does not contain `line`, as in `for
    features in bank: ... loss.backward()`.
    """
    tree = tree_of(file)
    for loop in ast.walk(tree) if tree is not None else ():
        if not isinstance(loop, LOOPS) or loop.lineno < line <= (loop.end_lineno or 0):
            continue
        inner = list(ast.walk(loop))
        counts = {id(argument) for each in inner if called_name(each) == "range" for argument in each.args}  # type: ignore[attr-defined]
        if any(called_name(each) == "backward" for each in inner) and any(
            isinstance(each, ast.Name | ast.Attribute) and last_name(each) == name and id(each) not in counts
            for each in inner
        ):
            return True
    return False


def is_read_in(name: str, file: str, *, is_attribute: bool, by_key: bool = False) -> bool:
    """Return whether a file reads the items of a container. Reading a single item, the best item or the length is
    ignored. With `by_key`, looking up an item by its key is also ignored.
    """
    tree = tree_of(file)
    if tree is None:
        return True
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    kind = ast.Attribute if is_attribute else ast.Name
    for node in ast.walk(tree):
        if not isinstance(node, kind) or last_name(node) != name or not isinstance(node.ctx, ast.Load):
            continue
        parent = parents.get(node)
        if isinstance(parent, ast.Attribute):
            call = parents.get(parent)
            is_lookup = by_key and parent.attr == "get"
            if isinstance(call, ast.Call) and call.func is parent and (is_lookup or is_storing_call(call)):
                continue
        if (
            isinstance(parent, ast.Subscript)
            and parent.value is node
            and not isinstance(parent.ctx, ast.Load)
        ):
            continue
        if isinstance(parent, ast.Subscript) and (
            by_key or isinstance(parent.slice, ast.Constant | ast.UnaryOp)
        ):
            continue
        if by_key and isinstance(parent, ast.Compare):
            continue
        if isinstance(parent, ast.Call) and called_name(parent) in {"len", "min", "max", "heappush"}:
            continue
        return True
    return False


def _root_of(called: ast.expr) -> str:
    while isinstance(called, ast.Attribute):
        called = called.value
    return called.id if isinstance(called, ast.Name) else ""


_LIBRARY_NAMES = frozenset({"torch", "F", "nn", "np", "numpy", "math", *dir(builtins)})


_CLASS_PREFIX = re.compile(r"^_\w+?(?=__)")
"""Matches the class in the mangled name of a private attribute (`__kept` is stored as `_Buffer__kept`)."""


def _read(
    file: str, name: str, is_attribute: bool, function: str, line: int, classes: frozenset[str]
) -> NameReader | None:
    tree = tree_of(file) if contains(file, _CLASS_PREFIX.sub("", name)) else None
    if tree is None:
        return None
    scope: ast.AST = tree
    if function and not is_attribute:
        scope = find_function(tree, function, line, name) or tree
    return _read_scope(scope, file, name, is_attribute, classes)


@lru_cache(maxsize=256)
def _read_scope(
    scope: ast.AST, file: str, name: str, is_attribute: bool, classes: frozenset[str]
) -> NameReader:
    reader = NameReader(file, name, is_attribute, classes=classes)
    reader.read(scope)
    return reader


class _ArgumentUse(NamedTuple):
    removals: list[Occurrence]
    limits: list[Occurrence]


def _use_by(passed: PassedArgument, files: Iterable[str]) -> _ArgumentUse | None:
    for file in (each for each in files if contains(each, f"def {passed.function}")):
        function = functions_in(file).get(passed.function)
        if function is None:
            continue
        names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
        names = names[1:] if names[:1] == ["self"] else names
        if isinstance(passed.argument, str):
            name = passed.argument
        elif passed.argument < len(names):
            name = names[passed.argument]
        else:
            continue
        reader = NameReader(file, name, False, is_alias=True)
        reader.read(function)
        return _ArgumentUse(
            [passed.occurrence] * bool(reader.removals), [passed.occurrence] * bool(reader.limits)
        )
    return None


def _is_of_other_key(each: Occurrence, keys: tuple[str, ...], files: Iterable[str]) -> bool:
    """Return whether the removed items have different keys from the stored items. For example, `cache["val"].clear()`
    does not free `cache["train"]`.
    """
    if not keys:
        return False
    if each.keys:
        return set(each.keys).isdisjoint(keys)
    passed = _literal_arguments(each.function, each.key_parameter, files) if each.key_parameter else None
    return passed is not None and passed.isdisjoint(keys)


def _literal_arguments(function: str, parameter: str, files: Iterable[str]) -> set[str] | None:
    """Return the strings that the calls of a function pass for a parameter, or None if one of the calls passes anything
    else.
    """
    found: set[str] = set()
    for file in (each for each in files if contains(each, f"def {function}")):
        definition = functions_in(file).get(function)
        tree = tree_of(file)
        if definition is None or tree is None:
            continue
        names = [each.arg for each in (*definition.args.posonlyargs, *definition.args.args)]
        names = names[1:] if names[:1] == ["self"] else names
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or called_name(node) != function:
                continue
            given: ast.expr | None = next(
                (each.value for each in node.keywords if each.arg == parameter), None
            )
            if given is None and parameter in names and names.index(parameter) < len(node.args):
                given = node.args[names.index(parameter)]
            if given is None and not definition.args.defaults:
                continue  # another function of the same name, such as `list.clear`
            if not (isinstance(given, ast.Constant) and isinstance(given.value, str)):
                return None
            found.add(given.value)
    return found


def _combine(
    readers: list[NameReader],
    files: Iterable[str],
    calls: Calls,
    outlives_calls: bool,
    keys: tuple[str, ...] = (),
) -> NameUsage:
    """Combine the uses that all readers found. `outlives_calls` is True unless the name is a local variable, which
    starts with a new value in each call.
    """
    statements = tuple(
        each._replace(
            only_if_missing=each.only_if_missing
            or (each.only_at_start and each.function not in calls.repeated)
        )
        for reader in readers
        for each in reader.statements
    )
    storing_functions = {each.function for each in statements}
    adding_functions = {each.function for each in statements if not each.replaces}

    def that_run(occurrences: Iterable[Occurrence]) -> list[Occurrence]:
        return [each for each in occurrences if not each.function or each.function in calls.called]

    def during_loop(occurrences: Iterable[Occurrence]) -> list[Occurrence]:
        """Return the occurrences that can run while the loop stores items. Occurrences that run only after the loop are
        omitted.
        """
        loops_once = {each.function for each in statements if each.in_loop} - calls.repeated
        return [
            each
            for each in that_run(occurrences)
            if (each.in_loop or each.function not in loops_once)
            and not (adding_functions & (calls.repeated | calls.passed) and runs_once(each))
        ]

    def runs_once(each: Occurrence) -> bool:
        if not each.function:
            return not each.in_loop
        return each.function not in (calls.repeated | calls.passed | adding_functions)

    uses = [use for reader in readers for each in reader.passed if (use := _use_by(each, files)) is not None]
    removals = [each for reader in readers for each in reader.removals] + [
        each for use in uses for each in use.removals
    ]
    limits = [each for reader in readers for each in reader.limits] + [
        each for use in uses for each in use.limits
    ]
    removals = [
        each for each in removals if each.function in calls.passed or not _is_of_other_key(each, keys, files)
    ]
    removals, limits = during_loop(removals), that_run(limits)
    # `__del__` runs when the object is freed, so it does not reset an attribute of a live object.
    found = [each for reader in readers for each in reader.resets if each.function != "__del__"]
    resets = that_run(found)
    emptying = {each.function for each in (*removals, *resets, *limits)} - {""}
    checks = [check for reader in readers for check in reader.length_checks]
    repeatedly_reset = any(
        each.in_loop
        or (outlives_calls and each.function in calls.repeated and each.function not in CONSTRUCTORS)
        for each in resets
    )
    shortening = [*removals, *limits, *(each for each in resets if each.function not in ("", *CONSTRUCTORS))]
    has_limit = bool(limits) or any(
        calls.reached_from(check.functions) & emptying for check in checks if that_run([check.occurrence])
    )
    return NameUsage(
        statements,
        limited=has_limit
        or any(each.function in storing_functions for each in removals)
        or bool({each.function for each in removals} & calls.reached_from(storing_functions - {""})),
        emptied=bool(removals),
        resets=repeatedly_reset,
        checks_membership=any(reader.checks_membership for reader in readers),
        looks_up=bool(during_loop(each for reader in readers for each in reader.lookups)),
        drains=not (limits or checks or repeatedly_reset) and all(each.removes_one for each in removals),
        may_reset=any(each.function not in ("", *CONSTRUCTORS) for each in resets),
        has_limit=has_limit,
        only_at=frozenset(each.only_at for each in shortening)
        if shortening and all(each.only_at for each in shortening)
        else frozenset(),
    )
