"""Determines whether a stored value outlives its step, so that memory grows with each step."""

import re

import libcst as cst

from legroom.diagnose.lint.flow.facts import CallSite, Fact, Function, LoopFact, StoreFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import (
    dotted,
    last_name,
    method_name,
    names_in,
    path_of,
    receiver,
    root,
    walk,
)
from legroom.diagnose.lint.flow.values import EVALUATION_NAMES, NUMBER_ATTRIBUTES, ValueKind

STEP_FUNCTIONS = frozenset(
    {
        "training_step",
        "validation_step",
        "test_step",
        "predict_step",
        "train_step",
        "on_train_batch_end",
        "on_validation_batch_end",
        "on_after_backward",
        "on_step_end",
        "on_batch_end",
        "train_batch",
        "compute_loss",
        "prediction_step",
    }
)
"""Methods that frameworks call in every step."""


def is_step_loop(loop: LoopFact) -> bool:
    """Return True if each iteration of a loop is a training or evaluation step. The iterations over a model's layers
    are not steps."""
    return loop.trains or (loop.runs_model and loop.function.name not in {"forward", "__init__"})


def iterates_data(loop: LoopFact) -> bool:
    """Return True if a loop trains, iterates over a loader, or is in a function named like an evaluation."""
    return (
        loop.trains
        or loop.iterable.kind is ValueKind.LOADER
        or bool(EVALUATION_NAMES.search(loop.function.name))
    )


def is_innermost_step_loop(program: Program, loop: LoopFact) -> bool:
    """Return True for a loop over steps that contains no other loop over steps. A loop over epochs is not innermost."""
    if not (is_step_loop(loop) or loop.iterable.kind is ValueKind.LOADER):
        return False
    return not any(
        other.outer is loop and (is_step_loop(other) or other.iterable.kind is ValueKind.LOADER)
        for other in program.loops
    ) and not any(
        call.local is not None and loop in call.loops and has_step_loop(program, call.local)
        for call in program.calls
    )


def has_step_loop(program: Program, function: Function, seen: frozenset[Function] = frozenset()) -> bool:
    """Return True if a function, or one that it calls, contains a loop over steps."""
    if function in seen:
        return False
    if any(loop.function is function and is_step_loop(loop) for loop in program.loops):
        return True
    called = {call.local for call in program.calls if call.function is function and call.local is not None}
    return any(has_step_loop(program, each, seen | {function}) for each in called)


def runs_every_step(program: Program, function: Function, seen: frozenset[Function] = frozenset()) -> bool:
    """Return True if a function is called in every step."""
    if isinstance(function.node, cst.Module) or function in seen or function.name == "__init__":
        return False
    if function.name in STEP_FUNCTIONS:
        return True
    if is_forward(program, function):
        return True
    if function.backward and not function.call_sites:  # called from another file: a step or a closure
        return True
    return any(_is_repeated_call(program, site, function, seen) for site in function.call_sites)


def _is_repeated_call(
    program: Program, site: CallSite, function: Function, seen: frozenset[Function]
) -> bool:
    if any(is_step_loop(loop) for loop in site.loops):
        return True
    return runs_every_step(program, site.caller, seen | {function})


def outlives_its_step(program: Program, store: StoreFact) -> LoopFact | Function | None:
    """Return the loop that adds to the stored values, or the function that adds to them in every step. Return None if
    the values are released."""
    if store.bounded or is_length_limited(program, store):
        return None
    for loop in reversed(store.loops):
        if (
            is_step_loop(loop)
            and survives(program, store.target, loop)
            and not feeds_backward(program, store.target, store.function, loop)
            and not _is_within_a_step(program, store, loop)
            and not _is_returned_with_graph(program, store, loop)
        ):
            return loop
    if (
        is_local(store)
        or not runs_every_step(program, store.function)
        or is_released_elsewhere(program, store)
        or ends_with_enclosing_call(program, store)
    ):
        return None
    return store.function if _survives_in_callers(program, store) else None


