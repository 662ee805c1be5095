"""Patterns in Python syntax trees, such as assignments, calls, slices and comparisons."""

import ast
import re
from collections.abc import Iterable, Iterator
from typing import TypeGuard

from legroom.observe.source.files import COMPREHENSIONS, own_nodes

BACKWARD_NAMES = ("backward", "manual_backward")
_NUMBERS = {"item", "float", "int", "len", "str", "tolist", "numpy", "format", "perf_counter", "time"}
_COUNTERS = (
    "step",
    "epoch",
    "iter",
    "count",
    "idx",
    "index",
    "batch",
    "num",
    "seen",
    "turn",
    "episode",
    "len",
    "size",
    "warm",
)
_EMPTY_CALLS = {"list", "dict", "set", "deque", "tuple", "OrderedDict", "Counter", "defaultdict"}


def is_same(attribute: str, name: str) -> bool:
    """Return whether two attribute names are equal. `name` may be mangled: Python stores `self.__values` as
    `_Tracker__values`.
    """
    return attribute == name or (
        attribute.startswith("__") and not attribute.endswith("__") and name.endswith(attribute)
    )


def is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def is_selective(test: ast.expr, item: ast.expr) -> bool:
    """Return whether a filter eventually drops every item, as in `age < 10`, `step - started <= 10` and `not
    item.done()`. The result is False for `item is not None`.
    """
    names = {each.id for each in flattened(item) if isinstance(each, ast.Name)}
    return any(
        (
            isinstance(node, ast.Compare)
            and any(isinstance(each, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for each in node.ops)
        )
        or (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in names)
        for node in ast.walk(test)
    )


def is_below(node: ast.If, root: ast.AST) -> bool:
    """Return whether a condition requires a counter to be below a limit, as in `if step < 10:`. The comparison may be
    part of a longer condition. In `if loss < best:`, `loss` is not a counter. An attribute of `self` is a counter only
    if the code in `root` changes it.
    """
    return any(
        isinstance(part, ast.Compare)
        and any(isinstance(operator, ast.Lt | ast.LtE) for operator in part.ops)
        and any(
            _is_counter(name) and not (isinstance(name, ast.Attribute) and _is_constant(name, root))
            for side in (part.left, *part.comparators)
            for name in ast.walk(side)
        )
        for part in ast.walk(node.test)
    )


def _is_constant(attribute: ast.Attribute, root: ast.AST) -> bool:
    """Return whether only the constructor assigns an attribute of `self`."""
    if not is_self(attribute.value):
        return False
    assigned = {
        id(each): function.name
        for function in ast.walk(root)
        if isinstance(function, ast.FunctionDef)
        for each in ast.walk(function)
    }
    where = {
        assigned.get(id(each), "")
        for each in ast.walk(root)
        if isinstance(each, ast.Attribute) and each.attr == attribute.attr and isinstance(each.ctx, ast.Store)
    }
    return where == {"__init__"}


def _is_counter(node: ast.AST) -> bool:
    """Return whether the name of an expression suggests a counter, such as `global_step`, `self.seen` and `i`."""
    name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
    return 0 < len(name) <= 2 or any(word in name.lower() for word in _COUNTERS)


def is_zero_or_one(value: ast.expr) -> bool:
    """Return whether an expression is 0 or 1. A comparison of the length with 0 or 1 checks whether the container is
    empty, and does not limit its length.
    """
    return isinstance(value, ast.Constant) and value.value in (0, 1)


def literal_keys(target: ast.AST | None) -> tuple[str, ...]:
    """Return the literal keys of `name["a"]["b"]` or `name.setdefault("a", [])`."""
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


_CONCATENATING = {"cat", "concat", "concatenate", "hstack", "vstack", "stack", "pad", "append", "add"}


def is_concatenation(value: ast.expr) -> bool:
    return any(called_name(each) in _CONCATENATING for each in ast.walk(value))


def replaces_contents(target: ast.expr) -> bool:
    """Return whether an assignment replaces the contents, as in `name[:] = ...` and `name[:n] = ...`. In contrast,
    `name[len(name):] = ...` adds items.
    """
    if not isinstance(target, ast.Subscript):
        return False
    if isinstance(target.slice, ast.BinOp):
        return isinstance(target.slice.op, ast.Mod)
    return isinstance(target.slice, ast.Slice) and target.slice.lower is None


def index_of(target: ast.expr) -> ast.expr | None:
    return target.slice if isinstance(target, ast.Subscript) else None


def wraps_around(index: ast.expr | None, scope: ast.AST) -> bool:
    """Return whether a counter is reset, as in `i = (i + 1) % size` and `if i == size: i = 0`."""
    if not isinstance(index, ast.Name | ast.Attribute):
        return False
    counter = ast.dump(index).replace("Store()", "Load()")

    def is_counter(target: ast.expr) -> bool:
        return ast.dump(target).replace("Store()", "Load()") == counter

    for node in ast.walk(scope):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Mod) and is_counter(node.target):
            return True
        if isinstance(node, ast.Assign) and any(map(is_counter, node.targets)):
            if _is_remainder(node.value):
                return True
        elif isinstance(node, ast.If):
            for each in node.body:
                if (
                    isinstance(each, ast.Assign)
                    and isinstance(each.value, ast.Constant)
                    and any(map(is_counter, each.targets))
                ):
                    return True
    return False


