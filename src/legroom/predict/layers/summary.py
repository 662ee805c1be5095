"""Summarizes the layers of a model: output shapes, parameters, and bytes saved for the backward pass.

As in `estimate`, one training step is traced with fake tensors. Operations that are called outside layers (`F.relu`,
`torch.cat`, `x.flatten(1)`) have their own rows. If the model fails, the summary contains the layers before the
failure. `mismatch` describes the layer that failed and suggests a code change.
"""

import contextlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as _hooks
from torch.overrides import TorchFunctionMode

from legroom.errors import UsageError
from legroom.gpus.catalog import find_gpu
from legroom.memory.event_base import Category
from legroom.memory.events import Alloc, Event, Free, Tag
from legroom.memory.ledger import Ledger
from legroom.observe.dispatch.storages import tensors_in
from legroom.predict.layers.shape_mismatch import LayerCall, ShapeMismatch, find_mismatch
from legroom.predict.tracing.copying import DeviceCopies, loss_of
from legroom.predict.tracing.trace import Trace
from legroom.predict.tracing.virtual_trace import make_device, torch_log_disabled

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRow:
    """A row for a layer, or for an operation that is called outside layers. Rows are in call order."""

    name: str
    """The path of the layer, for example `encoder.0.linear`. For an operation, this is the path of the layer whose
    `forward` calls the operation.
    """
    kind: str
    """The class of the layer or the name of the operation, for example `Linear` or `relu`."""
    depth: int
    is_operation: bool
    has_children: bool
    outputs: tuple[Shape, ...] = ()
    parameters: int = 0
    """The number of parameters, including those of child layers, or 0 if an earlier call of the same layer was already
    counted.
    """
    own_parameters: int = 0
    """The number of parameters, excluding those of child layers that have their own rows."""
    trainable: int = 0
    saved: int = 0
    """The number of output bytes that autograd saves for the backward pass, including the outputs of child layers."""
    share: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSummary:
    """The layers of a model, with totals."""

    rows: tuple[LayerRow, ...]
    parameters: int
    trainable: int
    parameter_bytes: int
    input_bytes: int
    saved: int
    """The number of bytes that all layers save for the backward pass."""
    peak: int
    """The peak allocated bytes of a training step with AdamW, or 0 if the model failed."""
    mismatch: ShapeMismatch | None = None


def summarize(model: nn.Module, batch: Any) -> LayerSummary:
    if not isinstance(model, nn.Module):
        raise UsageError(
            f"The first argument must be a model, not {type(model).__name__}: `legroom.summary(model, batch)`."
        )
    trace = Trace(gpu=find_gpu("80GiB"), mode="fake")
    with make_device(trace.gpu, "fake", trace.events.append), torch_log_disabled():
        copies = DeviceCopies()
        copy, inputs = copies.copied(model), copies.copied(batch)
        calls = _LayerCalls(copy, trace.events)
        mismatch: ShapeMismatch | None = None
        with torch.enable_grad():
            try:
                with calls:
                    loss = loss_of(copy, inputs)
                forward_end = len(trace.events)
            except Exception as error:  # any error of the model is explained
                mismatch = find_mismatch(error, calls.active())
                forward_end = len(trace.events)
            else:
                if loss.requires_grad:
                    optimizer = torch.optim.AdamW(p for p in copy.parameters() if p.requires_grad)
                    for _ in range(2):
                        loss.backward()
                        optimizer.step()
                        optimizer.zero_grad()
                        loss = loss_of(copy, inputs)
                del loss
        return _summary(calls, trace.events, forward_end, model, inputs, mismatch)


def _summary(
    calls: "_LayerCalls",
    events: list[Event],
    forward_end: int,
    model: nn.Module,
    inputs: Any,
    mismatch: ShapeMismatch | None,
) -> LayerSummary:
    saved = _saved(events, forward_end) if mismatch is None else {}
    peak = Ledger(events).peak(0).bytes if mismatch is None else 0
    before = [0]
    for position in range(forward_end):
        before.append(before[-1] + saved.get(position, 0))
    rows = [entry.row(before, peak) for entry in calls.entries if mismatch or entry.is_listed(before)]
    outside = before[-1] - (rows[0].saved if rows else 0)
    if outside:
        share = outside / peak if peak else 0.0
        rows.append(
            LayerRow(
                name="",
                kind="loss",
                depth=0,
                is_operation=True,
                has_children=False,
                saved=outside,
                share=share,
            )
        )
    parameters = list(model.parameters())
    return LayerSummary(
        rows=tuple(rows),
        parameters=sum(map(_count, parameters)),
        trainable=sum(_count(p) for p in parameters if p.requires_grad),
        parameter_bytes=sum(_count(p) * p.element_size() for p in parameters),
        input_bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors_in((inputs,))),
        saved=before[-1],
        peak=peak,
        mismatch=mismatch,
    )