def ends_with_enclosing_call(program: Program, store: StoreFact) -> bool:
    """Return True if the container is a local variable of the enclosing function, and each call to that function creates
    a new one. The container lives longer if the inner function is returned, passed on or called in a loop over steps."""
    inner, owner = store.function, store.function.outer
    while owner is not None and not owner.owns(store.target):
        owner = owner.outer
    if owner is None or isinstance(owner.node, cst.Module):
        return False
    made_in = {loop for site in owner.call_sites for loop in site.loops}
    if inner.call_sites and all(site.loops and site.loops[-1] in made_in for site in inner.call_sites):
        return True  # each step creates a new container
    called = {id(site.call.func) for site in inner.call_sites}
    uses = [
        each
        for each in walk(owner.body)
        if isinstance(each, cst.Name)
        and each.value == inner.name
        and id(each) not in called
        and not isinstance(program.parent.get(each), cst.FunctionDef)
    ]
    if uses:
        return all(_is_called_only(program, each) for each in uses) and not any(
            is_step_loop(loop) for loop in _loops_within(program, owner, inner)
        )
    return not any(
        is_step_loop(loop) and _encloses(owner, loop.function)
        for site in inner.call_sites
        for loop in site.loops
        if site.caller is not inner
    )


def _is_called_only(program: Program, node: cst.Name) -> bool:
    """Return True if a function is passed to a function of this file that calls it and does not store it."""
    argument = program.parent.get(node)
    outer = program.parent.get(argument) if isinstance(argument, cst.Arg) else None
    call = next((each for each in program.calls if each.node is outer), None)
    if call is None or call.local is None:
        return False
    names = {name for name, each in call.local.receives(call.node) if each is argument}
    return names.isdisjoint(call.local.stored_parameters) and not any(
        each.function is call.local and "." in each.target and not names.isdisjoint(names_in(each.expression))
        for each in program.stores
    )


def _loops_within(program: Program, owner: Function, inner: Function) -> set[LoopFact]:
    """Return the loops in which a function is called during one call of another function."""
    running, added = {owner}, {owner}
    while added:
        added = {
            call.local for call in program.calls if call.function in added and call.local is not None
        } - running
        running |= added
    found: set[LoopFact] = set()
    pending, seen = [inner], {owner}
    while pending:
        function = pending.pop()
        if function in seen:
            continue
        seen.add(function)
        for site in function.call_sites:
            if site.caller in running:
                found.update(site.loops)
                pending.append(site.caller)
    return found


def _survives_in_callers(program: Program, store: StoreFact) -> bool:
    """Return True if a container that callers pass survives the step. A list that is created for one episode does not
    survive."""
    function, first = store.function, store.target.partition(".")[0]
    if first not in function.parameters or first == "cls":
        return True
    if first == "self":
        return not function.call_sites or any(object_survives(program, site) for site in function.call_sites)
    return _argument_survives(program, function, first, frozenset())


def _argument_survives(
    program: Program, function: Function, parameter: str, seen: frozenset[Function]
) -> bool:
    """Return True if the argument of a function is the same object in each step. Callers of a model in other files
    pass new lists of features."""
    if not function.call_sites:
        return not is_forward(program, function)
    if _keeps_default(program, function, parameter):
        return True
    return any(
        _survives_call(program, site, path_of(argument.value), seen | {function})
        for site in function.call_sites
        for name, argument in function.receives(site.call)
        if name == parameter
    )


def container_survives(program: Program, site: CallSite, store: StoreFact) -> bool:
    """Return True if the container that a call passes to a storing function is still alive in the next step."""
    function, parameter = store.function, root(store.target)
    if function.uses_default(site.call, parameter):
        return _keeps_default(program, function, parameter)
    given = [each.value for name, each in function.receives(site.call) if name == parameter]
    return not given or _survives_call(program, site, path_of(given[0]))