def is_incremented(value: ast.expr, scope: ast.AST) -> bool:
    """Return whether an expression is a counter that only increases, as in `cursor += 1`. If the counter is assigned in
    several places, the result is False, because the counter may be reset.
    """
    if not isinstance(value, ast.Name | ast.Attribute):
        return False
    name = value.id if isinstance(value, ast.Name) else value.attr
    changes: list[ast.operator] = []
    assignments = 0
    for node in ast.walk(scope):
        if isinstance(node, ast.AugAssign) and _is_named(node.target, name):
            changes.append(node.op)
        elif isinstance(node, ast.Assign):
            targets = (each for target in node.targets for each in flattened(target))
            assignments += any(_is_named(target, name) for target in targets)
    return bool(changes) and assignments <= 1 and all(isinstance(each, ast.Add) for each in changes)


def _is_named(target: ast.expr, name: str) -> bool:
    return (target.id if isinstance(target, ast.Name) else getattr(target, "attr", "")) == name


def _is_remainder(value: ast.expr) -> bool:
    """Return whether a value is `a % b`, or a sum or product that contains `a % b`. A call such as `f(a % b)` does not
    count.
    """
    if not isinstance(value, ast.BinOp):
        return False
    return isinstance(value.op, ast.Mod) or _is_remainder(value.left) or _is_remainder(value.right)


def is_consumed(part: ast.Subscript, scope: ast.AST) -> bool:
    """Return whether the sliced variable itself is shortened, as in `pool = pool[8:]`. The slices of such a variable
    eventually become empty.
    """
    if not isinstance(part.value, ast.Name) or not is_sliced(part):
        return False
    name = part.value.id
    for node in ast.walk(scope):
        for target, value in pairs_of(node.targets[0], node.value) if isinstance(node, ast.Assign) else ():
            sliced = value.value if isinstance(value, ast.Subscript) and is_sliced(value) else None
            if all(isinstance(each, ast.Name) and each.id == name for each in (target, sliced)):
                return True
    return False


def is_slice(target: ast.expr) -> bool:
    return isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Slice)


def is_sliced(node: ast.Subscript) -> bool:
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    return any(isinstance(part, ast.Slice) for part in parts)


def assigns_local(function: ast.AST, variable: str) -> bool:
    """Return whether a function assigns to a local variable of this name, which hides the outer variable."""
    own = list(own_nodes(function))
    declared = (node.names for node in own if isinstance(node, ast.Global | ast.Nonlocal))
    return not any(variable in names for names in declared) and any(
        isinstance(node, ast.Name) and node.id == variable and isinstance(node.ctx, ast.Store) for node in own
    )


def branches(value: ast.expr) -> list[ast.expr]:
    """For a conditional expression `a if c else b`, return a and b."""
    return [value.body, value.orelse] if isinstance(value, ast.IfExp) else []


