"""Determines whether a stored value is cleared, replaced, truncated or limited between two steps."""

import re

import libcst as cst

from legroom.diagnose.lint.flow.backward_uses import is_used_in_backward
from legroom.diagnose.lint.flow.facts import Fact, Function, LoopFact, StoreFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.retention.added_parts import added_parts
from legroom.diagnose.lint.flow.retention.limits import is_unlimited
from legroom.diagnose.lint.flow.steps import is_forward, is_step_loop, runs_every_step
from legroom.diagnose.lint.flow.syntax import (
    dotted,
    has_modulo,
    last_name,
    method_name,
    names_with_graph,
    path_of,
    receiver,
    root,
    walk,
)
from legroom.diagnose.lint.flow.values import ValueKind


def survives(
    program: Program, target: str, loop: LoopFact, *, unlimited: bool = False, monitored: bool = False
) -> bool:
    """Return True if the values stored under the name `target` survive an iteration of the loop. With `unlimited`,
    removing single entries does not count as a release. With `monitored`, a release that runs only every few steps does
    not count.
    """
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
        if monitored and _is_periodic(program, store):
            continue
        if store.target == target and (
            not store.uses_old_value
            or (is_shrunk(store) and not unlimited)
            or _may_be_detached_by_call(program, store)
        ):
            return False
        if target.startswith(f"{store.target}.") and not store.uses_old_value:
            return False
    if any(
        _within(release, loop) and release.target == target and not (unlimited and release.how == "shrink")
        for release in program.releases
    ):
        return False
    if _is_released_by_called(program, target, loop, unlimited=unlimited):
        return False
    return loop.function.owns(target) or not is_released(
        program, target, loop.function, loop, unlimited=unlimited
    )


def _is_released_by_called(program: Program, target: str, loop: LoopFact, *, unlimited: bool) -> bool:
    """Return True if a function that the loop calls, such as `flush()`, clears or replaces the values."""
    called = {
        function
        for function in program.functions.values()
        if function is not loop.function
        and not function.owns(target)
        and root(target) not in function.parameters
        and any(loop in site.loops or _is_called_in(site.caller, loop) for site in function.call_sites)
    }
    return any(
        each.target == target and each.function in called and not (unlimited and each.how == "shrink")
        for each in program.releases
    ) or any(
        each.target == target and each.how == "assign" and each.function in called and not each.uses_old_value
        for each in program.stores
    )


def _is_called_in(function: Function, loop: LoopFact) -> bool:
    return any(loop in site.loops for site in function.call_sites)