def _keeps_default(program: Program, function: Function, parameter: str) -> bool:
    """Return True if calls without this argument share the list or dict that is its default."""
    return (
        parameter in function.mutable_defaults
        and any(function.uses_default(site.call, parameter) for site in function.call_sites)
        and not any(
            each.function is function and each.target == parameter and each.how == "assign"
            for each in program.stores
        )
    )


def is_forward(program: Program, function: Function) -> bool:
    return function.name == "forward" and program.is_module_class(function.class_name)


def object_survives(program: Program, site: CallSite) -> bool:
    """Return True if the object of a method call survives the next step. An unknown object is assumed to survive."""
    path = path_of(receiver(site.call))
    if path is None or path in {"self", "cls"}:
        return True
    for loop in site.loops:
        if root(path) in loop.bound:  # for callback in callbacks: callback.log(loss)
            path = loop.iterable_path or "self"
    return _survives_call(program, site, path)


def _survives_call(
    program: Program, site: CallSite, path: str | None, seen: frozenset[Function] = frozenset()
) -> bool:
    """Return True if the value that a caller passes is still alive after the caller's next step."""
    if path is None or site.caller in seen:
        return False
    for loop in reversed(site.loops):
        if survives(program, path, loop):
            if is_step_loop(loop) and not feeds_backward(program, path, site.caller, loop):
                return True
        else:
            return False
    first = root(path)
    if first in site.caller.parameters and first not in {"self", "cls"} and "." not in path:
        return _argument_survives(program, site.caller, first, seen)
    return not site.caller.owns(path)


def _is_within_a_step(program: Program, store: StoreFact, loop: LoopFact) -> bool:
    """Return True if all iterations of a loop are part of one step. In that case, the outer loop runs backward once after the
    loop and releases the value (`parts[task] = loss` next to `total = total + loss`)."""
    step = loop.outer
    if step is None or iterates_data(loop) or survives(program, store.target, step):
        return False
    return any(
        call.method in {"backward", "manual_backward"}
        and call.order > loop.last
        and call.loops[-1:] == (step,)
        for call in program.calls
    )


def _is_returned_with_graph(program: Program, store: StoreFact, loop: LoopFact) -> bool:
    """Return True if a function that neither trains nor evaluates returns its results with their graph."""
    if iterates_data(loop):
        return False
    names = {store.target, root(store.target)} - {"self"}
    for each in program.stores:
        if each.function is store.function and names & names_in(each.expression):
            names |= {each.target, root(each.target)} - {"self"}  # outputs.features = features
    if not any(names & names_in(each) for each in store.function.returned_nodes):
        return False
    call_sites = store.function.call_sites
    return not call_sites or not all(
        _is_only_inspected(program, site.caller, site.call) for site in call_sites
    )


def _is_only_inspected(program: Program, function: Function, node: cst.CSTNode, depth: int = 0) -> bool:
    """Return True if a result is only printed, compared or converted to a number, without a backward pass."""
    for parent in program.ancestors(node):
        if isinstance(parent, (cst.FormattedStringExpression, cst.Comparison)):
            return True
        if isinstance(parent, cst.Attribute):
            if parent.attr.value in NUMBER_ATTRIBUTES:
                return True
            continue
        if isinstance(parent, cst.Call):
            if method_name(parent) in {"item", "tolist", "format"} or dotted(parent.func) in _INSPECTING:
                return True
            if program.inside(node, parent.func):  # samples.mean(0).tolist()
                continue
            return False
        if isinstance(parent, cst.Assign) and depth == 0:
            names = {path for each in parent.targets if (path := dotted(each.target)) is not None}
            read = [
                each
                for each in walk(function.body, into_functions=False)
                if dotted(each) in names and not isinstance(program.parent.get(each), cst.AssignTarget)
            ]
            return bool(names) and all(
                _is_only_inspected(program, function, each, depth + 1) for each in read
            )
        if isinstance(parent, cst.SimpleStatementLine):
            return isinstance(parent.body[0], cst.Expr) and parent.body[0].value is node
    return False


_INSPECTING = {"print", "float", "int", "str", "round", "format", "repr"}


