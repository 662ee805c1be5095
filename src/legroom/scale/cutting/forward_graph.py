"""What a forward pass does, written down so that a part of it can be played on its own.

    score = record(model, arguments, named)       # on a copy without data: nothing is computed, nothing of the model changes
    score.entries                                 # every layer called and every operation between layers, in order

A layer is one entry; what is inside it stays the layer's own business. A module that calls others is written down both ways, as a whole
and as what it does, so that a part that holds all of it calls the module itself, and only a module that is cut through is played from
the score. Sizes and what depends on them are as recorded: a score is good for one shape of inputs, in training or in evaluation.
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


class CannotCut(LegroomError):  # noqa: N818  (reads as what it is)
    """A model whose forward pass cannot be played in parts: where that was seen, and what to use instead."""

    def __init__(self, where: str, why: str) -> None:
        self.reason = f"in {where}, {why}"
        super().__init__(
            f"the model cannot be cut: {self.reason}. Use strategy='split' (several GPUs, one process) or 'fsdp' (one process per "
            "GPU), which leave the model whole"
        )


@dataclass(frozen=True, slots=True)
class Slot:
    """A tensor that the pass was given or made."""

    number: int


@dataclass(frozen=True, slots=True)
class Named:
    """A parameter, buffer or other tensor of the model."""

    name: str


class Here:
    """The device on which a part is played, wherever the model was when it was recorded."""


HERE = Here()


@dataclass(frozen=True, slots=True)
class Like:
    """What is known of a tensor without its contents."""

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
        made = torch.empty(self.shape, dtype=self.dtype, device="meta")
        return made.requires_grad_(self.requires_grad)


@dataclass(slots=True)
class Entry:
    """A layer called (`call` is its name) or an operation (`call` is the function)."""

    call: str | Callable[..., Any]
    owner: str
    """The module whose forward does it."""
    arguments: Any
    named: Any
    result: Any
    with_gradients: bool
    begin: int
    end: int
    """Positions in the score. A layer or operation has one position; a module that calls others spans theirs."""
    inside: list["Entry"] = field(default_factory=list)
    changes: list[int] = field(default_factory=list)
    """Slots that it changes in place."""

    @property
    def is_module(self) -> bool:
        return isinstance(self.call, str)

    def reads(self) -> Iterator[Slot | Named]:
        for leaf in trees.tree_leaves((self.arguments, self.named)):
            if isinstance(leaf, Slot | Named):
                yield leaf

    def gives(self) -> Iterator[Slot]:
        for leaf in trees.tree_leaves(self.result):
            if isinstance(leaf, Slot):
                yield leaf


@dataclass(slots=True)
class Score:
    """One forward pass."""

    whole: Entry
    """The model itself; its arguments are the pass's inputs."""
    likes: list[Like]
    """Of every slot."""
    inputs: list[int]
    """Slots of the tensors that the model is given, in the order of its arguments."""

    @property
    def length(self) -> int:
        return self.whole.end

    def entries(self, begin: int, end: int) -> list[Entry]:
        """What is between two positions: modules that lie in it whole, and what is left of those that do not."""
        found: list[Entry] = []

        def collect(entry: Entry) -> None:
            if begin <= entry.begin and entry.end <= end:
                if entry.begin < entry.end:
                    found.append(entry)
            elif entry.begin < end and begin < entry.end:
                for part in entry.inside:
                    collect(part)

        for part in self.whole.inside:
            collect(part)
        return found

    def single(self) -> list[Entry]:
        """One entry per position."""
        found: list[Entry] = []

        def collect(entry: Entry) -> None:
            if entry.inside:
                for part in entry.inside:
                    collect(part)
            elif entry.begin < entry.end:
                found.append(entry)

        collect(self.whole)
        return found

    def signature(self) -> list[str]:
        return [
            entry.call if isinstance(entry.call, str) else getattr(entry.call, "__name__", "")
            for entry in self.single()
        ]


