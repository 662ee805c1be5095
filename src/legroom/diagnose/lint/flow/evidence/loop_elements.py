"""Finds the containers to which a loop variable refers, as in
`for buffer in (self.values, self.rewards): buffer.clear()`.
"""

from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.flow.facts import Function
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import bound_paths, dotted, is_call_of, method_name, string_value, walk


def looped_over(program: Program, node: cst.CSTNode, name: str, function: Function) -> set[str]:
    """Return the paths to which the variable of an enclosing loop refers, such as `self.values` for `buffer`."""
    return {
        path
        for source in _sources(program, node, name)
        for items in _literals(program, source, function)
        for each in walk(items)
        if isinstance(each, (cst.Name, cst.Attribute)) and (path := dotted(each)) is not None
    }


def named_attributes(program: Program, call: cst.CSTNode | None) -> set[str]:
    """Return the attributes to which a call to `getattr` or `setattr` refers. For example, return `self.values` and
    `self.rewards` for `getattr(self, name)` in a loop over `("values", "rewards")`.
    """
    if not isinstance(call, cst.Call) or not (is_call_of(call, "getattr") or is_call_of(call, "setattr")):
        return set()
    owner = dotted(call.args[0].value) if len(call.args) > 1 else None
    if owner is None:
        return set()
    given = call.args[1].value
    literals = [given, *_sources(program, call, dotted(given) or "")]
    names = {string_value(each) for literal in literals for each in walk(literal)}
    return {f"{owner}.{name}" for name in names if name}


def _sources(program: Program, node: cst.CSTNode, name: str) -> Iterator[cst.BaseExpression]:
    for outer in program.ancestors(node):
        if isinstance(outer, cst.For) and name in bound_paths(outer.target):
            yield outer.iter
        elif isinstance(outer, (cst.ListComp, cst.GeneratorExp, cst.SetComp)) and name in bound_paths(
            outer.for_in.target
        ):
            yield outer.for_in.iter
        elif isinstance(outer, cst.FunctionDef):
            return


def _literals(
    program: Program, source: cst.BaseExpression, function: Function
) -> Iterator[cst.BaseExpression]:
    """Yield the tuple or list over which a loop iterates.

    For a loop over `self.method()`, yield the tuples and lists that the method returns.
    """
    made = [source]
    if isinstance(source, cst.Call) and (dotted(source.func) or "").startswith("self."):
        called = program.method(function.class_name, method_name(source) or "")
        made = called.returned_nodes if called is not None else []
    yield from (each for each in made if isinstance(each, (cst.Tuple, cst.List)))
