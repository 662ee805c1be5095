"""Proofs that a fix is safe.

The flow analysis guesses from names, which is good enough for a finding. A fix that `--fix` applies requires a proof:
each function returns True only if the code in the file proves its condition.
"""

import libcst as cst

from legroom.diagnose.lint.flow.backward_uses import derived_names, dominates
from legroom.diagnose.lint.flow.facts import CallFact, Fact, Function, StoreFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import (
    children,
    dotted,
    keyword,
    last_name,
    method_name,
    names_in,
    names_with_graph,
    positional,
    receiver,
    root,
    string_value,
    walk,
)
from legroom.diagnose.lint.flow.values import SELF_METHODS, ValueKind, split_words

_MAX_DEPTH = 6
_OPERATIONS = split_words(
    "abs add addmm bmm cat clamp clone concat cos cumsum detach div dot einsum exp expm1 flatten gather index_select log "
    "log1p log_softmax logsumexp masked_select matmul mean mm mul neg norm permute pow prod relu reshape rsqrt select "
    "sigmoid sin softmax softplus sqrt square squeeze stack std sub sum t tanh transpose tril triu unsqueeze var view "
    "where zeros ones zeros_like ones_like randn rand full arange tensor eye"
)
"""Functions and methods whose result is always one tensor."""
_TENSOR_METHODS = _OPERATIONS | split_words(
    "contiguous cpu cuda double expand float half bfloat16 long masked_fill narrow repeat to type_as view_as"
)
_LAYERS = split_words(
    "Linear Bilinear Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d BatchNorm1d BatchNorm2d "
    "BatchNorm3d LayerNorm GroupNorm InstanceNorm2d Embedding EmbeddingBag Dropout Dropout2d ReLU GELU SiLU Tanh Sigmoid "
    "LeakyReLU ELU Softmax LogSoftmax Flatten AvgPool2d AdaptiveAvgPool2d AdaptiveAvgPool1d Identity Unflatten"
)
"""Modules that receive and return one tensor."""
_WRAPPERS = {"DataParallel", "DistributedDataParallel"}


def is_proven_tensor(
    program: Program,
    node: cst.BaseExpression,
    function: Function,
    at: Fact | None = None,
    seen: frozenset[str] = frozenset(),
) -> bool:
    """Return True if the file proves that an expression is a tensor.

    `at` is the call or statement that uses the expression.
    """
    if len(seen) > _MAX_DEPTH:
        return False
    if isinstance(node, cst.BinaryOperation):
        sides = (node.left, node.right)
        return not isinstance(node.operator, (cst.Modulo, cst.BitOr, cst.BitAnd)) and any(
            is_proven_tensor(program, side, function, at, seen)
            and program.value(other).kind is not ValueKind.CONTAINER
            for side, other in (sides, sides[::-1])
        )
    if isinstance(node, cst.UnaryOperation):
        return isinstance(node.operator, cst.Minus) and is_proven_tensor(
            program, node.expression, function, at, seen
        )
    if isinstance(node, cst.IfExp):
        return all(is_proven_tensor(program, each, function, at, seen) for each in (node.body, node.orelse))
    if isinstance(node, cst.Subscript):
        return is_proven_tensor(program, node.value, function, at, seen)
    if isinstance(node, cst.Call):
        return _returns_tensor(program, node, function, seen)
    path = dotted(node)
    if path is None:
        return False
    if runs_backward(program, path, function, at) and _is_method_of_tensors(program, "backward"):
        return True
    return _is_always_tensor(program, path, function, seen)


def _is_method_of_tensors(program: Program, method: str) -> bool:
    """Return True if only tensors have this method. The file may use another library than torch, or define a class that
    has the method. An autograd function does not count, because its `backward` is static.
    """
    others = (
        each for each in program.classes.values() if not any(base.endswith("Function") for base in each.bases)
    )
    return program.mentions("torch") and not any(method in each.methods for each in others)


def runs_backward(program: Program, path: str, function: Function, at: Fact | None) -> bool:
    """Return True if `path.backward()` runs before `at`, and `path` is not assigned in between."""
    return at is not None and any(
        call.function is function
        and call.method == "backward"
        and dotted(receiver(call.node)) == path
        and call.order < at.order
        and call.loops == at.loops[: len(call.loops)]
        and len(call.loops) == len(at.loops)
        and dominates(program, call, at)
        and not any(
            store.target == path and store.function is function and call.order < store.order < at.order
            for store in program.stores
        )
        for call in program.calls
    )


