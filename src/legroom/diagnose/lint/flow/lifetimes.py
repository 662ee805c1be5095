"""How long things live: whether what is stored outlives its step, so that more is alive after each one."""

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
from legroom.diagnose.lint.flow.values import EVALUATION_NAMES, ValueKind

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
"""What frameworks call with every step."""


def is_step_loop(loop: LoopFact) -> bool:
    """A loop whose rounds are steps of a training or an evaluation; a loop over a model's own layers is none."""
    return loop.trains or (loop.computes and loop.function.name not in {"forward", "__init__"})


def is_of_data(loop: LoopFact) -> bool:
    """A loop that trains, or that goes through a data set or evaluates by what it is called."""
    return (
        loop.trains
        or loop.iterates.kind is ValueKind.LOADER
        or bool(EVALUATION_NAMES.search(loop.function.name))
    )


def repeats(program: Program, function: Function, seen: frozenset[Function] = frozenset()) -> bool:
    """Whether a function is called anew with every step."""
    if isinstance(function.node, cst.Module) or function in seen or function.name == "__init__":
        return False
    if function.name in STEP_FUNCTIONS:
        return True
    if function.name == "forward" and program.is_module_class(function.class_name):
        return True
    if function.backward and not function.sites:  # called from elsewhere: a step, a closure
        return True
    return any(_is_repeated_site(program, site, function, seen) for site in function.sites)


def _is_repeated_site(
    program: Program, site: CallSite, function: Function, seen: frozenset[Function]
) -> bool:
    if any(is_step_loop(loop) for loop in site.loops):
        return True
    return repeats(program, site.caller, seen | {function})


def outlives_its_step(program: Program, store: StoreFact) -> LoopFact | Function | None:
    """The loop (or the function called with every step) after each round of which one more is kept; None if let go."""
    if store.bounded or is_limited(program, store):
        return None
    for loop in reversed(store.loops):
        if (
            is_step_loop(loop)
            and survives(program, store.target, loop)
            and not feeds_backward(program, store.target, store.function, loop)
            and not _is_within_a_step(program, store, loop)
            and not _is_handed_back(program, store, loop)
        ):
            return loop
    if is_own(store) or not repeats(program, store.function) or is_let_go_elsewhere(program, store):
        return None
    return store.function if _is_kept_by_callers(program, store) else None


def _is_kept_by_callers(program: Program, store: StoreFact) -> bool:
    """Whether a container that a function was given stays: `select(state, log_probs)` with a list of that episode does not."""
    function, first = store.function, store.target.partition(".")[0]
    if first not in function.parameters or first == "cls" or not function.sites:
        return True
    if first == "self":
        return any(object_stays(program, site) for site in function.sites)
    return any(
        _stays(program, site, path_of(argument.value))
        for site in function.sites
        for name, argument in function.receives(site.call)
        if name == first
    )


def object_stays(program: Program, site: CallSite) -> bool:
    """Whether the object whose method is called there is still there after the next step; what is not in sight may well be."""
    path = path_of(receiver(site.call))
    if path is None or path in {"self", "cls"}:
        return True
    for loop in site.loops:
        if root(path) in loop.bound:  # for callback in callbacks: callback.log(loss)
            path = loop.iterated or "self"
    return _stays(program, site, path)


def _stays(program: Program, site: CallSite, path: str | None) -> bool:
    """Whether what a caller gives is still there after its next step."""
    if path is None:
        return False
    for loop in reversed(site.loops):
        if survives(program, path, loop):
            if is_step_loop(loop) and not feeds_backward(program, path, site.caller, loop):
                return True
        else:
            return False
    return not site.caller.owns(path)


def _is_within_a_step(program: Program, store: StoreFact, loop: LoopFact) -> bool:
    """Whether all rounds of a loop are parts of one step: the loop around it goes backward once, behind it, and lets go what is stored
    (`parts[task] = loss` beside `total = total + loss`)."""
    step = loop.outer
    if step is None or is_of_data(loop) or survives(program, store.target, step):
        return False
    return any(
        call.method in {"backward", "manual_backward"}
        and call.order > loop.last
        and call.loops[-1:] == (step,)
        for call in program.calls
    )


def _is_handed_back(program: Program, store: StoreFact, loop: LoopFact) -> bool:
    """Whether a function that neither trains nor evaluates gives its results, with their graph, to its caller."""
    if is_of_data(loop):
        return False
    names = {store.target, root(store.target)} - {"self"}
    for each in program.stores:
        if each.function is store.function and names & names_in(each.expression):
            names |= {each.target, root(each.target)} - {"self"}  # outputs.features = features
    if not any(names & names_in(each) for each in store.function.returned_nodes):
        return False
    sites = store.function.sites
    return not sites or not all(_is_looked_at(program, site.caller, site.call) for site in sites)


