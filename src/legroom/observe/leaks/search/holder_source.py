"""Finds the statements in the source code that store tensors in the variable that retains them."""

from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING

from legroom.observe.holders.descriptions import NO_HOLDER, HolderPath, StoredName
from legroom.observe.leaks.graph_ages import MIN_ITERATIONS
from legroom.observe.source import storing_lines
from legroom.observe.source.calls import CONSTRUCTORS, calls_in
from legroom.observe.source.files import clears_cache, user_files
from legroom.observe.source.loaded_modules import user_modules
from legroom.observe.source.passing_calls import (
    Callback,
    find_calls,
    find_creating_calls,
    find_key_statements,
    find_registrations,
)
from legroom.observe.source.statements import StoringStatement
from legroom.observe.source.storing_lines import NameUsage, find_usage
from legroom.observe.source.user_files import is_user_file

if TYPE_CHECKING:
    from legroom.memory.detected_leak import DetectedLeak, LeakHolder

MANY_ITEMS = 20
"""The source code may limit the length of a container. If the container has this many items and still grows, the limit
is assumed to be too high to prevent a leak.
"""


def leak_how(path: HolderPath, usage: NameUsage) -> "LeakHolder":
    if path.how == "variable" or (path.how == "container" and path.length < MIN_ITERATIONS):
        carried = any(
            each.uses_itself and not each.adds and not each.concatenates for each in usage.statements
        )
        return "carried" if carried else "variable"
    return path.how  # type: ignore[return-value]


def storing_statements(path: HolderPath, usage: NameUsage) -> list[StoringStatement]:
    if path.how == "cache":
        return []  # the cached function itself is named
    usage = usage._replace(statements=tuple(each for each in usage.statements if is_user_file(each.file)))
    candidates = usage.candidates(path.keys)
    if path.how == "cycle":
        direct = usage._replace(statements=tuple(each for each in usage.statements if not each.by_alias))
        return (direct.candidates(path.keys) or candidates)[::-1]  # the last assignment completes the cycle
    if path.filled_by_iterator:
        nested = [each for each in usage.statements if each.uses_itself]
        return nested or [each for each in usage.statements if each.replaces] or candidates
    if path.how in ("variable", "container") and path.length < MIN_ITERATIONS:
        recursive = usage._replace(statements=tuple(each for each in usage.statements if each.uses_itself))
        return recursive.candidates(path.keys) or candidates
    return candidates


def with_caller(leak: "DetectedLeak", *, is_scalar: bool) -> "DetectedLeak":
    """Add the call of the function that stores the tensors. The call becomes the line of the leak in two cases:

    - The caller passes a loss or a metric with its graph. The caller should pass a number (`meter.update(loss.item())`).
    - The loop registers another callback in each iteration (`bus.subscribe(handler)`).

    In all other cases, the line that stores the tensors is the line of the leak, because it should limit or detach them.
    """
    if leak.file is None or leak.line is None or leak.how in ("cache", "cycle", "gradient"):
        return leak
    from legroom.observe.source.call_sites import find_call_site, first_line  # not needed without a leak

    file, line = leak.file, first_line(leak.file, leak.line)
    leak = replace(leak, line=line)
    site = find_call_site(file, line, leak.name)
    if site is None:
        return leak
    leak = replace(leak, stored_file=file, stored_line=line, caller_file=site.file, caller_line=site.line)
    passes_loss = leak.kind == "graph" and is_scalar and site.passes_variable
    if site.passes_value and (passes_loss or site.registers) and leak.how not in ("hook", "thread"):
        leak = replace(leak, file=site.file, line=site.line, function=site.function)
    return leak


def with_source(path: HolderPath, *, carries_graph: bool = False) -> tuple[HolderPath, NameUsage]:
    """Return the path, possibly with the name that the user's code uses for the container, and the uses of this name.
    `carries_graph` means that the path leads to a new tensor whose graph includes the graphs of earlier iterations.
    """
    if not carries_graph:
        path, usage = _with_usage(path)
    else:
        path, usage = _computed_from_itself(path) or _with_usage(path, callers=path.aliases)
    return path, usage.without_limits() if _exceeds_limits(path, usage) else usage


