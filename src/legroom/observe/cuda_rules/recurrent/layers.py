"""LSTM, GRU and RNN layers: one cuDNN call for the whole module, where the CPU unrolls it step by step.

Source: ATen/native/cudnn/RNN.cpp. On CUDA the weights of a module lie in one buffer (`flatten_parameters`), their
gradients in another, and what the backward pass needs is one opaque reserve. Under autocast the weights are cast into
a fresh buffer at every call, and all to float16, whatever autocast's precision is (ATen/cudnn/AutocastRNN.cpp). torch's own shape rules for these operations leave the reserve empty and know no backward,
so both are given here.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

import torch
from torch import nn

from legroom.gpus.catalog import GpuSpec
from legroom.observe.cuda_rules.dispatcher import Overrides
from legroom.observe.cuda_rules.plan import Call, Give, Output, Plan, Rule, Step, Take, size_of
from legroom.observe.cuda_rules.recurrent.sizes import (
    LSTM,
    RNN_MODES,
    Layer,
    dropout_state,
    reserve,
    workspace,
)

aten = torch.ops.aten
Tensor = torch.Tensor


@contextlib.contextmanager
def installed(overrides: Overrides, gpu: GpuSpec) -> Iterator[None]:
    """Recurrent layers take cuDNN's path; modules lay their weights out in one buffer."""
    overrides.put("_cudnn_rnn", _forward_shapes, "Meta")
    overrides.put("_cudnn_rnn_backward", _backward_shapes, "Meta")
    generators = _Generators(gpu)
    for mode, name in enumerate(RNN_MODES):
        overrides.composite(f"{name}.input", _whole(mode, generators))
        overrides.composite(f"{name}.data", _packed(mode, generators))
    modules: Any = nn.RNNBase
    original = modules.flatten_parameters

    def flatten_parameters(module: nn.RNNBase) -> None:
        original(module)
        weights = [w for w in getattr(module, "_flat_weights", ()) if isinstance(w, Tensor)]
        if weights and all(overrides.stands_for_cuda(w) for w in weights):
            _flatten(weights)

    modules.flatten_parameters = flatten_parameters
    try:
        yield
    finally:
        modules.flatten_parameters = original


class _Generators:
    """The state of cuDNN's dropout: made at the first use, kept from then on."""

    def __init__(self, gpu: GpuSpec) -> None:
        self._size = dropout_state(gpu)
        self._state: Tensor | None = None

    def need(self, like: Tensor) -> None:
        if self._state is None:
            with torch.no_grad():
                self._state = like.new_empty(self._size, dtype=torch.uint8)


def _flatten(weights: Sequence[Tensor]) -> None:
    """Let all weights be parts of one buffer, as cuDNN wants them; those that torch leaves apart are put together at every call."""
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


def _whole(mode: int, generators: _Generators) -> Callable[..., Any]:
    """For sequences of one length: `lstm(input, hx, params, has_biases, num_layers, ...)`."""

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
            generators.need(input)
        return _call(
            mode, input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first, []
        )

    return run


def _packed(mode: int, generators: _Generators) -> Callable[..., Any]:
    """For packed sequences: `lstm(data, batch_sizes, hx, params, ...)`."""

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
            generators.need(data)
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
    """The buffer that all weights are parts of; None where each lies by itself."""
    if len({w.untyped_storage()._cdata for w in weights}) > 1:
        return None
    return weights[0].detach().as_strided((sum(w.numel() for w in weights),), (1,), 0)


def _cast_weights(weights: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, list[Tensor]]:
    """`_cudnn_rnn_cast_reflatten`: copies in the lower precision, in one fresh buffer."""
    with torch.no_grad():
        buffer = weights[0].new_zeros(sum(w.numel() for w in weights), dtype=dtype)
        parts = [part.detach() for part in _parts(buffer, [(w.numel(), 1) for w in weights])]
    for part, weight in zip(parts, weights, strict=True):
        part.copy_(weight.reshape(-1, 1))
    return buffer, parts


# Shapes, as the CUDA operations give them


