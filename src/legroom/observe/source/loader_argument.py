"""Finds where the batch size comes from: the line of a number, or the name of a setting.

The search starts at the line that creates the DataLoader, or at the loop that splits the data into batches or samples
random batches. If the
batch size is a parameter of a function, the search continues at the line that calls the function. If it is a variable,
the search continues at the only assignment to the variable.
"""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from legroom.memory.event_base import Frame
from legroom.observe.source.batch_argument import suggests_tasks
from legroom.observe.source.constants import is_positive_integer
from legroom.observe.source.definitions import assigned_value, definition_of
from legroom.observe.source.files import (
    FUNCTIONS,
    find_function_at,
    functions_in,
    own_nodes,
    related_classes_at,
    tree_of,
)
from legroom.observe.source.syntax import called_name, key_name, parameters_of

MAX_NAMES = 6
_PERMUTATIONS = frozenset({"randperm", "permutation"})
_INDICES = {"choice": 1, "choices": 1, "integers": 2, "multinomial": 1, "randint": 2, "sample": -1}
"""The functions that return random indices or elements, and the position of the argument for their number."""
_SAMPLES = {"normal": 2, "rand": 0, "randn": 0, "random": 0, "standard_normal": 0, "uniform": 2}
"""The functions that return random numbers, and the position of the argument for their number."""
_SAMPLE_SIZES = frozenset({"k", "num_samples", "size"})
_READ = (ast.Name, ast.Attribute, ast.Subscript)


@dataclass(frozen=True, slots=True)
class Origin:
    """The name of the setting, or the position of the number."""

    path: str = ""
    """The expressions that read the setting, for example `config.val.batch_size`."""
    names: tuple[str, ...] = ()
    """The names of the variables and the setting, for example `bs` and `batch_size` for `bs = args.batch_size`."""
    position: tuple[str, int, int] | None = None
    """The file, line and column of the number, or None if only the names are known."""
    is_loop: bool = False
    """Whether the origin is the step of a loop, which may also be the length of a sequence."""
    has_tasks: bool = False
    """Whether a running function loops over tasks, as in meta-learning. The number of tasks may be the batch size."""


def loader_argument(frames: Sequence[Frame]) -> Origin | None:
    """Return the origin of the batch size. `frames` are the user's lines that created the loader, innermost first."""
    return _passed_at(frames, frozenset(), "batch_size", 1) if frames else None


def loop_argument(frames: Sequence[Frame], call: Frame | None) -> Origin | None:
    """Return the origin of the batch size of a loop that splits the data itself, such as `for i in range(0, n, size)`.
    `frames` are the user's running lines, innermost first. `call` is the line that called the model. The loops of the
    model itself do not count, except for loops over tasks.
    """
    outside = frames[frames.index(call) :] if call in frames else frames
    return _splitting_loop(outside) or (Origin(has_tasks=True) if _loops_over_tasks(frames) else None)


def _loops_over_tasks(frames: Sequence[Frame]) -> bool:
    for frame in frames:
        tree = tree_of(frame.file)
        for loop in own_nodes(find_function_at(tree, frame.line)) if tree is not None else ():
            if isinstance(loop, ast.For) and any(
                isinstance(node, ast.Name | ast.Attribute) and suggests_tasks(key_name(node))
                for part in (loop.target, loop.iter)
                for node in ast.walk(part)
            ):
                return True
    return False


def _splitting_loop(frames: Sequence[Frame]) -> Origin | None:
    for index, frame in enumerate(frames):
        tree = tree_of(frame.file)
        loops = [
            node
            for node in (ast.walk(tree) if tree is not None else ())
            if isinstance(node, ast.For | ast.While) and node.lineno <= frame.line <= (node.end_lineno or 0)
        ]
        for loop in sorted(loops, key=lambda node: -node.lineno):
            if tree is None or find_function_at(tree, loop.lineno) is not find_function_at(tree, frame.line):
                continue
            here = [Frame(frame.file, loop.lineno, frame.function), *frames[index + 1 :]]
            for value, at in _sizes_in(loop, here):
                found = _resolve(value, at)
                if found is not None:
                    return replace(found, is_loop=True)
    return None