def frees_graph(program: Program, path: str, function: Function, at: Fact) -> bool:
    """Return True if `path.backward()` runs before `at` and frees the graph. No other backward pass can then use this
    graph.
    """
    return runs_backward(program, path, function, at) and not any(
        call.method == "backward" and keyword(call.node, "retain_graph") for call in program.calls
    )


def _is_always_tensor(program: Program, path: str, function: Function, seen: frozenset[str]) -> bool:
    key = f"{function.qualified_name}:{path}"
    if key in seen:
        return True
    if "." in path or path in function.parameters or path in function.nonlocal_names:
        return False
    if any(path in loop.bound for loop in program.loops if loop.function is function):
        return False
    stores = [each for each in program.stores if each.target == path and each.function is function]
    return bool(stores) and all(
        each.how in {"assign", "augment"}
        and not _is_unpacked(each)
        and (
            each.how == "augment" or is_proven_tensor(program, each.expression, function, each, seen | {key})
        )
        for each in stores
    )


def _is_unpacked(store: StoreFact) -> bool:
    """Return True for an assignment to several names, such as `output, state = model(x)`."""
    return isinstance(store.node, cst.Assign) and any(
        isinstance(each.target, (cst.Tuple, cst.List)) for each in store.node.targets
    )


def _returns_tensor(program: Program, call: cst.Call, function: Function, seen: frozenset[str]) -> bool:
    name = program.imports.qualified(call.func) or ""
    last = last_name(name)
    if name.startswith("torch.nn.functional."):
        return last in _OPERATIONS or last.endswith(
            ("loss", "cross_entropy", "cross_entropy_with_logits", "kl_div")
        )
    if name.startswith("torch.") and name.count(".") == 1:
        return last in _OPERATIONS
    owner = receiver(call)
    if owner is not None and method_name(call) in _TENSOR_METHODS:
        return is_proven_tensor(program, owner, function, None, seen)
    fact = program.call_of(call)
    if fact is not None and fact.local is not None and fact.receiver.kind is not ValueKind.MODEL:
        return _function_returns_tensor(program, fact.local, seen)
    return is_proven_module(program, call.func, seen)


def _function_returns_tensor(program: Program, function: Function, seen: frozenset[str]) -> bool:
    key = f"{function.qualified_name}()"
    if key in seen:
        return False
    body = children(function.body)
    return (
        bool(body)
        and _ends_with_return(body[-1])
        and not any(isinstance(each, cst.Yield) for each in walk(function.body, into_functions=False))
        and all(
            is_proven_tensor(program, each, function, None, seen | {key}) for each in function.returned_nodes
        )
    )


def _ends_with_return(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.SimpleStatementLine) and isinstance(node.body[-1], cst.Return)


def is_proven_module(program: Program, node: cst.BaseExpression, seen: frozenset[str] = frozenset()) -> bool:
    """Return True if the file creates a module or loss that returns one tensor and computes no gradients itself."""
    if len(seen) > _MAX_DEPTH:
        return False
    if isinstance(node, cst.Call):
        return _creates_module(program, node, seen)
    path = dotted(node)
    if path is None or path in seen:
        return False
    stores = [each for each in program.stores if each.target == path]
    parameters = [each for each in program.functions.values() if path in each.parameters]
    if not stores and not parameters:
        return False
    if parameters and (stores or not all(each.call_sites for each in parameters)):
        return False
    given = [
        argument.value
        for each in parameters
        for site in each.call_sites
        for name, argument in each.receives(site.call)
        if name == path
    ]
    made = [each.expression for each in stores if not _is_unpacked(each)]
    return len(made) == len(stores) and all(
        is_proven_module(program, each, seen | {path}) or (dotted(each) == path and bool(stores or given))
        for each in (*made, *given)
    )


