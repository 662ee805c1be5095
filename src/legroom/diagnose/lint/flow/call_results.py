import re
from collections.abc import Sequence
from dataclasses import replace

import libcst as cst

from legroom.diagnose.lint.flow.facts import Function
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import dotted, is_call_of, is_false, last_name, per_node, walk
from legroom.diagnose.lint.flow.values import (
    COMPUTING_METHODS,
    CRITERION,
    EXCEPTION,
    GRAPH,
    GRAPHLESS_FUNCTIONS,
    GRAPHLESS_METHODS,
    HOST_TENSOR,
    LOADER,
    LOSS_FUNCTIONS,
    MADE_LIKE_METHODS,
    MODEL,
    NUMBER_METHODS,
    OPTIMIZER,
    OUTPUT,
    PARAMETER,
    PLAIN,
    SAMPLER,
    SCALER,
    SELF_METHODS,
    TENSOR,
    TENSOR_FACTORIES,
    TRAINABLE_MODEL,
    UNKNOWN,
    VALUE_AND_INDEX_METHODS,
    Value,
    ValueKind,
    container,
    split_words,
)

_WRAPPERS = (
    "DataParallel",
    "DistributedDataParallel",
    "FullyShardedDataParallel",
    "compile",
    "deepcopy",
    "script",
)
_PLAIN_BUILTINS = split_words(
    "float int len str bool repr round print range abs_ id hash ord chr isinstance format"
)
_CONTAINERS = split_words(
    "list tuple set dict defaultdict OrderedDict sorted reversed Counter deque frozenset"
)
_LAYERS_WITH_PARAMETERS = (
    "Linear", "Bilinear", "Conv", "LazyLinear", "LazyConv", "LSTM", "GRU", "RNN", "Embedding", "Transformer",
    "MultiheadAttention",
)  # fmt: skip
_INFERER = re.compile(r"(?:^|[._])(?:sliding_window_inference|sliding_window_inferer|inferer)$")
_OPERATIONS = ("einops.", "torchvision.ops.", "torchvision.utils.make_grid", "horovod.torch.allreduce")
"""Library functions whose results have a graph if their arguments have one."""
_NOT_MODULES = split_words("Parameter ModuleList ModuleDict ParameterList")


def torch_result(
    name: str, arguments: Sequence[Value], *, requires_grad: bool, no_grad: bool
) -> Value | None:
    last = name.rpartition(".")[2]
    if name.startswith("torch.nn.") and not name.startswith(
        ("torch.nn.functional.", "torch.nn.utils.", "torch.nn.init.")
    ):
        return _module(name, last, arguments)
    if name.startswith("torch.nn.utils.clip"):
        return TENSOR
    if name.startswith("torch.optim."):
        return OPTIMIZER if last[:1].isupper() and "lr_scheduler" not in name else PLAIN
    if name.startswith("torch.utils.data."):
        if "Sampler" in last:
            return SAMPLER
        return LOADER if last == "DataLoader" else UNKNOWN
    if last == "GradScaler":
        return SCALER
    if last in _WRAPPERS and arguments:
        return arguments[0]
    if name.startswith(("torchvision.models.", "timm.create_model", "segmentation_models_pytorch.")):
        return TRAINABLE_MODEL
    if name in {"sentence_transformers.SentenceTransformer", "vllm.LLM"}:
        return Value(ValueKind.MODEL, frozen=True)  # `encode` disables gradients
    if last in {"from_pretrained", "from_config"}:
        if "Pipeline" in name:  # diffusers.AutoPipelineForText2Image: `__call__` disables gradients
            return UNKNOWN
        is_model = "Model" in name or "For" in name or name.startswith("diffusers.Autoencoder")
        return TRAINABLE_MODEL if is_model else UNKNOWN
    if last in {"checkpoint", "checkpoint_sequential"} and "checkpoint." in name and not no_grad:
        return GRAPH if any(each.kind is ValueKind.MODEL for each in arguments[:1]) else None
    if name.startswith("torch.distributions."):
        return computed_from(arguments, no_grad=no_grad)
    if name.startswith(_OPERATIONS) and last[:1].islower():
        return TENSOR if last.endswith("nms") else computed_from(arguments, no_grad=no_grad)
    if name.startswith("torch.autograd.") and last == "grad":
        return container(TENSOR)
    if name.startswith("torch.") and last[:1].islower():
        return _torch_function(name, last, arguments, requires_grad=requires_grad, no_grad=no_grad)
    return None


