"""Scratch memory of sorting and masked selection, compared with measurements on an H200."""

import torch
import torch.nn.functional as F
from torch import nn
from traced_plans import scratch_bytes, step_order, traced

from legroom.observe.cuda_rules.plan import ScratchAlloc


def test_masked_scatter_allocates_an_int64_prefix_sum():
    with traced() as log:
        x, mask = torch.empty(3000, 700), torch.empty(3000, 700, dtype=torch.bool)
        x.masked_scatter(mask, torch.empty(3000, 700))
    assert scratch_bytes(log.plan_of("masked_scatter")) == {"prefix sum": 16800000, "scan": 38655}


def test_the_gradient_of_rows_selected_by_a_mask_sorts_rows_not_values():
    rows = torch.ones(100, dtype=torch.bool)
    rule_sizes = _index_put_sizes(torch.zeros(100, 64), rows, torch.zeros(40, 64))
    assert rule_sizes["linear"] == 40 * 8
    assert rule_sizes["true"] == 40 * 8


def _index_put_sizes(target: torch.Tensor, mask: torch.Tensor, values: torch.Tensor) -> dict[str, int]:
    from legroom.gpus.catalog import find_gpu
    from legroom.observe.cuda_rules.ops.masks import RULES
    from legroom.observe.cuda_rules.plan import OpCall

    func = torch.ops.aten.index_put_.default
    arguments = {"self": target, "indices": [mask], "values": values, "accumulate": True}
    plan = RULES["aten::index_put_"](OpCall(func, arguments, target, find_gpu("h200"), True))
    assert plan is not None
    return {step.name: step.bytes for step in plan.steps if isinstance(step, ScratchAlloc)}


def test_sorting_long_rows_that_are_not_contiguous_copies_them_and_the_results():
    with traced() as log:
        torch.empty(20000, 600).sort(0)
    sizes = scratch_bytes(log.plan_of("sort"))
    assert sizes["rows"] == sizes["values"] == 48000000
    assert sizes["indices"] == 96000000


def test_sorting_long_contiguous_rows_copies_nothing():
    with traced() as log:
        torch.empty(48, 90000).sort(1)
    assert "rows" not in scratch_bytes(log.plan_of("sort"))


def test_the_median_of_all_values_sorts_them():
    with traced() as log:
        torch.empty(100000, 64).median()
    sizes = scratch_bytes(log.plan_of("median"))
    assert sizes["values"] == 25600000
    assert sizes["indices"] == sizes["positions"] == 51200000


def test_one_multinomial_sample_divides_the_probabilities_by_noise():
    with traced() as log:
        torch.multinomial(torch.empty(4096, 18), 1)
    assert scratch_bytes(log.plan_of("multinomial")) == {"divided by noise": 294912}


def test_isin_with_few_values_compares_every_element_at_once():
    with traced() as log:
        torch.isin(torch.empty(3000, 700), torch.empty(5))
    assert scratch_bytes(log.plan_of("isin")) == {"equal": 10500000, "any": 2100000}


def test_logsumexp_has_staging_buffers_for_both_reductions():
    with traced() as log:
        torch.empty(512, 50, 256, dtype=torch.bfloat16).logsumexp((0, 1))
    sizes = scratch_bytes(log.plan_of("logsumexp"))
    assert sizes["of maxima 0"] == 26214400
    assert sizes["of sums 0"] == 52428800
    assert step_order(log.plan_of("logsumexp")).index("scores") < step_order(log.plan_of("logsumexp")).index(
        0
    )


def test_counts_of_equal_maxima_are_not_accumulated_in_place():
    """In contrast, other gradients that are scattered into zeros are written in place."""
    with traced() as log:
        x = torch.empty(100, 8, requires_grad=True)
        index = torch.empty(100, 8, dtype=torch.long)
        x.scatter_reduce(0, index, torch.empty(100, 8, requires_grad=True), "amax").sum().backward()
    assert "scatter_add" in log.names
    assert "scatter_add_" not in log.names


def test_gradients_of_a_recurrent_layer_that_have_steps_first_are_not_copied():
    with traced() as log:
        layer = nn.GRU(16, 32, batch_first=True)
        out, _ = layer(torch.empty(4, 7, 16))
        out.backward(torch.empty_like(out))
        out, _ = layer(torch.empty(4, 7, 16))
        F.relu(out.contiguous()).backward(torch.empty(4, 7, 32))
    plans = [plan for called, plan, _ in log.calls if called == "_cudnn_rnn_backward"]
    assert "gradient" not in scratch_bytes(plans[0])
    assert "gradient" in scratch_bytes(plans[1])