def pairs_of(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """For an assignment `a, b = x, y`, yield the pairs (a, x) and (b, y)."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for each, part in zip(target.elts, value.elts, strict=True):
            yield from pairs_of(each, part)
    else:
        yield target, value


def flattened(target: ast.expr) -> Iterable[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        for element in target.elts:
            yield from flattened(element)
    elif isinstance(target, ast.Starred):
        yield target.value
    else:
        yield target


def receiver_of(value: ast.expr) -> ast.expr:
    """Return the value on which a chain of methods is called: `x[-512:]` for `x[-512:].detach().clone()`."""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        value = value.func.value
    return value


def called_name(node: ast.AST) -> str:
    if not isinstance(node, ast.Call):
        return ""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def is_backward_call(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in BACKWARD_NAMES
    )


def key_name(node: ast.AST | None) -> str:
    """Return the name of a setting: `size` for `size`, `config.size`, `config["size"]` and `"size"`."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(slice=ast.Constant(value=str(name))) | ast.Constant(value=str(name)):
            return name
    return ""


def parameters_of(arguments: ast.arguments) -> list[tuple[ast.arg, ast.expr | None]]:
    """Return the parameters of a function with their default values, without `*args` and `**kwargs`."""
    positional = [*arguments.posonlyargs, *arguments.args]
    required = [None] * (len(positional) - len(arguments.defaults))
    return [
        *zip(positional, [*required, *arguments.defaults], strict=True),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]


def is_main_block(node: ast.AST) -> TypeGuard[ast.If]:
    """Return whether a statement is `if __name__ == "__main__":`, whose body does not run if the file is imported."""
    test = ast.unparse(node.test) if isinstance(node, ast.If) else ""
    return "== '__main__'" in test or "'__main__' ==" in test


def is_empty(value: ast.expr) -> bool:
    """Return whether an expression is an empty or initial value, as in `[]`, `{}`, `list()`, `deque(maxlen=3)`,
    `defaultdict(list)`, `0` and `None`.
    """
    if isinstance(value, ast.List | ast.Tuple | ast.Set):
        return not value.elts
    if isinstance(value, ast.Dict):
        return all(is_empty(each) for each in value.values)
    if isinstance(value, ast.Call) and called_name(value) in _EMPTY_CALLS:
        return not any(isinstance(each, (*COMPREHENSIONS, ast.Starred)) for each in value.args) and (
            not value.args or called_name(value) == "defaultdict"
        )
    return isinstance(value, ast.Constant)


def is_number(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant | ast.JoinedStr) or called_name(value) in _NUMBERS


_CREATING = {
    "zeros", "ones", "empty", "full", "eye", "zeros_like", "ones_like", "empty_like", "full_like", "new_zeros", "new_ones",
    "new_empty", "new_full", "new_tensor", "zero_", "fill_",
}  # fmt: skip
_INITIAL_STATE = re.compile(r"(?:^|_)(?:init|initial|zero|zeros|empty)(?:_|$)")
_WRAPPERS = {"Variable", "Parameter", "Buffer", "list", "tuple"}


def is_initial_value(value: ast.expr) -> bool:
    """Return whether an expression is a new value that depends on no data, as in `torch.zeros(2, 8).to(device)`,
    `(h.new_zeros(8), None)`, `[torch.zeros_like(h) for h in hidden]` and `self.init_hidden(8)`.
    """
    if isinstance(value, ast.Constant):
        return True
    if isinstance(value, ast.Tuple | ast.List):
        return all(map(is_initial_value, value.elts))
    if isinstance(value, ast.ListComp | ast.GeneratorExp):
        return is_initial_value(value.elt)
    if isinstance(value, ast.BinOp):  # `[torch.zeros(8)] * layers`
        return is_initial_value(value.left) and not isinstance(value.left, ast.Constant)
    if called_name(value) in _WRAPPERS and isinstance(value, ast.Call) and value.args:
        return is_initial_value(value.args[0])
    while isinstance(value, ast.Call):
        name = called_name(value)
        if name in _CREATING or _INITIAL_STATE.search(name):
            return True
        value = value.func.value if isinstance(value.func, ast.Attribute) else value.func
    return False


def is_in_place(call: ast.Call) -> bool:
    """Return whether a call passes a value to an in-place method of a tensor, as in `total.add_(loss)`."""
    called = called_name(call)
    return called.endswith("_") and not called.endswith("__") and bool(call.args)


def parts_of(call: ast.Call) -> list[ast.expr]:
    return [part for each in call.args for part in ast.walk(each) if isinstance(part, ast.expr)]


def passed_values(call: ast.Call) -> Iterator[ast.expr]:
    """Yield the values that a call passes as they are: `x`, `h` and `c` for `lstm(x, (h, c))` and `lstm(x, tuple([h, c]))`."""
    stack = [*call.args, *(each.value for each in call.keywords)]
    while stack:
        each = stack.pop()
        if isinstance(each, ast.Call) and called_name(each) in ("tuple", "list"):
            stack += each.args
        elif isinstance(each, ast.Tuple | ast.List):
            stack += each.elts
        else:
            yield each


STORING_METHODS = {
    "append", "appendleft", "extend", "extendleft", "insert", "add", "update", "setdefault", "put", "put_nowait",
    "push", "write", "store", "register", "record", "log", "heappush", "insort", "insort_left", "insort_right",
}  # fmt: skip


def is_storing_call(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in STORING_METHODS
    )


def last_name(value: ast.expr) -> str:
    """Return the last component of a name, such as `losses` for `self.losses[0]`."""
    while isinstance(value, ast.Subscript | ast.Starred):
        value = value.value
    return value.id if isinstance(value, ast.Name) else getattr(value, "attr", "")


def is_reassigned(targets: list[ast.expr], loops: Iterable[ast.AST]) -> bool:
    """Return whether one of the loops assigns the same target in each iteration. The loop `for layer in layers:
    layer.outputs = []` assigns the attribute of a different object in each iteration.
    """
    owners = [each.value for each in targets if isinstance(each, ast.Attribute)]
    names = {each.id for owner in owners for each in ast.walk(owner) if isinstance(each, ast.Name)}
    return any(
        not isinstance(loop, ast.For | ast.AsyncFor)
        or names.isdisjoint(each.id for each in flattened(loop.target) if isinstance(each, ast.Name))
        for loop in loops
    )