def _is_looked_at(program: Program, function: Function, node: cst.CSTNode, depth: int = 0) -> bool:
    """Whether a result is only printed, compared or made a number: no one goes backward through it."""
    for parent in program.ancestors(node):
        if isinstance(parent, (cst.FormattedStringExpression, cst.Comparison)):
            return True
        if isinstance(parent, cst.Call):
            return dotted(parent.func) in _LOOKING or method_name(parent) in {"item", "tolist", "format"}
        if isinstance(parent, cst.Assign) and depth == 0:
            names = {path for each in parent.targets if (path := dotted(each.target)) is not None}
            read = [
                each
                for each in walk(function.body, into_functions=False)
                if dotted(each) in names and not isinstance(program.parent.get(each), cst.AssignTarget)
            ]
            return bool(names) and all(_is_looked_at(program, function, each, depth + 1) for each in read)
        if isinstance(parent, cst.SimpleStatementLine):
            return isinstance(parent.body[0], cst.Expr) and parent.body[0].value is node
    return False


_LOOKING = {"print", "float", "int", "str", "round", "format", "repr"}


def is_own(store: StoreFact) -> bool:
    """Whether what is stored dies with the call: a name that is bound anew is the function's, a parameter as well."""
    if store.how in {"assign", "augment"} and "." not in store.target:
        return store.target not in store.function.declared_outside
    return store.function.owns(store.target)


def survives(program: Program, target: str, loop: LoopFact) -> bool:
    """Whether what a path holds stays when the loop goes round."""
    if any(target == bound or target.startswith(f"{bound}.") for bound in loop.bound):
        return False
    for store in program.stores:
        if store.how == "item" and store.target == target and _within(store, loop):
            all_of_them = store.varying_key or is_cut(store) or _is_handed_over(program, store)
            if store.uses_itself and all_of_them and not store.value.carries_graph:
                return False  # states[i] = states[i].detach()
            continue
        if not _within(store, loop) or store.how != "assign" or is_first_making(program, store):
            continue
        if store.target == target and (
            not store.uses_itself or is_cut(store) or _is_handed_over(program, store)
        ):
            return False
        if target.startswith(f"{store.target}.") and not store.uses_itself:
            return False
    if any(_within(release, loop) and release.target == target for release in program.releases):
        return False
    if _is_let_go_by_called(program, target, loop):
        return False
    return loop.function.owns(target) or not is_let_go(program, target, loop.function, loop)


def _is_let_go_by_called(program: Program, target: str, loop: LoopFact) -> bool:
    """Whether a function that the loop calls empties or replaces a variable that is not its own: `flush()`."""
    called = {
        function
        for function in program.functions.values()
        if function is not loop.function
        and not function.owns(target)
        and root(target) not in function.parameters
        and any(loop in site.loops or _is_called_in(site.caller, loop) for site in function.sites)
    }
    return any(each.target == target and each.function in called for each in program.releases) or any(
        each.target == target and each.how == "assign" and each.function in called and not each.uses_itself
        for each in program.stores
    )


def _is_called_in(function: Function, loop: LoopFact) -> bool:
    return any(loop in site.loops for site in function.sites)


def is_first_making(program: Program, store: StoreFact) -> bool:
    """`if history is None: history = output`: made once, not made anew."""
    for each in program.ancestors(store.node):
        if isinstance(each, cst.If):
            words = program.source(each.test)
            if f"{store.target} is None" in words or f"not {store.target}" in words:
                return True
            if "not hasattr(" in words and f'"{last_name(store.target)}"' in words.replace("'", '"'):
                return True
        elif isinstance(each, (cst.FunctionDef, cst.For, cst.While)):
            return False
    return False


def is_cut(store: StoreFact) -> bool:
    """`history = history[-100:]`, `h = h.detach()`: made from itself, but not more than it was."""
    expression = store.expression
    if isinstance(expression, cst.Subscript):
        return store.value.kind is not ValueKind.GRAPH  # a part of a tensor has the graph of all of it
    if isinstance(expression, (cst.ListComp, cst.DictComp, cst.SetComp)) and expression.for_in.ifs:
        return True  # those that are still wanted
    if isinstance(expression, cst.Call) and method_name(expression) in {"detach", "clone", "data", "cpu"}:
        return not store.value.carries_graph
    made_anew = (cst.ListComp, cst.GeneratorExp, cst.Tuple, cst.List)
    return (isinstance(expression, made_anew) and not store.value.carries_graph) or (
        isinstance(expression, cst.Call)
        and not store.value.carries_graph
        and dotted(expression.func) in {"tuple", "list"}
    )


def _is_handed_over(program: Program, store: StoreFact) -> bool:
    """`hidden = repackage(hidden)`: it detaches, or is not in sight and may well do so."""
    if not isinstance(store.expression, cst.Call) or store.value.carries_graph:
        return False
    return not (program.imports.qualified(store.expression.func) or "").startswith("torch.")


def is_limited(program: Program, store: StoreFact) -> bool:
    """Whether it is stored under a condition on the container's length."""
    for each in program.ancestors(store.node):
        if isinstance(each, cst.If):
            for node in walk(each.test):
                lengths = node.args if isinstance(node, cst.Call) and dotted(node.func) == "len" else ()
                if any(path_of(each.value) == store.target for each in lengths):
                    return True
        elif isinstance(each, (cst.FunctionDef, cst.For, cst.While)):
            return False
    return False


