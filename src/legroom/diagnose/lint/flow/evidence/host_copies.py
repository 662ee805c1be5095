"""Finds functions that copy all tensors in a nested result to the host or detach them, such as

    def to_host(result):
        if torch.is_tensor(result):
            return result.detach().cpu()
        return {key: to_host(value) for key, value in result.items()}

The values of such a function cannot be determined statement by statement, because the function calls itself, or treats
a tensor differently from a container.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import libcst as cst

from legroom.diagnose.lint.flow.facts import Function
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import (
    bound_paths,
    dotted,
    is_call_of,
    keyword,
    last_name,
    method_name,
    moves_to_host,
    names_in,
    per_node,
    positional,
    receiver,
    root,
    string_value,
    walk,
)
from legroom.diagnose.lint.flow.values import HOST_TENSOR, OUTPUT, TENSOR, Value, ValueKind, split_words

_DETACHING = split_words("detach detach_ item tolist numpy asnumpy")
_TO_HOST = split_words("cpu item tolist numpy asnumpy")
_TENSOR_TESTS = split_words("Tensor is_tensor")
_TENSOR_ATTRIBUTES = split_words("detach cpu item numpy tolist requires_grad is_cuda device grad_fn")
_MAPPING_FUNCTIONS = split_words(
    "tree_map tree_map_ tree_map_only tree_map_only_ map_structure apply_to_collection recursively_apply map_nested "
    "apply_to_tensors map_tensors"
)
"""Functions of libraries that apply a function to each tensor in a nested container."""
_HARMLESS = split_words(
    "append as_tensor asarray array cast copy deepcopy dict dir enumerate extend fields format getattr hasattr id insert "
    "int is_dataclass is_namedtuple is_tensor isinstance issubclass items iter keys len list map next partial print "
    "range repr replace reversed set setattr sorted str super tuple type update values vars zip any all callable get "
    "bool float add cls clone contiguous half to type_as __class__ __new__ _asdict _make _replace defaultdict sum mean "
    "view squeeze astype is_floating_point warn warning debug fromkeys from_numpy"
)
"""Functions and methods that a function for nested containers may call, next to functions that convert tensors."""


@dataclass(frozen=True, slots=True)
class HostCopy:
    """What a function does to each tensor in its argument."""

    parameter: str
    detaches: bool
    to_host: bool
    in_place: bool = False
    """True if the function changes the items of its argument."""
    device: str | None = None
    """The parameter that specifies the device of the result."""
    converter: str | None = None
    """The parameter with the function that converts a single tensor."""

    def convert(self, value: Value) -> Value:
        """Return the value of a container or tensor whose tensors this function has converted."""
        if value.kind is ValueKind.CONTAINER:
            return replace(
                value,
                element=self.convert(value.element) if value.element is not None else None,
                items=tuple(map(self.convert, value.items)) if value.items is not None else None,
                items_by_key=tuple((key, self.convert(each)) for key, each in value.items_by_key),
                host=self.to_host,
            )
        if value.kind is ValueKind.PLAIN:
            return value
        if value.kind is ValueKind.GRAPH and not self.detaches:
            return replace(value, host=value.host or self.to_host)
        if self.to_host or value.host:
            return HOST_TENSOR
        if value.kind is ValueKind.UNKNOWN:
            return value
        return OUTPUT if value.has_output else TENSOR


def host_copy_of(program: Program, function: Function, call: cst.Call) -> HostCopy | None:
    """Return what a function of the program does to each tensor in its argument, or None for any other function.

    The result may depend on the arguments of the call, such as the device.
    """
    found = _copy_in(function.node) if isinstance(function.node, cst.FunctionDef) else None
    if found is None:
        return None
    if found.device is not None:
        found = replace(found, to_host=found.to_host or _is_cpu(_given(function, call, found.device)))
    if found.converter is not None:
        given = _given(function, call, found.converter)
        detaches, to_host = _converts(program, given) if given is not None else (False, False)
        found = replace(found, detaches=found.detaches or detaches, to_host=found.to_host or to_host)
    return found if found.detaches or found.to_host else None


def argument_of(function: Function, call: cst.Call, parameter: str) -> cst.BaseExpression | None:
    """Return the argument that a call passes for a parameter."""
    given = [argument.value for name, argument in function.receives(call) if name == parameter]
    return given[0] if given else call.args[0].value if call.args and call.args[0].star else None


def mapped_copy(program: Program, call: cst.Call) -> tuple[HostCopy, cst.BaseExpression] | None:
    """Return what a call such as `tree_map(lambda t: t.cpu(), outputs)` does, and the container that it receives."""
    func = call.func
    name = func.attr.value if type(func) is cst.Attribute else func.value if type(func) is cst.Name else ""
    if name not in _MAPPING_FUNCTIONS:
        return None
    given = [each.value for each in call.args]
    converters = [(each, found) for each in given if any(found := _converts(program, each))]
    if not converters:
        return None
    node, (detaches, to_host) = converters[0]
    others = [each for each in given if each is not node and "ensor" not in (dotted(each) or "ensor")]
    others = others or [each for each in given if each is not node]
    if not others:
        return None
    return HostCopy("", detaches, to_host), others[0]


@per_node
def converted_by_loop(node: cst.For) -> tuple[str, HostCopy] | None:
    """Return the dict or list whose items a loop replaces by copies without a graph, and what the loop does, for a loop
    such as `for key in results: results[key] = results[key].detach().cpu()`.
    """
    bound = bound_paths(node.target)
    for each in walk(node.body, into_functions=False):
        if type(each) is not cst.AssignTarget:
            continue
        target = each.target
        if not isinstance(target, cst.Subscript) or not isinstance(key := target.slice[0].slice, cst.Index):
            continue
        path = dotted(target.value)
        if path is None or path not in names_in(node.iter) or dotted(key.value) not in bound:
            continue
        items = {f"{path}[{dotted(key.value)}]", *bound}
        detaches, to_host = _effect([each for each in _conversions(node.body) if _source(each) in items])
        if detaches or to_host:
            return path, HostCopy("", detaches, to_host)
    return None


def _given(function: Function, call: cst.Call, parameter: str) -> cst.BaseExpression | None:
    given = [argument.value for name, argument in function.receives(call) if name == parameter]
    if given:
        return given[0]
    assert isinstance(function.node, cst.FunctionDef)
    for each in (*function.node.params.params, *function.node.params.kwonly_params):
        if each.name.value == parameter:
            return each.default
    return None


def _is_cpu(node: cst.BaseExpression | None) -> bool:
    if isinstance(node, cst.Call) and is_call_of(node, "device") and node.args:
        node = node.args[0].value
    text = string_value(node)
    return text.startswith("cpu") if text is not None else "cpu" in last_name(dotted(node) or "").lower()


def _converts(program: Program, node: cst.BaseExpression) -> tuple[bool, bool]:
    """Return whether a function such as `lambda t: t.detach().cpu()` detaches its argument, and whether it copies its
    argument to the host.
    """
    if isinstance(node, cst.Lambda):
        names = {each.name.value for each in node.params.params}
        body: cst.CSTNode = node.body
    else:
        path = program.defined_path(node) or ""
        made = program.definitions.lambdas.get(path)
        if made is not None:
            return _converts(program, made)
        name = last_name(path)  # torch.Tensor.cpu, operator.methodcaller is not supported
        if path.endswith(f"Tensor.{name}"):
            return name in _DETACHING, name in _TO_HOST
        function = program.functions.get(path)
        if function is None or not isinstance(function.node, cst.FunctionDef):
            return False, False
        names, body = set(function.own_parameters), function.node.body
    calls = [each for each in _conversions(body) if root(_source(each) or "") in names]
    return _effect(calls)


def _effect(calls: list[cst.Call]) -> tuple[bool, bool]:
    detaches = any(
        isinstance(each, cst.Attribute) and each.attr.value in _DETACHING | {"data"}
        for call in calls
        for each in walk(call.func)
    )
    to_host = any(
        isinstance(each, cst.Call) and (method_name(each) in _TO_HOST or moves_to_host(each))
        for call in calls
        for each in walk(call)
    )
    return detaches, to_host


def _conversions(body: cst.CSTNode) -> Iterator[cst.Call]:
    for each in walk(body):
        if isinstance(each, cst.Call) and _is_conversion(each):
            yield each


def _is_conversion(call: cst.Call) -> bool:
    name = method_name(call)
    return name in _DETACHING or name in _TO_HOST or (name == "to" and bool(call.args))


def _source(call: cst.Call) -> str | None:
    """Return the tensor that a chain of methods converts: `value` for `value.detach().cpu()`, and `results[*]` for
    `results[name].cpu()`. Return None for an item with a literal key.
    """
    node: cst.BaseExpression = call
    while True:
        if isinstance(node, cst.Call):
            owner = receiver(node)
            if owner is None:
                return None
            node = owner
        elif isinstance(node, cst.Attribute):
            node = node.value
        elif isinstance(node, cst.Subscript):
            key = node.slice[0].slice
            if not isinstance(key, cst.Index) or not isinstance(key.value, cst.Name):
                return None
            path = dotted(node.value)
            return f"{path}[{key.value.value}]" if path is not None else None
        else:
            return dotted(node)


@dataclass(slots=True)
class _Elements:
    """The names in a function that refer to its parameters or to their elements."""

    parameter_of: dict[str, str]
    iterated: set[str]
    """The names of elements and keys, which a loop or comprehension binds."""


def _elements_of(node: cst.FunctionDef, parameters: tuple[str, ...]) -> _Elements:
    found = _Elements({name: name for name in parameters}, set())
    for _ in range(2):
        for each in walk(node.body):
            if isinstance(each, (cst.For, cst.CompFor)):
                known = sorted({root(path) for path in names_in(each.iter)} & found.parameter_of.keys())
                if known:
                    for name in bound_paths(each.target):
                        found.parameter_of.setdefault(name, found.parameter_of[known[0]])
                        found.iterated.add(name)
            elif isinstance(each, cst.Assign) and len(each.targets) == 1:
                name = dotted(each.targets[0].target) or ""
                read = sorted({root(path) for path in names_in(each.value)} & found.parameter_of.keys())
                if name and "." not in name and read and isinstance(each.value, (cst.Subscript, cst.Call)):
                    found.parameter_of.setdefault(name, found.parameter_of[read[0]])
            elif isinstance(each, cst.FunctionDef) or (isinstance(each, cst.Lambda) and len(parameters) == 1):
                for parameter in each.params.params:
                    found.parameter_of.setdefault(parameter.name.value, parameters[0])
    return found


@per_node
def _copy_in(node: cst.FunctionDef) -> HostCopy | None:
    declared = (
        *node.params.posonly_params,
        *node.params.params,
        *node.params.kwonly_params,
        node.params.star_arg,
    )
    names = [each.name.value for each in declared if isinstance(each, cst.Param)]
    parameters = tuple(names[1:] if names[:1] in (["self"], ["cls"]) else names)
    if not parameters:
        return None
    if any(last_name(dotted(each.decorator) or "") == "singledispatch" for each in node.decorators):
        return HostCopy(parameters[0], detaches=True, to_host=True)  # other functions handle the tensors
    body = list(walk(node.body))
    calls = [each for each in body if type(each) is cst.Call]
    passed = [each for each in calls if isinstance(each.func, cst.Name) and each.func.value in parameters]
    sourced = [(call, source) for call in calls if _is_conversion(call) and (source := _source(call))]
    if not sourced and not passed:
        return None
    own_name = node.name.value
    is_recursive = any(isinstance(each, cst.Name) and each.value == own_name for each in body)
    elements = _elements_of(node, parameters)
    converting = [
        (call, source) for call, source in sourced if root(source.partition("[")[0]) in elements.parameter_of
    ]
    converters = {dotted(each.func) or "" for each in passed}
    if len(converters) > 1 or not (converting or passed):
        return None
    converter = next(iter(converters), None)
    if any(not _is_harmless(each, own_name, converter, node) for each in calls):
        return None
    given = [(root(source.partition("[")[0]), source) for _, source in converting]
    given += [
        (root(dotted(arg.value) or ""), dotted(arg.value) or "") for each in passed for arg in each.args[:1]
    ]
    sources = {elements.parameter_of[name] for name, _ in given if name in elements.parameter_of} - {
        converter
    }
    is_iterated = any(
        name in elements.iterated or ("[" in source and source[:-1].partition("[")[2] in elements.iterated)
        for name, source in given
    )
    if len(sources) != 1 or not (is_recursive or is_iterated or any(map(_tests_tensor, body))):
        return None
    (parameter,) = sources
    changed = any(
        isinstance(each, cst.AssignTarget)
        and isinstance(each.target, cst.Subscript)
        and dotted(each.target.value) == parameter
        for each in body
    )
    if not changed and not any(isinstance(each, (cst.Return, cst.Yield)) for each in body):
        return None
    detaches, to_host = _effect([call for call, _ in converting])
    devices = {
        path
        for call, _ in converting
        if method_name(call) == "to"
        for each in [keyword(call, "device"), *positional(call)[:1]]
        if each is not None and (path := dotted(each.value)) in parameters
    }
    device = devices.pop() if len(devices) == 1 else None
    if not (detaches or to_host or device or converter):
        return None
    return HostCopy(parameter, detaches, to_host, changed, device, converter)


def _is_harmless(call: cst.Call, own_name: str, converter: str | None, node: cst.FunctionDef) -> bool:
    """Return True for a call that computes nothing new, such as `result.items()` or a call to the function itself."""
    name = method_name(call) or last_name(dotted(call.func) or "")
    if not name:
        return isinstance(call.func, cst.Call)  # type(result)(values)
    if name in _DETACHING | _TO_HOST | _HARMLESS or name in {own_name, converter}:
        return True
    inner = any(isinstance(each, cst.FunctionDef) and each.name.value == name for each in walk(node.body))
    return inner or name.lstrip("_")[:1].isupper() or name in _MAPPING_FUNCTIONS


def _tests_tensor(node: cst.CSTNode) -> bool:
    if isinstance(node, (cst.Name, cst.Attribute)):
        return last_name(dotted(node) or "") in _TENSOR_TESTS
    return (
        isinstance(node, cst.Call)
        and dotted(node.func) == "hasattr"
        and len(node.args) > 1
        and string_value(node.args[1].value) in _TENSOR_ATTRIBUTES
    )
