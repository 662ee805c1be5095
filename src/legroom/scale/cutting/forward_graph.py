"""Records the forward pass of a model, so that a part of the model can run on its own.

`record_forward(model, arguments, named)` records the graph on meta copies, so it computes no values and does not change
the model. `graph.nodes(0, graph.length)` returns the layers and the operations between the layers, in order.

A layer is a single node. A module that calls other modules is recorded as a node, and so are its children. A stage that
contains a complete module calls the module itself. If several stages share a module, each stage runs the recorded
children that it contains. Sizes are recorded as constants, so a graph is valid for one shape of inputs, in training or
in evaluation mode.
"""

import contextlib
import copy
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from legroom.errors import LegroomError
from legroom.scale import trees


class CannotSplitModel(LegroomError):  # noqa: N818
    """Raised if the forward pass of the model cannot be split. The message contains the location, the reason and the
    alternatives."""

    def __init__(self, location: str, reason: str) -> None:
        self._arguments = location, reason
        self.reason = f"in {location}, {reason}"
        super().__init__(
            f"The model cannot be split: {self.reason}. Use strategy='split' (several GPUs, one process) or 'fsdp' (one process per "
            "GPU), which do not record the forward pass."
        )

    def __reduce__(self) -> tuple[type["CannotSplitModel"], tuple[str, str]]:
        return type(self), self._arguments  # ranks exchange this error


@dataclass(frozen=True, slots=True)
class Slot:
    """A reference to an input tensor or an intermediate tensor of the forward pass."""

    number: int


@dataclass(frozen=True, slots=True)
class ModelTensor:
    """A reference to a parameter, a buffer or another tensor of the model."""

    name: str


class StageDevice:
    pass


STAGE_DEVICE = StageDevice()


@dataclass(frozen=True, slots=True)
class SlotInfo:
    """The shape and dtype of the tensor in a slot."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool

    @property
    def bytes(self) -> int:
        count = self.dtype.itemsize
        for size in self.shape:
            count *= size
        return count

    def meta(self) -> torch.Tensor:
        tensor = torch.empty(self.shape, dtype=self.dtype, device="meta")
        return tensor.requires_grad_(self.requires_grad)


@dataclass(slots=True)
class GraphNode:
    """A call to a module or an operation. `call` is the name of the module or the function of the operation."""

    call: str | Callable[..., Any]
    owner: str
    """The module whose `forward` makes the call."""
    arguments: Any
    named: Any
    result: Any
    with_gradients: bool
    begin: int
    end: int
    """`begin` is the first graph position of the call, and `end` is the position after the call. A layer or an
    operation has exactly one position. A module that calls other modules covers the positions of all these calls.
    """
    children: list["GraphNode"] = field(default_factory=list)
    modified_slots: list[int] = field(default_factory=list)

    @property
    def is_module(self) -> bool:
        return isinstance(self.call, str)

    def inputs(self) -> Iterator[Slot | ModelTensor]:
        for leaf in trees.tree_leaves((self.arguments, self.named)):
            if isinstance(leaf, Slot | ModelTensor):
                yield leaf

    def outputs(self) -> Iterator[Slot]:
        for leaf in trees.tree_leaves(self.result):
            if isinstance(leaf, Slot):
                yield leaf


@dataclass(slots=True)
class ForwardGraph:
    """The recorded forward pass."""

    root: GraphNode
    slots: list[SlotInfo]
    inputs: list[int]
    """The slots of the model's input tensors, in the order of its arguments."""

    @property
    def length(self) -> int:
        return self.root.end

    def nodes(self, begin: int, end: int) -> list[GraphNode]:
        """Return the nodes between two positions. If only a part of a module is between the positions, the children of
        the module are returned instead.
        """
        found: list[GraphNode] = []

        def collect(node: GraphNode) -> None:
            if begin <= node.begin and node.end <= end:
                if node.begin < node.end:
                    found.append(node)
            elif node.begin < end and begin < node.end:
                for child in node.children:
                    collect(child)

        for child in self.root.children:
            collect(child)
        return found

    def leaves(self) -> list[GraphNode]:
        """Return the nodes without children, one per position in the graph."""
        found: list[GraphNode] = []

        def collect(node: GraphNode) -> None:
            if node.children:
                for child in node.children:
                    collect(child)
            elif node.begin < node.end:
                found.append(node)

        collect(self.root)
        return found

    def signature(self) -> list[str]:
        return [
            node.call if isinstance(node.call, str) else getattr(node.call, "__name__", "")
            for node in self.leaves()
        ]


