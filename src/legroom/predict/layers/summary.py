"""What each layer of a model makes and keeps: output shape, parameters, bytes kept for the backward pass.

One training step is traced on a device without data, as `estimate` does it: no GPU, no arithmetic, the memory of CUDA's kernels.
Operations outside layers (`F.relu`, `torch.cat`, `x.flatten(1)`) are rows of their own. Where the model cannot be run, the rows
up to there are kept, and `mismatch` says which layer failed and what would fit.
"""

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as _hooks
from torch.overrides import TorchFunctionMode

from legroom.errors import UsageError
from legroom.gpus.catalog import find_gpu
from legroom.memory.events import Alloc, Category, Event, Free, Tag
from legroom.memory.ledger import Ledger
from legroom.observe.dispatch.storages import tensors_in
from legroom.predict.layers.shape_mismatch import Call, Mismatch, mismatch_of
from legroom.predict.tracing.copying import OntoDevice, loss_of
from legroom.predict.tracing.trace import Trace
from legroom.predict.tracing.virtual_trace import make_device

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A layer, or an operation outside layers, in the order of their calls."""

    name: str
    """`encoder.0.linear`; of an operation, that of the layer whose `forward` calls it."""
    kind: str
    """`Linear`, `relu`."""
    depth: int
    """0 for the model itself."""
    is_operation: bool
    has_children: bool
    outputs: tuple[Shape, ...] = ()
    parameters: int = 0
    """With those of the layers inside; 0 where they were counted at an earlier call."""
    own_parameters: int = 0
    """Without those of layers inside that have rows of their own."""
    trainable: int = 0
    kept: int = 0
    """Bytes that it made and that wait for the backward pass, the layers inside included."""
    share: float = 0.0
    """Of the peak of a training step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSummary:
    """A model, layer by layer."""

    rows: tuple[Row, ...]
    parameters: int
    trainable: int
    parameter_bytes: int
    input_bytes: int
    kept: int
    """For the backward pass, by all layers."""
    peak: int
    """Allocated at the peak of a training step with AdamW; 0 where none could be traced."""
    mismatch: Mismatch | None = None


def summarize(model: nn.Module, batch: Any) -> LayerSummary:
    """Trace one training step of `model` on `batch` and say what each layer makes and keeps."""
    if not isinstance(model, nn.Module):
        raise UsageError(
            f"give a model and a batch: legroom.summary(model, batch), not a {type(model).__name__}"
        )
    trace = Trace(gpu=find_gpu("80GiB"), mode="fake")
    with make_device(trace.gpu, "fake", trace.events.append), _quiet():
        onto = OntoDevice()
        copy, given = onto.copied(model), onto.copied(batch)
        watch = _Watch(copy, trace.events)
        mismatch: Mismatch | None = None
        with torch.enable_grad():
            try:
                with watch:
                    loss = loss_of(copy, given)
                forward_end = len(trace.events)
            except Exception as error:  # whatever the model raises is what is to be explained
                mismatch = mismatch_of(error, watch.calls())
                forward_end = len(trace.events)
            else:
                if loss.requires_grad:
                    optimizer = torch.optim.AdamW(each for each in copy.parameters() if each.requires_grad)
                    for _ in range(2):
                        loss.backward()
                        optimizer.step()
                        optimizer.zero_grad()
                        loss = loss_of(copy, given)
                del loss
        return _told(watch, trace.events, forward_end, model, given, mismatch)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Torch logs a traceback of its own for every operation whose shapes do not fit; ours is the better sentence."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    was, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = was


def _told(
    watch: "_Watch",
    events: list[Event],
    forward_end: int,
    model: nn.Module,
    given: Any,
    mismatch: Mismatch | None,
) -> LayerSummary:
    kept = _kept(events, forward_end) if mismatch is None else {}
    peak = Ledger(events).peak(0).bytes if mismatch is None else 0
    before = [0]
    for position in range(forward_end):
        before.append(before[-1] + kept.get(position, 0))
    rows = [entry.row(before, peak) for entry in watch.entries if mismatch or entry.is_worth_telling(before)]
    outside = before[-1] - (rows[0].kept if rows else 0)
    if outside:
        share = outside / peak if peak else 0.0
        rows.append(
            Row(
                name="",
                kind="loss",
                depth=0,
                is_operation=True,
                has_children=False,
                kept=outside,
                share=share,
            )
        )
    parameters = list(model.parameters())
    return LayerSummary(
        rows=tuple(rows),
        parameters=sum(_count(each) for each in parameters),
        trainable=sum(_count(each) for each in parameters if each.requires_grad),
        parameter_bytes=sum(_count(each) * each.element_size() for each in parameters),
        input_bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors_in((given,))),
        kept=before[-1],
        peak=peak,
        mismatch=mismatch,
    )


def _kept(events: list[Event], end: int) -> dict[int, int]:
    """Position of a birth → bytes, of what was alive at the end of the forward pass and waits for the backward pass."""
    births = {event.id: (at, event) for at, event in enumerate(events[:end]) if type(event) is Alloc}
    gone = {event.id for event in events[:end] if type(event) is Free}
    category = {id: event.category for id, (_, event) in births.items()}
    category.update({event.id: event.category for event in events if type(event) is Tag})
    return {
        at: event.block_bytes
        for id, (at, event) in births.items()
        if id not in gone and category[id] is Category.ACTIVATION
    }


