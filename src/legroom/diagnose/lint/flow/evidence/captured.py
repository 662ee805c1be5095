"""Determines which variables a closure keeps alive."""

import libcst as cst

from legroom.diagnose.lint.flow.facts import Function
from legroom.diagnose.lint.flow.syntax import names_in, root, walk


def captured_names(node: cst.Lambda | cst.FunctionDef, outer: Function) -> set[str]:
    bound = {each.name.value for each in walk(node) if isinstance(each, cst.Param)}
    bound |= {
        path
        for each in walk(node.body)
        if isinstance(each, (cst.AssignTarget, cst.CompFor, cst.For))
        for path in names_in(each.target)
    }
    own = (outer.local_names - outer.nonlocal_names) | set(outer.parameters)
    return ({root(path) for path in names_in(node.body)} - bound) & own - {"self", "cls"}


def defaults_of(node: cst.Lambda | cst.FunctionDef) -> list[cst.BaseExpression]:
    given = (*node.params.posonly_params, *node.params.params, *node.params.kwonly_params)
    return [each.default for each in given if each.default is not None]