def builtin_result(name: str, arguments: Sequence[Value]) -> Value | None:
    last = name.rpartition(".")[2]
    if name == "sys.exc_info":
        return EXCEPTION
    if name in _PLAIN_BUILTINS or name.startswith(("math.", "numpy.", "time.", "os.")):
        return PLAIN
    if name in {"sum", "max", "min", "next", "abs"} and arguments:
        first = arguments[0]
        is_iterable = first.kind is ValueKind.CONTAINER or (name == "next" and first.kind is ValueKind.LOADER)
        return element_of(first) if is_iterable else first
    if name in {"random.sample", "random.choices", "random.choice"} and arguments:
        element = element_of(arguments[0])  # clients
        if element.class_name is None:
            return None
        return element if name == "random.choice" else container(element)
    if name == "functools.partial" and arguments:
        return Value(ValueKind.CONTAINER, items=tuple(arguments))
    if name == "asyncio.gather":
        given = [element_of(each) if each.kind is ValueKind.CONTAINER else each for each in arguments]
        return Value(ValueKind.CONTAINER, items=tuple(given))
    if name in {"asyncio.run", "asyncio.create_task", "concurrent.futures.as_completed"} and arguments:
        return arguments[0]
    if name.startswith("weakref.Weak"):
        return container(bounded=True, mapping=name.endswith("Dictionary"))  # does not keep its items alive
    if (name in {"zip", "enumerate", "iter", "map", "filter"} or last == "tqdm") and arguments:
        return container(GRAPH) if arguments[0].kind is ValueKind.GRAPH else arguments[0]
    if last in _CONTAINERS and (name == last or name.startswith("collections.")):
        if arguments and arguments[0].mapping and last in {"dict", "OrderedDict"}:
            return arguments[0]
        if arguments and arguments[0].kind in (ValueKind.CONTAINER, ValueKind.GRAPH):
            return container(element_of(arguments[0]), mapping=arguments[0].mapping)
        if last == "dict" and any(each.has_graph for each in arguments):
            return container(next(each for each in arguments if each.has_graph), mapping=True)
        return replace(
            container(mapping=last in {"dict", "defaultdict", "OrderedDict", "Counter"}),
            is_counter=last == "Counter",
        )
    return None


def method_result(receiver: Value, method: str, arguments: Sequence[Value], *, no_grad: bool) -> Value | None:
    kind = receiver.kind
    if kind is ValueKind.UNKNOWN and method in {"size", "numel", "dim", "item"}:
        return PLAIN
    if kind is ValueKind.UNKNOWN and method == "tolist":
        return container(PLAIN)
    if kind in (ValueKind.GRAPH, ValueKind.PARAMETER, ValueKind.TENSOR):
        return _tensor_method(receiver, method, arguments, no_grad=no_grad)
    if kind is ValueKind.MODEL:
        return _model_method(receiver, method, arguments, no_grad=no_grad)
    if kind is ValueKind.SCALER and method == "scale" and arguments:
        return arguments[0]
    if kind is ValueKind.OPTIMIZER and method == "step" and arguments:
        return GRAPH  # the loss of the closure
    if kind is ValueKind.CONTAINER:
        if (
            method in SELF_METHODS
            and receiver.element is not None
            and receiver.element.kind is ValueKind.MODEL
        ):
            return receiver  # nn.ModuleList
        if method == "items" and receiver.mapping:
            return container(Value(ValueKind.CONTAINER, items=(PLAIN, element_of(receiver))))
        if method in {"values", "copy", "items", "keys"}:
            return receiver if method != "keys" else container(PLAIN)
        if method in {"pop", "get", "setdefault", "popleft"}:
            return element_of(receiver)
        if method in {"mean", "sum"}:
            return element_of(receiver)
        if method == "result" and receiver.items:  # a future
            return receiver.items[0]
    if kind is ValueKind.LOADER and method in {"dataset", "sampler"}:
        return UNKNOWN
    return None


def model_call(model: Value, arguments: Sequence[Value], *, no_grad: bool) -> Value:
    """Return the output of a model. The output of a frozen model has a graph only if an input has a graph."""
    if no_grad:
        return OUTPUT
    if model.frozen and not any(each.has_graph or each.kind is ValueKind.PARAMETER for each in arguments):
        return OUTPUT
    return GRAPH


def inferred_model(name: str | None, arguments: Sequence[Value]) -> Value | None:
    """Return the model that a function such as `sliding_window_inference(image, size, 4, model)` receives and runs."""
    if not _INFERER.search(name or ""):
        return None
    return next((each for each in arguments if each.kind is ValueKind.MODEL), None)


def loss_call(arguments: Sequence[Value], *, no_grad: bool) -> Value:
    """Return the result of a loss function. The result has a graph if an input has a graph or is unknown."""
    known = [each for each in arguments if each.kind is not ValueKind.PLAIN]
    if no_grad or (known and all(each.kind is ValueKind.TENSOR for each in known)):
        return TENSOR
    return GRAPH


