"""What a piece of source does with one name: puts things into it, takes them out, limits it, makes it anew, looks a key up.

The name is a variable or an attribute. Attributes of the same name in other classes are other things: `self.values` counts in the
classes of the object at hand only.
"""

import ast
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from legroom.observe.source_files import COMPREHENSIONS, FUNCTIONS, LOOPS, own_nodes

_PUTS = {
    "append", "appendleft", "extend", "extendleft", "insert", "add", "update", "setdefault", "put", "put_nowait",
    "push", "write", "store", "register", "record", "log", "heappush", "insort", "insort_left", "insort_right",
}  # fmt: skip
_TAKES = {
    "pop", "popleft", "popitem", "clear", "remove", "discard", "get_nowait", "heappop", "heapreplace", "heappushpop",
}  # fmt: skip
_CUTS = {"nlargest", "nsmallest", "topk", "narrow", "islice", "sample"}
_JOINS = {"cat", "concat", "concatenate", "hstack", "vstack", "stack", "pad", "append", "add"}
_FEEDS = (
    "add", "append", "register", "push", "put", "store", "log", "record", "update", "save", "collect", "keep",
)  # fmt: skip
_SIZES = {"qsize", "shape", "size", "numel", "nbytes"}
_SETS = {"register_buffer", "register_parameter", "setattr"}
_NUMBERS = {"item", "float", "int", "len", "str", "tolist", "numpy", "format", "perf_counter", "time"}
_EMPTY_CALLS = {"list", "dict", "set", "deque", "tuple", "OrderedDict", "Counter", "defaultdict"}


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


