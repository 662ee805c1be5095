"""LSTM and GRU cells: one fused kernel for all gates, where the CPU computes gate by gate.

Source: `LSTMCell` and `GRUCell` in ATen/native/RNN.cpp, and cuda/RNN.cu. On CUDA the two products are made without their biases, and
one kernel adds those, computes the gates and keeps them (LSTM: four for each unit, GRU: five) for the backward pass, which is one
kernel too, and sums over all rows for the biases, with the scratch that such sums have. torch has no shapes for the GRU's
operations, and none for an LSTM's without biases, so they are given here.
"""

from collections.abc import Sequence
from typing import Any

import torch

from legroom.observe.cuda_rules.dispatcher import Overrides
from legroom.observe.cuda_rules.ops import reductions
from legroom.observe.cuda_rules.plan import Call, Give, Output, Plan, Rule, Step, numbered

aten = torch.ops.aten
Tensor = torch.Tensor

GRU_GATES, GRU_KEPT = 3, 5
LSTM_KEPT = 4


def install(overrides: Overrides) -> None:
    overrides.put("_thnn_fused_lstm_cell", _lstm_shapes, "Meta")
    overrides.put("_thnn_fused_gru_cell", _gru_shapes, "Meta")
    overrides.put("_thnn_fused_gru_cell_backward", _gru_backward_shapes, "Meta")
    overrides.composite("lstm_cell", _lstm_cell)
    overrides.composite("gru_cell", _gru_cell)


def _lstm_cell(
    original: Any,
    input: Tensor,
    hx: Sequence[Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    state, cell = hx
    out, new_cell, _ = aten._thnn_fused_lstm_cell(
        torch.matmul(input, w_ih.t()), torch.matmul(state, w_hh.t()), cell, b_ih, b_hh
    )
    return out, new_cell


def _gru_cell(
    original: Any,
    input: Tensor,
    hx: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> Tensor:
    out: Tensor = aten._thnn_fused_gru_cell(
        torch.matmul(input, w_ih.t()), torch.matmul(hx, w_hh.t()), hx, b_ih, b_hh
    )[0]
    return out


def _lstm_shapes(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    kept = cx.new_empty(cx.shape[0], LSTM_KEPT * cx.shape[1])
    return torch.empty_like(cx), torch.empty_like(cx), kept


def _gru_shapes(
    input_gates: Tensor,
    hidden_gates: Tensor,
    hx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(hx), hx.new_empty(hx.shape[0], GRU_KEPT * hx.shape[1])


def _gru_backward_shapes(grad_hy: Tensor, workspace: Tensor, has_bias: bool) -> tuple[Any, ...]:
    width = workspace.shape[1] // GRU_KEPT * GRU_GATES
    gates = [workspace.new_empty(workspace.shape[0], width) for _ in range(2)]
    biases = [workspace.new_empty(width) if has_bias else None for _ in range(2)]
    return (*gates, torch.empty_like(grad_hy), *biases)


def _sums_for_biases(*sums: tuple[int, int]) -> Rule:
    """Results in their order; each (gates, bias) of them: the bias is the sum of these gates' rows."""

    def rule(call: Call) -> Plan | None:
        steps: list[Step] = []
        for gates, bias in sums:
            if call.result[bias] is None:
                return None
            sizes = reductions.of_tensor(call.result[gates], 0, call.gpu, accumulator=reductions.SUM)
            buffers = numbered(str(bias), sizes)
            steps += [Output(bias), *buffers, *(Give(one.name) for one in reversed(buffers))]
        return Plan(steps)

    return rule


def _what_is_kept_first(results: Sequence[int]) -> Rule:
    """The gates that are kept are allocated before the states."""
    plan = Plan([Output(index) for index in results])
    return lambda call: plan


RULES: dict[str, Rule] = {
    "aten::_thnn_fused_lstm_cell": _what_is_kept_first((2, 0, 1)),
    "aten::_thnn_fused_gru_cell": _what_is_kept_first((1, 0)),
    "aten::_thnn_fused_lstm_cell_backward_impl": _sums_for_biases((0, 2)),
    "aten::_thnn_fused_gru_cell_backward": _sums_for_biases((0, 3), (1, 4)),
}