def _layer(arguments: dict[str, Any], input: Tensor) -> Layer:
    sizes = arguments["batch_sizes"]
    if sizes:
        steps, batch = len(sizes), sizes[0]
    else:
        steps, batch = input.shape[:2] if not arguments["batch_first"] else (input.shape[1], input.shape[0])
    return Layer(
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
    kept = input.new_empty(reserve(layer), dtype=torch.uint8)
    buffer = arguments["weight_buf"]
    if buffer is None:
        buffer = input.new_empty(sum(w.numel() for w in arguments["weight"]))
    return out, state, cell, kept, buffer


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
    """Two matrices (three with a projection) and two biases belong to each layer; without biases only the matrices."""
    return int(arguments["weight_stride0"]) > (3 if arguments["proj_size"] else 2)


# What the operations take


def _forward(call: Call) -> Plan:
    """The input in steps × batch order, results, workspace, reserve: in the order of the measured histories."""
    arguments = call.arguments
    layer = _layer(arguments, arguments["input"])
    steps: list[Step] = []
    if _reordered(arguments):
        steps.append(Take("input", size_of(arguments["input"])))
    steps += [Output(0), Output(1), Output(2), Output(4), Take("workspace", workspace(layer)), Output(3)]
    return Plan(steps)


def _backward(call: Call) -> Plan:
    """First the gradients of the inputs and states, wanted or not, then those of the weights: the workspace is taken twice. The order is that
    of the measured histories. Where only the last states are used, the outputs' gradient is made of zeros first (RNN.cpp)."""
    arguments = call.arguments
    layer = _layer(arguments, arguments["input"])
    scratch = workspace(layer, backward=True)
    has_cell = arguments["cx"] is not None
    output = size_of(arguments["output"])
    zeros = [Take("zeros", output)] if arguments["grad_output"] is None else []
    copied = [Take("input", size_of(arguments["input"]))] if _reordered(arguments) else []
    reordered = (
        [Take("gradient", output)] if _reordered(arguments) and not _has_steps_first(arguments) else []
    )
    need_input, need_state, need_cell, _ = arguments["output_mask"]
    wanted = [need_input, need_state or need_input, has_cell and (need_cell or need_input)]

    def gradient(index: int, name: str) -> Step:
        if wanted[index]:
            return Output(sum(wanted[:index]))
        return Take(f"unwanted {name}", size_of(arguments[name]))

    steps: list[Step] = [*zeros, gradient(1, "hx")]
    if has_cell:
        steps.append(gradient(2, "cx"))
    steps += [*copied, *reordered, gradient(0, "input")]
    for name in ("hx", "cx"):
        if arguments[f"grad_{name[0]}y"] is None and arguments[name] is not None:
            steps.append(Take(name, size_of(arguments[name])))
    steps += [Take("workspace", scratch), Give("workspace")]
    steps += [Give(taken.name) for taken in (*reordered, *copied)]
    if arguments["output_mask"][3]:
        first = sum(wanted)
        steps += copied
        if _has_biases(arguments):
            steps += [Output(first), Take("workspace", scratch)]
        else:  # cuDNN's buffer has biases all the same: the matrices are copied out of it
            count = len(arguments["weight"])
            steps += [Take("gradients", layer.weights + _biases(layer)), Take("workspace", scratch)]
            steps += [Output(index) for index in range(first, first + count)]
    return Plan(steps)


def _biases(layer: Layer) -> int:
    return 2 * layer.gates * layer.hidden * layer.layers * layer.directions * layer.element


def _reordered(arguments: dict[str, Any]) -> bool:
    """Whether the input must be copied to put the steps first."""
    wrong = bool(arguments["batch_first"]) and not arguments["batch_sizes"]
    return wrong and min(arguments["input"].shape[:2]) > 1


def _has_steps_first(arguments: dict[str, Any]) -> bool:
    """Whether the outputs' gradient lies as the outputs themselves do, steps first, whatever its shape says."""
    gradient = arguments["grad_output"]
    return gradient is not None and bool(gradient.transpose(0, 1).is_contiguous())


RULES: dict[str, Rule] = {"aten::_cudnn_rnn": _forward, "aten::_cudnn_rnn_backward": _backward}

_FLATTENED = {torch.float16, torch.float32, torch.float64}
"""`torch.backends.cudnn.is_acceptable` knows no bfloat16."""
_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
_FORWARD_NAMES = [argument.name for argument in aten._cudnn_rnn.default._schema.arguments]
_BACKWARD_NAMES = [argument.name for argument in aten._cudnn_rnn_backward.default._schema.arguments]
