"""Finds the calls in the checked file that reach an imported function."""

from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.flow.facts import CallSite, Function
from legroom.diagnose.lint.flow.program import Program


def own_call(program: Program, node: cst.CSTNode) -> CallSite | None:
    """Return the call in the checked file that reaches a node of an imported function."""
    for function in _reaching(program, node):
        own = [site for site in function.call_sites if program.is_own(site.call)]
        if own:
            return max(own, key=lambda site: (passes_graph(site), bool(site.loops)))
    return None


def passes_graph(site: CallSite) -> bool:
    return any(each.has_graph for each in site.values.values())


def entry_functions(program: Program, node: cst.CSTNode) -> list[Function]:
    """Return the functions through which other files reach a node: its function, or the callers of the function that
    nothing in the file calls.
    """
    return [
        each
        for each in _reaching(program, node)
        if not each.call_sites and isinstance(each.node, cst.FunctionDef)
    ]


def _reaching(program: Program, node: cst.CSTNode) -> Iterator[Function]:
    """Yield the function that contains a node, and then its callers.

    A model calls its hooks. A hook is therefore followed by the function that defines it, or by `__init__` of its class.
    """
    by_node: dict[cst.CSTNode, Function] = {each.node: each for each in program.functions.values()}
    pending = [by_node[each] for each in program.ancestors(node) if each in by_node][:1]
    seen: set[Function] = set()
    for function in pending:
        if function not in seen:
            seen.add(function)
            yield function
            pending.extend(site.caller for site in function.call_sites)
            if not function.call_sites:
                defined_in = program.method(function.class_name, "__init__") or function.outer
                pending.extend([defined_in] if defined_in is not None else [])