def _creates_module(program: Program, call: cst.Call, seen: frozenset[str]) -> bool:
    name = program.imports.qualified(call.func) or ""
    last = last_name(name)
    owner = receiver(call)
    if owner is not None and method_name(call) in SELF_METHODS:  # Net().to(device)
        return is_proven_module(program, owner, seen)
    given = [each.value for each in positional(call)]
    if name.startswith("torch.nn."):
        if last == "Sequential":
            return bool(given) and all(is_proven_module(program, each, seen) for each in given)
        if last in _WRAPPERS:
            return bool(given) and is_proven_module(program, given[0], seen)
        if last.endswith("Loss"):
            return last not in {"AdaptiveLogSoftmaxWithLoss", "CTCLoss"}
        return last in _LAYERS
    path = dotted(call.func) or ""
    if not program.is_module_class(path):
        return False
    known = program.classes[path]
    forward = known.methods.get("forward")
    if forward is None or any(
        isinstance(each, cst.Name) and each.value in {"grad", "backward", "enable_grad", "requires_grad_"}
        for each in walk(known.node)
    ):
        return False
    return bool(forward.returned_nodes) and all(
        is_proven_tensor(program, each, forward, None, seen | {f"{path}.forward"})
        for each in forward.returned_nodes
    )


# What the program prints ---------------------------------------------------------------------------------------------

_PRINTING = split_words("print str repr pprint")
_LOGGING = split_words("debug info warning error critical exception log write print_log set_description")
_SAVING = {"torch.save", "pickle.dump", "pickle.dumps", "json.dump", "json.dumps"}
_HARMLESS = split_words(
    "float int len round sum max min abs sorted list tuple dict zip enumerate range isinstance hasattr bool iter next "
    "append extend add insert update items values keys get item tolist detach cpu numpy add_scalar set_postfix clear"
)


def may_be_printed(program: Program, target: str) -> bool:
    """Return True if the program may print or save the text of a stored tensor, which includes `grad_fn`.

    A function in another file may print its arguments.
    """
    names = derived_names(program, target)
    return (
        any(
            any(_is_read_raw(argument.value, names) for argument in call.node.args)
            for call in program.calls
            if _may_print(program, call)
        )
        or any(
            node.format_spec is None and _is_read_raw(node.expression, names)
            for node in program.nodes_of(cst.FormattedStringExpression)
        )
        or any(
            isinstance(node.operator, cst.Modulo)
            and _formats_text(node.left)
            and _is_read_raw(node.right, names)
            for node in program.nodes_of(cst.BinaryOperation)
        )
    )


def _may_print(program: Program, call: CallFact) -> bool:
    name = call.name or ""
    last = call.method or last_name(name)
    if last in _PRINTING or last in _LOGGING or name in _SAVING:
        return True
    if last == "format":
        template = string_value(receiver(call.node))
        return template is None or "{}" in template
    known = (
        call.local is not None
        or last in _HARMLESS
        or name.startswith(("torch.", "math.", "numpy."))
        or call.receiver.kind is not ValueKind.UNKNOWN
        or name in program.classes
    )
    return not known


def _formats_text(node: cst.BaseExpression) -> bool:
    text = string_value(node)
    return text is not None and ("%s" in text or "%r" in text)


def _is_read_raw(node: cst.CSTNode, names: set[str]) -> bool:
    if isinstance(node, (cst.FormattedString, cst.ConcatenatedString)):
        return False  # its expressions are checked one by one
    if isinstance(node, cst.Call) and (
        method_name(node) in {"item", "tolist", "numpy", "format", "detach"}
        or dotted(node.func) in {"float", "int", "len", "round"}
    ):
        return False
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Modulo):
        return False
    if isinstance(
        node, (cst.Tuple, cst.List, cst.Dict, cst.BinaryOperation, cst.Arg, cst.Element, cst.DictElement)
    ):
        return any(_is_read_raw(each, names) for each in children(node))
    return any(last_name(path) in names for path in names_with_graph(node))


def escapes(program: Program, store: StoreFact) -> bool:
    """Return True if other code may read a stored value. Such a value is an attribute, a global variable, an argument
    or a return value.
    """
    function, first = store.function, root(store.target)
    if "." in store.target or first in function.parameters or first in function.nonlocal_names:
        return True
    if isinstance(function.node, cst.Module):
        return False
    return any(first in names_in(each) for each in function.returned_nodes) or not function.owns(store.target)


def can_be_detached(program: Program, parts: list[cst.BaseExpression], store: StoreFact) -> bool:
    """Return True if `.detach()` on the stored subexpressions does not change the behavior of the program."""
    if may_be_printed(program, store.target) or program.mentions("autograd"):
        return False  # `torch.autograd.grad` may use the graph
    return all(
        is_proven_tensor(program, part, store.function, store)
        and (not escapes(program, store) or frees_graph(program, dotted(part) or "", store.function, store))
        for part in parts
    )
