"""Memory plans of LSTM, GRU and RNN layers. CUDA runs a whole module in one cuDNN call, while the CPU unrolls the
module step by step.

The rules follow ATen/native/cudnn/RNN.cpp. On CUDA, the weights of a module are in one buffer (`flatten_parameters`),
and their gradients are in another buffer. The data for the backward pass is in one opaque buffer, the reserve. Under
autocast, the weights are cast into a new buffer at every call, always to float16 (ATen/cudnn/AutocastRNN.cpp).

Torch's shape function for cuDNN's forward pass returns an empty reserve, and torch has no shape function for the
backward pass. This module defines the size of the reserve and the result shapes of the backward pass.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from legroom.gpus.catalog import GpuSpec
from legroom.observe.cuda_rules.dispatcher import COMPOSITE, Overrides
from legroom.observe.cuda_rules.plan import (
    MemoryPlan,
    MemoryStep,
    OpCall,
    OutputAlloc,
    Rule,
    ScratchAlloc,
    ScratchFree,
    size_of,
)
from legroom.observe.cuda_rules.recurrent.sizes import (
    LSTM,
    RNN_MODES,
    RecurrentLayer,
    dropout_state,
    reserve,
    workspace,
)

aten = torch.ops.aten
Tensor = torch.Tensor


@contextlib.contextmanager
def installed(overrides: Overrides, gpu: GpuSpec) -> Iterator[None]:
    """Within the block, recurrent layers make the same calls as with cuDNN, and modules put their weights into one
    buffer.
    """
    overrides.put("_cudnn_rnn", _forward_shapes, "Meta")
    overrides.put("_cudnn_rnn_backward", _backward_shapes, "Meta")
    dropout = _DropoutState(gpu)
    overrides.put("_pack_padded_sequence", _pack(overrides), *COMPOSITE)
    for mode, name in enumerate(RNN_MODES):
        overrides.composite(f"{name}.input", _padded(mode, dropout))
        overrides.composite(f"{name}.data", _packed(mode, dropout))
    modules: Any = nn.RNNBase
    original = modules.flatten_parameters

    def flatten_parameters(module: nn.RNNBase) -> None:
        original(module)
        weights = [w for w in getattr(module, "_flat_weights", ()) if isinstance(w, Tensor)]
        if weights and all(overrides.is_on_device(w) for w in weights):
            _flatten(weights)

    modules.flatten_parameters = flatten_parameters
    try:
        yield
    finally:
        modules.flatten_parameters = original


class _DropoutState:
    def __init__(self, gpu: GpuSpec) -> None:
        self._size = dropout_state(gpu)
        self._state: Tensor | None = None

    def allocate(self, like: Tensor) -> None:
        if self._state is None:
            with torch.no_grad():
                self._state = like.new_empty(self._size, dtype=torch.uint8)


def _flatten(weights: Sequence[Tensor]) -> None:
    """Put all weights into one buffer, which is the layout that cuDNN requires. If the weights are in separate buffers,
    cuDNN copies them at every call.
    """
    if len({w.untyped_storage()._cdata for w in weights}) == 1:
        return
    dtypes = {w.dtype for w in weights}
    if len(dtypes) > 1 or dtypes - _FLATTENED:
        return
    with torch.no_grad():
        buffer = weights[0].new_empty(sum(w.numel() for w in weights))
        for weight, part in zip(weights, _parts(buffer, [w.shape for w in weights]), strict=True):
            weight.set_(part)  # type: ignore[call-overload]


def _parts(buffer: Tensor, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    offset, parts = 0, []
    for shape in shapes:
        parts.append(buffer.narrow(0, offset, prod(shape)).view(*shape))
        offset += prod(shape)
    return parts


def _padded(mode: int, dropout_state: _DropoutState) -> Callable[..., Any]:
    def run(
        original: Any,
        input: Tensor,
        hx: Any,
        params: Sequence[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        if dropout and train:
            dropout_state.allocate(input)
        return _call(
            mode, input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first, []
        )

    return run


def _packed(mode: int, dropout_state: _DropoutState) -> Callable[..., Any]:
    def run(
        original: Any,
        data: Tensor,
        batch_sizes: Tensor,
        hx: Any,
        params: Sequence[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
    ) -> Any:
        if dropout and train:
            dropout_state.allocate(data)
        sizes = batch_sizes.tolist()
        return _call(
            mode, data, hx, params, has_biases, num_layers, dropout, train, bidirectional, False, sizes
        )

    return run


def _call(
    mode: int,
    input: Tensor,
    hx: Any,
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    batch_sizes: list[int],
) -> Any:
    state, cell = hx if mode == LSTM else (hx, None)
    weights = list(params)
    hidden = (state if cell is None else cell).shape[-1]
    projected = state.shape[-1] if state.shape[-1] != hidden else 0
    per_layer = (4 if has_biases else 2) + (1 if projected else 0)
    buffer = _buffer_of(weights)
    autocasts = torch.is_autocast_enabled("cpu") and input.is_floating_point()
    with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST) if autocasts else contextlib.nullcontext():
        if autocasts:
            dtype = torch.float16
            buffer, weights = _cast_weights(weights, dtype)
            cell = None if cell is None else cell.to(dtype)
            state, input = state.to(dtype), input.to(dtype)
        out, last_state, last_cell, _, _ = aten._cudnn_rnn(
            input, weights, per_layer, buffer, state, cell, mode, hidden, projected, num_layers, batch_first, dropout,
            train, bidirectional, batch_sizes, None,
        )  # fmt: skip
    return (out, last_state, last_cell) if mode == LSTM else (out, last_state)


def _buffer_of(weights: Sequence[Tensor]) -> Tensor | None:
    if len({w.untyped_storage()._cdata for w in weights}) > 1:
        return None
    return weights[0].detach().as_strided((sum(w.numel() for w in weights),), (1,), 0)


def _cast_weights(weights: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, list[Tensor]]:
    with torch.no_grad():
        buffer = weights[0].new_zeros(sum(w.numel() for w in weights), dtype=dtype)
        parts = [part.detach() for part in _parts(buffer, [(w.numel(), 1) for w in weights])]
    for part, weight in zip(parts, weights, strict=True):
        part.copy_(weight.reshape(-1, 1))
    return buffer, parts


def _pack(overrides: Overrides) -> Callable[..., Any]:
    """Return a replacement for `_pack_padded_sequence` that supports fake tensors. The shape of the result follows
    from the lengths, whose values are known because they are on the host.

    The rule follows ATen/native/PackedSequence.cpp. Sequences are sorted, longest first. In the result, the rows of one
    time step are followed by the rows of the next time step.
    """

    def pack(input: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
        longest_first = [int(length) for length in lengths.tolist()]
        sizes = [
            sum(length > step for length in longest_first) for step in range(max(longest_first, default=0))
        ]
        if isinstance(input, FakeTensor) and overrides.is_on_device(input):
            packed: Tensor = _Packed.apply(input, sum(sizes), batch_first)  # type: ignore[no-untyped-call]
        else:  # The input has data. The original kernel cannot be called, because the operation is not composite.
            steps = input.transpose(0, 1) if batch_first else input
            packed = torch.cat([steps[step, :count] for step, count in enumerate(sizes)])
        return packed, torch.tensor(sizes, dtype=torch.int64)

    return pack


class _Packed(torch.autograd.Function):
    """Packs a fake tensor. The gradient of a padding element is zero, so the gradient is allocated as zeros."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, rows: int, batch_first: bool) -> Tensor:
        ctx.padded, ctx.batch_first = input.shape, batch_first
        # The rows of each step are made contiguous. Then the rows of all steps are concatenated.
        contiguous = input.new_empty(rows, *input.shape[2:])
        return torch.cat([contiguous])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        first, second, *rest = ctx.padded
        if not ctx.batch_first:
            return gradient.new_zeros(first, second, *rest), None, None
        return gradient.new_zeros(second, first, *rest).transpose(0, 1), None, None


