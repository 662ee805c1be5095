"""Finds the class of an object that another file creates, by its annotation and the methods that are called on it."""

from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.flow.syntax import (
    dotted,
    last_name,
    literal_key,
    names_in,
    per_node,
    root,
    string_value,
    walk,
)
from legroom.diagnose.lint.flow.values import GRAPHLESS_ATTRIBUTES, NUMBER_ATTRIBUTES, split_words

_COMMON_METHODS = split_words(
    "add append apply backward build call clear close compute copy cpu cuda detach encode decode embed eval evaluate "
    "extend fit float forward freeze generate get half insert item items join keys load load_state_dict log log_dict mean "
    "parameters pop predict prepare push put read record register render reset run sample save send set setup shape size "
    "start state_dict step stop sum test to tolist train transform unfreeze update validate values view write zero_grad"
)
"""Methods that many classes have, and that therefore do not identify a class."""

_MODULE_METHODS = split_words(
    "apply buffers children cpu cuda double eval extra_repr float forward half load_state_dict modules named_buffers "
    "named_children named_modules named_parameters parameters register_buffer requires_grad_ state_dict to train zero_grad"
)

_TENSOR_ATTRIBUTES = {
    *NUMBER_ATTRIBUTES, *GRAPHLESS_ATTRIBUTES, *split_words("T mT H mH real imag names grad_fn retains_grad is_sparse"),
}  # fmt: skip


@per_node
def record_paths(body: cst.CSTNode) -> frozenset[str]:
    """Return the paths of objects that are not tensors, because the code reads attributes or keys of them that a tensor
    lacks, as in `stats.n_words` and `stats["loss"]`.
    """
    nodes = list(walk(body))
    called = {id(each.func) for each in nodes if isinstance(each, cst.Call)}
    found: set[str] = set()
    for each in nodes:
        if isinstance(each, cst.Attribute):
            is_method = id(each) in called
            allowed = (
                each.attr.value in _RECORD_METHODS if is_method else each.attr.value not in _TENSOR_ATTRIBUTES
            )
            path = dotted(each.value) if allowed else None
        else:
            path = dotted(each.value) if isinstance(each, cst.Subscript) and literal_key(each) else None
        if path is not None:
            found.add(path)
    return frozenset(found)


_RECORD_METHODS = {"items", "keys"}


def called_methods(
    calls: list[cst.Call], parent: dict[cst.CSTNode, cst.CSTNode], defined: set[str]
) -> dict[tuple[str, str], set[str]]:
    """Map the scope and path of each object to the methods that the file calls on it.

    The scope of `self.agent` is the class, and the scope of any other path is the function.
    """
    found: dict[tuple[str, str], set[str]] = {}
    for node in calls:
        if type(node.func) is not cst.Attribute:
            continue
        name = node.func.attr.value
        path = dotted(node.func.value) if name in defined else None
        if path is None or path in {"self", "cls"}:
            continue
        found.setdefault((_scope(node, parent, path), path), set()).add(name)
    return found


def _scope(node: cst.CSTNode, parent: dict[cst.CSTNode, cst.CSTNode], path: str) -> str:
    wanted = cst.ClassDef if root(path) == "self" else cst.FunctionDef
    current = parent.get(node)
    while current is not None:
        if isinstance(current, wanted):
            return current.name.value
        current = parent.get(current)
    return ""


def identifies_class(methods: set[str], *, of_model: bool) -> bool:
    """Return True if one of the methods identifies a class.

    For a model, any method that `nn.Module` lacks identifies the class.
    """
    return not methods <= (_MODULE_METHODS if of_model else _COMMON_METHODS)


def annotated_names(annotation: cst.BaseExpression) -> Iterator[str]:
    """Yield the names of the classes in an annotation such as `Agent`, `"Agent"`, `Agent | None` and `Optional[Agent]`."""
    if isinstance(annotation, cst.BinaryOperation):
        yield from annotated_names(annotation.left)
        yield from annotated_names(annotation.right)
    elif isinstance(annotation, cst.Subscript):
        if last_name(dotted(annotation.value) or "") == "Optional":
            inner = annotation.slice[0].slice
            if isinstance(inner, cst.Index):
                yield from annotated_names(inner.value)
    else:
        yield string_value(annotation) or dotted(annotation) or ""


@per_node
def merged_parameters(node: cst.FunctionDef | cst.Module) -> frozenset[str]:
    """Return the parameters of a method that are objects of its own class, such as `other` in
    `self.loss += other.loss; self.words += other.words`.

    The method must read several attributes of the parameter, and add each one to its own attribute of the same name.
    """
    if not isinstance(node, cst.FunctionDef):
        return frozenset()
    names = {each.name.value for each in (*node.params.posonly_params, *node.params.params)} - {"self", "cls"}
    if not names:
        return frozenset()
    found: dict[str, set[str]] = {}
    for each in walk(node.body, into_functions=False):
        if type(each) is cst.AugAssign:
            target = dotted(each.target) or ""
        elif type(each) is cst.Assign and len(each.targets) == 1:
            target = dotted(each.targets[0].target) or ""
        else:
            continue
        owner, _, attribute = target.partition(".")
        if owner != "self" or not attribute:
            continue
        is_sum = isinstance(each, cst.AugAssign) or target in names_in(each.value)
        for name in names if is_sum else ():
            if f"{name}.{attribute}" in names_in(each.value):
                found.setdefault(name, set()).add(attribute)
    return frozenset(name for name, attributes in found.items() if len(attributes) > 1)