def _saved(events: list[Event], end: int) -> dict[int, int]:
    """Return a dict that maps the index of an allocation in `events` to its size. The dict contains the activations
    that are alive at the end of the forward pass.
    """
    allocations = {event.id: (at, event) for at, event in enumerate(events[:end]) if type(event) is Alloc}
    freed = {event.id for event in events[:end] if type(event) is Free}
    category = {id: event.category for id, (_, event) in allocations.items()}
    category.update({event.id: event.category for event in events if type(event) is Tag})
    return {
        at: event.block_bytes
        for id, (at, event) in allocations.items()
        if id not in freed and category[id] is Category.ACTIVATION
    }


def _count(parameter: torch.Tensor) -> int:
    return 0 if torch.nn.parameter.is_lazy(parameter) else parameter.numel()


def shapes_of(value: Any) -> tuple[Shape, ...]:
    return tuple(tuple(tensor.shape) for tensor in tensors_in((value,)))


# --- recording the forward pass


@dataclass(slots=True)
class _Entry:
    """A layer or an operation of the summary."""

    name: str
    kind: str
    depth: int
    is_operation: bool
    has_children: bool
    begin: int
    end: int = -1
    outputs: tuple[Shape, ...] = ()
    parameters: int = 0
    own_parameters: int = 0
    trainable: int = 0

    def is_listed(self, before: list[int]) -> bool:
        """Return whether the call has its own row in the summary. Layers always have a row. Operations have a row if
        they save a tensor or change the shape.
        """
        return not self.is_operation or self.kind in _RESHAPING or self._saved(before) > 0

    def _saved(self, before: list[int]) -> int:
        last = len(before) - 1
        return before[min(self.end, last)] - before[min(self.begin, last)] if self.end >= 0 else 0

    def row(self, before: list[int], peak: int) -> LayerRow:
        saved = self._saved(before)
        return LayerRow(
            name=self.name,
            kind=self.kind,
            depth=self.depth,
            is_operation=self.is_operation,
            has_children=self.has_children,
            outputs=self.outputs,
            parameters=self.parameters,
            own_parameters=self.own_parameters,
            trainable=self.trainable,
            saved=saved,
            share=saved / peak if peak else 0.0,
        )


_RESHAPING = {"flatten", "view", "reshape", "cat", "concat", "stack", "matmul", "bmm", "interpolate"}


class _LayerCalls(TorchFunctionMode):
    """Records each call to a layer, and each operation that a layer with child layers calls."""

    def __init__(self, model: nn.Module, events: list[Event]) -> None:
        super().__init__()
        self.entries: list[_Entry] = []
        self._events = events
        self._names = {id(module): name for name, module in model.named_modules()}
        self._stack: list[tuple[_Entry, nn.Module, Any]] = []
        self._operation: LayerCall | None = None
        self._counted: set[int] = set()
        self._exit = contextlib.ExitStack()

    def __enter__(self) -> "_LayerCalls":
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

    def active(self) -> list[LayerCall]:
        layers = [
            LayerCall(name=entry.name, kind=entry.kind, module=module, shapes=shapes_of(args), arguments=args)
            for entry, module, args in reversed(self._stack)
        ]
        return ([self._operation] if self._operation is not None else []) + layers

    def _begin(self, module: nn.Module, args: Any) -> None:
        new = [p for p in module.parameters() if id(p) not in self._counted]
        is_leaf = next(module.children(), None) is None
        entry = _Entry(
            self._names.get(id(module), ""),
            type(module).__name__,
            len(self._stack),
            is_operation=False,
            has_children=not is_leaf,
            begin=len(self._events),
            parameters=sum(map(_count, new)),
            trainable=sum(_count(p) for p in new if p.requires_grad),
        )
        if is_leaf:
            self._count_own(entry, module)
        self.entries.append(entry)
        self._stack.append((entry, module, args))

    def _count_own(self, entry: _Entry, module: nn.Module) -> None:
        """Count the parameters that were not already counted for a child layer. The parameters of a child layer that
        is never called, such as a projection of an attention layer, count for this layer.
        """
        own = [p for p in module.parameters() if id(p) not in self._counted]
        entry.own_parameters = sum(map(_count, own))
        self._counted.update(map(id, own))

    def _finish(self, module: nn.Module, args: Any, output: Any) -> None:
        while self._stack:
            entry, active, _ = self._stack.pop()
            if active is module:
                entry.end = len(self._events)
                entry.outputs = shapes_of(output)
                if entry.has_children:
                    self._count_own(entry, module)
                return

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if not self._stack or not self._stack[-1][0].has_children or name in _QUERIES:
            return func(*args, **kwargs)
        begin = len(self._events)
        owner = self._stack[-1][0]
        self._operation = LayerCall(
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


_QUERIES = {"__get__", "size", "dim", "numel", "stride", "is_floating_point", "__len__", "__bool__"}
