"""Distances, sums of booleans, norms over strided tensors: scratch memory, compared with measurements on an H200."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from traced_plans import scratch_bytes, step_order, traced


def test_euclidean_distances_are_a_product_of_both_sides_concatenated_with_their_norms():
    with traced() as log:
        torch.cdist(torch.empty(4096, 64), torch.empty(512, 64))

    plan = log.plan_of("_euclidean_dist")
    assert scratch_bytes(plan)["x1 concatenated"] == 1081344
    assert scratch_bytes(plan)["x2 concatenated"] == 135168
    assert step_order(plan).index("x2 concatenated") < step_order(plan).index(0)


def test_gradients_of_other_distances_allocate_every_pair_for_every_column():
    with traced() as log:
        torch.cdist(torch.empty(900, 64, requires_grad=True), torch.empty(512, 64), p=1.0).sum().backward()

    assert scratch_bytes(log.plan_of("_cdist_backward"))["pairs"] == 117964800


def test_a_sum_of_booleans_copies_them_to_int64():
    with traced() as log:
        torch.empty(128, 256, 400, dtype=torch.bool).sum(2)

    assert 104857600 in scratch_bytes(log.plan_of("sum")).values()


def test_a_sum_of_floats_needs_no_copy():
    with traced() as log:
        torch.empty(128, 256, 400).sum(2)

    assert not scratch_bytes(log.plan_of("sum"))


def test_count_nonzero_allocates_a_mask_and_an_int64_copy():
    with traced() as log:
        torch.empty(48, 90000).count_nonzero(1)

    plan = log.plan_of("count_nonzero")
    assert step_order(plan)[:3] == ["mask", 0, "int64"]
    assert (scratch_bytes(plan)["mask"], scratch_bytes(plan)["int64"]) == (4320000, 34560000)


def test_the_maximum_of_all_values_needs_no_indices():
    with traced() as log:
        torch.empty(48, 90000).max()

    assert sorted(scratch_bytes(log.plan_of("max")).values()) == [4, 2112]


def test_gradients_of_pdist_allocate_every_pair_for_every_column():
    with traced() as log:
        torch.pdist(torch.empty(700, 700, requires_grad=True)).sum().backward()

    assert scratch_bytes(log.plan_of("_pdist_backward"))["pairs"] == 1370040000


def test_layer_norm_without_weights_sums_no_weight_gradients():
    with traced() as log:
        out = F.layer_norm(torch.empty(200704, 96, requires_grad=True), (96,))
        out.backward(torch.empty_like(out))

    assert log.plan_of("native_layer_norm_backward") is None


@pytest.mark.parametrize(("dtype", "copies"), [(torch.float32, 1), (torch.bfloat16, 0)])
def test_cudnn_batch_norm_saves_a_copy_of_an_input_that_is_not_contiguous(dtype, copies):
    with traced() as log:
        nn.BatchNorm1d(256, dtype=dtype)(torch.empty(256, 16, 256, dtype=dtype).transpose(1, 2))

    assert log.names.count("clone") == copies


def test_group_norm_of_2d_inputs_needs_no_scratch_memory():
    with traced() as log:
        out = nn.GroupNorm(10, 5000)(torch.empty(500, 5000, requires_grad=True))
        out.backward(torch.empty_like(out))

    assert log.plan_of("native_group_norm") is None
    assert list(scratch_bytes(log.plan_of("native_group_norm_backward"))) == [
        "products",
        "sums",
        "second",
        "third",
    ]