class Place(NamedTuple):
    """Where something is done with the name."""

    function: str
    in_loop: bool


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
    ) -> None:
        """`classes`: whose attribute it is, with all that those derive from; empty where that is unknown. `feeding`: any method whose
        name says that it takes something in counts."""
        self.statements: list[Storing] = []
        self.limits: list[Place] = []
        """Its length is compared, or it is cut."""
        self.takes: list[Place] = []
        """Something is taken out of it."""
        self.renewals: list[Place] = []
        """It is made anew, and empty."""
        self.looks_first = False
        self._file = file
        self._name = name
        self._is_attribute = is_attribute
        self._classes = classes
        self._feeding = feeding
        self._elsewhere = False
        """Whether the walk is within a class that is not one of `classes`."""
        self._function = ""
        self._loops = 0
        self._guards = 0

    def read(self, scope: ast.AST) -> None:
        self._function = getattr(scope, "name", "") if isinstance(scope, FUNCTIONS) else ""
        self._descend(scope)

    def _descend(self, node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            self._look(child)
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                self._into_function(child)
            elif isinstance(child, ast.ClassDef):
                before = self._elsewhere
                self._elsewhere = bool(self._classes) and child.name not in self._classes
                self._descend(child)
                self._elsewhere = before
            elif isinstance(child, ast.If):
                self._descend(ast.Expression(child.test))
                guarded = _is_below(child.test)
                self._guards += guarded
                self._into(child.body)
                self._guards -= guarded
                self._into(child.orelse)
            else:
                self._loops += isinstance(child, (*LOOPS, *COMPREHENSIONS))
                self._descend(child)
                self._loops -= isinstance(child, (*LOOPS, *COMPREHENSIONS))

    def _into(self, statements: list[ast.stmt]) -> None:
        self._descend(ast.Module(statements, []))

    def _into_function(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        outside, before = (self._function, self._loops, self._guards), len(self.statements)
        self._function, self._loops, self._guards = function.name, 0, 0
        self._descend(function)
        self._function, self._loops, self._guards = outside
        if not self._is_attribute and _assigns_its_own(function, self._name):
            del self.statements[before:]  # stored into a variable of that function, by the same name

    def _look(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets: list[ast.expr] = node.targets if isinstance(node, ast.Assign) else [node.target]
            if node.value is not None:
                self._assignment(node, targets, node.value)
        elif isinstance(node, ast.For | ast.AsyncFor):
            if any(self._is(target) for target in _flat(node.target)):
                self._loops += 1
                self._store(node, [node.iter], replaces=True)
                self._loops -= 1
        elif isinstance(node, ast.NamedExpr):
            self._assignment(node, [node.target], node.value)
        elif isinstance(node, ast.AugAssign):
            if self._is(node.target) or self._is_item(node.target):
                self._store(node, [node.value], feeds_itself=True, adds=True, keys=_keys(node.target))
        elif isinstance(node, ast.Call):
            self._call(node)
        elif isinstance(node, ast.Delete):
            if any(self._is_item(target) or self._is(target) for target in node.targets):
                self.takes.append(self._place)
        elif isinstance(node, ast.Compare):
            self._comparison(node)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and self._is_measure(node.right):
            self.limits.append(self._place)  # slot = count % len(slots): round and round

    def _assignment(self, node: ast.AST, targets: list[ast.expr], value: ast.expr) -> None:
        paired = [pair for target in targets for pair in _paired(target, value)]
        if len(paired) > 1:  # self.losses, self.seen = [], []
            for target, part in paired:
                self._assignment(node, [target], part)
            return
        flat = [each for target in targets for each in _flat(target)]
        inner = [each for each in ast.walk(value) if isinstance(each, ast.expr)]
        feeds_itself = any(map(self._is, inner))
        items = [target for target in flat if self._is_item(target)]
        if items:
            if any(map(_is_remade, items)):
                self.limits.append(
                    self._place
                )  # `buffer[:] = ...` makes it anew, `slots[i % 8] = ...` goes round
            joins = feeds_itself and any(_called(each) in _JOINS for each in inner)
            at_index = not feeds_itself and not any(map(_is_slice, items))
            self._store(
                node, [value], feeds_itself=feeds_itself, joins=joins, keys=_keys(items[0]), at_index=at_index
            )
        elif any(self._is(target) for target in flat):
            if feeds_itself and self._is_cut(value):
                self.limits.append(self._place)
            elif feeds_itself:
                joins = any(_called(each) in _JOINS for each in inner)
                adds = any(isinstance(each, ast.BinOp) for each in (value, *_branches(value)))
                self._store(node, [value], feeds_itself=True, adds=adds, joins=joins)
            elif _is_empty(value):
                self.renewals.append(self._place)
            else:
                self._store(node, [value], replaces=True, constructs=_called(value)[:1].isupper())

    def _call(self, node: ast.Call) -> None:
        called = _called(node)
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        of_name = owner is not None and (
            self._is(owner) or self._is_item(owner) or self._is_default_item(owner)
        )
        first_is_name = bool(node.args) and self._is(node.args[0])
        if called in _TAKES and (of_name or first_is_name):
            self.takes.append(self._place)
        elif called in _PUTS and (of_name or first_is_name):
            values = node.args[1:] if first_is_name and not of_name else node.args
            self._store(node, values, keys=_keys(owner))
        elif of_name and called.endswith("_") and not called.endswith("__") and node.args:
            self._store(node, node.args, feeds_itself=True, adds=True, keys=_keys(owner))  # total.add_(loss)
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
        owner = node.args[0] if _called(node) == "setattr" else getattr(node.func, "value", None)
        name, value = node.args[-2], node.args[-1]
        if isinstance(owner, ast.expr) and isinstance(name, ast.Constant) and name.value == self._name:
            target = ast.Attribute(owner, self._name, ast.Store())
            self._assignment(node, [target], value)

    def _comparison(self, node: ast.Compare) -> None:
        sides = [node.left, *node.comparators]
        if any(isinstance(operator, ast.In | ast.NotIn) for operator in node.ops) and any(
            map(self._is, sides)
        ):
            self.looks_first = True
        measured = any(map(self._is_measure, sides))
        if measured and any(isinstance(op, ast.Gt | ast.GtE | ast.Lt | ast.LtE | ast.Eq) for op in node.ops):
            self.limits.append(self._place)

    def _is_measure(self, side: ast.expr) -> bool:
        """`len(name)`, `len(self)` within its class, `name.qsize()`, `name.shape[0]`, `name.size(0)`; not `len(name) % 100`, which is
        every hundredth."""
        if isinstance(side, ast.BinOp) and isinstance(side.op, ast.Mod):
            return False
        for node in ast.walk(side):
            if isinstance(node, ast.Attribute) and node.attr in _SIZES and self._is(node.value):
                return True
            if _called(node) == "len" and isinstance(node, ast.Call) and node.args:
                measured = node.args[0]
                of_self = self._is_attribute and not self._elsewhere and _is_self(measured)
                if self._is(measured) or self._is_item(measured) or of_self:
                    return True
        return False

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
    ) -> None:
        number = bool(values) and all(_is_number(value) for value in values)
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
                self._loops > 0,
                replaces,
                constructs,
                self._guards > 0,
                keys,
                at_index,
            )
        )

    @property
    def _place(self) -> Place:
        return Place(self._function, self._loops > 0)

    def _is(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Starred) or (isinstance(node, ast.Attribute) and node.attr == "data"):
            return self._is(node.value) or (
                self._is_attribute and self._name == "data" and self._is_own(node)
            )
        return self._is_own(node)

    def _is_own(self, node: ast.AST) -> bool:
        if not self._is_attribute:
            return isinstance(node, ast.Name) and node.id == self._name
        if not isinstance(node, ast.Attribute) or not _is_same(node.attr, self._name):
            return False
        return not (self._elsewhere and _is_self(node.value))

    def _is_item(self, node: ast.AST) -> bool:
        """`name[...]`, and deeper."""
        return isinstance(node, ast.Subscript) and (self._is(node.value) or self._is_item(node.value))

    def _is_default_item(self, node: ast.AST) -> bool:
        """`name.setdefault(key, [])`, `name.get(key)`: what is then done is done to an item."""
        return (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("setdefault", "get")
            and (self._is(node.func.value) or self._is_item(node.func.value))
        )

    def _is_cut(self, value: ast.expr) -> bool:
        """Whether what replaces the name is limited: a slice of it or of what was made from it, the largest of it, those of its items
        that are recent."""
        if isinstance(value, ast.Subscript) and (_is_sliced(value) or self._is(value.value)):
            return True
        for inner in ast.walk(value):
            if isinstance(inner, ast.Subscript) and self._is(inner.value) and _is_sliced(inner):
                return True
            if _called(inner) in _CUTS and self._is_within(inner):
                return True
            if isinstance(inner, COMPREHENSIONS) and any(
                self._is_within(each.iter) and any(map(_is_ordering, each.ifs)) for each in inner.generators
            ):
                return True
        return False

    def _is_within(self, node: ast.AST) -> bool:
        return any(map(self._is, ast.walk(node)))


