"""Evaluation: no gradients, means over all samples, recovery from out-of-memory errors, restored modes."""

import pytest
import torch
from tests.unit.train.guarded import small_model
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import legroom
from legroom.errors import UsageError


def data(samples=50, features=6):
    torch.manual_seed(0)
    return TensorDataset(torch.randn(samples, features), torch.randint(0, 3, (samples,)))


def test_numbers_are_averaged_over_all_samples_and_counts_are_summed():
    model = nn.Linear(6, 3)
    x, y = data().tensors

    def scores(x, y):
        correct = model(x).argmax(1) == y
        return {
            "loss": F.cross_entropy(model(x), y),
            "accuracy": correct.float().mean(),
            "correct": correct.sum(),
        }

    result = legroom.evaluate(model, DataLoader(data(), 16), scores)  # batches of 16, 16, 16 and 2
    assert result["loss"] == pytest.approx(F.cross_entropy(model(x), y).item(), rel=1e-5)
    assert result["accuracy"] == pytest.approx((model(x).argmax(1) == y).float().mean().item())
    assert type(result["loss"]) is float
    assert result["correct"] == (model(x).argmax(1) == y).sum().item()


def test_without_a_function_the_outputs_are_concatenated():
    model = nn.Linear(6, 3)
    result = legroom.evaluate(model, DataLoader(data(), 16))
    assert torch.equal(result, torch.cat([model(x).detach() for x, _ in DataLoader(data(), 16)]))


def test_a_dict_is_passed_as_keyword_arguments():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 1)

        def forward(self, first, second):
            return {"sum": self.layer(first + second)}

    batches = [{"first": torch.ones(4, 2), "second": torch.ones(4, 2)}] * 2
    assert legroom.evaluate(Named(), batches)["sum"].shape == (8, 1)


def test_evaluation_runs_in_inference_and_eval_mode():
    model = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5))
    seen = []

    def predict(x, y):
        seen.append((torch.is_inference_mode_enabled(), model.training, model(x).requires_grad))
        return model(x)

    first, second = (legroom.evaluate(model, DataLoader(data(), 25), predict) for _ in range(2))
    assert set(seen) == {(True, False, False)}
    assert torch.equal(first, second)


def test_modes_are_restored_even_after_an_error():
    model = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.BatchNorm1d(6))
    model[2].eval()

    def broken(x, y):
        raise KeyError("x")

    with pytest.raises(KeyError):
        legroom.evaluate(model, DataLoader(data(), 25), broken)
    assert [module.training for module in model] == [True, True, False]


@pytest.mark.slow
def test_a_batch_that_does_not_fit_is_split():
    plain = small_model(width=512)
    loader = DataLoader(data(16_000), 8_000)
    expected = legroom.evaluate(plain, loader)
    with legroom.VirtualGPU("24MiB"):
        model = small_model(width=512).cuda()
        sizes = []

        def outputs(x, y):
            sizes.append(len(x))
            return model(x)

        result = legroom.evaluate(model, loader, outputs)
        assert max(sizes[1:]) < 8_000
        assert result.device.type == "cpu"
    torch.testing.assert_close(result, expected)


def test_a_single_sample_that_does_not_fit_is_evaluated_on_the_cpu():
    plain = small_model(width=512)
    x = torch.randn(3, 6_000, 6)
    with legroom.VirtualGPU("8MiB"):
        model = small_model(width=512).cuda()
        result = legroom.evaluate(model, [x])
        assert next(model.parameters()).is_cuda
    torch.testing.assert_close(result, legroom.evaluate(plain, [x]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: legroom.evaluate(nn.Linear(2, 2), []), "The loader yielded no batches"),
        (lambda: legroom.evaluate([], nn.Linear(2, 2)), "expects the model"),
        (
            lambda: legroom.evaluate(nn.Linear(2, 2), 64),
            "expects the loader as its second argument, not int",
        ),
        (
            lambda: legroom.evaluate(nn.Linear(2, 2), [torch.ones(1, 2)], 3),
            "function that takes a batch as its third argument, not int",
        ),
    ],
)
def test_invalid_arguments_of_evaluate_are_rejected(call, message):
    with pytest.raises(UsageError, match=message):
        call()