# Shapes of the CUDA operations


def _layer(arguments: dict[str, Any], input: Tensor) -> RecurrentLayer:
    sizes = arguments["batch_sizes"]
    if sizes:
        steps, batch = len(sizes), sizes[0]
    else:
        steps, batch = input.shape[:2] if not arguments["batch_first"] else (input.shape[1], input.shape[0])
    return RecurrentLayer(
        mode=arguments["mode"],
        steps=steps,
        batch=batch,
        inputs=input.shape[-1],
        hidden=arguments["hidden_size"],
        layers=arguments["num_layers"],
        directions=2 if arguments["bidirectional"] else 1,
        dtype=str(input.dtype).removeprefix("torch."),
        training=arguments["train"],
        dropout=arguments["dropout"] > 0,
        projected=arguments["proj_size"] or 0,
        rows=input.shape[0] if sizes else 0,
    )


def _forward_shapes(*args: Any) -> tuple[Tensor, ...]:
    arguments = dict(zip(_FORWARD_NAMES, args, strict=False))
    input, hx, cx = arguments["input"], arguments["hx"], arguments["cx"]
    layer = _layer(arguments, input)
    width = (arguments["proj_size"] or layer.hidden) * layer.directions
    if arguments["batch_sizes"]:
        out = input.new_empty(input.shape[0], width)
    else:
        out = input.new_empty(layer.steps, layer.batch, width)
        out = out.transpose(0, 1) if arguments["batch_first"] else out
    depth = layer.layers * layer.directions
    state = hx.new_empty(depth, layer.batch, arguments["proj_size"] or layer.hidden)
    cell = input.new_empty(0) if cx is None else cx.new_empty(depth, layer.batch, layer.hidden)
    reserved = input.new_empty(reserve(layer), dtype=torch.uint8)
    buffer = arguments["weight_buf"]
    if buffer is None:
        buffer = input.new_empty(sum(w.numel() for w in arguments["weight"]))
    return out, state, cell, reserved, buffer


