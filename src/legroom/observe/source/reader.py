"""Collects the uses of a name in source code: statements that store items, remove items, limit the length, reset the
value or look up a key.

The name is a variable or an attribute. Uses of an attribute such as `self.values` are collected only in the classes
that have the attribute, because unrelated classes may use the same name.
"""

import ast
from collections.abc import Sequence

from legroom.observe.source.files import COMPREHENSIONS, FUNCTIONS, LOOPS, own_nodes
from legroom.observe.source.names import SourceName
from legroom.observe.source.statements import LengthCheck, Occurrence, PassedArgument, StoringStatement
from legroom.observe.source.syntax import (
    STORING_METHODS,
    assigns_local,
    branches,
    called_name,
    flattened,
    index_of,
    is_below,
    is_concatenation,
    is_consumed,
    is_empty,
    is_in_place,
    is_incremented,
    is_initial_value,
    is_number,
    is_reassigned,
    is_slice,
    is_zero_or_one,
    literal_keys,
    pairs_of,
    parts_of,
    passed_values,
    replaces_contents,
    wraps_around,
)

_REMOVING_METHODS = frozenset({
    "pop", "popleft", "popitem", "clear", "remove", "discard", "get_nowait", "heappop", "heapreplace", "heappushpop",
})  # fmt: skip
_CONTAINER_FUNCTIONS = {
    "heappush", "heappop", "heapreplace", "heappushpop", "insort", "insort_left", "insort_right",
}  # fmt: skip
_CLEARING_METHODS = frozenset({"clear", "popleft"})
"""Methods that free memory when they are called on an item of the container. `pop` is not included, because it may
remove only some of the item's contents.
"""
_FEEDING_PREFIXES = (
    "add", "append", "register", "push", "put", "store", "log", "record", "update", "save", "collect", "keep",
)  # fmt: skip
_SETTERS = {"register_buffer", "register_parameter", "setattr"}


