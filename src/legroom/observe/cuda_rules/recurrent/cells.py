"""Memory plans of LSTM and GRU cells. CUDA has one fused kernel for all gates, while the CPU computes the gates one by
one.

The rules follow `LSTMCell` and `GRUCell` in ATen/native/RNN.cpp, and cuda/RNN.cu. On CUDA, the two matrix products do
not add the biases. One kernel adds the biases, computes the gates and saves them for the backward pass (four per unit
for an LSTM, five for a GRU). In the backward pass, one kernel computes the gradients, and a sum over all rows yields
the bias gradients. PyTorch has no functions that infer the result shapes of a GRU, or of an LSTM without biases, so
this module defines them.
"""

from collections.abc import Sequence
from typing import Any

import torch

from legroom.observe.cuda_rules.dispatcher import Overrides
from legroom.observe.cuda_rules.ops import reductions
from legroom.observe.cuda_rules.plan import (
    MemoryPlan,
    MemoryStep,
    OpCall,
    OutputAlloc,
    Rule,
    ScratchFree,
    numbered,
)

aten = torch.ops.aten
Tensor = torch.Tensor

GRU_GATES, GRU_SAVED = 3, 5
LSTM_SAVED = 4


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
    saved = cx.new_empty(cx.shape[0], LSTM_SAVED * cx.shape[1])
    return torch.empty_like(cx), torch.empty_like(cx), saved


def _gru_shapes(
    input_gates: Tensor,
    hidden_gates: Tensor,
    hx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(hx), hx.new_empty(hx.shape[0], GRU_SAVED * hx.shape[1])


def _gru_backward_shapes(grad_hy: Tensor, workspace: Tensor, has_bias: bool) -> tuple[Any, ...]:
    width = workspace.shape[1] // GRU_SAVED * GRU_GATES
    gates = [workspace.new_empty(workspace.shape[0], width) for _ in range(2)]
    biases = [workspace.new_empty(width) if has_bias else None for _ in range(2)]
    return (*gates, torch.empty_like(grad_hy), *biases)


def _bias_sums(*sums: tuple[int, int]) -> Rule:
    """Return a rule for an operation that computes bias gradients. Each pair contains the result indices of the gate
    gradients and of the bias gradient. The bias gradient is the sum of the gate gradients over all rows.
    """

    def rule(call: OpCall) -> MemoryPlan | None:
        steps: list[MemoryStep] = []
        for gates, bias in sums:
            if call.result[bias] is None:
                return None
            sizes = reductions.of_tensor(call.result[gates], 0, call.gpu, accumulator=reductions.SUM)
            buffers = numbered(str(bias), sizes)
            steps += [OutputAlloc(bias), *buffers, *(ScratchFree(one.name) for one in reversed(buffers))]
        return MemoryPlan(steps)

    return rule


def _saved_gates_first(results: Sequence[int]) -> Rule:
    plan = MemoryPlan([OutputAlloc(index) for index in results])
    return lambda call: plan


RULES: dict[str, Rule] = {
    "aten::_thnn_fused_lstm_cell": _saved_gates_first((2, 0, 1)),
    "aten::_thnn_fused_gru_cell": _saved_gates_first((1, 0)),
    "aten::_thnn_fused_lstm_cell_backward_impl": _bias_sums((0, 2)),
    "aten::_thnn_fused_gru_cell_backward": _bias_sums((0, 3), (1, 4)),
}