def _exceeds_limits(path: HolderPath, usage: NameUsage) -> bool:
    """Return whether a container is longer than the only lengths at which the code shortens it, as in `if len(items) ==
    capacity: items.pop(0)`.
    """
    sizes = dict(path.owner_sizes)
    limits = [
        int(limit) if limit.isdecimal() else sizes.get(limit, _global_size(limit)) for limit in usage.only_at
    ]
    return bool(limits) and all(limit is not None and path.length > limit for limit in limits)


def _global_size(name: str) -> int | None:
    found = (vars(module).get(name) for _, module in user_modules())
    return next((value for value in found if type(value) is int), None)


def _with_usage(path: HolderPath, callers: tuple[StoredName, ...] = ()) -> tuple[HolderPath, NameUsage]:
    """Return the path and its uses. `callers` contains other names of the object, which are searched for a name that is
    computed from itself."""
    if path.how == "unknown":
        return path, storing_lines.NO_USAGE
    if path.how == "cache":
        return path, storing_lines.NO_USAGE._replace(emptied=clears_cache(path.stored_as, user_files()))
    if path.callback is not None and (registered := _registered(path, path.callback)) is not None:
        return registered
    if path.how == "linked":
        if (linked := as_linked(path)) is not None:
            return linked
        path = path._replace(how="cycle")
    if path.how == "hook":
        path = path._replace(how="cycle")
    if path.how == "thread":
        path = path._replace(how="container" if path.container else "variable")
    usage = find_usage(
        path.stored_as, is_attribute=path.is_attribute, file=path.file, function=path.function, line=path.line,
        classes=path.classes, keys=path.keys,
    )  # fmt: skip
    # The user's code may add an attribute to an object of a library (`layer.activations = []`).
    by_user = any(is_user_file(each.file) and not each.replaces for each in usage.statements)
    if not by_user and not is_user_file(path.file or "<user>"):
        if (renamed := _by_user_name(path)) is not None:
            return renamed
        if path.length >= MANY_ITEMS:  # the library can remove items, but the program does not
            return path, _feeding_calls(path)
    if path.how == "variable" or (path.how == "container" and path.length < MIN_ITERATIONS):
        # The container is too small to accumulate tensors. Find a name on the path that is computed from itself (`node
        # = Node(state, node)`, `meters["loss"].total`). If a function receives the object, find the caller's name.
        for name in (*path.names, *callers):
            found = usage_of(name, path.line if name in path.names else 0)
            if any(each.uses_itself for each in found.statements):
                return _renamed(path, name), found
        if (linked := as_linked(path)) is not None:
            return linked
    if not usage.statements and path.stored_as == path.names[-1].name:
        for alias in path.aliases:
            found = usage_of(alias)
            if any(not each.replaces for each in found.statements):
                return path._replace(name=alias.name, stored_as=alias.stored_as, file=alias.file), found
    if not usage.shrinks and not usage.statements:
        usage = _feeding_calls(path)
    return path, usage


def _renamed(path: HolderPath, name: StoredName) -> HolderPath:
    """Return the path with another name on the path. The description applies only to the object with the old name. If
    only an index differs, the old name is kept.
    """
    if path.name.startswith(f"{name.name}["):
        return path._replace(stored_as=name.stored_as)
    described = "tensor" if name == path.names[0] else "" if name in path.names else path.described
    return path._replace(
        name=name.name,
        stored_as=name.stored_as,
        described=path.described if name.name == path.name else described,
    )


