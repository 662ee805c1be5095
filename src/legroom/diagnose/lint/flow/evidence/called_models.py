"""Finds models by how a file uses them, because the name of a variable does not always show that it is a model."""

import re
from collections.abc import Iterable

import libcst as cst

from legroom.diagnose.lint.flow.syntax import dotted, is_false, last_name, receiver, root
from legroom.diagnose.lint.flow.values import COMPUTING_METHODS, LOSS_FUNCTIONS, OPTIMIZER_NAMES, split_words

_MODEL_METHODS = split_words(
    "eval train parameters named_parameters named_modules state_dict load_state_dict requires_grad_"
)
"""Methods of a model.

Optimizers also have a method `state_dict`, but a program does not call an optimizer like a function.
"""
_OUTPUT_METHODS = split_words("argmax softmax log_softmax logits")
_OUTPUT_FUNCTIONS = split_words("normalize softmax log_softmax")
_NOT_A_MODEL = re.compile(
    r"loss|crit|metric|transform|augment|aug|normal|process|func|fn|log|plot|show|save", re.IGNORECASE
)
_MODEL_CLASSES = split_words("Module LightningModule PreTrainedModel ScriptModule DistributedDataParallel")


def called_models(nodes: Iterable[cst.CSTNode]) -> frozenset[str]:
    """Return the paths that a file uses as models.

    The name `f` is a model if the file contains `f.eval()` and `f(x)` or `f.extract_features(x)`, `f(x).argmax(1)` for
    a parameter `f`, or a parameter `f: nn.Module`.
    """
    evaluated, computing = set[str](), set[str]()
    used, called, computed, parameters, annotated = set[str](), set[str](), set[str](), set[str](), set[str]()
    for node in nodes:
        kind = type(node)  # isinstance is slow for libcst's abstract classes
        if kind is cst.Call:
            assert isinstance(node, cst.Call)
            path = dotted(node.func)
            if path is not None and node.args:
                called.add(path)
                if _is_moved(node.args[0].value) and not _NOT_A_MODEL.search(path):
                    computed.add(path)
                if LOSS_FUNCTIONS.search(last_name(path)) or last_name(path) in _OUTPUT_FUNCTIONS:
                    computed.update(_called_path(node.args[0].value))
            if isinstance(node.func, cst.Attribute) and node.func.attr.value in _MODEL_METHODS:
                used.update(filter(None, [dotted(node.func.value)]))
            if isinstance(node.func, cst.Attribute):
                name = node.func.attr.value
                if node.args and (name == "forward" or COMPUTING_METHODS.search(name)):
                    computing.update(filter(None, [dotted(node.func.value)]))
                elif switches_to_evaluation(node):
                    evaluated.update(filter(None, [_moved_path(node.func.value)]))
        elif kind is cst.Assign:
            assert isinstance(node, cst.Assign)
            if isinstance(node.value, cst.Call) and switches_to_evaluation(node.value):
                evaluated.update(filter(None, (dotted(each.target) for each in node.targets)))
        elif kind is cst.Attribute:
            assert isinstance(node, cst.Attribute)
            if node.attr.value in _OUTPUT_METHODS:
                computed.update(_called_path(node.value))
        elif kind is cst.Param:
            assert isinstance(node, cst.Param)
            parameters.add(node.name.value)
            if node.annotation is not None and _names_a_model(node.annotation.annotation):
                annotated.add(node.name.value)
    found = (used & called) | (evaluated & computing) | (computed & parameters) | (annotated & called)
    return frozenset(
        path
        for path in found
        if path not in {"self", "cls", "super"} and not OPTIMIZER_NAMES.search(last_name(path))
    )


def switches_to_evaluation(node: cst.Call) -> bool:
    """Return True for `f.eval()` and `f.train(False)`."""
    if isinstance(node.func, cst.Attribute) and node.func.attr.value == "train" and node.args:
        return is_false(node.args[0])
    return isinstance(node.func, cst.Attribute) and node.func.attr.value == "eval" and not node.args


def _moved_path(node: cst.BaseExpression) -> str | None:
    """Return `f` for `f`, `f.cuda()` and `f.to(device).half()`."""
    while isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        node = node.func.value
    return dotted(node)


def _called_path(node: cst.BaseExpression) -> set[str]:
    """Return the names that an expression calls: `f` for `f(x)` and `f(x).squeeze()`, and `f` and `g` for
    `f(g(x))`.
    """
    while isinstance(node, cst.Call):
        owner = receiver(node)
        if not isinstance(owner, cst.Call):
            path = dotted(node.func)
            if path is None or not node.args or root(path) != path:
                return set()
            return {path} | _called_path(node.args[0].value)
        node = owner
    return set()


def _is_moved(node: cst.BaseExpression) -> bool:
    """Return True if an expression moves a value to a device, as in `x.cuda()` and `x.to(device)`."""
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
        return False
    if node.func.attr.value == "cuda":
        return True
    given = dotted(node.args[0].value) if node.func.attr.value == "to" and node.args else None
    return given is not None and "dev" in last_name(given)


def _names_a_model(annotation: cst.BaseExpression) -> bool:
    """Return True if an annotation names a model class, as in `nn.Module` and `nn.Module | None`."""
    if isinstance(annotation, cst.BinaryOperation):
        return _names_a_model(annotation.left) or _names_a_model(annotation.right)
    if isinstance(annotation, cst.Subscript) and dotted(annotation.value) in {"Optional", "typing.Optional"}:
        inner = annotation.slice[0].slice
        return isinstance(inner, cst.Index) and _names_a_model(inner.value)
    return last_name(dotted(annotation) or "") in _MODEL_CLASSES
