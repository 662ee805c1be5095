"""What a piece of source does with one name: puts things into it, takes them out, limits it, makes it anew, looks a key up.

The name is a variable or an attribute. Attributes of the same name in other classes are other things: `self.values` counts in the
classes of the object at hand only.
"""

import ast
from collections.abc import Sequence
from typing import NamedTuple

from legroom.observe.source.files import COMPREHENSIONS, FUNCTIONS, LOOPS, own_nodes
from legroom.observe.source.names import SourceName
from legroom.observe.source.syntax import (
    assigns_its_own,
    branches,
    called_name,
    flattened,
    goes_round,
    index_of,
    is_below,
    is_empty,
    is_number,
    is_remade,
    is_slice,
    is_small,
    is_used_up,
    pairs_of,
    plain_keys,
)

_PUTS = {
    "append", "appendleft", "extend", "extendleft", "insert", "add", "update", "setdefault", "put", "put_nowait",
    "push", "write", "store", "register", "record", "log", "heappush", "insort", "insort_left", "insort_right",
}  # fmt: skip
_TAKES = frozenset({
    "pop", "popleft", "popitem", "clear", "remove", "discard", "get_nowait", "heappop", "heapreplace", "heappushpop",
})  # fmt: skip
_FUNCTIONS = {"heappush", "heappop", "heapreplace", "heappushpop", "insort", "insort_left", "insort_right"}
"""Of Python's own modules: what they are given first is what they change."""
_EMPTIES = frozenset({"clear", "popleft"})
"""From one of many items a `pop` may take a detail; these take what counts."""
_JOINS = {"cat", "concat", "concatenate", "hstack", "vstack", "stack", "pad", "append", "add"}
_FEEDS = (
    "add", "append", "register", "push", "put", "store", "log", "record", "update", "save", "collect", "keep",
)  # fmt: skip
_SETS = {"register_buffer", "register_parameter", "setattr"}


class Storing(NamedTuple):
    """A statement that stores into a name."""

    file: str
    line: int
    function: str
    feeds_itself: bool
    """The name stands on both sides: `total = total + loss`, `total += loss`, `h = cell(x, h)`."""
    adds: bool
    """... with a sum: `total = total + loss`, `total += loss`."""
    joins: bool
    """... with a function that makes it larger: `torch.cat([history, out])`."""
    stores_number: bool
    """What is stored is plainly a number or text: `losses.append(loss.item())`."""
    in_loop: bool
    replaces: bool = False
    """A plain assignment of something else: what was there before is gone."""
    constructs: bool = False
    """... of a new object of a class: `meter = Meter()`."""
    guarded: bool = False
    """Only while something is below a limit: `if step < 10:`."""
    keys: tuple[str, ...] = ()
    """The plain keys under which it is stored: `totals["loss"] += loss`."""
    at_index: bool = False
    """Something takes the place of an item: `slots[i] = state`. A list does not grow by that."""
    cuts: bool = False
    """What is stored is a part of a fixed size of what was there and what is new: `torch.cat([queue, keys])[-64:]`."""
    is_first: bool = False
    """Only where there was nothing before: `if bank is None: bank = rows`."""
    is_at_start: bool = False
    """Only at the first turn of the outermost loop around it: `if step == 0:`."""
    comes_again: bool = False
    """Under a key that an outer loop brings again and again: `memory[index] = state` in a loop over the samples of each epoch."""


class Place(NamedTuple):
    """Where something is done with the name."""

    function: str
    in_loop: bool


class Handed(NamedTuple):
    """The thing of that name is given to a function, as its argument of that position or keyword."""

    function: str
    argument: int | str
    place: Place


class Check(NamedTuple):
    """Its length decides whether some functions are called."""

    functions: frozenset[str]
    place: Place


