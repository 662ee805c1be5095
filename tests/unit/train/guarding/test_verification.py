"""`guard.verify`: gradients whole against split."""

import pytest
import torch
from tests.unit.train.guarded import cross_entropy_of, guarded, small_batch, small_model
from torch import nn

from legroom import VirtualGPU
from legroom.errors import UsageError


def test_rows_that_are_independent_verify_even_with_dropout():
    model = small_model(dropout=0.5)
    verified = guarded(model).verify(cross_entropy_of(model), *small_batch(device="cpu"))
    assert verified
    assert verified.worst < 1e-6
    assert sum(verified.split) == 10
    assert "the same up to rounding" in str(verified)


def test_batch_normalisation_does_not_verify_and_the_worst_parameter_is_named():
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    verified = guarded(model).verify(cross_entropy_of(model), *small_batch(device="cpu"), micro_batch=2)
    assert not verified
    assert verified.split == (2, 2, 2, 2, 2)
    assert verified.parameter in dict(model.named_parameters())
    assert "NOT the same" in str(verified)


def test_verifying_changes_nothing():
    model = nn.Sequential(small_model(0.5), nn.BatchNorm1d(3))
    loss_fn = cross_entropy_of(model)
    batch = small_batch(device="cpu")
    loss_fn(*batch).backward()
    before = [value.clone() for value in model.state_dict().values()]
    before += [parameter.grad.clone() for parameter in model.parameters()]
    state = torch.get_rng_state()
    guarded(model).verify(loss_fn, *batch)
    after = [*model.state_dict().values(), *(parameter.grad for parameter in model.parameters())]
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(module.training for module in model.modules())


def test_fewer_rows_are_compared_when_the_whole_does_not_fit():
    with VirtualGPU("40MiB"):
        model = small_model(width=512).cuda()
        verified = guarded(model).verify(cross_entropy_of(model), *small_batch(rows=8_000))
        assert verified
        assert verified.rows < 8_000


def test_one_row_cannot_be_verified():
    model = small_model()
    with pytest.raises(UsageError, match="verify with two rows or more"):
        guarded(model).verify(cross_entropy_of(model), *small_batch(rows=1, device="cpu"))