def names_a_loss(name: str) -> bool:
    return bool(LOSS_FUNCTIONS.search(name.rpartition(".")[2]))


def element_of(value: Value) -> Value:
    if value.kind is ValueKind.CONTAINER:
        return value.get(None) or UNKNOWN
    if value.kind is ValueKind.LOADER:
        return TENSOR
    if value.kind is ValueKind.PARAMETER:
        return GRAPH
    if value.kind in (ValueKind.GRAPH, ValueKind.TENSOR):
        return value
    if value.kind is ValueKind.MODEL:  # nn.Sequential, nn.ModuleList
        return MODEL
    return UNKNOWN


def _module(name: str, last: str, arguments: Sequence[Value]) -> Value:
    if last == "Parameter":
        return PARAMETER
    if last.endswith("Loss"):
        return CRITERION
    if last in _WRAPPERS and arguments:
        return arguments[0]
    if last in _NOT_MODULES:
        return container(MODEL) if "Module" in last else container(PARAMETER)
    if not last[:1].isupper():
        return UNKNOWN
    parts = [element_of(each) if each.kind is ValueKind.CONTAINER else each for each in arguments]
    has_parameters = last.startswith(_LAYERS_WITH_PARAMETERS) or any(each.trainable for each in parts)
    return TRAINABLE_MODEL if has_parameters and not any(each.frozen for each in parts) else MODEL


def _torch_function(
    name: str, last: str, arguments: Sequence[Value], *, requires_grad: bool, no_grad: bool
) -> Value:
    if name.startswith(("torch.cuda.", "torch.distributed.", "torch.backends.", "torch.accelerator.")):
        return UNKNOWN
    if last in {
        "device",
        "save",
        "manual_seed",
        "finfo",
        "iinfo",
        "numel",
        "is_tensor",
        "no_grad",
        "inference_mode",
    }:
        return PLAIN
    if last == "load":
        return UNKNOWN
    if last in TENSOR_FACTORIES:
        return PARAMETER if requires_grad else TENSOR
    if last in GRAPHLESS_FUNCTIONS:
        return _tensor_of(arguments)
    if name.startswith("torch.nn.functional.") and names_a_loss(last):
        return loss_call(arguments, no_grad=no_grad)
    found = computed_from(arguments, no_grad=no_grad)
    if last in VALUE_AND_INDEX_METHODS and len(arguments) > 1 and found.is_tensor:
        return Value(ValueKind.CONTAINER, items=(found, TENSOR))
    return found


def _tensor_method(receiver: Value, method: str, arguments: Sequence[Value], *, no_grad: bool) -> Value:
    if method in NUMBER_METHODS:
        return PLAIN
    if method == "requires_grad_":
        return PARAMETER
    if method in GRAPHLESS_METHODS:
        return _tensor_of([receiver])
    has_graph = not no_grad and (
        receiver.kind in (ValueKind.GRAPH, ValueKind.PARAMETER)
        or (method not in MADE_LIKE_METHODS and any(each.has_graph for each in arguments))
    )
    if not has_graph:
        return HOST_TENSOR if method == "cpu" else _tensor_of([receiver])
    if method in VALUE_AND_INDEX_METHODS and arguments:
        return Value(ValueKind.CONTAINER, items=(GRAPH, TENSOR))
    if method == "items":  # a dict of losses returned by a model
        return container(Value(ValueKind.CONTAINER, items=(PLAIN, GRAPH)))
    return replace(GRAPH, host=method == "cpu" or receiver.host)


def _model_method(receiver: Value, method: str, arguments: Sequence[Value], *, no_grad: bool) -> Value | None:
    if method in SELF_METHODS:
        return receiver
    if method == "parameters":
        return container(PARAMETER)
    if method == "named_parameters":
        return container(Value(ValueKind.CONTAINER, items=(PLAIN, PARAMETER)))
    if method in {"children", "modules"}:
        return container(MODEL)
    if method in {"state_dict", "load_state_dict", "zero_grad", "buffers", "named_buffers"}:
        return UNKNOWN
    if method == "generate":
        return OUTPUT
    if method == "forward" or names_a_loss(method) or COMPUTING_METHODS.search(method):
        return model_call(receiver, arguments, no_grad=no_grad)
    return None