def _computed_from_itself(path: HolderPath) -> tuple[HolderPath, NameUsage] | None:
    """Return the name inside a container that is computed from its own previous value, and its uses. The container has
    a fixed number of objects, such as the layers of a model. Each object updates its own state, as in `self.mean = 0.9 *
    self.mean + 0.1 * x.mean(0)`. If the source code does not show how a layer computes its state, the line that
    assigns the state can be found by tracing.
    """
    if path.how != "container" or path.length < MIN_ITERATIONS:
        return None
    inside = list(takewhile(lambda each: each.name != path.name, path.names))
    for name in inside:
        found = usage_of(name, path.line)
        if any(each.uses_itself for each in found.statements):
            return _as_variable(path, name), found
    if path.contains_models and inside and inside[0].is_attribute:
        return as_traced(_as_variable(path, inside[0])), usage_of(inside[0])
    return None


def _as_variable(path: HolderPath, name: StoredName) -> HolderPath:
    return path._replace(
        name=name.name, stored_as=name.stored_as, is_attribute=name.is_attribute, how="variable",
        described="tensor", length=0, bounded=False, file=name.file, function=name.function, container=0,
        is_mapping=False, classes=name.classes, inside_bounded=False,
    )  # fmt: skip


def as_traced(path: HolderPath) -> HolderPath:
    """Return the path of a variable with the dict of its attributes as the container, so that the line that assigns the
    attribute is found by tracing.
    """
    if not path.is_attribute:
        return path
    return path._replace(container=path.attributes, traced_attribute=path.stored_as)


def _registered(path: HolderPath, callback: Callback) -> tuple[HolderPath, NameUsage] | None:
    """Return the calls that register the callback, or that start the thread."""
    is_thread = path.how == "thread"
    if path.how not in ("thread", "hook", "closure") and is_user_file(path.file or "<user>"):
        return None  # a container of the user's code inside the callback
    files = tuple(user_files())
    statements = find_registrations(callback, files)
    if path.how == "closure":
        # One function that collects tensors, or a function that is registered again and again?
        repeated = calls_in(files).repeated
        statements = tuple(each for each in statements if each.function in repeated)
    if not statements:
        return None
    if path.how == "closure":
        path = path._replace(name=callback.name, described="function")
    shown = path._replace(how=path.how if is_thread else "hook", is_mapping=False, inside_bounded=False)
    return shown, storing_lines.NO_USAGE._replace(statements=statements)


def registered_at_exit() -> tuple[HolderPath, NameUsage] | None:
    """Return the repeated calls to `atexit.register`, which stores its arguments where Python cannot list them. The
    result is None if there are no such calls.
    """
    files = tuple(user_files())
    repeated = calls_in(files).repeated
    statements = tuple(
        each for each in find_calls("atexit.register", files) if each.in_loop or each.function in repeated
    )
    if not statements:
        return None
    path = NO_HOLDER._replace(
        name="atexit.register", stored_as="atexit", how="hook", described="callbacks", file=statements[0].file
    )
    return path, storing_lines.NO_USAGE._replace(statements=statements)


def compiled_functions() -> tuple[HolderPath, NameUsage] | None:
    """Return the repeated calls to `torch.jit.trace` and `torch.jit.script`. PyTorch never frees a compiled function or
    the tensors that it contains, and Python cannot list them. The result is None if there are no such calls.
    """
    files = tuple(user_files())
    repeated = calls_in(files).repeated
    for name in ("torch.jit.trace", "torch.jit.script", "jit.trace", "jit.script"):
        statements = tuple(
            each for each in find_calls(name, files) if each.in_loop or each.function in repeated
        )
        if statements:
            path = NO_HOLDER._replace(
                name=name,
                stored_as=name.rpartition(".")[2],
                described="compiled functions",
                file=statements[0].file,
            )
            return path, storing_lines.NO_USAGE._replace(statements=statements)
    return None


def as_linked(path: HolderPath) -> tuple[HolderPath, NameUsage] | None:
    """Describe a path through linked objects (a tree, a list of states). Return the path with the name of the
    attribute that links the objects, and the uses of this attribute. Return None if the path contains no linked
    objects. The length of the path is the number of links that the search followed.
    """
    if (name := _linked_name(path)) is None:
        return _linked_by_key(path)
    shown = f"{name.owner.__name__}.{name.stored_as}" if name.owner is not None else name.stored_as
    links = sum(each.stored_as == name.stored_as and each.classes == name.classes for each in path.names)
    linked = path._replace(
        name=shown, stored_as=name.stored_as, is_attribute=True, file=name.file, classes=name.classes,
        described="linked objects", container=0, length=links, how="cycle" if path.how == "cycle" else "linked",
    )  # fmt: skip
    return linked, _usage_of_links(name)


