"""Determines which models the optimizers of a file train, and all names that refer to the same model (LG201)."""

import libcst as cst

from legroom.diagnose.lint.flow.facts import Function
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import dotted, method_name, names_in, receiver, root, walk
from legroom.diagnose.lint.flow.values import SELF_METHODS, ValueKind


def optimized_names(program: Program, sources: list[cst.CSTNode]) -> set[str]:
    """Return the names of all objects from which optimizers are created.

    `sources` contains the expressions that create the optimizers.
    """
    sources = list(sources)
    for call in program.calls:  # Adam(self.trained_parameters())
        if call.local is not None and any(program.inside(call.node, each) for each in sources):
            sources.append(call.local.body)
    names = {name for each in sources for name in names_in(each)}
    names -= {name for each in sources for name in _owners_of_parts(each)} - {
        path for each in sources for path in _optimized_models(each)
    }
    for _ in range(4):
        found = {
            name
            for each in program.stores
            if each.target in names
            for copied in (_copied_names(program, each.expression),)
            for name in names_in(each.expression)
            if root(name) not in copied
        }
        for loop in program.loops:
            if isinstance(loop.node, cst.For) and not names.isdisjoint(loop.bound):
                found |= names_in(loop.node.iter)
        if found <= names:
            break
        names |= found
    names -= {"self", *program.imports.full_names}
    return names | ({"self"} if _optimizes_itself(sources) else set())


def _copied_names(program: Program, node: cst.BaseExpression) -> set[str]:
    """Return the models whose configuration or weights an expression copies, such as `teacher` for
    `Student(teacher.config)`.

    For `build_student(teacher)`, return `teacher` if this function only reads the configuration of the teacher or
    copies its weights.
    """
    passed = {
        path
        for call in program.calls
        if call.local is not None and program.inside(call.node, node)
        for name, argument in call.local.receives(call.node)
        if (path := dotted(argument.value)) is not None and _is_only_copied(program, call.local.body, name)
    }
    read = {each.value for each in walk(node) if isinstance(each, cst.Name)}
    return passed | {name for name in read if _is_only_copied(program, node, name, _MAX_DEPTH)}


def _is_only_copied(program: Program, scope: cst.CSTNode, name: str, depth: int = 0) -> bool:
    """Return True if code reads only the configuration and the state dict of a model."""
    for node in walk(scope):
        if not isinstance(node, cst.Name) or node.value != name:
            continue
        read: list[str] = []
        current: cst.CSTNode = node
        parent = program.parent.get(node)
        while isinstance(parent, (cst.Attribute, cst.Subscript)) or (
            isinstance(parent, cst.Call) and parent.func is current
        ):
            if isinstance(parent, cst.Attribute):
                read.append(parent.attr.value if parent.attr is not current else "config")
            current, parent = parent, program.parent.get(parent)
        if not _COPIED.isdisjoint(read) or isinstance(parent, cst.AssignTarget):
            continue
        target = dotted(parent.targets[0].target) if isinstance(parent, cst.Assign) else None
        if target is None or "." in target or depth >= _MAX_DEPTH:
            return False
        if not _is_only_copied(program, scope, target, depth + 1):
            return False
    return True


_COPIED = {"config", "state_dict"}
_MAX_DEPTH = 3


def _optimized_models(source: cst.CSTNode) -> set[str]:
    """Return the models whose parameters an optimizer receives, such as `model.student` for
    `Adam(model.student.parameters())`.
    """
    return {
        path
        for node in walk(source)
        if isinstance(node, cst.Call) and method_name(node) in {"parameters", "named_parameters"}
        if (path := dotted(receiver(node))) is not None
    }