def computed_from(values: Sequence[Value], *, no_grad: bool) -> Value:
    inside = [element_of(each) if each.kind is ValueKind.CONTAINER else each for each in values]
    inside = [element_of(each) if each.kind is ValueKind.CONTAINER else each for each in inside]
    if any(each.kind in (ValueKind.GRAPH, ValueKind.PARAMETER) for each in inside):
        return _tensor_of(inside) if no_grad else GRAPH
    tensors = [each for each in inside if each.kind is ValueKind.TENSOR]
    if tensors and no_grad:
        return _tensor_of(inside)
    if any(each.kind is ValueKind.UNKNOWN for each in inside):
        return UNKNOWN
    if tensors:
        return _tensor_of(tensors)
    return PLAIN


def _tensor_of(values: Sequence[Value]) -> Value:
    if values and all(each.host for each in values):
        return HOST_TENSOR
    return OUTPUT if any(each.has_output for each in values) else TENSOR


def split_result(result: Value, forward: Function | None) -> Value:
    """Return the output of a model as a container, if its `forward` in this file returns several items.

    Items that `forward` detaches have no graph.
    """
    if result.kind is not ValueKind.GRAPH or forward is None or not forward.returns.items:
        return result
    items = tuple(each if _is_detached(each) else result for each in forward.returns.items)
    return Value(ValueKind.CONTAINER, items=items)


def _is_detached(value: Value) -> bool:
    if value.kind is ValueKind.CONTAINER:
        return bool(value.contents) and all(map(_is_detached, value.contents))
    return value.kind in (ValueKind.TENSOR, ValueKind.PLAIN)


def new_instance(program: Program, class_name: str, arguments: tuple[Value, ...]) -> Value:
    kind = ValueKind.MODEL if program.is_module_class(class_name) else ValueKind.UNKNOWN
    frozen = kind is ValueKind.MODEL and (
        _has_no_parameters(program, class_name) or _freezes_itself(program, class_name)
    )
    return Value(
        kind,
        class_name=class_name,
        items=_contents_of(program, class_name, arguments),
        frozen=frozen,
        trainable=kind is ValueKind.MODEL and not frozen and _has_parameters(program, class_name),
    )


def _contents_of(program: Program, class_name: str, arguments: tuple[Value, ...]) -> tuple[Value, ...] | None:
    """Return what a new object keeps alive: the arguments for a dataclass, and the attributes for any other class."""
    if program.method(class_name, "__init__") is None:
        return arguments or None
    if not any(each.has_graph for each in arguments):
        return None
    return tuple(program.classes[class_name].attributes.values()) or None


def _has_parameters(program: Program, class_name: str) -> bool:
    known = program.classes[class_name]
    values = [each for value in known.attributes.values() for each in (value, *value.contents)]
    if any(each.frozen for each in values):
        return False
    if _sets_requires_grad(known.node):
        return False
    return any(each.trainable or each.kind is ValueKind.PARAMETER for each in values)


@per_node
def _sets_requires_grad(node: cst.ClassDef) -> bool:
    return any(type(each) is cst.Name and each.value.startswith("requires_grad") for each in walk(node))


@per_node
def _unfreezes(node: cst.ClassDef) -> bool:
    """Return True if a method sets `requires_grad` to a value other than False."""
    return any(
        is_call_of(each, "requires_grad_") and not (each.args and is_false(each.args[0]))
        if isinstance(each, cst.Call)
        else isinstance(each, cst.Assign)
        and any(last_name(dotted(target.target) or "") == "requires_grad" for target in each.targets)
        and dotted(each.value) != "False"
        for each in walk(node)
    )


def _freezes_itself(program: Program, class_name: str) -> bool:
    made = program.method(class_name, "__init__")
    return (
        made is not None
        and "self" in made.frozen_parameters
        and not _unfreezes(program.classes[class_name].node)
    )


def _has_no_parameters(program: Program, class_name: str) -> bool:
    """Return True if a module has no parameters that require gradients."""
    plain = (ValueKind.PLAIN, ValueKind.TENSOR, ValueKind.CONTAINER)
    modules = (ValueKind.MODEL, ValueKind.PARAMETER)
    pending, seen = [class_name], set[str]()
    while pending:
        known = program.classes.get(pending.pop())
        if known is None or known.name in seen:
            continue
        seen.add(known.name)
        created = known.methods.get("__init__")
        if created is not None and not created.environment:
            return False  # not analyzed yet
        if not known.bases or not all(
            base in program.classes or base.endswith("nn.Module") for base in known.bases
        ):
            return False
        if any(
            each.kind not in plain or any(inner.kind in modules for inner in each.contents)
            for each in known.attributes.values()
            if not each.frozen
        ):
            return False
        if any(each.frozen for each in known.attributes.values()) and _unfreezes(known.node):
            return False
        pending.extend(known.bases)
    return True