class NameReader:
    """Walks a scope once and notes what is done with one name."""

    def __init__(
        self,
        file: str,
        name: str,
        is_attribute: bool,
        *,
        classes: frozenset[str] = frozenset(),
        feeding: bool = False,
        is_second: bool = False,
        takes: frozenset[str] | None = None,
    ) -> None:
        """`classes`: whose attribute it is, with all that those derive from; empty where that is unknown. `feeding`: any method whose
        name says that it takes something in counts. `is_second`: another name for the same thing: what is assigned to it is no matter.
        `takes`: only these methods take something out."""
        self.statements: list[Storing] = []
        self.limits: list[Place] = []
        """Its length decides what is done with it, or it is cut."""
        self.takes: list[Place] = []
        """Something is taken out of it."""
        self.renewals: list[Place] = []
        """It is made anew, and empty."""
        self.looks_first = False
        self.handed: list[Handed] = []
        self.checks: list[Check] = []
        self._file = file
        self._name = name
        self._is_attribute = is_attribute
        self._named = SourceName(name, is_attribute)
        self._classes = classes
        self._feeding = feeding
        self._is_second = is_second
        self._takes = takes if takes is not None else _TAKES
        self._function = ""
        self._scope: ast.AST = ast.Module([], [])
        self._root: ast.AST = self._scope
        self._loops: list[ast.AST] = []
        self._guards = 0
        """So many tests around it say that something that counts is below a limit,"""
        self._firsts = 0
        """... that there is nothing yet,"""
        self._starts = 0
        """... that this is the first turn."""
        self._tested: ast.If | ast.While | None = None
        """The statement whose test is being read."""
        self._is_idle = False
        """Whether nothing that is stored hangs on the comparison that is being read."""
        self._exits: list[tuple[str, int]] = []
        """Function and line where a check of the length ends a turn or a call early."""

    def read(self, scope: ast.AST) -> None:
        self._function = getattr(scope, "name", "") if isinstance(scope, FUNCTIONS) else ""
        self._scope = self._root = scope
        self._descend(scope)
        for function, line in self._exits:
            if any(each.function == function and each.line > line for each in self.statements):
                self.limits.append(Place(function, True))

    def _descend(self, node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            self._look(child)
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                self._into_function(child)
            elif isinstance(child, ast.ClassDef):
                before = self._named.elsewhere
                self._named.elsewhere = bool(self._classes) and child.name not in self._classes
                self._descend(child)
                self._named.elsewhere = before
            elif isinstance(child, ast.If):
                self._branches(child)
            elif isinstance(child, ast.Try):
                self._tries(child)
            elif isinstance(child, ast.While):
                self._loops.append(child)
                self._read_test(child)
                self._into([*child.body, *child.orelse])
                self._loops.pop()
            elif isinstance(child, (*LOOPS, *COMPREHENSIONS)):
                self._loops.append(child)
                self._descend(child)
                self._loops.pop()
            elif isinstance(child, ast.IfExp | ast.Assert):
                before = self._is_idle
                self._is_idle = True
                self._descend(ast.Expression(child.test))
                self._is_idle = before
                rest = [child.body, child.orelse] if isinstance(child, ast.IfExp) else []
                self._descend(ast.Tuple(rest, ast.Load()))
            else:
                self._descend(child)

    def _read_test(self, node: ast.If | ast.While) -> None:
        self._tested = node
        self._descend(ast.Expression(node.test))
        self._tested = None

    def _branches(self, node: ast.If) -> None:
        self._read_test(node)
        guarded, first, start = is_below(node), self._named.asks_for_it(node.test), self._is_start(node.test)
        self._firsts += first
        self._guards += guarded
        self._starts += start
        self._into(node.body)
        self._guards -= guarded
        self._starts -= start
        self._into(node.orelse)
        self._firsts -= first

    def _tries(self, node: ast.Try) -> None:
        self._into(node.body)
        missing = any("KeyError" in ast.dump(each.type) for each in node.handlers if each.type is not None)
        read = (each for statement in node.body for each in ast.walk(statement))
        self.looks_first |= missing and any(map(self._named.is_item, read))
        first = any(map(self._is_assigned, node.body))
        self._firsts += first  # `except NameError: bank = rows`
        for handler in node.handlers:
            self._into(handler.body)
        self._firsts -= first
        self._into([*node.orelse, *node.finalbody])

    def _into(self, statements: Sequence[ast.AST]) -> None:
        self._descend(ast.Module(list(statements), []))  # type: ignore[arg-type]

    def _into_function(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        outside, before = (self._function, self._scope, self._loops, self._guards), len(self.statements)
        self._function, self._scope, self._loops, self._guards = function.name, function, [], 0
        self._descend(function)
        self._function, self._scope, self._loops, self._guards = outside
        if not self._is_attribute and assigns_its_own(function, self._name):
            del self.statements[before:]  # stored into a variable of that function, by the same name

    def _look(self, node: ast.AST) -> None:
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
                    self._follow(target, only=_EMPTIES)
        elif isinstance(node, ast.NamedExpr):
            self._assignment(node, [node.target], node.value)
        elif isinstance(node, ast.AugAssign):
            if self._named.is_it(node.target) or self._named.is_item(node.target):
                self._store(node, [node.value], feeds_itself=True, adds=True, keys=plain_keys(node.target))
        elif isinstance(node, ast.Call):
            self._call(node)
        elif isinstance(node, ast.Delete):
            if any(
                self._named.is_item(each) or (self._named.is_it(each) and not self._is_second)
                for each in node.targets
            ):
                self.takes.append(self._place)
        elif isinstance(node, ast.Compare):
            self._comparison(node)
        elif (
            isinstance(node, ast.BinOp)
            and isinstance(node.op, ast.Mod)
            and self._named.is_measure(node.right)
        ):
            self.limits.append(self._place)  # slot = count % len(slots): round and round

    def _assignment(self, node: ast.AST, targets: list[ast.expr], value: ast.expr) -> None:
        paired = [pair for target in targets for pair in pairs_of(target, value)]
        if len(paired) > 1:  # self.losses, self.seen = [], []
            for target, part in paired:
                self._assignment(node, [target], part)
            return
        flat = [each for target in targets for each in flattened(target)]
        inner = [each for each in ast.walk(value) if isinstance(each, ast.expr)]
        feeds_itself = any(map(self._named.is_it, inner))
        items = [target for target in flat if self._named.is_item(target)]
        if items:
            if any(is_remade(each) or goes_round(index_of(each), self._root) for each in items):
                # `buffer[:] = ...` makes it anew, `slots[i % 8] = ...` goes round.
                self.limits.append(self._place)
            joins = feeds_itself and any(called_name(each) in _JOINS for each in inner)
            at_index = not feeds_itself and not any(map(is_slice, items))
            self._store(
                node,
                [value],
                feeds_itself=feeds_itself,
                joins=joins,
                keys=plain_keys(items[0]),
                at_index=at_index,
                comes_again=any(self._is_of_inner_loop(index_of(each)) for each in items),
            )
        elif any(self._named.is_it(target) for target in flat):
            if self._is_second:
                return
            if feeds_itself and self._named.is_cut(value):
                self.limits.append(self._place)
                self._store(node, [value], feeds_itself=True, cuts=True)
            elif feeds_itself:
                joins = any(called_name(each) in _JOINS for each in inner)
                if any(isinstance(each, ast.Subscript) and is_used_up(each, self._scope) for each in inner):
                    # `chosen, pool = torch.cat([chosen, pool[:8]]), pool[8:]`
                    self.limits.append(self._place)
                adds = any(isinstance(each, ast.BinOp) for each in (value, *branches(value)))
                self._store(node, [value], feeds_itself=True, adds=adds, joins=joins)
            elif is_empty(value):
                self.renewals.append(self._place)
            else:
                self._store(node, [value], replaces=True, constructs=called_name(value)[:1].isupper())
        elif self._named.is_it(value) and not self._is_second:
            for target in flat:
                self._follow(target)

    def _follow(self, second: ast.expr, *, only: frozenset[str] | None = None) -> None:
        """Another name for the same thing, or (`only` taking by these methods counts) for each of its items."""
        if not isinstance(second, ast.Name) or self._is_second:
            return
        reader = NameReader(self._file, second.id, False, is_second=True, takes=only)
        reader.read(self._scope)
        self.takes += reader.takes
        if only is None:
            self.limits += reader.limits
            self.statements += [each for each in reader.statements if not each.replaces]

    def _call(self, node: ast.Call) -> None:
        called = called_name(node)
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        of_name = owner is not None and (
            self._named.is_it(owner) or self._named.is_item(owner) or self._named.is_default_item(owner)
        )
        # `heappush(name, x)`, `record(name, x)`; but `others.append(name)` puts it elsewhere.
        is_function = owner is None or called in _FUNCTIONS
        first_is_name = bool(node.args) and is_function and self._named.is_it(node.args[0])
        self.handed += [
            Handed(called, index, self._place)
            for index, each in enumerate(node.args)
            if self._named.is_it(each)
        ]
        self.handed += [
            Handed(called, each.arg, self._place)
            for each in node.keywords
            if each.arg and self._named.is_it(each.value)
        ]
        if called in self._takes and (of_name or first_is_name):
            self.takes.append(self._place)
        elif called in _PUTS and (of_name or first_is_name):
            values = node.args[1:] if first_is_name and not of_name else node.args
            self._store(node, values, keys=plain_keys(owner))
        elif of_name and called.endswith("_") and not called.endswith("__") and node.args:
            # `total.add_(loss)`
            self._store(node, node.args, feeds_itself=True, adds=True, keys=plain_keys(owner))
        elif self._feeding and of_name and node.args and called.startswith(_FEEDS):
            self._store(node, node.args)
        elif called == "get" and of_name:
            self.looks_first = True
        elif called == "setattr" and first_is_name and len(node.args) == 3:
            self._store(node, node.args[2:])
        elif called in _SETS and self._is_attribute and len(node.args) >= 2:
            self._set_by_name(node)

    def _set_by_name(self, node: ast.Call) -> None:
        """`self.register_buffer("queue", ...)`, `setattr(self, "queue", ...)`: an assignment to `self.queue`."""
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
            self.looks_first = True
        if any(map(is_small, sides)) or not any(map(self._named.is_measure, sides)):
            return  # whether there is anything is no limit
        if self._tested is not None:
            self._check(self._tested)
        elif not self._is_idle:
            # What hangs on it stands elsewhere: `return len(self.items) >= self.size`
            self.limits.append(self._place)

    def _check(self, node: ast.If | ast.While) -> None:
        """Its length is asked for. That limits it only if something is put in, taken out or ended because of the answer."""
        inner = NameReader(
            self._file, self._name, self._is_attribute, is_second=self._is_second, classes=self._classes
        )
        inner._named.elsewhere, inner._function, inner._scope = (
            self._named.elsewhere,
            self._function,
            self._scope,
        )
        inner._into([*node.body, *node.orelse])
        if inner.statements or inner.takes or inner.limits or inner.renewals:
            self.limits.append(self._place)
            return
        within = [each for statement in node.body for each in (statement, *own_nodes(statement))]
        self.checks.append(Check(frozenset(filter(None, map(called_name, within))), self._place))
        if isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.And):
            return  # it ends for another reason
        if any(isinstance(each, ast.Break | ast.Raise) for each in within):
            self.limits.append(self._place)
        self._exits += [
            (self._function, each.lineno) for each in within if isinstance(each, ast.Return | ast.Continue)
        ]

    def _is_start(self, test: ast.expr) -> bool:
        """`step == 0`, of the outermost loop's variable."""
        if not (
            isinstance(test, ast.Compare)
            and isinstance(test.ops[0], ast.Eq)
            and is_small(test.comparators[0])
        ):
            return False
        outermost = self._loops[0] if self._loops else None
        return isinstance(outermost, ast.For | ast.AsyncFor) and any(
            isinstance(each, ast.Name) and isinstance(test.left, ast.Name) and each.id == test.left.id
            for each in flattened(outermost.target)
        )

    def _is_of_inner_loop(self, key: ast.expr | None) -> bool:
        """Whether a key is the variable of a loop that itself stands in a loop."""
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
        feeds_itself: bool = False,
        adds: bool = False,
        joins: bool = False,
        replaces: bool = False,
        constructs: bool = False,
        keys: tuple[str, ...] = (),
        at_index: bool = False,
        cuts: bool = False,
        comes_again: bool = False,
    ) -> None:
        number = bool(values) and all(is_number(value) for value in values)
        line = getattr(node, "lineno", 0)
        self.statements.append(
            Storing(
                self._file,
                line,
                self._function,
                feeds_itself,
                adds,
                joins,
                number,
                bool(self._loops),
                replaces,
                constructs,
                self._guards > 0,
                keys,
                at_index,
                cuts,
                self._firsts > 0,
                self._starts > 0,
                comes_again,
            )
        )

    @property
    def _place(self) -> Place:
        return Place(self._function, bool(self._loops))


def is_put(node: ast.AST) -> bool:
    """Whether a node is a call of a method that puts something in."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _PUTS