class NameReader:
    def __init__(
        self,
        file: str,
        name: str,
        is_attribute: bool,
        *,
        classes: frozenset[str] = frozenset(),
        feeding: bool = False,
        is_alias: bool = False,
        removing_methods: frozenset[str] | None = None,
    ) -> None:
        """`classes` contains the classes that have the attribute, and their base classes. The set is empty if the
        classes are unknown. With `feeding`, methods with names such as `push` are treated as methods that store items.
        With `is_alias`, assignments to the name are ignored. If `removing_methods` is given, no other methods are
        treated as removing items.
        """
        self.statements: list[StoringStatement] = []
        self.limits: list[Occurrence] = []
        self.removals: list[Occurrence] = []
        self.lookups: list[Occurrence] = []
        self.resets: list[Occurrence] = []
        self.checks_membership = False
        self.passed: list[PassedArgument] = []
        self.length_checks: list[LengthCheck] = []
        self._file = file
        self._name = name
        self._is_attribute = is_attribute
        self._named = SourceName(name, is_attribute)
        self._classes = classes
        self._feeding = feeding
        self._is_alias = is_alias
        self._removing_methods = removing_methods if removing_methods is not None else _REMOVING_METHODS
        self._function = ""
        self._scope: ast.AST = ast.Module([], [])
        self._root: ast.AST = self._scope
        self._loops: list[ast.AST] = []
        self._limit_tests = 0
        """The number of enclosing conditions that require a counter to be below a limit."""
        self._missing_tests = 0
        """The number of enclosing conditions that are true only if the name has no value yet."""
        self._start_tests = 0
        """The number of enclosing conditions that are true only in the first iteration."""
        self._only_at = ""
        """The limit in the enclosing `if len(name) == limit:`."""
        self._tested: ast.If | ast.While | None = None
        self._is_irrelevant = False
        self._exits: list[tuple[str, int]] = []

    def read(self, scope: ast.AST) -> None:
        self._function = getattr(scope, "name", "") if isinstance(scope, FUNCTIONS) else ""
        self._scope = self._root = scope
        self._descend(scope)
        for function, line in self._exits:
            if any(each.function == function and each.line > line for each in self.statements):
                self.limits.append(Occurrence(function, True))

    def _descend(self, node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            self._visit(child)
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                self._visit_function(child)
            elif isinstance(child, ast.ClassDef):
                before = self._named.in_unrelated_class
                self._named.in_unrelated_class = bool(self._classes) and child.name not in self._classes
                self._descend(child)
                self._named.in_unrelated_class = before
            elif isinstance(child, ast.If):
                self._visit_if(child)
            elif isinstance(child, ast.Try):
                self._visit_try(child)
            elif isinstance(child, ast.While):
                self._loops.append(child)
                self._read_test(child)
                self._visit_all([*child.body, *child.orelse])
                self._loops.pop()
            elif isinstance(child, (*LOOPS, *COMPREHENSIONS)):
                self._loops.append(child)
                self._descend(child)
                self._loops.pop()
            elif isinstance(child, ast.IfExp | ast.Assert):
                before = self._is_irrelevant
                self._is_irrelevant = True
                self._descend(ast.Expression(child.test))
                self._is_irrelevant = before
                rest = [child.body, child.orelse] if isinstance(child, ast.IfExp) else []
                self._descend(ast.Tuple(rest, ast.Load()))
            else:
                self._descend(child)

    def _read_test(self, node: ast.If | ast.While) -> None:
        self._tested = node
        self._descend(ast.Expression(node.test))
        self._tested = None

    def _visit_if(self, node: ast.If) -> None:
        self._read_test(node)
        below_limit, missing = is_below(node, self._root), self._named.tests_for_it(node.test)
        at_start = self._is_start(node.test)
        self._missing_tests += missing
        self._limit_tests += below_limit
        self._start_tests += at_start
        only_at, self._only_at = self._only_at, self._named.exact_limit(node.test) or self._only_at
        self._visit_all(node.body)
        self._only_at = only_at
        self._limit_tests -= below_limit
        self._start_tests -= at_start
        self._visit_all(node.orelse)
        self._missing_tests -= missing

    def _visit_try(self, node: ast.Try) -> None:
        self._visit_all(node.body)
        catches_key_error = any(
            "KeyError" in ast.dump(each.type) for each in node.handlers if each.type is not None
        )
        read = (each for statement in node.body for each in ast.walk(statement))
        self.checks_membership |= catches_key_error and any(map(self._named.is_item, read))
        assigns = any(map(self._is_assigned, node.body))
        self._missing_tests += assigns  # `except NameError: bank = samples`
        for handler in node.handlers:
            self._visit_all(handler.body)
        self._missing_tests -= assigns
        self._visit_all([*node.orelse, *node.finalbody])

    def _visit_all(self, statements: Sequence[ast.AST]) -> None:
        self._descend(ast.Module(list(statements), []))  # type: ignore[arg-type]

    def _visit_function(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        outside, before = (self._function, self._scope, self._loops, self._limit_tests), len(self.statements)
        self._function, self._scope, self._loops, self._limit_tests = function.name, function, [], 0
        self._descend(function)
        self._function, self._scope, self._loops, self._limit_tests = outside
        if not self._is_attribute and assigns_local(function, self._name):
            del self.statements[before:]  # the function stores into a local variable of the same name

    def _visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets: list[ast.expr] = node.targets if isinstance(node, ast.Assign) else [node.target]
            if node.value is not None:
                self._assignment(node, targets, node.value)
        elif isinstance(node, ast.For | ast.AsyncFor):
            if any(self._named.is_it(target) for target in flattened(node.target)):
                self._loops.append(node)
                self._store(node, [node.iter], replaces=True)
                self._loops.pop()
            elif self._named.is_it(node.iter) or (
                isinstance(node.iter, ast.Call) and self._named.is_view(node.iter)
            ):
                for target in flattened(node.target):
                    self._follow_alias(target, only=_CLEARING_METHODS)
        elif isinstance(node, ast.NamedExpr):
            self._assignment(node, [node.target], node.value)
        elif isinstance(node, ast.AugAssign):
            if self._named.is_it(node.target) or self._named.is_item(node.target):
                self._store(node, [node.value], uses_itself=True, adds=True, keys=literal_keys(node.target))
        elif isinstance(node, ast.Call):
            self._call(node)
        elif isinstance(node, ast.Delete):
            if any(
                self._named.is_item(each) or (self._named.is_it(each) and not self._is_alias)
                for each in node.targets
            ):
                self.removals.append(self._with_key(node.targets[0]))
        elif isinstance(node, ast.Compare):
            self._comparison(node)
        elif (
            isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and self._named.is_length(node.right)
        ):
            self.limits.append(self._occurrence)  # `slot = count % len(slots)`: slots are reused

    def _assignment(self, node: ast.AST, targets: list[ast.expr], value: ast.expr) -> None:
        paired = [pair for target in targets for pair in pairs_of(target, value)]
        if len(paired) > 1:  # self.losses, self.seen = [], []
            for target, part in paired:
                self._assignment(node, [target], part)
            return
        flat = [each for target in targets for each in flattened(target)]
        inner = [each for each in ast.walk(value) if isinstance(each, ast.expr)]
        uses_itself = any(map(self._named.is_it, inner)) and not is_initial_value(value)
        items = [target for target in flat if self._named.is_item(target)]
        if items:
            if any(replaces_contents(each) or wraps_around(index_of(each), self._root) for each in items):
                # `buffer[:] = ...` replaces the contents, `slots[i % 8] = ...` reuses slots.
                self.limits.append(self._occurrence)
            if isinstance(value, ast.List | ast.Dict) and is_empty(value):
                return  # `self.outputs[name] = []`, to which other code adds tensors
            at_index = not uses_itself and not any(map(is_slice, items))
            self._store(
                node,
                [value],
                uses_itself=uses_itself,
                concatenates=uses_itself and is_concatenation(value),
                keys=literal_keys(items[0]),
                at_index=at_index,
                repeats_keys=any(self._is_of_inner_loop(index_of(each)) for each in items),
            )
        elif any(self._named.is_it(target) for target in flat):
            if self._is_alias:
                return
            if uses_itself and self._named.is_truncated(value):
                self.limits.append(self._occurrence)
                self._store(node, [value], uses_itself=True, truncates=True)
            elif uses_itself:
                concatenates = is_concatenation(value)
                if any(isinstance(each, ast.Subscript) and is_consumed(each, self._scope) for each in inner):
                    # `chosen, pool = torch.cat([chosen, pool[:8]]), pool[8:]`
                    self.limits.append(self._occurrence)
                adds = any(isinstance(each, ast.BinOp) for each in (value, *branches(value)))
                self._store(node, [value], uses_itself=True, adds=adds, concatenates=concatenates)
            elif is_empty(value):
                self.resets.append(self._occurrence._replace(in_loop=is_reassigned(flat, self._loops)))
            elif computed := self._computed_before(value):
                concatenates = any(map(is_concatenation, computed))
                adds = not concatenates and not all(isinstance(each, ast.Call) for each in computed)
                self._store(node, [value], uses_itself=True, adds=adds, concatenates=concatenates)
            else:
                self._store(
                    node, [value], replaces=True, constructs=called_name(value).lstrip("_")[:1].isupper()
                )
        elif self._named.is_it(value) and not self._is_alias:
            for target in flat:
                self._follow_alias(target)

    def _computed_before(self, value: ast.expr) -> list[ast.expr]:
        """Return the expressions that were assigned to the local variables in `value`. Only arithmetic expressions,
        concatenations and calls that contain the old value are returned. For example, `smooth = 0.9 * self.average +
        0.1 * loss` may precede `self.average = smooth`, and `out, h = self.rnn(x, self.hidden)` may precede
        `self.hidden = h`.
        """
        names = {each.id for each in flattened(value) if isinstance(each, ast.Name)}
        assigned = [
            (target.id, part)
            for node in own_nodes(self._scope)
            if isinstance(node, ast.Assign)
            for targets in node.targets
            for pair, part in pairs_of(targets, node.value)
            for target in flattened(pair)
            if isinstance(target, ast.Name)
        ]
        parts = {name for name, part in assigned if self._named.is_it_or_item(part)} - {self._name}

        def is_old(value: ast.AST) -> bool:
            return self._named.is_it(value) or (isinstance(value, ast.Name) and value.id in parts)

        def contains_old(part: ast.expr) -> bool:
            if is_concatenation(part) or any(isinstance(each, ast.BinOp) for each in (part, *branches(part))):
                return any(map(is_old, ast.walk(part)))
            return isinstance(part, ast.Call) and any(map(is_old, passed_values(part)))

        return [part for name, part in assigned if name in names and contains_old(part)]

    def _follow_alias(self, alias: ast.expr, *, only: frozenset[str] | None = None) -> None:
        """Collect the uses of the variable `alias`, which refers to the same object or to one of its items. With
        `only`, no other methods are treated as removing items.
        """
        if not isinstance(alias, ast.Name) or self._is_alias:
            return
        reader = NameReader(self._file, alias.id, False, is_alias=True, removing_methods=only)
        reader.read(self._scope)
        self.removals += reader.removals
        if only is None:
            self.limits += reader.limits
            self.statements += [
                each._replace(by_alias=True) for each in reader.statements if not each.replaces
            ]

    def _call(self, node: ast.Call) -> None:
        called = called_name(node)
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        of_name = owner is not None and (
            self._named.is_it(owner) or self._named.is_item(owner) or self._named.is_default_item(owner)
        )
        # `heappush(name, x)`, `record(name, x)`; but `others.append(name)` stores into another container.
        is_function = owner is None or called in _CONTAINER_FUNCTIONS
        first_is_name = bool(node.args) and is_function and self._named.is_it(node.args[0])
        self.passed += [
            PassedArgument(called, index, self._occurrence)
            for index, each in enumerate(node.args)
            if self._named.is_it(each)
        ]
        self.passed += [
            PassedArgument(called, each.arg, self._occurrence)
            for each in node.keywords
            if each.arg and self._named.is_it(each.value)
        ]
        if called in self._removing_methods and (of_name or first_is_name):
            occurrence = self._with_key(owner) if of_name else self._occurrence
            self.removals.append(occurrence._replace(removes_one=called != "clear"))
        elif called in STORING_METHODS and (of_name or first_is_name):
            values = node.args[1:] if first_is_name and not of_name else node.args
            self._store(node, values, keys=literal_keys(owner))
        elif of_name and (
            is_in_place(node) or (called == "set" and any(map(self._named.is_it, parts_of(node))))
        ):
            # `total.add_(loss)`, `variable.set((*variable.get(), loss))`
            self._store(node, node.args, uses_itself=True, adds=True, keys=literal_keys(owner))
        elif self._feeding and of_name and node.args and called.startswith(_FEEDING_PREFIXES):
            self._store(node, node.args)
        elif called == "get" and of_name:
            self.checks_membership = True
            self.lookups.append(self._occurrence)
        elif called == "setattr" and first_is_name and len(node.args) == 3:
            self._store(node, node.args[2:])
        elif called in _SETTERS and self._is_attribute and len(node.args) >= 2:
            self._set_by_name(node)

    def _set_by_name(self, node: ast.Call) -> None:
        """Record an assignment in which the attribute name is a string, as in `self.register_buffer("queue", ...)` and
        `setattr(self, "queue", ...)`.
        """
        owner = node.args[0] if called_name(node) == "setattr" else getattr(node.func, "value", None)
        name, value = node.args[-2], node.args[-1]
        if isinstance(owner, ast.expr) and isinstance(name, ast.Constant) and name.value == self._name:
            target = ast.Attribute(owner, self._name, ast.Store())
            self._assignment(node, [target], value)

    def _comparison(self, node: ast.Compare) -> None:
        sides = [node.left, *node.comparators]
        if any(isinstance(operator, ast.In | ast.NotIn) for operator in node.ops) and any(
            map(self._named.is_it, sides)
        ):
            self.checks_membership = True
        if any(map(is_zero_or_one, sides)) or not any(map(self._named.is_length, sides)):
            return  # a check for emptiness is not a limit
        # A cursor that follows the length is not a limit: `if self.cursor >= len(self.items): return None`.
        follows = any(is_incremented(side, self._root) for side in sides)
        if self._tested is not None:
            self._check(self._tested, None if follows else self._named.when_long(node, self._tested))
        elif not (self._is_irrelevant or follows):
            # The caller makes the decision: `return len(self.items) >= self.size`
            self.limits.append(self._occurrence)

    def _check(self, node: ast.If | ast.While, when_long: Sequence[ast.stmt] | None) -> None:
        """Record that the program checks the length of the container. The check limits the length only if its result
        determines whether code stores items, removes items, or ends a loop or a call. A statement that ends a loop or a
        call counts only if it is in `when_long`, the statements that run if the container is long.
        """
        inner = NameReader(
            self._file, self._name, self._is_attribute, is_alias=self._is_alias, classes=self._classes
        )
        inner._named.in_unrelated_class, inner._function, inner._scope = (
            self._named.in_unrelated_class,
            self._function,
            self._scope,
        )
        inner._visit_all([*node.body, *node.orelse])
        if inner.statements or inner.removals or inner.limits or inner.resets:
            stores = bool(inner.statements)
            self.limits.append(
                self._occurrence._replace(only_at="" if stores else self._named.exact_limit(node.test))
            )
            return
        within = [each for statement in when_long or () for each in (statement, *own_nodes(statement))]
        self.length_checks.append(
            LengthCheck(frozenset(filter(None, map(called_name, within))), self._occurrence)
        )
        if isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.And):
            return  # the check depends on another condition as well
        if any(isinstance(each, ast.Break | ast.Raise) for each in within):
            self.limits.append(self._occurrence)
        self._exits += [
            (self._function, each.lineno) for each in within if isinstance(each, ast.Return | ast.Continue)
        ]

    def _is_start(self, test: ast.expr) -> bool:
        if not (
            isinstance(test, ast.Compare)
            and isinstance(test.ops[0], ast.Eq)
            and is_zero_or_one(test.comparators[0])
        ):
            return False
        outermost = self._loops[0] if self._loops else None
        return isinstance(outermost, ast.For | ast.AsyncFor) and any(
            isinstance(each, ast.Name) and isinstance(test.left, ast.Name) and each.id == test.left.id
            for each in flattened(outermost.target)
        )

    def _is_of_inner_loop(self, key: ast.expr | None) -> bool:
        return isinstance(key, ast.Name) and any(
            isinstance(target, ast.Name) and target.id == key.id
            for loop in self._loops[1:]
            if isinstance(loop, ast.For | ast.AsyncFor)
            for target in flattened(loop.target)
        )

    def _is_assigned(self, statement: ast.stmt) -> bool:
        return isinstance(statement, ast.Assign) and any(map(self._named.is_it_or_item, statement.targets))

    def _store(
        self,
        node: ast.AST,
        values: list[ast.expr],
        *,
        uses_itself: bool = False,
        adds: bool = False,
        concatenates: bool = False,
        replaces: bool = False,
        constructs: bool = False,
        keys: tuple[str, ...] = (),
        at_index: bool = False,
        truncates: bool = False,
        repeats_keys: bool = False,
    ) -> None:
        number = bool(values) and all(is_number(value) for value in values)
        line = getattr(node, "lineno", 0)
        self.statements.append(
            StoringStatement(
                self._file,
                line,
                self._function,
                uses_itself,
                adds,
                concatenates,
                number,
                bool(self._loops),
                replaces,
                constructs,
                self._limit_tests > 0,
                keys,
                at_index,
                truncates,
                self._missing_tests > 0,
                self._start_tests > 0,
                repeats_keys,
                bool(values) and all(map(is_initial_value, values)),
            )
        )

    def _with_key(self, item: ast.expr | None) -> Occurrence:
        """Return an `Occurrence` with the key of the item. The key is needed because the use does not affect items with
        other keys.
        """
        key = index_of(item) if item is not None else None
        parameters = (
            {each.arg for each in (*self._scope.args.posonlyargs, *self._scope.args.args)}
            if isinstance(self._scope, ast.FunctionDef | ast.AsyncFunctionDef)
            else set()
        )
        is_parameter = isinstance(key, ast.Name) and key.id in parameters
        return self._occurrence._replace(
            keys=literal_keys(item) if item is not None and self._named.is_item(item) else (),
            key_parameter=key.id if isinstance(key, ast.Name) and is_parameter else "",
        )

    @property
    def _occurrence(self) -> Occurrence:
        return Occurrence(self._function, bool(self._loops), only_at=self._only_at)
