"""Queries on a libcst tree, for example for the children of a node, dotted names or imports.

The visitors of libcst rebuild every node, and the scope analysis of libcst takes longer than running all rules. The
rules need only a few queries, which this module implements on the plain nodes.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import cache, wraps
from typing import Any, TypeVar

import libcst as cst

_GRAD_DISABLERS = re.compile(r"(?:^|_)(?:no_grad|inference_mode)(?:_|$)")

_LAYOUT = {
    "asynchronous",
    "comma",
    "dot",
    "encoding",
    "equal",
    "first_line",
    "footer",
    "from_",
    "header",
    "indent",
    "lbrace",
    "lbracket",
    "leading_lines",
    "lines_after_decorators",
    "lpar",
    "newline",
    "operator",
    "rbrace",
    "rbracket",
    "rpar",
    "semicolon",
    "star_arg_comma",
    "trailing_whitespace",
}
"""Fields of libcst nodes that contain only whitespace, brackets or punctuation."""

_Node = TypeVar("_Node", bound=cst.CSTNode)
_Result = TypeVar("_Result")
_DEFINITIONS = {cst.FunctionDef, cst.Lambda, cst.ClassDef}
_LEAVES = {cst.Name, cst.Integer, cst.Float, cst.SimpleString}
"""Frequent nodes without children."""
Loop = cst.For | cst.While


@cache
def _child_fields(kind: type[cst.CSTNode]) -> tuple[str, ...]:
    return tuple(
        each.name
        for each in fields(kind)
        if each.name not in _LAYOUT and not each.name.startswith(("whitespace", "leading", "trailing"))
    )


class _NodeTypes(dict[type, bool]):
    """Caches whether a type is a node, because `issubclass` is slow for abstract base classes."""

    def __missing__(self, kind: type) -> bool:
        self[kind] = issubclass(kind, cst.CSTNode)
        return self[kind]


_is_node = _NodeTypes()


_children: dict[int, tuple[cst.CSTNode, ...]] = {}
_results: list[dict[int, Any]] = [_children]
"""Results for the nodes of the current file, because the rules visit the same nodes many times.

The keys are ids, because the hash of a libcst node is a slow Python function.
"""
_known: list[cst.CSTNode] = []
"""The nodes whose ids are keys. The list keeps them alive, so that no other node has the same id."""


def forget_file() -> None:
    for results in _results:
        results.clear()
    _known.clear()


def per_node(function: Callable[[_Node], _Result]) -> Callable[[_Node], _Result]:
    """Cache the results of a function for the nodes of the current file.

    The results must depend only on the syntax tree, and callers must not change them.
    """
    results: dict[int, _Result] = {}
    _results.append(results)

    @wraps(function)
    def cached(node: _Node) -> _Result:
        key = id(node)
        if key not in results:
            results[key] = function(node)
            _known.append(node)
        return results[key]

    return cached


def children(node: cst.CSTNode) -> tuple[cst.CSTNode, ...]:
    if type(node) in _LEAVES:
        return ()
    known = _children.get(id(node))
    if known is not None:
        return known
    found: list[cst.CSTNode] = []
    for name in _child_fields(type(node)):
        value = getattr(node, name)
        kind = type(value)
        if kind is tuple or kind is list:
            found.extend([each for each in value if _is_node[type(each)]])
        elif _is_node[kind]:
            found.append(value)
    result = _children[id(node)] = tuple(found)
    _known.append(node)
    return result


def walk(node: cst.CSTNode, *, into_functions: bool = True) -> Iterator[cst.CSTNode]:
    """Yield a node and all its descendants in source order, parents first."""
    pending = [node]
    while pending:
        current = pending.pop()
        yield current
        kind = type(current)
        if kind not in _LEAVES and (into_functions or kind not in _DEFINITIONS or current is node):
            pending.extend(children(current)[::-1])


def dotted(node: cst.CSTNode | None) -> str | None:
    """Return the path of a name or a chain of attributes, such as `self.model`, and None for any other node."""
    if type(node) is cst.Name:
        return node.value
    return _dotted(node) if type(node) is cst.Attribute else None


@per_node
def _dotted(node: cst.Attribute) -> str | None:
    owner = dotted(node.value)
    return None if owner is None else f"{owner}.{node.attr.value}"


def path_of(node: cst.CSTNode | None) -> str | None:
    """Return the path of a node.

    The path of an item is the path of its container: `history` for `history["loss"]`.
    """
    while True:  # type() is faster than isinstance for libcst's abstract classes
        if type(node) is cst.Subscript:
            node = node.value
        elif type(node) is cst.Call and node.args and method_name(node) in {"setdefault", "get"}:
            node = receiver(node)
        elif type(node) is cst.Call and dotted(node.func) in {"globals", "vars"}:
            node = node.args[0].value if node.args else node.func
        else:
            return dotted(node)


def keys_of(node: cst.CSTNode | None) -> list[str | None]:
    """Return the keys of an item: `["train", "loss"]` for `history["train"]["loss"]`."""
    if isinstance(node, cst.Subscript):
        return [*keys_of(node.value), literal_key(node)]
    if isinstance(node, cst.Call) and method_name(node) in {"setdefault", "get"}:
        return [*keys_of(receiver(node)), literal_key(node)]
    return []


def literal_key(node: cst.Subscript | cst.Call) -> str | None:
    """Return the literal key of an item, such as `loss` for `history["loss"]` and `history.get("loss", 0)`, or None if
    the key is not a literal.
    """
    if isinstance(node, cst.Call):
        return string_value(node.args[0].value) if node.args else None
    part = node.slice[0].slice if len(node.slice) == 1 else None
    return string_value(part.value) if isinstance(part, cst.Index) else None


@per_node
def contained_parts(expression: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return the expressions in a new object, such as the items of a tuple or the arguments of `Transition(...)`."""
    if isinstance(expression, (cst.Tuple, cst.List, cst.Set, cst.Dict)):
        return [each.value for each in expression.elements]
    if isinstance(expression, cst.Call):
        made = last_name(dotted(expression.func) or "")
        if made[:1].isupper() or made in {"partial", "dict", "list", "tuple", "set"}:
            return [each.value for each in expression.args]
    return []


