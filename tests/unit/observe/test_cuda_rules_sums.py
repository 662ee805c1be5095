"""Distances, sums of booleans, norms over strided tensors: what they hold on their way, as an H200 was seen to."""

import pytest
import torch
import torch.nn.functional as F
from cuda_rules_bench import order, taken, traced
from torch import nn


def test_euclidean_distances_are_a_product_of_both_sides_joined_with_their_norms():
    with traced() as log:
        torch.cdist(torch.empty(4096, 64), torch.empty(512, 64))

    plan = log.plan_of("_euclidean_dist")
    assert taken(plan)["x1 joined"] == 1081344
    assert taken(plan)["x2 joined"] == 135168
    assert order(plan).index("x2 joined") < order(plan).index(0)


def test_gradients_of_other_distances_hold_every_pair_for_every_column():
    with traced() as log:
        torch.cdist(torch.empty(900, 64, requires_grad=True), torch.empty(512, 64), p=1.0).sum().backward()

    assert taken(log.plan_of("_cdist_backward"))["pairs"] == 117964800


def test_a_sum_of_booleans_is_one_of_64_bit_numbers():
    with traced() as log:
        torch.empty(128, 256, 400, dtype=torch.bool).sum(2)

    assert 104857600 in taken(log.plan_of("sum")).values()


def test_a_sum_of_floats_needs_no_copy():
    with traced() as log:
        torch.empty(128, 256, 400).sum(2)

    assert not taken(log.plan_of("sum"))


def test_counting_makes_booleans_and_then_64_bit_numbers():
    with traced() as log:
        torch.empty(48, 90000).count_nonzero(1)

    plan = log.plan_of("count_nonzero")
    assert order(plan)[:3] == ["mask", 0, "wide"]
    assert (taken(plan)["mask"], taken(plan)["wide"]) == (4320000, 34560000)


def test_the_largest_value_of_all_keeps_no_places():
    with traced() as log:
        torch.empty(48, 90000).max()

    assert sorted(taken(log.plan_of("max")).values()) == [4, 2112]


def test_gradients_of_distances_within_one_set_hold_every_pair_for_every_column():
    with traced() as log:
        torch.pdist(torch.empty(700, 700, requires_grad=True)).sum().backward()

    assert taken(log.plan_of("_pdist_backward"))["pairs"] == 1370040000


def test_a_layer_norm_without_weights_sums_no_gradients_of_them():
    with traced() as log:
        out = F.layer_norm(torch.empty(200704, 96, requires_grad=True), (96,))
        out.backward(torch.empty_like(out))

    assert log.plan_of("native_layer_norm_backward") is None


@pytest.mark.parametrize(("dtype", "copies"), [(torch.float32, 1), (torch.bfloat16, 0)])
def test_a_batch_norm_by_cudnn_keeps_a_copy_of_what_does_not_lie_in_one_piece(dtype, copies):
    with traced() as log:
        nn.BatchNorm1d(256, dtype=dtype)(torch.empty(256, 16, 256, dtype=dtype).transpose(1, 2))

    assert log.names.count("clone") == copies


def test_a_group_norm_of_rows_needs_no_factors():
    with traced() as log:
        out = nn.GroupNorm(10, 5000)(torch.empty(500, 5000, requires_grad=True))
        out.backward(torch.empty_like(out))

    assert log.plan_of("native_group_norm") is None
    assert list(taken(log.plan_of("native_group_norm_backward"))) == ["products", "sums", "second", "third"]