def _linked_by_key(path: HolderPath) -> tuple[HolderPath, NameUsage] | None:
    """Return the path and the statements of dicts that refer to each other through the same key."""
    key = path.repeated_key
    statements = find_key_statements(key, tuple(user_files())) if key else ()
    if not statements:
        return None
    linked = path._replace(
        name=f'["{key}"]', described="linked dicts", container=0, length=path.keys.count(key), how="linked",
        file=statements[0].file,
    )  # fmt: skip
    return linked, storing_lines.NO_USAGE._replace(statements=statements)


def _linked_name(path: HolderPath) -> StoredName | None:
    """Return the attribute through which objects of one class reference each other (`node.parent`). The path must
    contain the attribute at least twice.
    """
    # An item of a dict (`state.params["weight"]`) is stored under the attribute of the dict, so it is not another link.
    links = [name for name in path.names if name.is_attribute and name.name.endswith(f".{name.stored_as}")]
    owners = [(name.stored_as, name.classes) for name in links if name.classes]
    for name in links:
        if owners.count((name.stored_as, name.classes)) > 1:
            return name
    return None


def _usage_of_links(name: StoredName) -> NameUsage:
    """Return the statements in which an object stores a reference to another object of its class. If only the
    constructor assigns the attribute, the calls that pass the other object to the constructor are returned.
    """
    usage = usage_of(name)
    if all(each.replaces and each.function in CONSTRUCTORS for each in usage.statements):
        created = find_creating_calls(name.classes, name.stored_as, name.file)
        return created if created.statements else usage
    return usage


def created_with(path: HolderPath) -> NameUsage:
    """Return the calls that pass the tensor to the constructor of the object on the path, as in `return State(position,
    velocity)`. The result is empty if other code assigns the attribute.
    """
    name = next(iter(path.names), None)
    if path.how != "variable" or name is None or not name.is_attribute:
        return storing_lines.NO_USAGE
    if any(each.function not in CONSTRUCTORS for each in usage_of(name).statements):
        return storing_lines.NO_USAGE
    created = find_creating_calls(name.classes, name.stored_as, name.file)
    root = path.names[-1]  # often an argument of the function that computes the next state
    nearest = tuple(each for each in created.statements if root.function and each.function == root.function)
    return created._replace(statements=nearest or created.statements)


def _feeding_calls(path: HolderPath) -> NameUsage:
    """Return the method calls in the user's code that pass values to the library object on the path. Several variables
    may refer to the object. The variable with the shortest path to the container comes first (`self.optimizer` before
    `trainer`).
    """
    for name in path.names:
        if name.file is not None and is_user_file(name.file):
            found = storing_lines.find_feeding_calls(
                name.stored_as, name.file, name.function, path.line, is_attribute=name.is_attribute
            )
            if found.statements:
                return found
    return storing_lines.NO_USAGE


def usage_of(name: StoredName, line: int = 0) -> NameUsage:
    return find_usage(
        name.stored_as, is_attribute=name.is_attribute, file=name.file, function=name.function, line=line,
        classes=name.classes,
    )  # fmt: skip


def _by_user_name(path: HolderPath) -> tuple[HolderPath, NameUsage] | None:
    """Return the name in the user's code for the library object that owns the container (`Queue.queue`), and the uses
    of this name.
    """
    for name in path.names:
        if name.file is None or not is_user_file(name.file):
            continue
        usage = usage_of(name)
        if any(not each.replaces for each in usage.statements):
            # `get` reads a key of a dict, but removes an item from a queue.
            usage = usage._replace(limited=usage.limited or usage.looks_up, checks_membership=False)
            return path._replace(name=name.name, stored_as=name.stored_as, file=name.file), usage
    return None