def has_modulo(node: cst.CSTNode) -> bool:
    """Return True if an expression contains the operator `%`, as in `step % 8`."""
    return any(
        isinstance(each, cst.BinaryOperation) and isinstance(each.operator, cst.Modulo) for each in walk(node)
    )


def root(path: str) -> str:
    """Return the first name of a path, such as `self` for `self.losses`."""
    return path.partition(".")[0]


def last_name(path: str) -> str:
    """Return the last component of a path, such as `losses` for `self.losses`."""
    return path.rpartition(".")[2]


def disables_gradients(name: str | None) -> bool:
    """Return True for `torch.no_grad` and for wrappers that are named after it, such as `smart_inference_mode`."""
    return name is not None and _GRAD_DISABLERS.search(last_name(name)) is not None


def method_name(call: cst.Call) -> str | None:
    """Return the name of the called method, such as `append` for `losses.append(x)`, or None for a call such as
    `print(x)`.
    """
    return call.func.attr.value if type(call.func) is cst.Attribute else None


def receiver(call: cst.Call) -> cst.BaseExpression | None:
    """Return the object of a method call, such as `losses` for `losses.append(x)`."""
    return call.func.value if type(call.func) is cst.Attribute else None


def keyword(call: cst.Call, name: str) -> cst.Arg | None:
    for argument in call.args:
        if argument.keyword is not None and argument.keyword.value == name:
            return argument
    return None


def positional(call: cst.Call) -> list[cst.Arg]:
    return [each for each in call.args if each.keyword is None and not each.star]


def is_call_of(node: cst.CSTNode, name: str) -> bool:
    """Return True if a node calls the function `name`, as in `name(...)` or `module.name(...)`."""
    return type(node) is cst.Call and last_name(dotted(node.func) or "") == name


def has_star(call: cst.Call) -> bool:
    """Return True for a call with `*args` or `**options`, which may pass any argument."""
    return any(each.star for each in call.args)


def is_true(argument: cst.Arg | None) -> bool:
    return argument is not None and isinstance(argument.value, cst.Name) and argument.value.value == "True"


def is_false(argument: cst.Arg | None) -> bool:
    return argument is not None and isinstance(argument.value, cst.Name) and argument.value.value == "False"


def string_value(node: cst.CSTNode | None) -> str | None:
    if isinstance(node, cst.SimpleString) and isinstance(node.evaluated_value, str):
        return node.evaluated_value
    return None


def moves_to_host(call: cst.Call) -> bool:
    """Return True if a call to `to` moves a tensor to the host, as in `x.to("cpu")`."""
    if method_name(call) != "to":
        return False
    given = keyword(call, "device") or (call.args[0] if call.args else None)
    return given is not None and "cpu" in (string_value(given.value) or "")


_WITHOUT_GRAPH = {
    "detach",
    "item",
    "tolist",
    "numpy",
    "size",
    "dim",
    "ndim",
    "numel",
    "nelement",
    "nbytes",
    "element_size",
    "data",
    "shape",
    "device",
    "dtype",
    "sign",
}
NUMBER_FUNCTIONS = {"float", "int", "len", "str", "isinstance"}
_FUNCTIONS_WITHOUT_GRAPH = NUMBER_FUNCTIONS | {"torch.sign"}


@per_node
def names_in(node: cst.CSTNode) -> frozenset[str]:
    """Return all paths that an expression reads: `model`, `model.fc` and `model.fc.weight` for `model.fc.weight`."""
    return frozenset(_paths(node, live=False))


