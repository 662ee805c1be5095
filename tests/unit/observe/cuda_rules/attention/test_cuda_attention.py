import math

import pytest
import torch
import torch.nn.functional as F
from traced_plans import scratch_bytes, step_order, traced

from legroom.gpus.catalog import find_gpu
from legroom.observe.cuda_rules.attention.kernel_choice import AttentionCall, Backend, choose
from legroom.observe.cuda_rules.plan import OutputAlloc

KERNELS = {
    "_scaled_dot_product_cudnn_attention": Backend.CUDNN,
    "_scaled_dot_product_flash_attention": Backend.FLASH,
    "_scaled_dot_product_efficient_attention": Backend.EFFICIENT,
}


def chosen(
    gpu="h200", *, dtype=torch.bfloat16, heads=8, groups=None, rows=128, columns=None, width=64, mask=None, dropout=0.0,
    causal=False, grad=True, release=(2, 11), stride=None,
):  # fmt: skip
    def tensor(count, length):
        made = torch.empty(2, count, length, width, dtype=dtype, device="meta", requires_grad=grad)
        return made if stride is None else made.as_strided(made.shape, stride)

    columns = columns or rows
    query = tensor(heads, rows)
    key, value = tensor(groups or heads, columns), tensor(groups or heads, columns)
    request = AttentionCall(query, key, value, mask, dropout, causal, grouped=groups is not None)
    return choose(request, find_gpu(gpu), release)


def test_hopper_uses_cudnn_for_half_precision():
    assert chosen("h200") is Backend.CUDNN
    assert chosen("h100", dtype=torch.float16) is Backend.CUDNN


def test_before_2_9_hopper_used_flash():
    assert chosen("h200", release=(2, 8)) is Backend.FLASH
    assert chosen("h200", release=(2, 6), mask=torch.empty(128, 128, device="meta")) is Backend.EFFICIENT


def test_ampere_uses_flash_for_half_precision():
    assert chosen("a100-80gb") is Backend.FLASH
    assert chosen("rtx4090", dtype=torch.float16) is Backend.FLASH


def test_float32_uses_the_efficient_kernel_on_every_generation():
    assert {chosen(gpu, dtype=torch.float32) for gpu in ("h200", "a100", "t4")} == {Backend.EFFICIENT}


def test_turing_has_neither_flash_nor_cudnn():
    assert chosen("t4", dtype=torch.float16) is Backend.EFFICIENT


def test_turing_uses_the_math_kernel_for_bfloat16():
    assert chosen("t4") is Backend.MATH


def test_float64_uses_the_math_kernel():
    assert chosen(dtype=torch.float64) is Backend.MATH


def test_a_mask_excludes_flash_but_not_cudnn():
    mask = torch.empty(2, 1, 128, 128, dtype=torch.bool, device="meta")

    assert chosen("a100", mask=mask) is Backend.EFFICIENT
    assert chosen("h200", mask=mask) is Backend.CUDNN


def test_a_mask_that_requires_grad_excludes_cudnn():
    mask = torch.empty(1, 8, 128, 128, dtype=torch.bfloat16, device="meta", requires_grad=True)

    assert chosen(mask=mask) is Backend.EFFICIENT


def test_a_mask_with_strided_rows_uses_the_math_kernel():
    mask = torch.empty(128, 128, 8, dtype=torch.bfloat16, device="meta").permute(2, 0, 1).unsqueeze(0)

    assert chosen(mask=mask) is Backend.MATH


def test_a_head_width_that_is_not_a_multiple_of_eight_is_padded_for_flash():
    assert chosen(width=20) is Backend.FLASH


def test_the_efficient_kernel_needs_aligned_heads():
    assert chosen(dtype=torch.float32, width=30) is Backend.MATH


def test_wide_heads_use_cudnn_on_hopper_with_torch_2_11():
    assert chosen(width=256) is Backend.CUDNN
    assert chosen(width=256, release=(2, 13)) is Backend.FLASH


def test_grouped_heads_in_float32_use_the_math_kernel():
    assert chosen(dtype=torch.float32, heads=16, groups=4) is Backend.MATH
    assert chosen(heads=16, groups=4) is Backend.CUDNN


def test_since_2_12_cudnn_supports_dropout_in_sixteenths_only():
    assert chosen(dropout=0.1) is Backend.CUDNN
    assert chosen(dropout=0.1, release=(2, 12)) is Backend.FLASH
    assert chosen(dropout=0.125, release=(2, 12)) is Backend.CUDNN


def test_causal_attention_with_another_number_of_keys_excludes_flash():
    assert chosen("a100", rows=64, columns=128, causal=True) is Backend.EFFICIENT