def _sizes_in(loop: ast.For | ast.While, frames: list[Frame]) -> Iterator[tuple[ast.expr, list[Frame]]]:
    """Yield the batch sizes in a loop and in the functions that it calls, and the lines at which they are evaluated."""
    for value in _batch_expressions(loop):
        yield value, frames
    functions = list(_called_functions(loop, frames[0].file))
    for function in functions:
        if any(isinstance(node, ast.Yield) for node in ast.walk(function)):
            for node in ast.walk(function):
                for value in _batch_expressions(node):
                    yield value, [Frame(frames[0].file, value.lineno, function.name), *frames]
    for value in _sampled_sizes(loop):
        yield value, frames
    for function in functions:
        for value in _sampled_sizes(function):
            yield value, [Frame(frames[0].file, value.lineno, function.name), *frames]


def _batch_expressions(loop: ast.AST) -> Iterator[ast.expr]:
    """Yield the size in `for i in range(0, n, size)`, `for x in data.split(size)`, `data[i:i + size]` and
    `data[i * size:(i + 1) * size]`.
    """
    for call in ast.walk(loop.iter) if isinstance(loop, ast.For) else ():
        if isinstance(call, ast.Call):
            name = called_name(call)
            if name in ("range", "trange", "arange") and len(call.args) == 3:
                yield call.args[2]
            elif name == "split" and call.args and not isinstance(call.args[0], ast.Constant):
                yield call.args[-1]
    for node in ast.walk(loop) if isinstance(loop, ast.For | ast.While) else ():
        if isinstance(node, ast.Slice) and node.lower is not None:
            lower, upper = node.lower, node.upper
            if isinstance(upper, ast.BinOp) and ast.dump(upper.left) == ast.dump(lower):
                if isinstance(upper.op, ast.Add):
                    yield upper.right
            elif (
                isinstance(lower, ast.BinOp)
                and isinstance(upper, ast.BinOp)
                and isinstance(lower.op, ast.Mult)
                and isinstance(upper.op, ast.Mult)
            ):
                factors = {ast.dump(each) for each in (upper.left, upper.right)}
                yield from (each for each in (lower.right, lower.left) if ast.dump(each) in factors)


def _sampled_sizes(scope: ast.AST) -> Iterator[ast.expr]:
    """Yield the number of random indices, such as `size` in `torch.randint(n, (size,))`, `rng.choice(n, size)`,
    `random.sample(data, size)` and `torch.randperm(n)[:size]`, and the number of random samples in `torch.rand(size, 3)`.
    """
    indices: list[ast.expr | None] = []
    samples: list[ast.expr | None] = []
    for node in ast.walk(scope):
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
            if node.slice.lower is None and called_name(node.value) in _PERMUTATIONS:
                indices.append(node.slice.upper)
        elif isinstance(node, ast.Call):
            name = called_name(node)
            named = [each.value for each in node.keywords if each.arg in _SAMPLE_SIZES]
            if name == "randint":
                named += [each for each in node.args if isinstance(each, ast.Tuple | ast.List)]
            if name in _INDICES:
                indices += [*named, *node.args[_INDICES[name] :]][:1]
            elif name in _SAMPLES:
                samples += [*named, *node.args[_SAMPLES[name] :]][:1]
    for value in (*indices, *samples):
        size = value.elts[0] if isinstance(value, ast.Tuple | ast.List) and value.elts else value
        if size is not None and (is_positive_integer(size) or (isinstance(size, _READ) and key_name(size))):
            yield size