def is_local(store: StoreFact) -> bool:
    """Return True if the stored value is released when the function returns. A rebound name or parameter is local."""
    if store.how in {"assign", "augment"} and "." not in store.target:
        return store.target not in store.function.nonlocal_names
    return store.function.owns(store.target)


def survives(program: Program, target: str, loop: LoopFact) -> bool:
    """Return True if the content of a path survives an iteration of the loop."""
    if any(
        target == bound or target.startswith(f"{bound}.")
        for each in program.loops
        if each is loop or (each.function is loop.function and loop.first <= each.first <= loop.last)
        for bound in each.bound
    ):
        return False
    for store in program.stores:
        if store.how == "item" and store.target == target and _within(store, loop):
            covers_all = store.varying_key or is_shrunk(store) or _may_be_detached_by_call(program, store)
            if store.uses_old_value and covers_all and not store.value.has_graph:
                return False  # states[i] = states[i].detach()
            continue
        if not _within(store, loop) or store.how != "assign" or is_initialization(program, store):
            continue
        if store.target == target and (
            not store.uses_old_value or is_shrunk(store) or _may_be_detached_by_call(program, store)
        ):
            return False
        if target.startswith(f"{store.target}.") and not store.uses_old_value:
            return False
    if any(_within(release, loop) and release.target == target for release in program.releases):
        return False
    if _is_released_by_called(program, target, loop):
        return False
    return loop.function.owns(target) or not is_released(program, target, loop.function, loop)


def _is_released_by_called(program: Program, target: str, loop: LoopFact) -> bool:
    """Return True if a function called in the loop, such as `flush()`, clears or replaces a non-local variable."""
    called = {
        function
        for function in program.functions.values()
        if function is not loop.function
        and not function.owns(target)
        and root(target) not in function.parameters
        and any(loop in site.loops or _is_called_in(site.caller, loop) for site in function.call_sites)
    }
    return any(each.target == target and each.function in called for each in program.releases) or any(
        each.target == target and each.how == "assign" and each.function in called and not each.uses_old_value
        for each in program.stores
    )


def _is_called_in(function: Function, loop: LoopFact) -> bool:
    return any(loop in site.loops for site in function.call_sites)


def is_initialization(program: Program, store: StoreFact) -> bool:
    """Return True if a value is assigned only once and not in every step, as in `if history is None: history =
    output`."""
    for each in program.ancestors(store.node):
        if isinstance(each, cst.If):
            test = program.source(each.test)
            if f"{store.target} is None" in test or f"not {store.target}" in test:
                return True
            if "not hasattr(" in test and f'"{last_name(store.target)}"' in test.replace("'", '"'):
                return True
        elif isinstance(each, (cst.FunctionDef, cst.For, cst.While)):
            return False
    return False


def is_shrunk(store: StoreFact) -> bool:
    """Return True if a value is computed from itself without growing, as in `history = history[-100:]` or `h =
    h.detach()`."""
    expression = store.expression
    if isinstance(expression, cst.Subscript):
        return store.value.kind is not ValueKind.GRAPH  # a slice of a tensor has the whole graph
    if isinstance(expression, (cst.ListComp, cst.DictComp, cst.SetComp)) and expression.for_in.ifs:
        return True  # a filter
    if isinstance(expression, cst.Call) and method_name(expression) in {"detach", "clone", "data", "cpu"}:
        return not store.value.has_graph
    new_objects = (cst.ListComp, cst.GeneratorExp, cst.Tuple, cst.List)
    return (isinstance(expression, new_objects) and not store.value.has_graph) or (
        isinstance(expression, cst.Call)
        and not store.value.has_graph
        and dotted(expression.func) in {"tuple", "list"}
    )


def _may_be_detached_by_call(program: Program, store: StoreFact) -> bool:
    """Return True if a called function detaches the value, as in `hidden = repackage(hidden)`. An unknown function may
    also detach the value."""
    if not isinstance(store.expression, cst.Call) or store.value.has_graph:
        return False
    return not (program.imports.qualified(store.expression.func) or "").startswith("torch.")