def record(model: nn.Module, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Score:
    """The score of `model(*arguments, **named)`, taken from copies without data.

    What is made from nothing (positions, masks) is computed for real, since models look at it; whoever looks at what comes from the
    inputs takes another way with other inputs, and cannot be recorded.
    """
    model, arguments, named = without_data(model, arguments, named)
    recorder = _Recorder(model)
    with recorder:
        model(*arguments, **named)
    return recorder.score()


def input_tensors(arguments: Any, named: Any) -> list[torch.Tensor]:
    """The tensors that a model is given, each once, in the order of its arguments."""
    return list({id(tensor): tensor for tensor in _tensors((arguments, named))}.values())


def without_data(model: nn.Module, *values: Any) -> tuple[Any, ...]:
    """Copies of a model and of values on the meta device: their tensors have shapes alone."""
    memo: dict[int, Any] = {}
    for tensor in (*(each for _, each in tensors_of(model)), *trees.tree_leaves(values)):
        if isinstance(tensor, torch.Tensor) and id(tensor) not in memo:
            memo[id(tensor)] = _like(tensor)
    return tuple(copy.deepcopy(value, memo) for value in (model, *values))


def tensors_of(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters, buffers, and tensors that are plain attributes of modules, with their names."""
    for prefix, module in model.named_modules(remove_duplicate=False):
        for holder in (module._parameters, module._buffers, vars(module)):
            for name, value in holder.items():
                if isinstance(value, torch.Tensor):
                    yield (f"{prefix}.{name}" if prefix else name), value


def _like(tensor: torch.Tensor) -> torch.Tensor:
    if is_lazy(tensor):
        raise CannotCut("a lazy layer", "parameters have no shape yet: run one batch through the model first")
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(made, requires_grad=tensor.requires_grad)
    return made.requires_grad_(tensor.requires_grad and tensor.is_leaf)


class _Recorder(TorchFunctionMode):
    """Writes the score while it is entered."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._length = 0
        self._names = {id(module): name for name, module in model.named_modules()}
        self._known: dict[int, str] = {}
        for name, tensor in tensors_of(model):
            self._known.setdefault(id(tensor), name)
        self._slots: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}
        self._versions: dict[int, int] = {}
        self._likes: list[Like] = []
        self._open: list[Entry] = []
        self._inputs: list[int] = []
        self._whole: Entry | None = None
        self._resting = 0
        self._stack = contextlib.ExitStack()

    def score(self) -> Score:
        assert self._whole is not None
        return Score(self._whole, self._likes, self._inputs)

    def __enter__(self) -> "_Recorder":
        plain = nn.Module.__call__

        def call(module: nn.Module, *arguments: Any, **named: Any) -> Any:
            if self._resting or id(module) not in self._names:
                return plain(module, *arguments, **named)
            return self._module(plain, module, arguments, named)

        nn.Module.__call__ = call  # type: ignore[method-assign]

        def put_back() -> None:
            nn.Module.__call__ = plain  # type: ignore[method-assign]

        self._stack.callback(put_back)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._stack.close()

    # --- a layer, or a module that calls others

    def _module(
        self, plain: Callable[..., Any], module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> Any:
        name = self._names[id(module)]
        if not self._open:
            self._inputs = [self._new(tensor) for tensor in input_tensors(arguments, named)]
        entry = self._entry(name, arguments, named)
        if _is_layer(module):
            self._length += 1
            self._resting += 1
            try:
                result = plain(module, *_on_meta(arguments), **_on_meta(named))
            finally:
                self._resting -= 1
        else:
            self._open.append(entry)
            try:
                result = plain(module, *arguments, **named)
            finally:
                self._open.pop()
            if not self._open:
                self._whole = entry
        self._finish(entry, (arguments, named), result)
        return result

    # --- an operation between layers

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._resting or not self._open:
            return func(*args, **kwargs)
        if func is torch.Tensor.__iter__:
            with self:  # iterating is taking apart: that is an operation, and its pieces are known
                return iter(args[0].unbind(0))
        told = getattr(func, "__name__", "")
        if told in ("__get__", "__set__") or func in _QUESTIONS:
            result = func(*args, **kwargs)
            if not isinstance(result, torch.Tensor) or self._is_known(result):
                return result
            entry = self._entry(func, args, kwargs)
        else:
            entry = self._entry(func, args, kwargs)
            depends = any(each.is_meta for each in _tensors((args, kwargs)))
            given, given_named = (_on_meta if depends else _for_real)((args, kwargs))
            try:
                result = func(*given, **given_named)
            except (NotImplementedError, RuntimeError) as error:
                if depends:
                    raise CannotCut(_place(entry.owner), _why(told, error)) from None
                raise
        if result is None or any(True for _ in _tensors(result)):
            self._length += 1
            self._finish(entry, (args, kwargs), result)
        return result

    # --- writing

    def _entry(self, call: Any, arguments: Any, named: Any) -> Entry:
        owner = self._open[-1].call if self._open else ""
        assert isinstance(owner, str)
        position = self._length
        return Entry(
            call,
            owner,
            self._written(arguments, owner),
            self._written(named, owner),
            None,
            torch.is_grad_enabled(),
            position,
            position,
        )

    def _finish(self, entry: Entry, given: Any, result: Any) -> None:
        entry.end = self._length
        for tensor in _tensors(given):
            if (slot := self._slot(tensor)) is not None:
                version = tensor._version
                if version != self._versions[slot]:
                    entry.changes.append(slot)
                    self._versions[slot] = version
        for tensor in _tensors(result):
            if not self._is_known(tensor):
                self._new(tensor)
        entry.result = self._written(result, entry.owner)
        if self._open:
            self._open[-1].inside.append(entry)

    def _written(self, value: Any, owner: str) -> Any:
        """`value` with references for tensors; anything else that holds tensors cannot be written down."""

        def reference(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor):
                slot = self._slot(leaf)
                if slot is not None:
                    return Slot(slot)
                if id(leaf) in self._known:
                    return Named(self._known[id(leaf)])
                raise CannotCut(
                    _place(owner),
                    "a tensor is used that is neither an input nor a parameter or buffer of the model",
                )
            if isinstance(leaf, torch.device):
                return HERE
            if _holds_tensors(leaf):
                raise CannotCut(
                    _place(owner),
                    f"a {type(leaf).__name__}, which holds tensors, is handed from layer to layer (of a cache: turn it off, as with "
                    "model.config.use_cache = False)",
                )
            return leaf

        return trees.tree_map(reference, value)

    def _slot(self, tensor: torch.Tensor) -> int | None:
        known = self._slots.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else None

    def _is_known(self, tensor: torch.Tensor) -> bool:
        return self._slot(tensor) is not None or id(tensor) in self._known

    def _new(self, tensor: torch.Tensor) -> int:
        number = len(self._likes)
        self._likes.append(Like(tuple(tensor.shape), tensor.dtype, tensor.requires_grad))
        self._slots[id(tensor)] = (weakref.ref(tensor), number)
        self._versions[number] = tensor._version
        return number


_QUESTIONS = {
    torch.Tensor.size, torch.Tensor.dim, torch.Tensor.numel, torch.Tensor.stride, torch.Tensor.__len__, torch.Tensor.is_floating_point,
    torch.Tensor.is_contiguous, torch.Tensor.data_ptr, torch.Tensor.get_device, torch.is_floating_point, torch.Tensor.__hash__,
    torch.Tensor.untyped_storage, torch.Tensor.element_size, torch.Tensor.storage_offset, torch.numel,
}  # fmt: skip


def _is_layer(module: nn.Module) -> bool:
    """What is called as it is: layers without others inside, and torch's own that use theirs without calling them."""
    if next(module.children(), None) is None:
        return True
    if isinstance(module, nn.Sequential):
        return False
    kind = type(module).__module__
    return (
        kind.startswith("torch.")
        or isinstance(module, torch.jit.ScriptModule)
        or hasattr(module, "parametrizations")
        or bool(module._forward_hooks or module._forward_pre_hooks)
    )


def _holds_tensors(value: Any, depth: int = 2) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    if depth == 0 or isinstance(value, nn.Module | type) or callable(value) or not hasattr(value, "__dict__"):
        return False
    for item in vars(value).values():
        items = item if isinstance(item, list | tuple) else [item]
        if any(_holds_tensors(each, depth - 1) for each in items):
            return True
    return bool(_is_empty_cache(value))


def _is_empty_cache(value: Any) -> bool:
    """Holds no tensor yet, but will: the layers put theirs in."""
    return "Cache" in type(value).__name__


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in trees.tree_leaves(value) if isinstance(leaf, torch.Tensor))


def _on_meta(value: Any) -> Any:
    """Beside tensors without data, all must be without."""
    return trees.tree_map(lambda leaf: leaf.to("meta") if isinstance(leaf, torch.Tensor) else leaf, value)


def _for_real(value: Any) -> Any:
    """Made from nothing, or from what was: on the host, whatever device is asked for."""
    arguments, named = trees.tree_map(lambda leaf: _HOST if isinstance(leaf, torch.device) else leaf, value)
    return arguments, {**named, "device": _HOST} if isinstance(named.get("device"), str) else named


_HOST = torch.device("cpu")


def _place(owner: str) -> str:
    return f"the forward of {owner}" if owner else "its own forward"


def _why(operation: str, error: BaseException) -> str:
    if "meta tensors" in str(error) or operation in ("__bool__", "item", "tolist", "numpy"):
        return "what is done next depends on the values in the batch"
    return f"{operation} failed: {(str(error).splitlines() or [type(error).__name__])[0]}"