def _called_functions(
    loop: ast.For | ast.While, file: str
) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the functions and methods of the file that a loop calls by name."""
    for call in ast.walk(loop):
        function = functions_in(file).get(called_name(call))
        if function is not None:
            yield function


def _passed_at(
    frames: Sequence[Frame],
    called: frozenset[str],
    name: str,
    position: int,
    default: tuple[ast.expr | None, Sequence[Frame]] = (None, ()),
) -> Origin | None:
    """Return the origin of the argument that the line `frames[0]` passes for a parameter. `default` is the default value
    of the parameter, and the lines at which it is evaluated.
    """
    frame = frames[0]
    tree = tree_of(frame.file)
    passed = _passed(tree, frame.line, called, name, position) if tree is not None else []
    texts = {"" if value is None else ast.unparse(value) for value in passed}
    if len(texts) != 1 or (len(passed) > 1 and is_positive_integer(passed[0])):
        return None  # several calls on the line pass different values, or the same number twice
    value, at = (passed[0], frames) if passed[0] is not None else default
    return None if value is None else _resolve(value, at)


def _resolve(
    value: ast.expr, frames: Sequence[Frame], path: str = "", names: tuple[str, ...] = ()
) -> Origin | None:
    """Return the origin of an expression, which is evaluated at the line `frames[0]`."""
    frame, value = frames[0], _source_of(value)
    if is_positive_integer(value):
        return Origin(path, names, (frame.file, value.lineno, value.col_offset))
    tree = tree_of(frame.file)
    function = find_function_at(tree, frame.line) if tree is not None else None
    parameters = _parameters(function)
    if isinstance(value, ast.Name) and value.id in parameters and isinstance(function, FUNCTIONS):
        if len(frames) == 1:
            return None
        default: tuple[ast.expr | None, Sequence[Frame]]
        default = parameters[value.id], [Frame(frame.file, 0, "<module>")]
        if default[0] is None or (isinstance(default[0], ast.Constant) and default[0].value is None):
            # `size = size or SIZE`
            assigned = assigned_value(function, value.id)
            default = (assigned.values[-1], frames) if isinstance(assigned, ast.BoolOp) else (None, ())
        called, position = _names_of(function, frame), _position(function, value.id)
        return _passed_at(frames[1:], called, value.id, position, default)
    path, name = f"{path} {ast.unparse(value)}".strip(), key_name(value)
    names = (*names, name) if name else names
    found = definition_of(value, frame) if len(names) < MAX_NAMES else None
    if found is None:
        return Origin(path, names)
    is_local = found[0].function == frame.function != "<module>"
    return _resolve(found[1], [found[0], *(frames[1:] if is_local else ())], path, names) or Origin(
        path, names
    )


def _passed(
    tree: ast.Module, line: int, called: frozenset[str], name: str, position: int
) -> list[ast.expr | None]:
    """Return the value that each call on a line passes for a parameter. The value is None if the call uses the default
    value. `called` are the names of the function, or empty for a DataLoader.
    """
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    names = called or _sampler_classes(tree)
    named = [call for call in calls if key_name(call.func) in names or (not called and _is_loader(call))]
    if named:
        return [_argument(call, name, position) for call in named]
    # The function may be called by another name, for example `loader_class(data, batch_size=8)`.
    return [keyword.value for call in calls for keyword in call.keywords if keyword.arg == name]


def _sampler_classes(tree: ast.Module) -> set[str]:
    """Return the names of the classes in a file that inherit from a batch sampler."""
    classes = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return {
        node.name for node in classes if any(key_name(each).endswith("BatchSampler") for each in node.bases)
    }


def _is_loader(call: ast.Call) -> bool:
    name = key_name(call.func)
    has_sampler = any(each.arg == "batch_sampler" for each in call.keywords)
    return name.endswith("BatchSampler") or ("DataLoader" in name and not has_sampler)


def _argument(call: ast.Call, name: str, position: int) -> ast.expr | None:
    """Return the argument of a call, or the `*args` or `**kwargs` that may contain it."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    for number, argument in enumerate(call.args):
        if number == position or isinstance(argument, ast.Starred):
            return argument
    unpacked = [keyword.value for keyword in call.keywords if keyword.arg is None]
    return ast.Starred(unpacked[0]) if unpacked else None


def _source_of(value: ast.expr) -> ast.expr:
    """Return the argument from which a call takes its result, for example `args.bs` in `max(1, int(args.bs))`."""
    while isinstance(value, ast.Call):
        function = key_name(value.func)
        arguments = value.args[1:] if function == "getattr" else value.args
        if function in ("max", "min"):
            arguments = [each for each in arguments if not isinstance(each, ast.Constant)]
        if not arguments or function == "len":
            break
        value = arguments[0]
    return value


def _names_of(function: ast.AST, frame: Frame) -> frozenset[str]:
    """Return the names by which a function is called. A constructor is called by the name of its class."""
    name = getattr(function, "name", "")
    return related_classes_at(frame.file, frame.line) | {name} if name == "__init__" else frozenset({name})


def _position(function: ast.AST, name: str) -> int:
    """Return the position of an argument in a call, or -1 for a keyword-only parameter."""
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    return names.index(name) - (names[0] in ("self", "cls")) if name in names else -1


def _parameters(function: ast.AST | None) -> dict[str, ast.expr | None]:
    """Return the default values of the parameters of a function, by name."""
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        return {}
    return {parameter.arg: default for parameter, default in parameters_of(function.args)}
