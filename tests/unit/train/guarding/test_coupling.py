"""Rows that depend on each other are noticed when a batch is split, and a person is told once."""

import pytest
import torch
import torch.nn.functional as F
from tests.unit.train.guarded import cross_entropy_of, guarded, small_batch, small_model
from torch import nn


def normalised() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def told_by(model, loss_fn, *, steps=2, **options):
    told = []
    guard = guarded(model, max_micro_batch=4, on_finding=told.append, **options)
    for _ in range(steps):
        guard.step(loss_fn, *small_batch(device="cpu"))
    assert guard.findings == told
    return told


def test_batch_normalisation_is_told_of_once_with_the_ways_out():
    model = normalised()
    (finding,) = told_by(model, cross_entropy_of(model))
    assert finding.code == "LG611"
    assert "batch normalisation (1)" in finding.message
    assert "'per-chunk'" in finding.fix
    assert "'sync'" in finding.fix
    assert "'whole'" in finding.fix


@pytest.mark.parametrize("coupling", ["per-chunk", "sync"])
def test_who_chose_knowingly_is_not_told(coupling):
    model = normalised()
    assert told_by(model, cross_entropy_of(model), coupling=coupling) == []


def test_frozen_normalisation_is_no_trouble():
    model = normalised()
    model[1].eval()
    assert told_by(model, cross_entropy_of(model)) == []


def test_in_batch_negatives_are_told_of():
    model = small_model()

    def contrastive(x, y):
        out = F.normalize(model(x), dim=1)
        return F.cross_entropy(out @ out.T, torch.arange(len(x)))

    (finding,) = told_by(model, contrastive)
    assert finding.code == "LG612"
    assert "does not add up over rows" in finding.message


def test_a_token_mean_without_its_weight_is_told_of_and_with_it_is_not():
    model = small_model()
    mask = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]]).repeat(5, 1)

    def token_mean(x, mask):
        return (model(x).square() * mask).sum() / mask.sum()

    x, _ = small_batch(device="cpu")
    for weight, codes in ((None, ["LG612"]), (lambda x, mask: mask.sum(), [])):
        told = []
        guarded(model, max_micro_batch=3, on_finding=told.append, weight=weight).step(token_mean, x, mask)
        assert [finding.code for finding in told] == codes


def test_a_sum_is_recognised_and_one_declared_otherwise_is_told_of():
    model = small_model()

    def summed(x, y):
        return F.cross_entropy(model(x), y, reduction="sum")

    assert told_by(model, summed) == []
    assert [finding.code for finding in told_by(model, summed, reduction="mean")] == ["LG612"]


def test_looking_changes_neither_random_numbers_nor_buffers():
    def after(**options):
        model = nn.Sequential(normalised(), nn.Dropout(0.5))
        torch.manual_seed(4)
        guarded(model, max_micro_batch=4, **options).step(cross_entropy_of(model), *small_batch(device="cpu"))
        return [*model.state_dict().values(), torch.get_rng_state()]

    def looked_at_before():
        model = nn.Sequential(normalised(), nn.Dropout(0.5))
        guard = guarded(model, max_micro_batch=4, reduction="mean")
        guard._is_looked_at = True
        torch.manual_seed(4)
        guard.step(cross_entropy_of(model), *small_batch(device="cpu"))
        return [*model.state_dict().values(), torch.get_rng_state()]

    assert all(torch.equal(a, b) for a, b in zip(after(), looked_at_before(), strict=True))


def test_synced_statistics_are_the_whole_batchs_and_count_one_batch():
    torch.manual_seed(0)
    whole, split = (nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3)) for _ in range(2))
    split.load_state_dict(whole.state_dict())
    x, y = small_batch(rows=11, device="cpu")
    x = x * 3 + 1
    for _ in range(2):
        F.cross_entropy(whole(x), y)
        guarded(split, max_micro_batch=4, coupling="sync").backward(cross_entropy_of(split), x, y)
    assert split[0].num_batches_tracked == whole[0].num_batches_tracked == 2
    assert split[0].momentum == 0.1
    torch.testing.assert_close(split[0].running_mean, whole[0].running_mean)
    torch.testing.assert_close(split[0].running_var, whole[0].running_var)
