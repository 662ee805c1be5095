"""Abstract values of the flow analysis, which mainly record whether a value has an autograd graph.

The tables list the results of PyTorch's functions and methods, and common names of models, losses and loaders.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import lru_cache, reduce


def split_words(text: str) -> frozenset[str]:
    return frozenset(text.split())


class ValueKind(Enum):
    UNKNOWN = auto()
    PLAIN = auto()
    """A value that is not a tensor, such as a number, a string or a shape."""
    TENSOR = auto()
    GRAPH = auto()
    """A tensor with an autograd graph, which keeps saved activations alive."""
    PARAMETER = auto()
    """A parameter: a tensor that requires gradients. Tensors computed from it therefore have a graph."""
    MODEL = auto()
    CRITERION = auto()
    OPTIMIZER = auto()
    SCALER = auto()
    LOADER = auto()
    SAMPLER = auto()
    CONTAINER = auto()
    EXCEPTION = auto()


@dataclass(frozen=True, slots=True)
class Value:
    """The known facts about a value."""

    kind: ValueKind
    element: "Value | None" = None
    """The elements of a container. For a dict, these are the elements that are not in `items_by_key`."""
    items: "tuple[Value, ...] | None" = None
    """The items of a tuple, or the values that a closure keeps alive."""
    class_name: str | None = None
    """The class of the object, if this file defines it."""
    function: str | None = None
    """The qualified name of the function, if this file defines it."""
    bounded: bool = False
    mapping: bool = False
    is_counter: bool = False
    """True if the container is a `Counter`, whose `update` adds to existing values."""
    items_by_key: "tuple[tuple[str, Value], ...]" = ()
    """The values under the literal keys of a dict such as `{"step": 0, "losses": []}`."""
    host: bool = False
    output: bool = False
    """True if the tensor is the output of a model and has no graph."""
    frozen: bool = False
    trainable: bool = False
    """True if this file creates the model with parameters that require gradients."""

    @property
    def has_graph(self) -> bool:
        """True if storing the value keeps a graph alive."""
        if self.kind is ValueKind.GRAPH:
            return True
        if self.kind is ValueKind.CONTAINER or self.class_name is not None or self.function is not None:
            return any(each.has_graph for each in self.contents)
        return False

    @property
    def has_output(self) -> bool:
        """True if storing the value keeps the output of a model alive."""
        return self.output or self.kind is ValueKind.GRAPH or any(each.has_output for each in self.contents)

    @property
    def contents(self) -> "tuple[Value, ...]":
        return (*_unkeyed(self), *(value for _, value in self.items_by_key))

    def get(self, key: str | None) -> "Value | None":
        """Return the value under a key of this container. The key None means a key that is not a literal."""
        if key is None:
            return _join_all(self.contents)
        named = dict(self.items_by_key).get(key)
        return _join_all((*_unkeyed(self), *((named,) if named else ())))

    @property
    def is_tensor(self) -> bool:
        return self.kind in (ValueKind.TENSOR, ValueKind.GRAPH, ValueKind.PARAMETER)


UNKNOWN = Value(ValueKind.UNKNOWN)
PLAIN = Value(ValueKind.PLAIN)
TENSOR = Value(ValueKind.TENSOR)
HOST_TENSOR = Value(ValueKind.TENSOR, host=True)
OUTPUT = Value(ValueKind.TENSOR, output=True)
GRAPH = Value(ValueKind.GRAPH)
PARAMETER = Value(ValueKind.PARAMETER)
MODEL = Value(ValueKind.MODEL)
TRAINABLE_MODEL = Value(ValueKind.MODEL, trainable=True)
CRITERION = Value(ValueKind.CRITERION)
OPTIMIZER = Value(ValueKind.OPTIMIZER)
SCALER = Value(ValueKind.SCALER)
LOADER = Value(ValueKind.LOADER)
SAMPLER = Value(ValueKind.SAMPLER)
EXCEPTION = Value(ValueKind.EXCEPTION)


def container(
    element: Value | None = None,
    *,
    bounded: bool = False,
    mapping: bool = False,
    items_by_key: tuple[tuple[str, Value], ...] = (),
) -> Value:
    return Value(
        ValueKind.CONTAINER, element=element, bounded=bounded, mapping=mapping, items_by_key=items_by_key
    )


def with_element(known: Value, element: Value, keys: Sequence[str | None] = ()) -> Value:
    """Return the container with an additional element. `keys` is the path to a nested container."""
    if keys:
        inner = known.get(keys[0]) or container()
        return with_item(known, keys[0], with_element(inner, element, keys[1:]))
    return _as_container(known, _join_all((*_unkeyed(known), prune(element))), known.items_by_key)


def with_item(known: Value, key: str | None, value: Value) -> Value:
    if key is None or (len(known.items_by_key) >= _MAX_KEYS and key not in dict(known.items_by_key)):
        return with_element(known, value)
    items_by_key = {**dict(known.items_by_key), key: prune(value)}
    return _as_container(known, _join_all(_unkeyed(known)), tuple(items_by_key.items()))


_MAX_KEYS = 60
"""The maximum number of keys of a dict for which each key has its own value. The items of a larger dict share one
value.
"""


_MAX_DEPTH = 2


def prune(value: Value, levels: int = _MAX_DEPTH) -> Value:
    """Return the value without the contents of containers that are nested deeper than `levels`.

    Without this limit, the value of a container that contains itself would grow without end.
    """
    if value.kind is not ValueKind.CONTAINER or not value.contents:
        return value
    if levels == 0:
        return container(GRAPH if value.has_graph else None, bounded=value.bounded, mapping=value.mapping)
    inner = [prune(each, levels - 1) for each in value.contents]
    if all(new is old for new, old in zip(inner, value.contents, strict=True)):
        return value
    rest = len(inner) - len(value.items_by_key)
    return replace(
        value,
        element=inner[0] if value.element is not None else None,
        items=tuple(inner[:rest]) if value.items is not None else None,
        items_by_key=tuple(
            (key, new) for (key, _), new in zip(value.items_by_key, inner[rest:], strict=True)
        ),
    )


def without_graph(value: Value, instead: Value = OUTPUT) -> Value:
    """Return the value that the same expression would have with gradients disabled."""
    if value.kind is ValueKind.GRAPH:
        return instead
    if value.kind is not ValueKind.CONTAINER or not value.has_graph:
        return value
    return replace(
        value,
        element=without_graph(value.element, instead) if value.element is not None else None,
        items=tuple(without_graph(each, instead) for each in value.items)
        if value.items is not None
        else None,
        items_by_key=tuple((key, without_graph(each, instead)) for key, each in value.items_by_key),
    )


def _as_container(known: Value, element: Value | None, items_by_key: tuple[tuple[str, Value], ...]) -> Value:
    return Value(
        ValueKind.CONTAINER,
        element=element,
        bounded=known.bounded,
        mapping=known.mapping,
        is_counter=known.is_counter,
        items_by_key=items_by_key,
    )


def _unkeyed(known: Value) -> tuple[Value, ...]:
    return known.items if known.items is not None else (known.element,) if known.element else ()


def _join_all(values: Sequence[Value]) -> Value | None:
    return reduce(join_values, values) if values else None


def join_values(first: Value, second: Value) -> Value:
    """Return one abstract value that represents two possible values."""
    if first == second:
        return first
    if first.kind is second.kind is ValueKind.CONTAINER:
        return _join_containers(first, second)
    if first.kind is second.kind is ValueKind.MODEL:
        frozen = first.frozen or second.frozen
        class_name = first.class_name or second.class_name
        return replace(
            first, class_name=class_name, trainable=not frozen and (first.trainable or second.trainable)
        )
    if first.kind is second.kind is ValueKind.UNKNOWN:
        return first if first.class_name or first.function else second
    for kind in _BY_PRECEDENCE:
        for value in (first, second):
            if value.kind is kind:
                return value
    return UNKNOWN


def _join_containers(first: Value, second: Value) -> Value:
    items_by_key = dict(first.items_by_key)
    for key, value in second.items_by_key:
        items_by_key[key] = join_values(items_by_key[key], value) if key in items_by_key else value
    if first.items and second.items and len(first.items) == len(second.items):  # two tuples
        items = tuple(map(join_values, first.items, second.items))
        return replace(first, items=items, host=first.host and second.host)
    return container(
        _join_all((*_unkeyed(first), *_unkeyed(second))),
        bounded=first.bounded or second.bounded,
        mapping=first.mapping or second.mapping,
        items_by_key=tuple(items_by_key.items()),
    )


_BY_PRECEDENCE = (
    ValueKind.GRAPH,
    ValueKind.MODEL,
    ValueKind.LOADER,
    ValueKind.OPTIMIZER,
    ValueKind.CRITERION,
    ValueKind.SCALER,
    ValueKind.SAMPLER,
    ValueKind.CONTAINER,
    ValueKind.PARAMETER,
    ValueKind.TENSOR,
    ValueKind.UNKNOWN,
    ValueKind.EXCEPTION,
)


# Methods of a tensor with a graph whose result has no graph; all other methods return a tensor with a graph.
NUMBER_METHODS = split_words(
    "item tolist numpy size dim ndimension numel nelement stride element_size get_device is_contiguous "
    "data_ptr storage untyped_storage type backward register_hook retain_grad zero_ is_floating_point "
    "__format__ __str__ __repr__ __float__ __int__ __len__ __bool__"
)
GRAPHLESS_METHODS = split_words(
    "detach detach_ argmax argmin argsort eq ne gt ge lt le equal isnan isinf isfinite long int bool byte short "
    "nonzero sample sample_n multinomial sign round floor ceil any all logical_not logical_and logical_or "
    "unique bincount histc count_nonzero new_zeros new_ones new_full new_empty new_tensor requires_grad_"
)
MADE_LIKE_METHODS = split_words("type_as expand_as view_as reshape_as to")
"""Methods that use only the type, device or shape of their argument."""
VALUE_AND_INDEX_METHODS = split_words("max min topk sort mode median kthvalue cummax cummin")
NUMBER_ATTRIBUTES = split_words(
    "shape dtype device ndim requires_grad is_leaf is_cuda layout itemsize nbytes"
)
GRAPHLESS_ATTRIBUTES = split_words("data grad")
SELF_METHODS = split_words(
    "to cuda cpu half float double bfloat16 eval train requires_grad_ share_memory apply xpu mps type to_empty"
)
"""Methods of a model that return the model."""

TENSOR_FACTORIES = split_words(
    "tensor zeros ones randn rand randint empty full arange linspace eye as_tensor from_numpy zeros_like ones_like "
    "randn_like rand_like empty_like full_like randperm normal bernoulli multinomial load"
)
GRAPHLESS_FUNCTIONS = GRAPHLESS_METHODS | split_words("isclose allclose is_tensor numel one_hot sign")

LOSS_FUNCTIONS = re.compile(
    r"(?:^|_)(?:loss|criterion|cross_entropy|mse|nll|bce|kl_div|criteria)(?:$|_)|loss$|^criterion",
    re.IGNORECASE,
)
MODEL_NAMES = re.compile(
    r"^(?:(?-i:G|D|(?:net)?[GD]_[A-Z](?:2?[A-Z])?)|model|net|network|encoder|decoder|generator|discriminator|backbone|classifier|policy|actor|critic|student"
    r"|teacher|unet|vae|autoencoder|transformer|lstm|rnn|gru|gnn|gcn|gat|resnet|vgg|bert|gpt|gpt2|llm|lm|clf|ae|ddp|denoiser|actor_critic|ac|siamese|embedder|regressor|mlp|cnn"
    r"|q_net|policy_net|target_net|netg|netd|g_net|d_net|ddp_model|base_model|head|cell|module)\d*$"
    r"|(?:_model|_net|_network|_encoder|_decoder)\d*$|^(?:model|net)_|^(?:encoder|decoder|enc|dec)_[a-z]$",
    re.IGNORECASE,
)
CRITERION_NAMES = re.compile(
    r"^(?:criterion|criteria|crit|loss_fn|loss_func|loss_function|lossfn|loss_criterion|bce|mse|ce|objective|loss_module)\d*$"
    r"|(?:_criterion|_loss_fn|_loss_func)$|^criterion_",
    re.IGNORECASE,
)
OPTIMIZER_NAMES = re.compile(
    r"^(?:optimizer|optimiser|optim|opt)(?:[_A-Z0-9]\w*)?$|_(?:optimizer|optimiser|optim|opt)$", re.IGNORECASE
)
SCALER_NAMES = re.compile(r"^(?:grad_?|amp_?|loss_)?scaler$", re.IGNORECASE)
LOADER_NAMES = re.compile(
    r"(?:loader|dataloader|data_loader|_dl|_iter|batches)$|^dl$|^(?:train|val|valid|test)dl$", re.IGNORECASE
)
EVALUATION_NAMES = re.compile(
    r"(?:^|_)(?:eval|evaluate|evaluation|evaluating|val|valid|validate|validation|test|testing|predict|prediction|predictions|infer|inference"
    r"|dev|holdout)(?:$|_|\d)|^(?:val|valid|test|eval)(?:loader|dl|set|data)",
    re.IGNORECASE,
)

COMPUTING_METHODS = re.compile(
    r"^(?:log_prob|encode|decode|embed|features|get_(?:image_|text_)?features|extract_\w*(?:feat|embed)\w*|forward_\w+"
    r"|(?:encode|embed)_(?:image|img|text|video|audio|clip|frame|latent)s?)$"
)
"""Matches methods of library models that do not disable gradients."""
SAMPLING_NAMES = re.compile(
    r"(?:^|_)(?:sample|sampling|sampler|denois\w*|diffus\w*|ddpm|ddim|langevin)(?:$|_)", re.IGNORECASE
)
"""Names of functions that compute samples in many steps."""


_VERBS = re.compile(
    r"^(?:add|build|check|compile|convert|copy|create|dispatch|download|eval|evaluate|export|fit|freeze|get|has|init|is|load|log|make"
    r"|move|plot|prepare|print|push|quantize|register|run|save|set|setup|shard|test|train|unwrap|update|upload|validate|wrap)_"
)
"""Matches the names of functions such as `load_model`, which are not models."""


_NOT_A_MODEL = re.compile(
    r"_to_|_(?:type|name|id|path|dir|arg|config|kwarg|size|class|cls|file|output|input|dim|key|card|version|parallel"
    r"|state|dict|data|weight|param|parameter|checkpoint|ckpt|sd|info|spec|code|str|tag)s?$",
    re.IGNORECASE,
)
"""Matches names such as `model_name`, which are not models."""


@lru_cache(maxsize=10_000)
def guess_from_name(name: str) -> Value:
    """Return the value that a name such as `model` usually has."""
    if (_VERBS.match(name.lstrip("_")) and not LOADER_NAMES.search(name)) or _NOT_A_MODEL.search(name):
        return UNKNOWN
    if CRITERION_NAMES.search(name):
        return CRITERION
    if SCALER_NAMES.search(name):
        return SCALER
    if OPTIMIZER_NAMES.search(name):
        return OPTIMIZER
    if LOADER_NAMES.search(name):
        return LOADER
    if MODEL_NAMES.search(name):
        return MODEL
    return UNKNOWN
