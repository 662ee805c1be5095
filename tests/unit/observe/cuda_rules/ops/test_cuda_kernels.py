"""Matrix products, norms, embeddings and other kernels that allocate more than their results."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from traced_plans import persistent_bytes, scratch_bytes, step_order, traced

from legroom.gpus.catalog import find_gpu
from legroom.observe.cuda_rules.ops import matmul
from legroom.observe.cuda_rules.plan import OutputAlloc
from legroom.units import KiB, MiB


def test_the_cublas_workspace_is_32_mib_on_hopper_and_a_quarter_on_older_gpus():
    assert matmul.workspace(find_gpu("h100")) == 32 * MiB
    assert matmul.workspace(find_gpu("a100")) == 8320 * KiB


def test_the_cublas_workspace_follows_the_environment_variable():
    assert matmul.workspace(find_gpu("h100"), ":4096:8") == 32 * MiB
    assert matmul.workspace(find_gpu("h100"), ":16:8:4096:2") == (16 * 8 + 4096 * 2) * KiB


def test_forward_and_backward_have_a_workspace_each():
    with traced() as log:
        layer = nn.Linear(8, 8)
        layer(torch.empty(4, 8)).sum().backward()

    assert "cublas forward" in persistent_bytes(log.plan_of("addmm"))
    assert "cublas backward" in persistent_bytes(log.plan_of("mm"))


def test_a_product_with_a_bias_has_a_cublaslt_workspace_too():
    with traced() as log:
        nn.Linear(8, 8)(torch.empty(4, 8))
        nn.Linear(8, 8, bias=False)(torch.empty(4, 8))

    assert persistent_bytes(log.plan_of("addmm"))["cublaslt forward"] == MiB
    assert "cublaslt forward" not in persistent_bytes(log.plan_of("mm"))


def test_a_sparse_product_uses_no_cublas_workspace():
    with traced() as log:
        indices, values = torch.zeros(2, 40, dtype=torch.long), torch.empty(40)
        near = torch.sparse_coo_tensor(indices, values, (1000, 1000), check_invariants=False)
        near.mm(torch.empty(1000, 8))

    assert not persistent_bytes(log.plan_of("mm"))
    assert scratch_bytes(log.plan_of("mm"))["by columns"] == 1000 * 8 * 4


def test_an_affine_grid_is_a_matrix_product():
    with traced() as log:
        F.affine_grid(torch.empty(10, 2, 3), [10, 3, 192, 256], align_corners=False)

    plan = log.plan_of("affine_grid_generator")
    assert "cublas forward" in persistent_bytes(plan)
    assert scratch_bytes(plan) == {"base grid": 10 * 192 * 256 * 3 * 4}


def test_a_single_column_does_not_use_cublaslt():
    with traced() as log:
        nn.Linear(8, 1)(torch.empty(4, 8))

    assert "cublaslt forward" not in persistent_bytes(log.plan_of("addmm"))


def test_a_matrix_that_cublas_cannot_read_is_copied():
    with traced() as log:
        torch.mm(torch.empty(8, 1).expand(8, 16), torch.empty(16, 4))

    assert scratch_bytes(log.plan_of("mm")) == {"self": 8 * 16 * 4}


@pytest.mark.parametrize(
    "matrix", [lambda x: x, lambda x: x.t().contiguous().t(), lambda x: x[:, :8], lambda x: x[:1]]
)
def test_matrices_with_contiguous_rows_or_columns_are_not_copied(matrix):
    with traced() as log:
        x = matrix(torch.empty(16, 16))
        torch.mm(x, torch.empty(x.shape[1], 4))

    assert not scratch_bytes(log.plan_of("mm"))


def test_layer_norm_copies_an_input_that_is_not_contiguous():
    with traced() as log:
        F.layer_norm(torch.empty(8, 96, 56).transpose(1, 2), (96,))

    assert step_order(log.plan_of("native_layer_norm")) == ["input", 0, 1, 2]


def test_layer_norm_over_many_short_rows_sums_weight_gradients_in_two_passes():
    with traced() as log:
        out = nn.LayerNorm(192)(torch.empty(96, 28, 28, 192, requires_grad=True))
        out.backward(torch.empty_like(out))

    sizes = scratch_bytes(log.plan_of("native_layer_norm_backward"))
    assert sizes["partial weight"] == sizes["partial bias"] == 1806336
    assert sizes["weight 1"] == 3637248


def test_layer_norm_over_few_rows_needs_no_scratch_memory():
    with traced() as log:
        out = nn.LayerNorm(768)(torch.empty(8, 512, 768, requires_grad=True))
        out.backward(torch.empty_like(out))

    assert log.plan_of("native_layer_norm_backward") is None


@pytest.mark.parametrize(
    ("dtype", "batch", "measured"), [(torch.float32, 64, 6473780), (torch.float16, 96, 3885008)]
)
def test_channels_last_batch_norm_has_the_measured_partial_sums(dtype, batch, measured):
    with traced() as log:
        x = torch.empty(batch, 64, 112, 112, dtype=dtype).to(memory_format=torch.channels_last)
        F.batch_norm(x, None, None, torch.empty(64), torch.empty(64), training=True)

    assert scratch_bytes(log.plan_of("native_batch_norm"))["partial"] == pytest.approx(measured, abs=300)


def test_contiguous_batch_norm_needs_no_scratch_memory():
    with traced() as log:
        F.batch_norm(torch.empty(8, 64, 28, 28), None, None, training=True)

    assert log.plan_of("native_batch_norm") is None


def embed(count, rows=50257, width=768, **options):
    with traced() as log:
        table = nn.Embedding(rows, width)
        ids = torch.zeros(count, dtype=torch.long)
        out = table(ids)
        out.backward(torch.empty_like(out))
    return log.plan_of("embedding_dense_backward")


def test_the_gradient_of_few_indices_needs_no_scratch_memory():
    assert embed(3072) is None


def test_many_indices_are_sorted_and_summed_in_segments_of_ten():
    assert scratch_bytes(embed(12288))["sums"] == 41521152
    assert scratch_bytes(embed(11200, rows=10000, width=650))["sums"] == 28912000


def test_sorted_indices_are_allocated_before_the_gradient_and_sums_after():
    steps = step_order(embed(12288))

    assert steps.index("sorted") < steps.index(0) < steps.index("sums")


def test_softmax_backward_allocates_the_product():
    with traced() as log:
        out = F.softmax(torch.empty(64, 100, requires_grad=True), -1)
        out.backward(torch.empty_like(out))

    assert scratch_bytes(log.plan_of("_softmax_backward_data")) == {"0": 64 * 100 * 4}


def test_mse_loss_allocates_its_result_with_the_size_of_the_input():
    with traced() as log:
        F.mse_loss(torch.empty(100, 10), torch.empty(100, 10))

    plan = log.plan_of("mse_loss")
    assert plan is not None
    assert plan.steps[0] == OutputAlloc(0, 4000)


def test_rolling_two_dimensions_allocates_an_intermediate_tensor():
    with traced() as log:
        torch.roll(torch.empty(8, 8, 8), (1, 1), (0, 1))
        torch.roll(torch.empty(8, 8, 8), (1,), (0,))

    plans = [plan for name, plan, _ in log.calls if name == "roll"]
    assert step_order(plans[0]) == ["intermediate", 0]
    assert plans[1] is None


def test_upsampling_copies_a_gradient_that_is_a_slice():
    with traced() as log:
        x = torch.empty(2, 4, 8, 8, requires_grad=True)
        torch.cat([F.interpolate(x, scale_factor=2), torch.empty(2, 4, 16, 16)], 1).backward(
            torch.empty(2, 8, 16, 16)
        )

    assert scratch_bytes(log.plan_of("upsample_nearest2d_backward")) == {"0": 2 * 4 * 16 * 16 * 4}


def test_an_operation_without_a_rule_has_no_plan():
    with traced() as log:
        torch.empty(8) + 1

    assert log.plan_of("add") is None


def test_cumulative_sums_of_booleans_are_converted_to_int64_first():
    with traced() as log:
        torch.cumsum(torch.empty(2, 512, dtype=torch.bool), -1)

    assert scratch_bytes(log.plan_of("cumsum")) == {"0": 8192}


def test_group_norm_allocates_a_scale_and_a_shift_per_channel_of_each_image():
    with traced() as log:
        nn.GroupNorm(8, 64)(torch.empty(128, 64, 28, 28, requires_grad=True)).sum().backward()

    assert scratch_bytes(log.plan_of("native_group_norm")) == dict.fromkeys(("scale", "shift"), 128 * 64 * 4)
    assert list(scratch_bytes(log.plan_of("native_group_norm_backward")).values()) == [
        32768,
        32768,
        4096,
        4096,
        32768,
    ]


def test_batch_norm_in_half_precision_saves_means_in_float32():
    with traced() as log:
        nn.BatchNorm2d(64)(torch.empty(8, 64, 8, 8, dtype=torch.bfloat16))

    plan = log.plan_of("native_batch_norm")
    assert plan is not None
    assert plan.steps == [OutputAlloc(0), OutputAlloc(1, 256), OutputAlloc(2, 256)]


def test_broadcast_indices_are_copied_before_the_result():
    with traced() as log:
        torch.empty(4, 1024)[torch.empty(4, 1, dtype=torch.long), torch.empty(1, 1024, dtype=torch.long)]
        torch.empty(4, 1024)[torch.empty(9, dtype=torch.long), torch.empty(9, dtype=torch.long)]

    first, second = (plan for name, plan, _ in log.calls if name == "index")
    assert scratch_bytes(first) == {"index 0": 32768, "index 1": 32768}
    assert step_order(first)[-1] == 0
    assert second is None


def test_foreach_norms_have_as_many_partial_sums_per_tensor_as_the_largest_needs():
    with traced() as log:
        nn.utils.get_total_norm([torch.empty(65_536 * 3), torch.empty(5), torch.empty(7)])

    assert scratch_bytes(log.plan_of("_foreach_norm")) == {"sums": 3 * 3 * 4}
    assert step_order(log.plan_of("_foreach_norm")) == ["sums", 0, 1, 2]


def test_expanded_indices_of_an_embedding_are_copied_before_its_gradient():
    with traced() as log:
        table = nn.Embedding(2, 8)
        table(torch.empty(1, 100, dtype=torch.long).expand(4, 100)).sum().backward()

    assert step_order(log.plan_of("embedding_dense_backward"))[0] == "indices"


@pytest.mark.parametrize(
    ("name", "transform", "measured"),
    [
        ("_fft_r2c", lambda: torch.fft.rfft2(torch.empty(8, 64, 64)), {}),
        ("_fft_r2c", lambda: torch.fft.rfft2(torch.empty(72, 85, 85)), {"workspace": 4161600}),
        ("_fft_r2c", lambda: torch.fft.rfft(torch.empty(104, 5000)), {"workspace": 2080000}),
        (
            "_fft_r2c",
            lambda: torch.fft.rfft2(torch.empty(10, 28, 28, 64), dim=(1, 2)),
            {"contiguous": 2007040},
        ),
        (
            "_fft_c2r",
            lambda: torch.fft.irfft2(torch.empty(10, 224, 113, dtype=torch.complex64)),
            {"input": 2024960},
        ),
        (
            "_fft_c2c",
            lambda: torch.fft.fft(torch.empty(8, 65536, dtype=torch.complex64)),
            {"workspace": 4194304},
        ),
        ("_fft_c2c", lambda: torch.fft.fft(torch.empty(525, 997, dtype=torch.complex64)), {}),
    ],
)
def test_fourier_transforms_use_the_measured_memory(name, transform, measured):
    with traced() as log:
        transform()

    assert scratch_bytes(log.plan_of(name)) == measured


def test_batch_norm_over_many_rows_has_sums_per_block_before_the_input_gradient():
    with traced() as log:
        nn.BatchNorm1d(512)(torch.empty(16384, 512, requires_grad=True)).sum().backward()

    assert scratch_bytes(log.plan_of("native_batch_norm")) == {"staged": 512 * KiB, "semaphores": 512}
    backward = log.plan_of("native_batch_norm_backward")
    assert scratch_bytes(backward) == {"sum": 2048, "product": 2048, "staged": 256 * KiB, "semaphores": 512}
    assert step_order(backward)[-1] == 0