def called_name(node: ast.AST) -> str:
    """`f` of `f(x)` and `module.f(x)`."""
    return _called(node)


def is_put(node: ast.AST) -> bool:
    """Whether a node is a call of a method that puts something in."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _PUTS


def _is_same(attribute: str, name: str) -> bool:
    """The same attribute, also where Python mangles its name: `self.__values` is `_Tracker__values`."""
    return attribute == name or (
        attribute.startswith("__") and not attribute.endswith("__") and name.endswith(attribute)
    )


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _is_ordering(test: ast.expr) -> bool:
    """`age < 10`, `step - begun <= 10`, also as a part of more."""
    return any(
        isinstance(operator, ast.Lt | ast.LtE | ast.Gt | ast.GtE)
        for node in ast.walk(test)
        if isinstance(node, ast.Compare)
        for operator in node.ops
    )


def _is_below(test: ast.expr) -> bool:
    """`step < 10`, also as a part of more."""
    return any(
        isinstance(node, ast.Compare) and any(isinstance(operator, ast.Lt | ast.LtE) for operator in node.ops)
        for node in ast.walk(test)
    )


def _keys(target: ast.AST | None) -> tuple[str, ...]:
    """The plain keys of `name["a"]["b"]`, of `name.setdefault("a", [])`."""
    keys: list[str] = []
    while True:
        if isinstance(target, ast.Subscript):
            key, target = target.slice, target.value
        elif isinstance(target, ast.Call) and isinstance(target.func, ast.Attribute) and target.args:
            key, target = target.args[0], target.func.value
        else:
            return tuple(keys)
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            keys.append(key.value)


def _is_remade(target: ast.expr) -> bool:
    """`name[:] = ...`, `name[:n] = ...`; `name[len(name):] = ...` adds, and in a tensor `name[a:b] = ...` only writes."""
    if not isinstance(target, ast.Subscript):
        return False
    if isinstance(target.slice, ast.BinOp):
        return isinstance(target.slice.op, ast.Mod)
    return isinstance(target.slice, ast.Slice) and target.slice.lower is None


def _is_slice(target: ast.expr) -> bool:
    return isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Slice)


def _is_sliced(node: ast.Subscript) -> bool:
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    return any(isinstance(part, ast.Slice) for part in parts)


def _assigns_its_own(function: ast.AST, variable: str) -> bool:
    """Whether a function assigns to a variable of that name that is another than the one outside it."""
    own = list(own_nodes(function))
    declared = (node.names for node in own if isinstance(node, ast.Global | ast.Nonlocal))
    return not any(variable in names for names in declared) and any(
        isinstance(node, ast.Name) and node.id == variable and isinstance(node.ctx, ast.Store) for node in own
    )


def _branches(value: ast.expr) -> list[ast.expr]:
    """`a if c else b` → a, b."""
    return [value.body, value.orelse] if isinstance(value, ast.IfExp) else []


def _paired(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """`a, b = x, y` → (a, x), (b, y)."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for each, part in zip(target.elts, value.elts, strict=True):
            yield from _paired(each, part)
    else:
        yield target, value


def _flat(target: ast.expr) -> Iterable[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        for element in target.elts:
            yield from _flat(element)
    elif isinstance(target, ast.Starred):
        yield target.value
    else:
        yield target


def _called(node: ast.AST) -> str:
    if not isinstance(node, ast.Call):
        return ""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _is_empty(value: ast.expr) -> bool:
    """`[]`, `{}`, `list()`, `deque(maxlen=3)`, `defaultdict(list)`, `0`, `None`: where something starts anew."""
    if isinstance(value, ast.List | ast.Tuple | ast.Set):
        return not value.elts
    if isinstance(value, ast.Dict):
        return all(_is_empty(each) for each in value.values)
    if isinstance(value, ast.Call) and _called(value) in _EMPTY_CALLS:
        return not any(isinstance(each, (*COMPREHENSIONS, ast.Starred)) for each in value.args) and (
            not value.args or _called(value) == "defaultdict"
        )
    return isinstance(value, ast.Constant)


def _is_number(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant | ast.JoinedStr) or _called(value) in _NUMBERS
