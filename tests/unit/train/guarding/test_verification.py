"""`guard.verify` compares the gradients of the whole and the split batch."""

import pytest
import torch
from tests.unit.train.guarded import cross_entropy_of, guarded, small_batch, small_model
from torch import nn

from legroom import VirtualGPU
from legroom.errors import UsageError


def test_independent_samples_have_equal_gradients_even_with_dropout():
    model = small_model(dropout=0.5)
    result = guarded(model).verify(cross_entropy_of(model), *small_batch(device="cpu"))
    assert result
    assert result.max_difference < 1e-6
    assert sum(result.split) == 10
    assert "equal up to rounding" in str(result)


def test_batch_norm_has_different_gradients_and_the_parameter_is_named():
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    result = guarded(model).verify(cross_entropy_of(model), *small_batch(device="cpu"), micro_batch_size=2)
    assert not result
    assert result.split == (2, 2, 2, 2, 2)
    assert result.parameter in dict(model.named_parameters())
    assert "NOT equal" in str(result)


def test_verify_changes_no_state():
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


def test_a_smaller_batch_is_compared_if_the_whole_does_not_fit():
    with VirtualGPU("40MiB"):
        model = small_model(width=512).cuda()
        result = guarded(model).verify(cross_entropy_of(model), *small_batch(batch_size=8_000))
        assert result
        assert result.batch_size < 8_000


def test_a_single_sample_is_rejected():
    model = small_model()
    with pytest.raises(UsageError, match="Pass a batch of two or more samples"):
        guarded(model).verify(cross_entropy_of(model), *small_batch(batch_size=1, device="cpu"))
