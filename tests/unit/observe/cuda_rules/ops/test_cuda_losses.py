"""Losses and bilinear products: scratch memory, compared with measurements on an H200."""

import pytest
import torch
import torch.nn.functional as F
from traced_plans import scratch_bytes, step_order, traced

from legroom.observe.cuda_rules.ops.accumulation import Accumulation
from legroom.observe.cuda_rules.plan import OutputAlloc

EACH = 1000 * 3000 * 4


@pytest.mark.parametrize(
    ("loss", "name"), [(F.smooth_l1_loss, "smooth_l1_loss"), (F.binary_cross_entropy, "binary_cross_entropy")]
)
def test_the_result_of_some_losses_keeps_the_size_of_the_input(loss, name):
    with traced() as log:
        loss(torch.empty(2048, 300), torch.empty(2048, 300))

    assert OutputAlloc(0, 2048 * 300 * 4) in log.plan_of(name).steps


def test_huber_loss_frees_the_losses():
    with traced() as log:
        F.huber_loss(torch.empty(2048, 300), torch.empty(2048, 300))

    assert step_order(log.plan_of("huber_loss"))[:2] == ["losses", 0]


def test_a_loss_of_logits_allocates_two_tensors_before_its_mean():
    with traced() as log:
        F.binary_cross_entropy_with_logits(torch.empty(1000, 3000), torch.empty(1000, 3000))

    plan = log.plan_of("binary_cross_entropy_with_logits")
    assert step_order(plan)[:3] == ["log sigmoid", "losses", 0]
    assert scratch_bytes(plan)["losses"] == EACH


def test_pos_weight_tensors_are_freed_before_the_losses():
    with traced() as log:
        F.binary_cross_entropy_with_logits(
            torch.empty(1000, 3000), torch.empty(1000, 3000), pos_weight=torch.empty(3000), reduction="none"
        )

    plan = log.plan_of("binary_cross_entropy_with_logits")
    assert step_order(plan) == [
        "log sigmoid",
        "pos_weight minus one",
        "weights",
        "-pos_weight minus one",
        "-weights",
        0,
    ]
    assert (scratch_bytes(plan)["pos_weight minus one"], scratch_bytes(plan)["weights"]) == (12000, EACH)


@pytest.mark.parametrize("weights", [None, torch.ones(7)])
def test_the_gradient_of_a_loss_of_logits_is_computed_in_place(weights):
    """The gradient formula modifies its own tensor in place. The multiplication before it allocates this tensor, even
    in a second pass over the same graph."""
    ran = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.rules = Accumulation()

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            func = self.rules.instead_of(func, args, kwargs)
            ran.append(func.overloadpacket._qualified_op_name.removeprefix("aten::"))
            return func(*args, **(kwargs or {}))

    logits, target = torch.randn(5, 7, requires_grad=True), torch.rand(5, 7)
    loss = F.binary_cross_entropy_with_logits(logits, target, pos_weight=weights)
    (expected,) = torch.autograd.grad(loss, logits, retain_graph=True)
    watch = Watch()
    for _ in range(2):
        ran.clear()
        with watch:
            (found,) = torch.autograd.grad(loss, logits, retain_graph=True)
        torch.testing.assert_close(found, expected)
        assert ran.count("mul") == (0 if weights is None else 1)
        assert "sub" not in ran
        assert "sub_" in ran


def test_the_gradient_of_soft_margin_loss_allocates_three_tensors():
    with traced() as log:
        F.soft_margin_loss(torch.empty(1000, 3000, requires_grad=True), torch.empty(1000, 3000)).backward()

    plan = log.plan_of("soft_margin_loss_backward")
    assert step_order(plan) == ["negative", "product", "exponential", "-product", "-negative", 0]


def test_bilinear_computes_slice_by_slice():
    with traced() as log:
        torch.nn.Bilinear(50, 40, 20)(torch.empty(300, 50), torch.empty(300, 40))

    assert scratch_bytes(log.plan_of("_trilinear")) == {"pair": 48000, "slice": 1200}


def test_one_hot_scatters_ones_into_zeros():
    with traced() as log:
        found = F.one_hot(torch.empty(64, 32, dtype=torch.int64), 100)

    assert tuple(found.shape) == (64, 32, 100)
    assert "scatter_" in log.names
    assert "eq" not in log.names
