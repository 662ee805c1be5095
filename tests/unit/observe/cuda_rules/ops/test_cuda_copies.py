"""Memory formats that kernels copy, and those that they do not, as measured on an H200."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from traced_plans import scratch_bytes, step_order, traced

from legroom.observe.cuda_rules.plan import OutputAlloc

PICTURE = 4 * 16 * 64 * 64 * 4


def picture(*, last: bool = False, turned: bool = False) -> torch.Tensor:
    made = torch.empty(4, 16, 64, 64)
    if last:
        made = made.to(memory_format=torch.channels_last)
    return (made.transpose(2, 3) if turned else made).requires_grad_()


@pytest.mark.parametrize(
    ("pool", "name"),
    [
        (lambda x: F.avg_pool2d(x, 2), "avg_pool2d"),
        (lambda x: F.max_pool2d(x, 2), "max_pool2d_with_indices"),
        (lambda x: F.adaptive_max_pool2d(x, 4), "adaptive_max_pool2d"),
    ],
)
def test_pooling_copies_a_transposed_image(pool, name):
    with traced() as log:
        pool(picture(turned=True))
        pool(picture())
    plans = [plan for called, plan, _ in log.calls if called == name]
    assert list(scratch_bytes(plans[0]).values()) == [PICTURE]
    assert not scratch_bytes(plans[1])


def test_pooling_reads_channels_last_images_without_a_copy():
    with traced() as log:
        F.max_pool2d(picture(last=True), 2).sum().backward()
    assert not scratch_bytes(log.plan_of("max_pool2d_with_indices"))


def test_adaptive_pooling_copies_before_allocating_its_result():
    with traced() as log:
        F.adaptive_avg_pool2d(picture(turned=True), 5)
    assert step_order(log.plan_of("_adaptive_avg_pool2d")) == ["self", 0]


def test_the_expanded_gradient_of_a_sum_is_copied_by_pooling():
    with traced() as log:
        F.avg_pool2d(picture(), 2).sum().backward()
    assert list(scratch_bytes(log.plan_of("avg_pool2d_backward")).values()) == [PICTURE // 4]


def test_replication_padding_needs_no_copy_and_reflection_padding_does():
    with traced() as log:
        F.pad(picture(turned=True), (1, 1, 1, 1), mode="replicate")
        F.pad(picture(turned=True), (1, 1, 1, 1), mode="reflect")
    assert not scratch_bytes(log.plan_of("replication_pad2d"))
    assert list(scratch_bytes(log.plan_of("reflection_pad2d")).values()) == [PICTURE]


def test_the_gradient_of_nearest_exact_interpolation_is_copied():
    with traced() as log:
        F.interpolate(picture(), scale_factor=2, mode="nearest-exact").sum().backward()
    assert list(scratch_bytes(log.plan_of("_upsample_nearest_exact2d_backward")).values()) == [4 * PICTURE]


def test_fold_with_few_columns_allocates_the_size_of_the_image():
    with traced() as log:
        F.fold(torch.empty(4, 16 * 4, 16), (14, 14), 2, stride=4)
    assert OutputAlloc(0, 4 * 16 * 14 * 14 * 4) in log.plan_of("col2im").steps


def test_group_norm_saves_a_copy_of_a_channels_last_image():
    with traced() as log:
        nn.GroupNorm(4, 16)(picture(last=True))
        nn.GroupNorm(4, 16)(picture())
    assert log.names.count("clone") == 1


def test_cudnn_batch_norm_copies_a_gradient_that_is_not_contiguous():
    with traced() as log:
        nn.BatchNorm2d(16)(picture()).sum().backward()
    plan = log.plan_of("native_batch_norm_backward")
    assert step_order(plan) == [0, "gradient", 1, 2]
    assert scratch_bytes(plan) == {"gradient": PICTURE}


def test_batch_norm_without_weights_copies_no_gradient():
    with traced() as log:
        nn.BatchNorm2d(16, affine=False)(picture()).sum().backward()
    assert not scratch_bytes(log.plan_of("native_batch_norm_backward"))


def test_batch_norm_of_a_transposed_half_input_computes_the_variance_of_a_copy():
    with traced() as log:
        x = torch.empty(16, 300, 512, dtype=torch.bfloat16).transpose(1, 2)
        nn.BatchNorm1d(512)(x)
    sizes = scratch_bytes(log.plan_of("native_batch_norm"))
    assert list(sizes.values()) == [9830400, 78643200, 16]


def test_batch_norm_in_evaluation_computes_no_variance():
    with traced() as log:
        nn.BatchNorm2d(16).eval()(picture(last=True))
    assert not scratch_bytes(log.plan_of("native_batch_norm"))


def test_flash_attention_copies_results_and_gradients_with_heads_before_rows():
    with traced("a100") as log:
        q, k, v = (torch.empty(4, 8, 512, 64, dtype=torch.bfloat16, requires_grad=True) for _ in "qkv")
        F.scaled_dot_product_attention(q, k, v).backward(torch.empty(4, 8, 512, 64, dtype=torch.bfloat16))
    sizes = scratch_bytes(log.plan_of("_scaled_dot_product_flash_attention_backward"))
    assert sizes["grad_out"] == sizes["out"] == 2097152