def _count(parameter: torch.Tensor) -> int:
    return 0 if torch.nn.parameter.is_lazy(parameter) else parameter.numel()


def shapes_of(value: Any) -> tuple[Shape, ...]:
    return tuple(tuple(tensor.shape) for tensor in tensors_in((value,)))


# --- watching the forward pass


@dataclass(slots=True)
class _Entry:
    name: str
    kind: str
    depth: int
    is_operation: bool
    has_children: bool
    begin: int
    """The event at which it began ..."""
    end: int = -1
    """... and the one at which it ended; -1 while it is at work."""
    outputs: tuple[Shape, ...] = ()
    parameters: int = 0
    own_parameters: int = 0
    trainable: int = 0

    def is_worth_telling(self, before: list[int]) -> bool:
        """Of operations: those that keep something or change the shape on purpose."""
        return not self.is_operation or self.kind in _SHAPING or self._kept(before) > 0

    def _kept(self, before: list[int]) -> int:
        last = len(before) - 1
        return before[min(self.end, last)] - before[min(self.begin, last)] if self.end >= 0 else 0

    def row(self, before: list[int], peak: int) -> Row:
        kept = self._kept(before)
        return Row(
            name=self.name,
            kind=self.kind,
            depth=self.depth,
            is_operation=self.is_operation,
            has_children=self.has_children,
            outputs=self.outputs,
            parameters=self.parameters,
            own_parameters=self.own_parameters,
            trainable=self.trainable,
            kept=kept,
            share=kept / peak if peak else 0.0,
        )


_SHAPING = {"flatten", "view", "reshape", "cat", "concat", "stack", "matmul", "bmm", "interpolate"}


class _Watch(TorchFunctionMode):
    """Notes every layer and every operation outside the innermost layers while it is entered."""

    def __init__(self, model: nn.Module, events: list[Event]) -> None:
        super().__init__()
        self.entries: list[_Entry] = []
        self._events = events
        self._names = {id(module): name for name, module in model.named_modules()}
        self._stack: list[tuple[_Entry, nn.Module, Any]] = []
        self._operation: Call | None = None
        self._counted: set[int] = set()
        self._exit = contextlib.ExitStack()

    def __enter__(self) -> "_Watch":
        for handle in (
            _hooks.register_module_forward_pre_hook(self._begin),
            _hooks.register_module_forward_hook(self._finish),
        ):
            self._exit.callback(handle.remove)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._exit.close()

    def calls(self) -> list[Call]:
        """What was at work when an exception was raised, innermost first."""
        layers = [
            Call(name=entry.name, kind=entry.kind, module=module, shapes=shapes_of(args), arguments=args)
            for entry, module, args in reversed(self._stack)
        ]
        return ([self._operation] if self._operation is not None else []) + layers

    def _begin(self, module: nn.Module, args: Any) -> None:
        fresh = [each for each in module.parameters() if id(each) not in self._counted]
        is_leaf = next(module.children(), None) is None
        entry = _Entry(
            self._names.get(id(module), ""),
            type(module).__name__,
            len(self._stack),
            is_operation=False,
            has_children=not is_leaf,
            begin=len(self._events),
            parameters=sum(map(_count, fresh)),
            trainable=sum(_count(each) for each in fresh if each.requires_grad),
        )
        if is_leaf:
            self._count_own(entry, module)
        self.entries.append(entry)
        self._stack.append((entry, module, args))

    def _count_own(self, entry: _Entry, module: nn.Module) -> None:
        """What no layer inside has counted: some are never called as layers (the projections of attention)."""
        own = [each for each in module.parameters() if id(each) not in self._counted]
        entry.own_parameters = sum(map(_count, own))
        self._counted.update(map(id, own))

    def _finish(self, module: nn.Module, args: Any, output: Any) -> None:
        while self._stack:
            entry, at_work, _ = self._stack.pop()
            if at_work is module:
                entry.end = len(self._events)
                entry.outputs = shapes_of(output)
                if entry.has_children:
                    self._count_own(entry, module)
                return

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if not self._stack or not self._stack[-1][0].has_children or name in _QUESTIONS:
            return func(*args, **kwargs)
        begin = len(self._events)
        owner = self._stack[-1][0]
        self._operation = Call(
            name=owner.name, kind=name.strip("_"), module=None, shapes=shapes_of(args), arguments=args
        )
        output = func(*args, **kwargs)
        self._operation = None
        shapes = shapes_of(output)
        if shapes:
            self.entries.append(
                _Entry(
                    owner.name,
                    name.strip("_"),
                    len(self._stack),
                    is_operation=True,
                    has_children=False,
                    begin=begin,
                    end=len(self._events),
                    outputs=shapes,
                )
            )
        return output


_QUESTIONS = {"__get__", "size", "dim", "numel", "stride", "is_floating_point", "__len__", "__bool__"}