def detaches_other(first: cst.BaseExpression, second: cst.BaseExpression) -> bool:
    """Return True if one of two alternative expressions detaches a value that the other one uses with its graph."""
    return any(
        not (names_in(one) - names_with_graph(one)).isdisjoint(names_with_graph(other))
        for one, other in ((first, second), (second, first))
    )


def bound_paths(target: cst.BaseExpression) -> set[str]:
    """Return the names and attributes that a loop or assignment rebinds.

    `for state.step in ...` does not rebind `state`.
    """
    if isinstance(target, (cst.Tuple, cst.List)):
        return set[str]().union(*(bound_paths(each.value) for each in target.elements))
    path = dotted(target)
    return {path} if path is not None else set()


@per_node
def names_with_graph(node: cst.CSTNode) -> frozenset[str]:
    """Return the names that an expression reads together with their graph.

    A name does not count if the expression uses only its shape, its detached value or a number such as `loss.item()`.
    """
    return frozenset(_paths(node, live=True))


def _paths(node: cst.CSTNode, *, live: bool) -> Iterator[str]:
    pending: list[Any] = [node]
    while pending:
        current = pending.pop()
        kind = type(current)
        if kind is cst.Name:
            yield current.value
        elif kind is cst.Attribute:
            if live and current.attr.value in _WITHOUT_GRAPH:
                continue
            path = dotted(current)
            if path is not None:
                yield path
            pending.append(current.value)
        elif kind is cst.Arg:  # a keyword is the name of a parameter, not a value
            pending.append(current.value)
        elif live and kind in (cst.ListComp, cst.GeneratorExp) and not names_with_graph(current.elt):
            continue  # (part.detach() for part in state)
        elif live and (
            kind is cst.Comparison or (kind is cst.Call and dotted(current.func) in _FUNCTIONS_WITHOUT_GRAPH)
        ):
            continue
        else:
            pending.extend(children(current))


class Imports:
    """Maps the names in a file to full names: `F.mse_loss` is `torch.nn.functional.mse_loss`."""

    def __init__(self, nodes: list[cst.CSTNode]) -> None:
        self.full_names: dict[str, str] = {}
        for node in nodes:
            if type(node) is cst.Import:  # isinstance is slow for libcst's abstract classes
                self._plain(node)
            elif type(node) is cst.ImportFrom:
                self._from(node)

    def qualified(self, node: cst.CSTNode | None) -> str | None:
        """Return the full name of an expression, or the name as written if it is not imported."""
        path = dotted(node)
        if path is None:
            return None
        first, dot, rest = path.partition(".")
        return self.full_names.get(first, first) + dot + rest

    def name_for(self, qualified: str) -> str | None:
        """Return the name under which this file imports an object such as `torch.no_grad`, or None."""
        best: str | None = None
        for name, full_name in self.full_names.items():
            if qualified == full_name:
                return name
            if qualified.startswith(full_name + ".") and (best is None or len(name) < len(best)):
                best = name + qualified[len(full_name) :]
        return best

    def _plain(self, node: cst.Import) -> None:
        for each in node.names:
            full = dotted(each.name)
            if full is None:
                continue
            if each.asname is not None and isinstance(each.asname.name, cst.Name):
                self.full_names[each.asname.name.value] = full
            else:
                self.full_names[root(full)] = root(full)

    def _from(self, node: cst.ImportFrom) -> None:
        source = dotted(node.module)
        if source is None or node.relative or isinstance(node.names, cst.ImportStar):
            return
        for each in node.names:
            name = dotted(each.name)
            if name is None:
                continue
            alias = each.asname.name.value if each.asname and isinstance(each.asname.name, cst.Name) else name
            self.full_names[alias] = f"{source}.{name}"


def innermost_iterable(node: cst.BaseExpression) -> cst.BaseExpression:
    """Return the innermost iterable of nested calls, such as `loader` for `enumerate(tqdm(loader))`."""
    while isinstance(node, cst.Call) and (arguments := positional(node)):
        if method_name(node) in {"items", "values", "keys"}:
            break
        node = arguments[0].value
    return node


ADDING_METHODS = {"append", "appendleft", "extend", "insert", "add", "put", "put_nowait"}


@per_node
def append_method(expression: cst.BaseExpression) -> cst.Attribute | None:
    """Return the method of a container to which an expression refers. For example, return `losses.append` for
    `losses.append`, `partial(losses.append)` and `lambda loss: losses.append(loss)`.
    """
    if is_call_of(expression, "partial") and isinstance(expression, cst.Call) and len(expression.args) == 1:
        expression = expression.args[0].value
    if isinstance(expression, cst.Lambda) and isinstance(expression.body, cst.Call):
        given = [each.name.value for each in expression.params.params]
        if [dotted(each.value) for each in expression.body.args] == given[:1]:
            expression = expression.body.func
    is_adding = isinstance(expression, cst.Attribute) and expression.attr.value in ADDING_METHODS
    return expression if is_adding and isinstance(expression, cst.Attribute) else None