def test_small_ampere_gpus_do_not_train_the_widest_heads_with_flash():
    assert chosen("rtx3090", width=256, dropout=0.1) is Backend.EFFICIENT
    assert chosen("rtx3090", width=256, dropout=0.1, grad=False) is Backend.FLASH


def test_a_kernel_that_the_user_disabled_is_not_used():
    with torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION]):
        assert chosen() is Backend.EFFICIENT


def attend(log_options=None, *, dtype=torch.bfloat16, dropout=0.0, shape=(4, 12, 512, 64), gpu="h200"):
    with traced(gpu) as log:
        q = torch.empty(*shape, dtype=dtype, requires_grad=True)
        out = F.scaled_dot_product_attention(q, q, q, dropout_p=dropout)
        out.backward(torch.empty_like(out))
    return log


def test_the_selected_kernel_runs_forward_and_backward():
    names = attend().names

    assert "_scaled_dot_product_cudnn_attention" in names
    assert "_scaled_dot_product_cudnn_attention_backward" in names


def test_no_matrix_of_queries_and_keys_is_allocated_even_with_dropout():
    log = attend(dtype=torch.float32, dropout=0.1)

    assert not [name for name in log.names if "softmax" in name or name == "bmm"]


def test_the_kernel_saves_one_number_per_row():
    (out, sums, *_) = attend().results_of("_scaled_dot_product_cudnn_attention")

    assert out == ((4, 12, 512, 64), torch.bfloat16)
    assert (math.prod(sums[0]), sums[1]) == (4 * 12 * 512, torch.float32)


def test_cudnn_allocates_its_seeds_before_its_result():
    assert step_order(attend().plan_of("_scaled_dot_product_cudnn_attention"))[:2] == [2, 3]


@pytest.mark.parametrize(("shape", "size"), [((4, 12, 512, 64), 6390016), ((16, 12, 197, 64), 9834496)])
def test_cudnn_backward_uses_the_measured_memory(shape, size):
    plan = attend(shape=shape).plan_of("_scaled_dot_product_cudnn_attention_backward")

    assert scratch_bytes(plan) == {"workspace": size}


def test_cudnn_backward_of_grouped_heads_allocates_a_gradient_per_head():
    with traced() as log:
        q = torch.empty(2, 16, 768, 64, dtype=torch.float16, requires_grad=True)
        k = torch.empty(2, 4, 768, 64, dtype=torch.float16, requires_grad=True)
        out = F.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True)
        out.backward(torch.empty_like(out))

    assert scratch_bytes(log.plan_of("_scaled_dot_product_cudnn_attention_backward"))["workspace"] == 12681472


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((8, 12, 128, 64), 3148800),
        ((16, 12, 197, 64), 12595200),
        ((4, 4, 64, 96), 1049088),
        ((2, 4, 256, 256), 2098176),
    ],
)
def test_efficient_backward_uses_the_measured_memory(shape, size):
    plan = attend(shape=shape, dtype=torch.float32).plan_of(
        "_scaled_dot_product_efficient_attention_backward"
    )

    assert scratch_bytes(plan)["workspace"] == size


def test_cudnn_saves_no_sums_without_gradients():
    with traced("h200") as log, torch.no_grad():
        q = torch.empty(2, 4, 64, 64, dtype=torch.bfloat16)
        F.scaled_dot_product_attention(q, q, q)

    plan = log.plan_of("_scaled_dot_product_cudnn_attention")
    assert plan is not None
    assert OutputAlloc(1, 0) in plan.steps


def test_math_attention_adds_its_mask_in_place():
    with traced("h200") as log:
        q, k, v = (torch.empty(2, 4, 64, 32, dtype=torch.float64, requires_grad=True) for _ in range(3))
        F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()

    assert "add_" in log.names
    assert "add" not in log.names
    assert q.grad is not None


def test_math_attention_runs_if_no_other_kernel_is_possible():
    log = attend(dtype=torch.float64, shape=(2, 2, 16, 8))

    assert "bmm" in log.names


def test_attention_of_host_tensors_is_unchanged():
    with traced():
        pass
    q = torch.randn(1, 2, 8, 4)

    assert torch.isfinite(F.scaled_dot_product_attention(q, q, q)).all()


def test_the_seeds_of_the_efficient_kernel_are_on_the_host():
    plan = attend(dtype=torch.float32).plan_of("_scaled_dot_product_efficient_attention")

    assert plan is not None
    assert plan.steps[2:] == [OutputAlloc(2, 0), OutputAlloc(3, 0)]
