import pytest
import torch
import torch.nn.functional as F
from cuda_rules_bench import order, taken, traced

from legroom.gpus.catalog import find_gpu
from legroom.observe.cuda_rules.attention.kernel_choice import Backend, Request, choose
from legroom.observe.cuda_rules.plan import Output

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
    request = Request(query, key, value, mask, dropout, causal, grouped=groups is not None)
    return choose(request, find_gpu(gpu), release)


def test_hopper_takes_cudnn_for_half_precision():
    assert chosen("h200") is Backend.CUDNN
    assert chosen("h100", dtype=torch.float16) is Backend.CUDNN


def test_ampere_takes_flash_for_half_precision():
    assert chosen("a100-80gb") is Backend.FLASH
    assert chosen("rtx4090", dtype=torch.float16) is Backend.FLASH


def test_single_precision_takes_the_efficient_kernel_on_every_generation():
    assert {chosen(gpu, dtype=torch.float32) for gpu in ("h200", "a100", "t4")} == {Backend.EFFICIENT}


def test_turing_has_neither_flash_nor_cudnn():
    assert chosen("t4", dtype=torch.float16) is Backend.EFFICIENT


def test_turing_computes_bfloat16_plainly():
    assert chosen("t4") is Backend.MATH


def test_double_precision_is_computed_plainly():
    assert chosen(dtype=torch.float64) is Backend.MATH


def test_a_mask_rules_flash_out_but_not_cudnn():
    mask = torch.empty(2, 1, 128, 128, dtype=torch.bool, device="meta")

    assert chosen("a100", mask=mask) is Backend.EFFICIENT
    assert chosen("h200", mask=mask) is Backend.CUDNN


def test_a_mask_that_learns_rules_cudnn_out():
    mask = torch.empty(1, 8, 128, 128, dtype=torch.bfloat16, device="meta", requires_grad=True)

    assert chosen(mask=mask) is Backend.EFFICIENT


def test_a_mask_whose_rows_have_gaps_is_added_plainly():
    mask = torch.empty(128, 128, 8, dtype=torch.bfloat16, device="meta").permute(2, 0, 1).unsqueeze(0)

    assert chosen(mask=mask) is Backend.MATH


def test_a_width_that_is_no_multiple_of_eight_goes_to_flash_padded():
    assert chosen(width=20) is Backend.FLASH


def test_the_efficient_kernel_needs_aligned_heads():
    assert chosen(dtype=torch.float32, width=30) is Backend.MATH


def test_wide_heads_go_to_cudnn_on_hopper_as_measured_with_2_11():
    assert chosen(width=256) is Backend.CUDNN
    assert chosen(width=256, release=(2, 13)) is Backend.FLASH


def test_grouped_heads_in_single_precision_were_computed_plainly():
    assert chosen(dtype=torch.float32, heads=16, groups=4) is Backend.MATH
    assert chosen(heads=16, groups=4) is Backend.CUDNN


def test_from_2_12_on_cudnn_only_drops_by_sixteenths():
    assert chosen(dropout=0.1) is Backend.CUDNN
    assert chosen(dropout=0.1, release=(2, 12)) is Backend.FLASH
    assert chosen(dropout=0.125, release=(2, 12)) is Backend.CUDNN


def test_causal_attention_over_another_number_of_keys_is_not_for_flash():
    assert chosen("a100", rows=64, columns=128, causal=True) is Backend.EFFICIENT


def test_small_ampere_cards_do_not_train_the_widest_heads_with_flash():
    assert chosen("rtx3090", width=256, dropout=0.1) is Backend.EFFICIENT
    assert chosen("rtx3090", width=256, dropout=0.1, grad=False) is Backend.FLASH


def test_a_kernel_that_the_user_switched_off_is_not_taken():
    with torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION]):
        assert chosen() is Backend.EFFICIENT


