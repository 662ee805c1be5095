"""Distances, sums of booleans, losses, norms over strided tensors: what they hold on their way, as an H200 was seen to."""

import pytest
import torch
import torch.nn.functional as F
from cuda_rules_bench import order, taken, traced
from torch import nn

from legroom.observe.cuda_rules.plan import Output


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


@pytest.mark.parametrize(
    ("loss", "name"), [(F.smooth_l1_loss, "smooth_l1_loss"), (F.binary_cross_entropy, "binary_cross_entropy")]
)
def test_the_mean_of_some_losses_stays_as_large_as_the_losses(loss, name):
    with traced() as log:
        loss(torch.empty(2048, 300), torch.empty(2048, 300))

    assert Output(0, 2048 * 300 * 4) in log.plan_of(name).steps


def test_the_losses_of_huber_are_given_back():
    with traced() as log:
        F.huber_loss(torch.empty(2048, 300), torch.empty(2048, 300))

    assert order(log.plan_of("huber_loss")) == ["losses", 0]


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