def _backward_shapes(*args: Any) -> tuple[Any, ...]:
    arguments = dict(zip(_BACKWARD_NAMES, args, strict=False))
    input, hx, cx = arguments["input"], arguments["hx"], arguments["cx"]
    need_input, need_state, need_cell, need_weights = arguments["output_mask"]
    if arguments["batch_first"] and not arguments["batch_sizes"]:
        grad_input = input.new_empty(input.shape[1], input.shape[0], input.shape[2]).transpose(0, 1)
    else:
        grad_input = input.new_empty(input.shape)
    weights = arguments["weight"]
    if _has_biases(arguments):
        grad_weights = _parts(input.new_empty(sum(w.numel() for w in weights)), [w.shape for w in weights])
    else:
        grad_weights = [input.new_empty(w.shape) for w in weights]
    return (
        grad_input if need_input else None,
        hx.new_empty(hx.shape) if need_state or need_input else None,
        cx.new_empty(cx.shape) if cx is not None and (need_cell or need_input) else None,
        grad_weights if need_weights else [],
    )


def _has_biases(arguments: dict[str, Any]) -> bool:
    # A layer has two weight matrices (three if it has a projection). Unless `bias=False`, it also has two bias vectors.
    return int(arguments["weight_stride0"]) > (3 if arguments["proj_size"] else 2)


# Memory plans


def _forward(call: OpCall) -> MemoryPlan:
    """Return a plan that allocates a copy of the input in steps × batch order, the results, the workspace and the
    reserve, in the measured order.
    """
    arguments = call.arguments
    layer = _layer(arguments, arguments["input"])
    steps: list[MemoryStep] = []
    if _reordered(arguments):
        steps.append(ScratchAlloc("input", size_of(arguments["input"])))
    steps += [
        OutputAlloc(0),
        OutputAlloc(1),
        OutputAlloc(2),
        OutputAlloc(4),
        ScratchAlloc("workspace", workspace(layer)),
        OutputAlloc(3),
    ]
    return MemoryPlan(steps)