def is_initialization(program: Program, store: StoreFact) -> bool:
    """Return True if a value is assigned only once, as in `if history is None: history = output`."""
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
    h.detach()`.
    """
    expression = store.expression
    if added_parts(expression, store.target):
        return False
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
    """Return True if a called function may detach the value, as in `hidden = repackage(hidden)`."""
    if not isinstance(store.expression, cst.Call) or store.value.has_graph:
        return False
    return not (program.imports.qualified(store.expression.func) or "").startswith("torch.")


def is_length_limited(program: Program, store: StoreFact) -> bool:
    """Return True if a condition on the container's length, or on a counter, limits the number of stored values."""
    if _is_trimmed_cache(program, store):
        return True
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


def _is_trimmed_cache(program: Program, store: StoreFact) -> bool:
    """Return True for a cache of keys and values that is trimmed before it is stored, as in
    `self.k = k[:, :, -self.max_len:]`, in a file that does not train.

    Such a cache is used to generate text, with gradients disabled.
    """
    if not _CACHE.search(f"{store.function.class_name} {store.target}") or program.mentions(*_TRAINING):
        return False
    name = dotted(store.expression)
    made = [store.expression] + [
        each.expression for each in program.stores if each.function is store.function and each.target == name
    ]
    return any(
        isinstance(each, cst.Slice) and isinstance(each.lower, cst.UnaryOperation)
        for expression in made
        for each in walk(expression)
    )


_CACHE = re.compile(r"cache|kv|past", re.IGNORECASE)
_TRAINING = ("backward", "manual_backward", "training_step", "optim", "zero_grad", "compute_loss")


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
    """Return True for a condition such as `index < 8`, which limits a counter to a constant.

    A remainder such as `step % 8` is not a counter, because its values repeat.
    """
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


def is_released_elsewhere(program: Program, store: StoreFact, *, every_step: bool = False) -> bool:
    """Return True if other code releases a stored value.

    A running sum, a recurrent state or a list of graphs that no backward pass uses must be released in each step. If it
    is released only once per epoch, the graphs of the whole epoch stay alive. With `every_step`, this also applies to
    other lists.
    """
    is_sum = store.how == "augment" or (store.how in {"assign", "item"} and store.uses_old_value)
    collects_graphs = (
        store.how == "append" and store.value.has_graph and not is_used_in_backward(program, store.target)
    )
    return is_released(
        program,
        store.target,
        store.function,
        unlimited=is_unlimited(program, store),
        every_step=every_step or is_sum or collects_graphs,
        only_known=every_step or is_sum,
        monitored=is_monitored(program, store),
    )


def is_monitored(program: Program, store: StoreFact) -> bool:
    """Return True if a sum accumulates a quantity that no backward pass uses, such as a KL divergence that is only printed.
    No backward pass frees the graph of such a quantity.
    """
    if store.how != "augment" or not store.value.has_graph:
        return False
    return not any(
        is_used_in_backward(program, path)
        for path in (store.target, *names_with_graph(store.expression))
        if root(path) not in program.imports.full_names
    )


def _is_periodic(program: Program, fact: Fact) -> bool:
    """Return True if a statement runs only every few steps, as in `if step % 50 == 0: self.reset()`."""
    for each in program.ancestors(fact.node):
        if isinstance(each, cst.If) and has_modulo(each.test):
            return True
        if isinstance(each, (cst.FunctionDef, cst.For, cst.While)):
            return False
    return False


def is_released(
    program: Program,
    target: str,
    function: Function,
    within: LoopFact | None = None,
    *,
    unlimited: bool = False,
    every_step: bool = False,
    only_known: bool = False,
    monitored: bool = False,
) -> bool:
    """Return True if a value that outlives a function is cleared or replaced anywhere in the file, except at its
    initialization. With `every_step`, a release counts only if it runs in the loop with the backward pass. With
    `only_known`, calls in other files do not count. With `monitored`, the release must also run in every iteration of
    this loop.
    """
    name = last_name(target)
    plain = "." not in target
    for release in program.releases:
        if last_name(release.target) != name or _is_never_called(program, release):
            continue
        if unlimited and release.how == "shrink":
            continue
        if not _may_run_between_steps(
            program, release, function, within, every_step=every_step, only_known=only_known
        ):
            continue
        if _may_be_same(program, release.function, release.target, function, target):
            return True
    for store in program.stores:
        if store.how != "assign" or last_name(store.target) != name or store.function.name == "__init__":
            continue
        if _is_never_called(program, store) or is_initialization(program, store):
            continue
        if ("." not in store.target) is not plain:
            continue  # a variable with the same name as the attribute
        if not _may_be_same(program, store.function, store.target, function, target):
            continue
        if store.uses_old_value and (unlimited or not is_shrunk(store)):
            continue
        if not _may_run_between_steps(
            program, store, function, within, every_step=every_step, only_known=only_known
        ):
            continue
        if monitored and _is_called_periodically(program, store):
            continue
        first_made = not store.loops and (
            isinstance(store.function.node, cst.Module) or (plain and encloses(store.function, function))
        )
        if not first_made and store.function is not function:
            if plain and store.function.owns(store.target):
                continue  # a local variable of another function
            return True
        if store.function is function and not plain and (within is None or _within(store, within)):
            return True
    return False


def _is_called_periodically(program: Program, fact: Fact) -> bool:
    """Return True if the function that contains a statement is called only every few steps of a training loop."""
    calls = [call for call in program.calls if call.local is fact.function and call.loops]
    return any(call.loops[-1].trains for call in calls) and all(
        _is_periodic(program, call) for call in calls if call.loops[-1].trains
    )


def _may_run_between_steps(
    program: Program,
    release: Fact,
    function: Function,
    within: LoopFact | None,
    *,
    every_step: bool,
    only_known: bool,
) -> bool:
    """Return True if a release may run between two steps, and not only after the last step."""
    if release.function is function:
        return True
    once_per_epoch = _EPOCH_METHOD.search(release.function.name) and not release.function.backward
    if function.name in _BATCH_METHODS and once_per_epoch:
        return False
    around = _loops_around(program, function, frozenset(), only_known=only_known)
    around_release = _loops_around(program, release.function, frozenset(), only_known=only_known)
    if around is None or around_release is None:
        return True
    while within is not None:
        around = around | {within}
        within = within.outer
    if not around:  # for example a lambda that a hook calls
        return True
    if any(
        is_forward(program, loop.function)
        and any(each is loop.function for each in (release.function, *_callers(release.function)))
        for loop in around
    ):
        return True  # each forward pass of a decoder begins with new states
    steps = {
        loop for loop in around if every_step and loop.backward and not _contains_step(program, loop, around)
    }
    return not (steps or around).isdisjoint(around_release | frozenset(release.loops))


def _callers(function: Function) -> list[Function]:
    return [site.caller for site in function.call_sites]


def _contains_step(program: Program, loop: LoopFact, around: frozenset[LoopFact]) -> bool:
    """Return True if a loop contains another loop with a backward pass, as the loop over epochs contains the loop
    over batches.
    """
    for each in around:
        if not each.backward or each is loop:
            continue
        outer = each.outer
        while outer is not None:
            if outer is loop:
                return True
            outer = outer.outer
        callers = _loops_around(program, each.function, frozenset(), only_known=True) or frozenset()
        if each.function is not loop.function and loop in callers:
            return True
    return False


_BATCH_METHODS = frozenset(
    ["training_step", "on_train_batch_end", "on_train_batch_start", "on_after_backward"]
)
"""Methods that Lightning calls in every training step."""
_EPOCH_METHOD = re.compile(
    r"^on_(?:train|fit|validation|test)(?:_epoch)?_(?:start|end)$|^(?:on|training|validation)_epoch_(?:start|end)$"
)
"""Methods that Lightning calls once per epoch or run."""


def _loops_around(
    program: Program, function: Function, seen: frozenset[Function], *, only_known: bool
) -> frozenset[LoopFact] | None:
    """Return all loops in which a function is called, directly or through its callers.

    The result is None if other files may call the function, unless `only_known` is True.
    """
    if isinstance(function.node, cst.Module) or function in seen:
        return frozenset()
    if only_known and not function.call_sites:
        return frozenset()
    if not function.call_sites or function.name in program.passed_names:
        return None
    found: frozenset[LoopFact] = frozenset()
    for site in function.call_sites:
        outer = _loops_around(program, site.caller, seen | {function}, only_known=only_known)
        if outer is None:
            return None
        found = found.union(outer, site.loops)
    return found


def _may_be_same(program: Program, one: Function, path: str, other: Function, other_path: str) -> bool:
    """Return True if two paths with the same last component may refer to the same object, unlike `self.data` in two
    unrelated classes.
    """
    if (
        not (path.startswith("self.") and other_path.startswith("self."))
        or path.count(".") + other_path.count(".") > 2
    ):
        return True
    first, second = one.class_of_self or "", other.class_of_self or ""
    return first == second or program.inherits(first, second) or program.inherits(second, first)


def _is_never_called(program: Program, fact: Fact) -> bool:
    """Return True if no loop runs a statement of a method, although the file calls methods of its class."""
    function = fact.function
    known = program.classes.get(function.class_name or "")
    if known is None or function.name.startswith(("on_", "__")):
        return False
    if function.call_sites:
        return not any(map(is_step_loop, fact.loops)) and not any(
            site.loops or runs_every_step(program, site.caller) for site in function.call_sites
        )
    return any(each.call_sites for each in known.methods.values() if each.name != "__init__")


def encloses(outer: Function, inner: Function) -> bool:
    current: Function | None = inner
    while current is not None:
        if current is outer:
            return True
        current = current.outer
    return False


def _within(fact: Fact, loop: LoopFact) -> bool:
    return loop.first <= fact.order <= loop.last