def record_forward(model: nn.Module, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> ForwardGraph:
    """Record `model(*arguments, **named)` on copies without data (meta tensors).

    Tensors that do not depend on the inputs (positions, masks) are computed with real values, because models read these
    values. A model that reads values of the inputs cannot be recorded, because it may behave differently with other
    inputs.
    """
    model, arguments, named = meta_copies(model, arguments, named)
    recorder = _Recorder(model)
    with recorder:
        model(*arguments, **named)
    return recorder.graph()


def input_tensors(arguments: Any, named: Any) -> list[torch.Tensor]:
    """Return the input tensors of a model without duplicates, in the order of its arguments."""
    return list({id(tensor): tensor for tensor in _tensors((arguments, named))}.values())


def meta_copies(model: nn.Module, *values: Any) -> tuple[Any, ...]:
    memo: dict[int, Any] = {}
    for tensor in (*(each for _, each in named_tensors(model)), *trees.tree_leaves(values)):
        if isinstance(tensor, torch.Tensor) and id(tensor) not in memo:
            memo[id(tensor)] = _meta_tensor(tensor)
    return tuple(copy.deepcopy(value, memo) for value in (model, *values))


def named_tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the name and the tensor of each parameter, each buffer, and each tensor that is a plain attribute of a
    module.
    """
    for prefix, module in model.named_modules(remove_duplicate=False):
        for holder in (module._parameters, module._buffers, vars(module)):
            for name, value in holder.items():
                if isinstance(value, torch.Tensor):
                    yield (f"{prefix}.{name}" if prefix else name), value


def _meta_tensor(tensor: torch.Tensor) -> torch.Tensor:
    if is_lazy(tensor):
        raise CannotSplitModel(
            "a lazy layer", "the parameters have no shape yet, so run one batch through the model first"
        )
    meta = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(meta, requires_grad=tensor.requires_grad)
    return meta.requires_grad_(tensor.requires_grad and tensor.is_leaf)


class _Recorder(TorchFunctionMode):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._length = 0
        self._names = {id(module): name for name, module in model.named_modules()}
        self._tensor_names: dict[int, str] = {}
        for name, tensor in named_tensors(model):
            self._tensor_names.setdefault(id(tensor), name)
        self._slot_numbers: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}
        self._versions: dict[int, int] = {}
        self._slots: list[SlotInfo] = []
        self._open: list[GraphNode] = []
        self._inputs: list[int] = []
        self._root: GraphNode | None = None
        self._paused = 0
        self._stack = contextlib.ExitStack()

    def graph(self) -> ForwardGraph:
        assert self._root is not None
        return ForwardGraph(self._root, self._slots, self._inputs)

    def __enter__(self) -> "_Recorder":
        original = nn.Module.__call__

        def call(module: nn.Module, *arguments: Any, **named: Any) -> Any:
            if self._paused or id(module) not in self._names:
                return original(module, *arguments, **named)
            return self._record_module(original, module, arguments, named)

        nn.Module.__call__ = call  # type: ignore[method-assign]

        def restore() -> None:
            nn.Module.__call__ = original  # type: ignore[method-assign]

        self._stack.callback(restore)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._stack.close()

    # --- layers and modules

    def _record_module(
        self,
        original: Callable[..., Any],
        module: nn.Module,
        arguments: tuple[Any, ...],
        named: dict[str, Any],
    ) -> Any:
        name = self._names[id(module)]
        if not self._open:
            self._inputs = [self._new_slot(tensor) for tensor in input_tensors(arguments, named)]
        node = self._new_node(name, arguments, named)
        if _is_layer(module):
            self._length += 1
            self._paused += 1
            try:
                result = original(module, *_on_meta(arguments), **_on_meta(named))
            finally:
                self._paused -= 1
        else:
            self._open.append(node)
            try:
                result = original(module, *arguments, **named)
            finally:
                self._open.pop()
            if not self._open:
                self._root = node
        self._finish(node, (arguments, named), result)
        return result

    # --- operations between layers

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._paused or not self._open:
            return func(*args, **kwargs)
        if func is torch.Tensor.__iter__:
            with self:  # iteration is recorded as unbind
                return iter(args[0].unbind(0))
        name = getattr(func, "__name__", "")
        if name in ("__get__", "__set__") or func in _METADATA_FUNCTIONS:
            result = func(*args, **kwargs)
            if not isinstance(result, torch.Tensor) or self._is_known(result):
                return result
            node = self._new_node(func, args, kwargs)
        else:
            node = self._new_node(func, args, kwargs)
            depends_on_inputs = any(each.is_meta for each in _tensors((args, kwargs)))
            arguments, named = (_on_meta if depends_on_inputs else _on_cpu)((args, kwargs))
            try:
                result = func(*arguments, **named)
            except (NotImplementedError, RuntimeError) as error:
                if depends_on_inputs:
                    raise CannotSplitModel(_location(node.owner), _reason(name, error)) from None
                raise
        if result is None or any(True for _ in _tensors(result)):
            self._length += 1
            self._finish(node, (args, kwargs), result)
        return result

    # --- nodes and slots

    def _new_node(self, call: Any, arguments: Any, named: Any) -> GraphNode:
        owner = self._open[-1].call if self._open else ""
        assert isinstance(owner, str)
        position = self._length
        return GraphNode(
            call,
            owner,
            self._with_references(arguments, owner),
            self._with_references(named, owner),
            None,
            torch.is_grad_enabled(),
            position,
            position,
        )

    def _finish(self, node: GraphNode, arguments: Any, result: Any) -> None:
        node.end = self._length
        for tensor in _tensors(arguments):
            if (slot := self._slot(tensor)) is not None:
                version = tensor._version
                if version != self._versions[slot]:
                    node.modified_slots.append(slot)
                    self._versions[slot] = version
        for tensor in _tensors(result):
            if not self._is_known(tensor):
                self._new_slot(tensor)
        node.result = self._with_references(result, node.owner)
        if self._open:
            self._open[-1].children.append(node)

    def _with_references(self, value: Any, owner: str) -> Any:
        """Return a copy of a value in which each tensor is replaced by a reference. Other objects that contain tensors
        cannot be recorded.
        """

        def reference(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor):
                slot = self._slot(leaf)
                if slot is not None:
                    return Slot(slot)
                if id(leaf) in self._tensor_names:
                    return ModelTensor(self._tensor_names[id(leaf)])
                raise CannotSplitModel(
                    _location(owner),
                    "an operation uses a tensor that is not an input, a parameter or a buffer of the model",
                )
            if isinstance(leaf, torch.device):
                return STAGE_DEVICE
            if _contains_tensors(leaf):
                raise CannotSplitModel(
                    _location(owner),
                    f"an object of type {type(leaf).__name__}, which contains tensors, is passed between layers (disable caches, for example with "
                    "model.config.use_cache = False)",
                )
            return leaf

        return trees.tree_map(reference, value)

    def _slot(self, tensor: torch.Tensor) -> int | None:
        entry = self._slot_numbers.get(id(tensor))
        return entry[1] if entry is not None and entry[0]() is tensor else None

    def _is_known(self, tensor: torch.Tensor) -> bool:
        return self._slot(tensor) is not None or id(tensor) in self._tensor_names

    def _new_slot(self, tensor: torch.Tensor) -> int:
        number = len(self._slots)
        self._slots.append(SlotInfo(tuple(tensor.shape), tensor.dtype, tensor.requires_grad))
        self._slot_numbers[id(tensor)] = (weakref.ref(tensor), number)
        self._versions[number] = tensor._version
        return number


_METADATA_FUNCTIONS = {
    torch.Tensor.size, torch.Tensor.dim, torch.Tensor.numel, torch.Tensor.stride, torch.Tensor.__len__, torch.Tensor.is_floating_point,
    torch.Tensor.is_contiguous, torch.Tensor.data_ptr, torch.Tensor.get_device, torch.is_floating_point, torch.Tensor.__hash__,
    torch.Tensor.untyped_storage, torch.Tensor.element_size, torch.Tensor.storage_offset, torch.numel,
}  # fmt: skip


def _is_layer(module: nn.Module) -> bool:
    """Return whether a module is recorded as one node: it has no children, or it is a torch module that uses its
    children without calling them.
    """
    if next(module.children(), None) is None:
        return True
    if isinstance(module, nn.Sequential):
        return False
    return (
        type(module).__module__.startswith("torch.")
        or isinstance(module, torch.jit.ScriptModule)
        or hasattr(module, "parametrizations")
        or bool(module._forward_hooks or module._forward_pre_hooks)
    )


def _contains_tensors(value: Any, depth: int = 2) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    if depth == 0 or isinstance(value, nn.Module | type) or callable(value) or not hasattr(value, "__dict__"):
        return False
    for item in vars(value).values():
        items = item if isinstance(item, list | tuple) else [item]
        if any(_contains_tensors(each, depth - 1) for each in items):
            return True
    return bool(_is_cache(value))


def _is_cache(value: Any) -> bool:
    """Return whether an object is a cache, based on the name of its class. A cache may be empty now, but layers add
    tensors to it."""
    return "Cache" in type(value).__name__


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in trees.tree_leaves(value) if isinstance(leaf, torch.Tensor))


def _on_meta(value: Any) -> Any:
    # Operations cannot mix tensors on the meta device with other tensors.
    return trees.tree_map(lambda leaf: leaf.to("meta") if isinstance(leaf, torch.Tensor) else leaf, value)


def _on_cpu(value: Any) -> Any:
    # For operations that do not depend on the inputs.
    arguments, named = trees.tree_map(lambda leaf: _CPU if isinstance(leaf, torch.device) else leaf, value)
    return arguments, {**named, "device": _CPU} if isinstance(named.get("device"), str) else named


_CPU = torch.device("cpu")


def _location(owner: str) -> str:
    return f"the forward of {owner}" if owner else "its own forward"


def _reason(operation: str, error: BaseException) -> str:
    if "meta tensors" in str(error) or operation in ("__bool__", "item", "tolist", "numpy"):
        return "the control flow depends on values of the batch"
    return f"{operation} failed: {(str(error).splitlines() or [type(error).__name__])[0]}"
