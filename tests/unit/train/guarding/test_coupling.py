"""Samples that depend on each other are detected at the first split, and reported once."""

import pytest
import torch
import torch.nn.functional as F
from tests.unit.train.guarded import cross_entropy_of, guarded, small_batch, small_model
from torch import nn


def model_with_batch_norm() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def findings_of(model, loss_fn, *, steps=2, **options):
    findings = []
    guard = guarded(model, max_micro_batch_size=4, on_finding=findings.append, **options)
    for _ in range(steps):
        guard.step(loss_fn, *small_batch(device="cpu"))
    assert guard.findings == findings
    return findings


def test_batch_norm_is_reported_once_with_the_alternatives():
    model = model_with_batch_norm()
    (finding,) = findings_of(model, cross_entropy_of(model))
    assert finding.code == "LG611"
    assert "batch normalization (1)" in finding.message
    assert "'ignore'" in finding.fix
    assert "'sync'" in finding.fix
    assert "'no-split'" in finding.fix


@pytest.mark.parametrize("coupling", ["ignore", "sync"])
def test_an_explicit_choice_is_not_reported(coupling):
    model = model_with_batch_norm()
    assert findings_of(model, cross_entropy_of(model), coupling=coupling) == []


def test_batch_norm_in_eval_mode_is_not_reported():
    model = model_with_batch_norm()
    model[1].eval()
    assert findings_of(model, cross_entropy_of(model)) == []


def test_in_batch_negatives_are_reported():
    model = small_model()

    def contrastive(x, y):
        out = F.normalize(model(x), dim=1)
        return F.cross_entropy(out @ out.T, torch.arange(len(x)))

    (finding,) = findings_of(model, contrastive)
    assert finding.code == "LG612"
    assert "neither a mean nor a sum over samples" in finding.message


def test_a_mean_over_tokens_is_reported_unless_weight_is_given():
    model = small_model()
    mask = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]]).repeat(5, 1)

    def token_mean(x, mask):
        return (model(x).square() * mask).sum() / mask.sum()

    x, _ = small_batch(device="cpu")
    for weight, codes in ((None, ["LG612"]), (lambda x, mask: mask.sum(), [])):
        findings = []
        guarded(model, max_micro_batch_size=3, on_finding=findings.append, weight=weight).step(
            token_mean, x, mask
        )
        assert [finding.code for finding in findings] == codes


def test_a_sum_is_detected_and_a_wrong_reduction_is_reported():
    model = small_model()

    def summed(x, y):
        return F.cross_entropy(model(x), y, reduction="sum")

    assert findings_of(model, summed) == []
    assert [finding.code for finding in findings_of(model, summed, reduction="mean")] == ["LG612"]


def test_the_coupling_check_changes_neither_random_state_nor_buffers():
    def after(**options):
        model = nn.Sequential(model_with_batch_norm(), nn.Dropout(0.5))
        torch.manual_seed(4)
        guarded(model, max_micro_batch_size=4, **options).step(
            cross_entropy_of(model), *small_batch(device="cpu")
        )
        return [*model.state_dict().values(), torch.get_rng_state()]

    def without_check():
        model = nn.Sequential(model_with_batch_norm(), nn.Dropout(0.5))
        guard = guarded(model, max_micro_batch_size=4, reduction="mean")
        guard._is_coupling_checked = True
        torch.manual_seed(4)
        guard.step(cross_entropy_of(model), *small_batch(device="cpu"))
        return [*model.state_dict().values(), torch.get_rng_state()]

    assert all(torch.equal(a, b) for a, b in zip(after(), without_check(), strict=True))


def test_sync_updates_running_statistics_as_for_the_whole_batch():
    torch.manual_seed(0)
    whole, split = (nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3)) for _ in range(2))
    split.load_state_dict(whole.state_dict())
    x, y = small_batch(batch_size=11, device="cpu")
    x = x * 3 + 1
    for _ in range(2):
        F.cross_entropy(whole(x), y)
        guarded(split, max_micro_batch_size=4, coupling="sync").backward(cross_entropy_of(split), x, y)
    assert split[0].num_batches_tracked == whole[0].num_batches_tracked == 2
    assert split[0].momentum == 0.1
    torch.testing.assert_close(split[0].running_mean, whole[0].running_mean)
    torch.testing.assert_close(split[0].running_var, whole[0].running_var)