def _backward(call: OpCall) -> MemoryPlan:
    """Return a plan that first allocates the gradients of the inputs and states, even if they are not needed, and then
    the gradients of the weights. The order was measured. If only the last states are used, the gradient of the outputs
    is allocated as zeros first (RNN.cpp).
    """
    arguments = call.arguments
    layer = _layer(arguments, arguments["input"])
    scratch = workspace(layer, backward=True)
    has_cell = arguments["cx"] is not None
    output = size_of(arguments["output"])
    zeros = [ScratchAlloc("zeros", output)] if arguments["grad_output"] is None else []
    copied = [ScratchAlloc("input", size_of(arguments["input"]))] if _reordered(arguments) else []
    reordered = (
        [ScratchAlloc("gradient", output)]
        if _reordered(arguments) and not _has_steps_first(arguments)
        else []
    )
    need_input, need_state, need_cell, _ = arguments["output_mask"]
    is_result = [need_input, need_state or need_input, has_cell and (need_cell or need_input)]

    def gradient(index: int, name: str) -> MemoryStep:
        if is_result[index]:
            return OutputAlloc(sum(is_result[:index]))
        return ScratchAlloc(f"unused {name}", size_of(arguments[name]))

    steps: list[MemoryStep] = [*zeros, gradient(1, "hx")]
    if has_cell:
        steps.append(gradient(2, "cx"))
    steps += [*copied, *reordered, gradient(0, "input")]
    for name in ("hx", "cx"):
        if arguments[f"grad_{name[0]}y"] is None and arguments[name] is not None:
            steps.append(ScratchAlloc(name, size_of(arguments[name])))
    steps += [ScratchAlloc("workspace", scratch), ScratchFree("workspace")]
    steps += [ScratchFree(step.name) for step in (*reordered, *copied)]
    if arguments["output_mask"][3]:
        first = sum(is_result)
        steps += copied
        if _has_biases(arguments):
            steps += [OutputAlloc(first), ScratchAlloc("workspace", scratch)]
        else:  # cuDNN's buffer includes biases anyway: the matrices are copied from it
            count = len(arguments["weight"])
            steps += [
                ScratchAlloc("gradients", layer.weights + _biases(layer)),
                ScratchAlloc("workspace", scratch),
            ]
            steps += [OutputAlloc(index) for index in range(first, first + count)]
    return MemoryPlan(steps)


def _biases(layer: RecurrentLayer) -> int:
    return 2 * layer.gates * layer.hidden * layer.layers * layer.directions * layer.element


def _reordered(arguments: dict[str, Any]) -> bool:
    is_batch_first = bool(arguments["batch_first"]) and not arguments["batch_sizes"]
    return is_batch_first and min(arguments["input"].shape[:2]) > 1


def _has_steps_first(arguments: dict[str, Any]) -> bool:
    """Return whether the values of the output gradient are stored step by step, regardless of the order of its
    dimensions.
    """
    gradient = arguments["grad_output"]
    return gradient is not None and bool(gradient.transpose(0, 1).is_contiguous())


RULES: dict[str, Rule] = {"aten::_cudnn_rnn": _forward, "aten::_cudnn_rnn_backward": _backward}

_FLATTENED = {torch.float16, torch.float32, torch.float64}
"""The dtypes of weights that torch puts into one buffer. `torch.backends.cudnn.is_acceptable` rejects bfloat16."""
_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
_FORWARD_NAMES = [argument.name for argument in aten._cudnn_rnn.default._schema.arguments]
_BACKWARD_NAMES = [argument.name for argument in aten._cudnn_rnn_backward.default._schema.arguments]
