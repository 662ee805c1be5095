"""Determines which values a backward pass uses."""

import libcst as cst

from legroom.diagnose.lint.flow.facts import CallSite, Fact, Function, LoopFact, StoreFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.steps import is_forward
from legroom.diagnose.lint.flow.syntax import last_name, method_name, moves_to_host, names_in

_TO_HOST = {"cpu", "numpy", "tolist"}


def feeds_backward(program: Program, target: str, function: Function, loop: LoopFact) -> bool:
    wanted = {target}
    for _ in range(4):
        wanted |= {
            each.target
            for each in program.stores
            if each.function is function and each.target not in wanted and wanted & names_in(each.expression)
        }
        for each in program.loops:  # for log_prob, reward in zip(log_probs, rewards)
            if each.function is function and isinstance(each.node, cst.For):
                wanted |= each.bound if wanted & names_in(each.node.iter) else set()
    for call in program.calls:
        if call.function is not function or call.method not in {"backward", "manual_backward"}:
            continue
        if loop.first <= call.order <= loop.last:
            continue
        if call.order < loop.first and (loop.outer is None or loop.outer not in call.loops):
            continue  # finished before the loop
        if names_in(call.node) & wanted:
            return True
    return _returned_to_backward(program, function, wanted)


def is_used_in_backward(program: Program, target: str) -> bool:
    names = derived_names(program, target)
    if any(
        function.name in names and is_forward(program, function) for function in program.functions.values()
    ):
        return True
    return any(
        call.method in {"backward", "manual_backward"}
        and names & {last_name(path) for path in names_in(call.node)}
        for call in program.calls
    )


def derived_names(program: Program, target: str, *, on_gpu: bool = False) -> set[str]:
    """Return `target` and the names of all values in the file that are computed from it.

    With `on_gpu`, copies in host memory, such as `torch.cat(outputs).cpu()`, are omitted.

    Only the last component of each name is returned, such as `loss` for `self.loss`. Two values whose names have the
    same last component are treated as one value.
    """
    names = {last_name(target)}
    for _ in range(4):
        before = len(names)
        for function in program.functions.values():  # results of functions, and of models
            returned = (each for each in function.returned_nodes if not (on_gpu and _is_on_host(each)))
            if any(names & {last_name(path) for path in names_in(each)} for each in returned):
                names.add(function.name)
        for loop in program.loops:  # for log_prob, reward in zip(agent.log_probs, rewards)
            iterable = names_in(loop.node.iter) if isinstance(loop.node, cst.For) else set()
            names |= loop.bound if names & {last_name(path) for path in iterable} else set()
        names |= {
            last_name(each.target)
            for each in program.stores
            if each.how != "item" and names & {last_name(path) for path in names_in(each.expression)}
            if not (on_gpu and _is_on_host(each.expression))
        }
        if len(names) == before:
            break
    return names


def _is_on_host(node: cst.BaseExpression) -> bool:
    """Return True for `x.cpu()`, and for calls and items of it, such as `x.cpu().numpy()`."""
    while isinstance(node, (cst.Call, cst.Attribute, cst.Subscript)):
        if isinstance(node, cst.Call) and (method_name(node) in _TO_HOST or moves_to_host(node)):
            return True
        node = node.func if isinstance(node, cst.Call) else node.value
    return False


def _returned_to_backward(program: Program, function: Function, wanted: set[str]) -> bool:
    if not any(names_in(each) & wanted for each in function.returned_nodes):
        return False
    for site in function.call_sites:
        given = [
            each
            for each in program.stores
            if each.function is site.caller and program.inside(site.call, each.expression)
        ]
        for call in program.calls:
            if call.function is site.caller and call.method == "backward":
                read = names_in(call.node)
                if any(each.target in read and _reaches(program, each, call) for each in given):
                    return True
    return False


def _reaches(program: Program, store: StoreFact, later: Fact) -> bool:
    """Return True if a name still refers to the stored value at a later position.

    For example, `loss` in a validation loop does not refer to the `loss` of an earlier training loop.
    """
    in_order = store.order < later.order
    shared = [loop for loop in store.loops if loop in later.loops]
    if not in_order and not shared:
        return False
    begin = store.order if in_order else shared[-1].first
    return not any(
        begin < other.order < later.order
        and other.target == store.target
        and other.function is store.function
        and other.how == "assign"
        and not other.uses_old_value
        and dominates(program, other, later)
        for other in program.stores
        if other is not store
    )


def dominates(program: Program, first: Fact, later: Fact) -> bool:
    """Return True if the program always runs `first` before `later`: every block around `first` also contains
    `later`.
    """
    return all(
        program.inside(later.node, each)
        for each in program.ancestors(first.node)
        if isinstance(each, (cst.IndentedBlock, cst.ExceptHandler))
    )


def is_never_differentiated(
    program: Program, function: Function, seen: frozenset[Function] = frozenset()
) -> bool:
    """Return True if this file contains all calls to a function, and no backward pass uses their results."""
    if function in seen or not function.call_sites or function.name in program.passed_names:
        return False
    return all(_is_result_unused(program, site, seen | {function}) for site in function.call_sites)


def _is_result_unused(program: Program, site: CallSite, seen: frozenset[Function]) -> bool:
    caller = site.caller
    if caller.backward or caller.optimizer_step or any(loop.trains for loop in site.loops):
        return False
    if program.is_module_class(caller.class_name):
        return False
    targets = {
        each.target
        for each in program.stores
        if each.function is caller and program.inside(site.call, each.expression)
    }
    if any("." in each or not caller.owns(each) or is_used_in_backward(program, each) for each in targets):
        return False
    if any(
        call.method in {"backward", "manual_backward"} and program.inside(site.call, call.node)
        for call in program.calls
    ):
        return False
    is_returned = any(
        program.inside(site.call, each) or not targets.isdisjoint(names_in(each))
        for each in caller.returned_nodes
    )
    return not is_returned or is_never_differentiated(program, caller, seen)