def attend(log_options=None, *, dtype=torch.bfloat16, dropout=0.0, shape=(4, 12, 512, 64), gpu="h200"):
    with traced(gpu) as log:
        q = torch.empty(*shape, dtype=dtype, requires_grad=True)
        out = F.scaled_dot_product_attention(q, q, q, dropout_p=dropout)
        out.backward(torch.empty_like(out))
    return log


def test_the_chosen_kernel_is_what_runs_forward_and_backward():
    names = attend().names

    assert "_scaled_dot_product_cudnn_attention" in names
    assert "_scaled_dot_product_cudnn_attention_backward" in names


def test_no_matrix_of_queries_and_keys_is_made_even_with_dropout():
    log = attend(dtype=torch.float32, dropout=0.1)

    assert not [name for name in log.names if "softmax" in name or name == "bmm"]


def test_what_the_kernel_saves_is_one_number_for_each_row():
    (out, sums, *_) = attend().results_of("_scaled_dot_product_cudnn_attention")

    assert out == ((4, 12, 512, 64), torch.bfloat16)
    assert sums == ((4, 12, 512, 1), torch.float32)


def test_cudnn_takes_its_seeds_before_its_result():
    assert order(attend().plan_of("_scaled_dot_product_cudnn_attention"))[:2] == [2, 3]


@pytest.mark.parametrize(("shape", "size"), [((4, 12, 512, 64), 6390016), ((16, 12, 197, 64), 9834496)])
def test_cudnns_backward_takes_what_was_measured(shape, size):
    plan = attend(shape=shape).plan_of("_scaled_dot_product_cudnn_attention_backward")

    assert taken(plan) == {"workspace": size}


def test_cudnns_backward_of_grouped_heads_takes_a_gradient_for_each_head():
    with traced() as log:
        q = torch.empty(2, 16, 768, 64, dtype=torch.float16, requires_grad=True)
        k = torch.empty(2, 4, 768, 64, dtype=torch.float16, requires_grad=True)
        out = F.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True)
        out.backward(torch.empty_like(out))

    assert taken(log.plan_of("_scaled_dot_product_cudnn_attention_backward"))["workspace"] == 12681472


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((8, 12, 128, 64), 3148800),
        ((16, 12, 197, 64), 12595200),
        ((4, 4, 64, 96), 1049088),
        ((2, 4, 256, 256), 2098176),
    ],
)
def test_the_efficient_kernels_backward_takes_what_was_measured(shape, size):
    plan = attend(shape=shape, dtype=torch.float32).plan_of(
        "_scaled_dot_product_efficient_attention_backward"
    )

    assert taken(plan)["workspace"] == size


def test_cudnn_keeps_no_sums_where_nothing_learns():
    with traced("h200") as log, torch.no_grad():
        q = torch.empty(2, 4, 64, 64, dtype=torch.bfloat16)
        F.scaled_dot_product_attention(q, q, q)

    plan = log.plan_of("_scaled_dot_product_cudnn_attention")
    assert plan is not None
    assert Output(1, 0) in plan.steps


def test_plain_attention_adds_its_mask_in_place():
    with traced("h200") as log:
        q, k, v = (torch.empty(2, 4, 64, 32, dtype=torch.float64, requires_grad=True) for _ in range(3))
        F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()

    assert "add_" in log.names
    assert "add" not in log.names
    assert q.grad is not None


def test_plain_attention_runs_where_no_kernel_fits():
    log = attend(dtype=torch.float64, shape=(2, 2, 16, 8))

    assert "bmm" in log.names


def test_a_host_tensor_is_attended_to_as_ever():
    with traced():
        pass
    q = torch.randn(1, 2, 8, 4)

    assert torch.isfinite(F.scaled_dot_product_attention(q, q, q)).all()


def test_the_efficient_kernels_seeds_are_the_hosts():
    plan = attend(dtype=torch.float32).plan_of("_scaled_dot_product_efficient_attention")

    assert plan is not None
    assert plan.steps[2:] == [Output(2, 0), Output(3, 0)]