def _owners_of_parts(source: cst.CSTNode) -> set[str]:
    """Return the models of which an optimizer receives only a submodule, such as `model` for
    `Adam(model.student.parameters())`. A model is omitted if `source` also uses it in another way.
    """
    parts = {path.rpartition(".")[0] for path in _optimized_models(source) if path.count(".") == 1}
    reads = [node.value for node in walk(source) if isinstance(node, cst.Name)]
    parameters = sorted(_optimized_models(source))
    return {
        each
        for each in parts
        if each != "self" and reads.count(each) == sum(path.startswith(f"{each}.") for path in parameters)
    }


def optimizers_of(program: Program, function: Function) -> list[cst.CSTNode]:
    """Return the expressions that create the optimizers whose `step` a function calls.

    If one of these optimizers is unknown, the result is empty.
    """
    found: list[cst.CSTNode] = []
    for call in program.calls:
        if (
            call.function is not function
            or call.method != "step"
            or call.receiver.kind is not ValueKind.OPTIMIZER
        ):
            continue
        made = optimizer_sources(program, function, dotted(receiver(call.node)))
        if not made:
            return []
        found += made
    return found


def optimizer_sources(program: Program, function: Function, path: str | None) -> list[cst.CSTNode]:
    """Return the expressions that create the optimizer to which a path refers.

    The path is a variable, an attribute or a parameter.
    """
    made: list[cst.CSTNode] = [
        each.expression
        for each in program.stores
        if each.target == path
        and (each.function is function or "." in each.target or isinstance(each.function.node, cst.Module))
    ]
    made += [
        argument.value
        for site in function.call_sites
        for name, argument in function.receives(site.call)
        if name == path
    ]
    return made


def _optimizes_itself(sources: list[cst.CSTNode]) -> bool:
    """Return True if a model passes its own parameters to the optimizer, as in `Adam(self.parameters())`."""
    return any(dotted(node) == "self.parameters" for each in sources for node in walk(each))


def is_trained(program: Program, names: set[str], trained: set[str]) -> bool:
    """Return True if an optimizer receives the model, an object that contains it, or one of its submodules."""
    if any(
        name == each or name.startswith(f"{each}.") or each.startswith(f"{name}.")
        for name in names
        for each in trained
    ):
        return True
    for store in program.stores:
        read = names_in(store.expression)
        if store.target in names and isinstance(store.expression, (cst.Subscript, cst.Attribute)):
            if not read.isdisjoint(trained):  # teacher = models[0]
                return True
        elif root(store.target) in names and "." in store.target and not read.isdisjoint(trained):
            return True  # backbone.head = head
    return False


def model_aliases(program: Program, path: str) -> set[str]:
    """Return all names of a model: arguments, parameters, attributes and variables.

    A parameter that receives several models does not count.
    """
    names = {path}
    passed = [
        (function, parameter, given)
        for function in program.functions.values()
        for site in function.call_sites
        for parameter, argument in function.receives(site.call)
        if (given := dotted(argument.value)) is not None
    ]
    models: dict[tuple[Function, str], set[str]] = {}
    for function, parameter, given in passed:
        models.setdefault((function, parameter), set()).add(given)
    for _ in range(4):
        before = len(names)
        for store in program.stores:
            source = dotted(_without_self_methods(program, store.expression))
            if store.how == "assign" and source is not None and (source in names or store.target in names):
                names |= {source, store.target}
        for function, parameter, given in passed:
            if parameter != path and len(models[function, parameter]) > 1 and function.name != "__init__":
                continue
            if given in names or parameter in names:
                names |= {given, parameter}
        if len(names) == before:
            break
    return names - {"self", "None", "True", "False"}


def _without_self_methods(program: Program, node: cst.BaseExpression) -> cst.BaseExpression:
    """Return an expression without methods that return the model itself, such as `teacher` for
    `teacher.to(device).eval()`.
    """
    while isinstance(node, cst.Call) and method_name(node) in SELF_METHODS:
        owner = receiver(node)
        if owner is None or program.value(owner).kind is not ValueKind.MODEL:
            break
        node = owner
    return node
