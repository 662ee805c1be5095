"""What a value may be, as far as its memory goes: above all, whether it carries an autograd graph.

The tables say what PyTorch's functions and methods give back, and which names people use for models, losses and loaders
where the code does not show what they are.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import reduce


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


class ValueKind(Enum):
    UNKNOWN = auto()
    PLAIN = auto()
    """A number, a text, a shape: no tensor."""
    TENSOR = auto()
    """A tensor without a graph."""
    GRAPH = auto()
    """A tensor that knows how it was computed, so that it keeps what led to it."""
    PARAMETER = auto()
    """A leaf that requires gradients: what is computed from it has a graph."""
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
    """What is known of a value."""

    kind: ValueKind
    element: "Value | None" = None
    """What a container holds; of a dict, what is not in `keyed`."""
    items: "tuple[Value, ...] | None" = None
    """What each place of a tuple holds."""
    class_name: str | None = None
    """The class of this file that it is an instance of."""
    function: str | None = None
    """The function of this file that it is, by its place: `make_logger.log`."""
    bounded: bool = False
    """A container that forgets by itself (`deque(maxlen=...)`)."""
    mapping: bool = False
    """A dict, so that a new key makes it larger."""
    sums: bool = False
    """A `Counter`, which adds what it is updated with to what it has."""
    keyed: "tuple[tuple[str, Value], ...]" = ()
    """What a dict holds under keys that the code writes out: `{"step": 0, "losses": []}`."""
    host: bool = False
    """A tensor that was moved to the host."""
    frozen: bool = False
    """A model none of whose parameters takes gradients."""

    @property
    def carries_graph(self) -> bool:
        """Whether keeping it keeps a graph."""
        if self.kind is ValueKind.GRAPH:
            return True
        if self.kind is ValueKind.CONTAINER or self.class_name is not None:
            return any(each.carries_graph for each in self.inside)
        return False

    @property
    def inside(self) -> "tuple[Value, ...]":
        """All that a container is known to hold."""
        return (*_unkeyed(self), *(value for _, value in self.keyed))

    def under(self, key: str | None) -> "Value | None":
        """What a container holds under a key; None stands for one that the code does not write out."""
        if key is None:
            return _all_of(self.inside)
        named = dict(self.keyed).get(key)
        return _all_of((*_unkeyed(self), *((named,) if named else ())))

    @property
    def is_tensor(self) -> bool:
        return self.kind in (ValueKind.TENSOR, ValueKind.GRAPH, ValueKind.PARAMETER)


UNKNOWN = Value(ValueKind.UNKNOWN)
PLAIN = Value(ValueKind.PLAIN)
TENSOR = Value(ValueKind.TENSOR)
HOST_TENSOR = Value(ValueKind.TENSOR, host=True)
GRAPH = Value(ValueKind.GRAPH)
PARAMETER = Value(ValueKind.PARAMETER)
MODEL = Value(ValueKind.MODEL)
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
    keyed: tuple[tuple[str, Value], ...] = (),
) -> Value:
    return Value(ValueKind.CONTAINER, element=element, bounded=bounded, mapping=mapping, keyed=keyed)


def with_element(known: Value, element: Value, keys: Sequence[str | None] = ()) -> Value:
    """The same container, holding this as well; `keys` lead to the container inside it that gets it."""
    if keys:
        inner = known.under(keys[0]) or container()
        return with_item(known, keys[0], with_element(inner, element, keys[1:]))
    return replace(_as_container(known), element=_all_of((*_unkeyed(known), pruned(element))), items=None)


def with_item(known: Value, key: str | None, value: Value) -> Value:
    """The same dict, with this under a key in the place of what was there."""
    if key is None or (len(known.keyed) >= _MOST_KEYS and key not in dict(known.keyed)):
        return with_element(known, value)
    keyed = {**dict(known.keyed), key: pruned(value)}
    return replace(
        _as_container(known), element=_all_of(_unkeyed(known)), items=None, keyed=tuple(keyed.items())
    )


_MOST_KEYS = 60
"""A dict of more is a table, whose places are all alike."""


_DEEPEST = 2


def pruned(value: Value, levels: int = _DEEPEST) -> Value:
    """A value of which only so many levels of containers are told apart: one that is put into itself would have no end."""
    if value.kind is not ValueKind.CONTAINER or not value.inside:
        return value
    if levels == 0:
        return container(GRAPH if value.carries_graph else None, bounded=value.bounded, mapping=value.mapping)
    inner = [pruned(each, levels - 1) for each in value.inside]
    if all(new is old for new, old in zip(inner, value.inside, strict=True)):
        return value
    rest = len(inner) - len(value.keyed)
    return replace(
        value,
        element=inner[0] if value.element is not None else None,
        items=tuple(inner[:rest]) if value.items is not None else None,
        keyed=tuple((key, new) for (key, _), new in zip(value.keyed, inner[rest:], strict=True)),
    )


def _as_container(known: Value) -> Value:
    return replace(
        container(bounded=known.bounded, mapping=known.mapping, keyed=known.keyed), sums=known.sums
    )


def _unkeyed(known: Value) -> tuple[Value, ...]:
    return known.items if known.items is not None else (known.element,) if known.element else ()


def _all_of(values: Sequence[Value]) -> Value | None:
    """What any of these may be."""
    return reduce(joined, values) if values else None


def joined(first: Value, second: Value) -> Value:
    """What a value may be that is the one or the other."""
    if first == second:
        return first
    if first.kind is second.kind is ValueKind.CONTAINER:
        return _joined_containers(first, second)
    if first.kind is second.kind is ValueKind.UNKNOWN:
        return first if first.class_name or first.function else second
    for kind in _STRONGEST:
        for value in (first, second):
            if value.kind is kind:
                return value
    return UNKNOWN


def _joined_containers(first: Value, second: Value) -> Value:
    keyed = dict(first.keyed)
    for key, value in second.keyed:
        keyed[key] = joined(keyed[key], value) if key in keyed else value
    return container(
        _all_of((*_unkeyed(first), *_unkeyed(second))),
        bounded=first.bounded or second.bounded,
        mapping=first.mapping or second.mapping,
        keyed=tuple(keyed.items()),
    )


_STRONGEST = (
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


# What methods of a tensor with a graph give back; all others give a tensor with a graph.
NUMBER_METHODS = words(
    "item tolist numpy size dim ndimension numel nelement stride element_size get_device is_contiguous "
    "data_ptr storage untyped_storage type backward register_hook retain_grad zero_ is_floating_point "
    "__format__ __str__ __repr__ __float__ __int__ __len__ __bool__"
)
GRAPHLESS_METHODS = words(
    "detach detach_ argmax argmin argsort eq ne gt ge lt le equal isnan isinf isfinite long int bool byte short "
    "nonzero sample sample_n multinomial sign round floor ceil any all logical_not logical_and logical_or "
    "unique bincount histc count_nonzero new_zeros new_ones new_full new_empty new_tensor requires_grad_"
)
MADE_LIKE_METHODS = words("type_as expand_as view_as reshape_as to")
"""Of what they are given they take the type, place or shape."""
VALUE_AND_INDEX_METHODS = words("max min topk sort mode median kthvalue cummax cummin")
NUMBER_ATTRIBUTES = words("shape dtype device ndim requires_grad is_leaf is_cuda layout itemsize nbytes")
GRAPHLESS_ATTRIBUTES = words("data grad")
SELF_METHODS = words(
    "to cuda cpu half float double bfloat16 eval train requires_grad_ share_memory apply xpu mps type to_empty"
)
"""Methods of a model that give the model back."""

TENSOR_FACTORIES = words(
    "tensor zeros ones randn rand randint empty full arange linspace eye as_tensor from_numpy zeros_like ones_like "
    "randn_like rand_like empty_like full_like randperm normal bernoulli multinomial load"
)
GRAPHLESS_FUNCTIONS = GRAPHLESS_METHODS | words("isclose allclose is_tensor numel one_hot sign")

LOSS_FUNCTIONS = re.compile(
    r"(?:^|_)(?:loss|criterion|cross_entropy|mse|nll|bce|kl_div|criteria)(?:$|_)|loss$|^criterion",
    re.IGNORECASE,
)
MODEL_NAMES = re.compile(
    r"^(?:model|net|network|encoder|decoder|generator|discriminator|backbone|classifier|policy|actor|critic|student"
    r"|teacher|unet|vae|autoencoder|transformer|lstm|rnn|gru|resnet|bert|gpt|gpt2|llm|siamese|embedder|regressor|mlp|cnn"
    r"|q_net|policy_net|target_net|netg|netd|g_net|d_net|ddp_model|base_model|head|cell|module)\d*$"
    r"|(?:_model|_net|_network|_encoder|_decoder)\d*$|^(?:model|net)_",
    re.IGNORECASE,
)
CRITERION_NAMES = re.compile(
    r"^(?:criterion|criteria|loss_fn|loss_func|loss_function|lossfn|loss_criterion|bce|mse|ce|objective|loss_module)\d*$"
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


_VERBS = re.compile(
    r"^(?:add|build|check|compile|convert|copy|create|dispatch|download|eval|evaluate|export|fit|freeze|get|has|init|is|load|log|make"
    r"|move|plot|prepare|print|push|quantize|register|run|save|set|setup|shard|test|train|update|upload|validate|wrap)_"
)
"""What a function does, not what a thing is: `load_model`."""


_ABOUT_A_MODEL = re.compile(
    r"_to_|_(?:type|name|id|path|dir|arg|config|kwarg|size|class|cls|file|output|input|dim|key|card|version|parallel)s?$",
    re.IGNORECASE,
)
"""`model_name`, `model_type_to_module_name`: about a model, and none."""


def by_name(name: str) -> Value:
    """What people call by such a name, where the code says nothing else."""
    if (_VERBS.match(name) and not LOADER_NAMES.search(name)) or _ABOUT_A_MODEL.search(name):
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