def is_length_limited(program: Program, store: StoreFact) -> bool:
    """Return True if a condition on the container's length, or on a counter, limits the store."""
    inner: cst.CSTNode = store.node
    for each in program.ancestors(store.node):
        if isinstance(each, (cst.If, cst.While)) and inner is not each.orelse and _limits(each.test, store):
            return True
        if isinstance(each, cst.If) and inner is each.body and _is_below_constant(each.test):
            return True
        if isinstance(each, (cst.FunctionDef, cst.For, cst.While)):
            return False
        inner = each
    return False


def _limits(test: cst.BaseExpression, store: StoreFact) -> bool:
    measured: list[cst.BaseExpression | None] = []
    for node in walk(test):
        if isinstance(node, cst.Call) and dotted(node.func) == "len":
            measured.extend(each.value for each in node.args)
        elif isinstance(node, cst.Call) and method_name(node) == "size":  # saved["images"].size(0) < 10
            measured.append(receiver(node))
        elif isinstance(node, cst.Attribute) and node.attr.value == "shape":
            measured.append(node.value)
    return any(path_of(each) == store.target for each in measured)


def _is_below_constant(test: cst.BaseExpression) -> bool:
    """Return True for `index < 8`: a counter with a constant upper limit. The remainder of a division is not a
    counter."""
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And):
        return _is_below_constant(test.left) or _is_below_constant(test.right)
    if not isinstance(test, cst.Comparison) or len(test.comparisons) != 1 or dotted(test.left) is None:
        return False
    operator, limit = test.comparisons[0].operator, test.comparisons[0].comparator
    if not isinstance(operator, (cst.LessThan, cst.LessThanEqual, cst.Equal)):
        return False
    path = dotted(limit) or ""
    is_constant = isinstance(limit, cst.Integer) or (bool(path) and last_name(path).isupper())
    return is_constant and _COUNTER.search(last_name(dotted(test.left) or "")) is not None


_COUNTER = re.compile(
    r"^(?:i|j|k|n|it|b)$|idx|index|step|iter|batch|count|num|epoch|seen|saved", re.IGNORECASE
)


def is_released_elsewhere(program: Program, store: StoreFact) -> bool:
    return is_released(program, store.target, store.function)


def is_released(program: Program, target: str, function: Function, within: LoopFact | None = None) -> bool:
    """Return True if a value that outlives a function is cleared or replaced anywhere in the file, except at its initialization."""
    name = last_name(target)
    plain = "." not in target
    for release in program.releases:
        if last_name(release.target) != name or _is_never_called(program, release.function):
            continue
        if not _may_run_between_steps(program, release, function, within):
            continue
        if _may_be_same(program, release.function, release.target, function, target):
            return True
    for store in program.stores:
        if store.how != "assign" or last_name(store.target) != name or store.function.name == "__init__":
            continue
        if _is_never_called(program, store.function) or is_initialization(program, store):
            continue
        if ("." not in store.target) is not plain:
            continue  # a variable with the same name as the attribute
        if not _may_be_same(program, store.function, store.target, function, target):
            continue
        if store.uses_old_value and not is_shrunk(store):
            continue
        if not _may_run_between_steps(program, store, function, within):
            continue
        first_made = not store.loops and (
            isinstance(store.function.node, cst.Module) or (plain and _encloses(store.function, function))
        )
        if not first_made and store.function is not function:
            if plain and store.function.owns(store.target):
                continue  # a local variable of another function
            return True
        if store.function is function and not plain and (within is None or _within(store, within)):
            return True
    return False


def _may_run_between_steps(
    program: Program, release: Fact, function: Function, within: LoopFact | None
) -> bool:
    """Return True if a release may run between two steps of a function or loop. A queue that is emptied after the last step
    is not released between steps."""
    if release.function is function:
        return True
    around = _loops_around(program, function, frozenset())
    around_release = _loops_around(program, release.function, frozenset())
    if around is None or around_release is None:
        return True
    while within is not None:
        around = around | {within}
        within = within.outer
    if not around:  # for example a lambda that a hook calls
        return True
    return not around.isdisjoint(around_release | frozenset(release.loops))