def is_let_go_elsewhere(program: Program, store: StoreFact) -> bool:
    return is_let_go(program, store.target, store.function)


def is_let_go(program: Program, target: str, function: Function, around: LoopFact | None = None) -> bool:
    """Whether what outlives a function is emptied or replaced anywhere in the file but where it is first made."""
    name = last_name(target)
    plain = "." not in target
    for release in program.releases:
        if last_name(release.target) != name or _is_never_called(program, release.function):
            continue
        if _may_be_same(program, release.function, release.target, function, target):
            return True
    for store in program.stores:
        if store.how != "assign" or last_name(store.target) != name or store.function.name == "__init__":
            continue
        if _is_never_called(program, store.function) or is_first_making(program, store):
            continue
        if ("." not in store.target) is not plain:
            continue  # a variable that is called like the attribute
        if not _may_be_same(program, store.function, store.target, function, target):
            continue
        if store.uses_itself and not is_cut(store):
            continue
        first_made = not store.loops and (
            isinstance(store.function.node, cst.Module) or (plain and _encloses(store.function, function))
        )
        if not first_made and store.function is not function:
            if plain and store.function.owns(store.target):
                continue  # another function's own variable of that name
            return True
        if store.function is function and not plain and (around is None or _within(store, around)):
            return True
    return False


def _may_be_same(program: Program, one: Function, path: str, other: Function, its: str) -> bool:
    """Whether two paths of the same last name may lead to the same thing: `self.data` of two unrelated classes does not."""
    if not (path.startswith("self.") and its.startswith("self.")) or path.count(".") + its.count(".") > 2:
        return True
    first, second = one.class_name or "", other.class_name or ""
    return first == second or program.inherits(first, second) or program.inherits(second, first)


def _is_never_called(program: Program, function: Function) -> bool:
    """A `reset` that no one calls, or only once before the loop, while other methods of its class are called here."""
    known = program.classes.get(function.class_name or "")
    if known is None or function.name.startswith(("on_", "__")):
        return False
    if function.sites:
        return not any(site.loops or repeats(program, site.caller) for site in function.sites)
    return any(each.sites for each in known.methods.values() if each.name != "__init__")


def _encloses(outer: Function, inner: Function) -> bool:
    current: Function | None = inner
    while current is not None:
        if current is outer:
            return True
        current = current.outer
    return False


def feeds_backward(program: Program, target: str, function: Function, loop: LoopFact) -> bool:
    """Whether a sum or list of a function is collected in order to go backward through it after the loop."""
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
            continue  # over before the loop began
        if names_in(call.node) & wanted:
            return True
    return _returned_to_backward(program, function, wanted)


def goes_backward_anywhere(program: Program, target: str) -> bool:
    """Whether a backward pass in the file starts from something that has this name or is made of it."""
    names = {last_name(target)}
    for _ in range(4):
        for function in program.functions.values():  # what a function gives back, and what calls a model
            if any(names & {last_name(path) for path in names_in(each)} for each in function.returned_nodes):
                if function.name == "forward" and program.is_module_class(function.class_name):
                    return True
                names.add(function.name)
        for loop in program.loops:  # for log_prob, reward in zip(agent.log_probs, rewards)
            over = names_in(loop.node.iter) if isinstance(loop.node, cst.For) else set()
            names |= loop.bound if names & {last_name(path) for path in over} else set()
        names |= {
            last_name(each.target)
            for each in program.stores
            if each.how != "item" and names & {last_name(path) for path in names_in(each.expression)}
        }
    return any(
        call.method in {"backward", "manual_backward"}
        and names & {last_name(path) for path in names_in(call.node)}
        for call in program.calls
    )


def _returned_to_backward(program: Program, function: Function, wanted: set[str]) -> bool:
    """Whether a caller goes backward through what the function returns."""
    if not any(names_in(each) & wanted for each in function.returned_nodes):
        return False
    for site in function.sites:
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
    """Whether what is stored may still be there later: `loss` of a validation is not what an earlier loop went backward from."""
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
        and not other.uses_itself
        and _is_passed_by(program, other, later)
        for other in program.stores
        if other is not store
    )


def _is_passed_by(program: Program, first: Fact, later: Fact) -> bool:
    """Whether who comes to `later` has come through `first`: all branches around the first are around both."""
    return all(
        program.inside(later.node, each)
        for each in program.ancestors(first.node)
        if isinstance(each, (cst.IndentedBlock, cst.ExceptHandler))
    )


def _within(fact: Fact, loop: LoopFact) -> bool:
    return loop.first <= fact.order <= loop.last


def is_in_step_code(program: Program, fact: Fact) -> bool:
    """Whether something happens with every step."""
    return any(is_step_loop(loop) for loop in fact.loops) or repeats(program, fact.function)