def _loops_around(
    program: Program, function: Function, seen: frozenset[Function]
) -> frozenset[LoopFact] | None:
    """Return all loops in which a function is called, directly or through its callers. Return None if other code may
    call the function."""
    if isinstance(function.node, cst.Module) or function in seen:
        return frozenset()
    if not function.call_sites or function.name in program.passed_names:
        return None
    found: frozenset[LoopFact] = frozenset()
    for site in function.call_sites:
        outer = _loops_around(program, site.caller, seen | {function})
        if outer is None:
            return None
        found = found.union(outer, site.loops)
    return found


def _may_be_same(program: Program, one: Function, path: str, other: Function, other_path: str) -> bool:
    """Return True if two paths with the same last name may refer to the same object. `self.data` in two unrelated
    classes refers to different objects."""
    if (
        not (path.startswith("self.") and other_path.startswith("self."))
        or path.count(".") + other_path.count(".") > 2
    ):
        return True
    first, second = one.class_name or "", other.class_name or ""
    return first == second or program.inherits(first, second) or program.inherits(second, first)


def _is_never_called(program: Program, function: Function) -> bool:
    """Return True if a `reset` method is never called, or is called only before the loop, although other methods of its class
    are called."""
    known = program.classes.get(function.class_name or "")
    if known is None or function.name.startswith(("on_", "__")):
        return False
    if function.call_sites:
        return not any(site.loops or runs_every_step(program, site.caller) for site in function.call_sites)
    return any(each.call_sites for each in known.methods.values() if each.name != "__init__")


def _encloses(outer: Function, inner: Function) -> bool:
    current: Function | None = inner
    while current is not None:
        if current is outer:
            return True
        current = current.outer
    return False


def feeds_backward(program: Program, target: str, function: Function, loop: LoopFact) -> bool:
    """Return True if values are accumulated for a backward pass after the loop."""
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
    """Return True if a backward pass in the file starts from this name or a value computed from it."""
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


def derived_names(program: Program, target: str) -> set[str]:
    """Return the last names of a path and of all values in the file that are computed from it. Values with the same
    last name count as the same value."""
    names = {last_name(target)}
    for _ in range(4):
        before = len(names)
        for function in program.functions.values():  # results of functions, and of models
            if any(names & {last_name(path) for path in names_in(each)} for each in function.returned_nodes):
                names.add(function.name)
        for loop in program.loops:  # for log_prob, reward in zip(agent.log_probs, rewards)
            iterable = names_in(loop.node.iter) if isinstance(loop.node, cst.For) else set()
            names |= loop.bound if names & {last_name(path) for path in iterable} else set()
        names |= {
            last_name(each.target)
            for each in program.stores
            if each.how != "item" and names & {last_name(path) for path in names_in(each.expression)}
        }
        if len(names) == before:
            break
    return names


def _returned_to_backward(program: Program, function: Function, wanted: set[str]) -> bool:
    """Return True if a caller runs backward through the function's result."""
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
    """Return True if a name may still refer to the stored value at a later position. The `loss` of a validation loop is not
    the `loss` of an earlier loop."""
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
    """Return True if the program always runs `first` before it reaches `later`. In that case, all branches around
    `first` also contain `later`."""
    return all(
        program.inside(later.node, each)
        for each in program.ancestors(first.node)
        if isinstance(each, (cst.IndentedBlock, cst.ExceptHandler))
    )


def _within(fact: Fact, loop: LoopFact) -> bool:
    return loop.first <= fact.order <= loop.last


def is_in_step_code(program: Program, fact: Fact) -> bool:
    """Return True if the code of a fact runs in every training step."""
    return any(is_step_loop(loop) for loop in fact.loops) or runs_every_step(program, fact.function)
