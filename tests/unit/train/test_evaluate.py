"""Evaluation: no graph, all rows weighed alike, a full GPU survived, the model as it was."""

import pytest
import torch
from tests.unit.train.guarded import small_model
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import legroom
from legroom.errors import UsageError


def data(rows=50, features=6):
    torch.manual_seed(0)
    return TensorDataset(torch.randn(rows, features), torch.randint(0, 3, (rows,)))


def test_numbers_are_means_over_all_rows():
    model = nn.Linear(6, 3)
    x, y = data().tensors

    def scores(x, y):
        return {"loss": F.cross_entropy(model(x), y), "right": (model(x).argmax(1) == y).float().mean()}

    found = legroom.evaluate(model, DataLoader(data(), 16), scores)  # 16, 16, 16 and 2 rows
    assert found["loss"] == pytest.approx(F.cross_entropy(model(x), y).item(), rel=1e-5)
    assert found["right"] == pytest.approx((model(x).argmax(1) == y).float().mean().item())
    assert type(found["loss"]) is float


def test_without_a_function_the_outputs_come_in_order():
    model = nn.Linear(6, 3)
    found = legroom.evaluate(model, DataLoader(data(), 16))
    assert torch.equal(found, torch.cat([model(x).detach() for x, _ in DataLoader(data(), 16)]))


def test_a_dict_is_given_by_name():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 1)

        def forward(self, first, second):
            return {"sum": self.layer(first + second)}

    batches = [{"first": torch.ones(4, 2), "second": torch.ones(4, 2)}] * 2
    assert legroom.evaluate(Named(), batches)["sum"].shape == (8, 1)


def test_no_gradient_is_possible_and_dropout_is_off():
    model = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5))
    seen = []

    def look(x, y):
        seen.append((torch.is_inference_mode_enabled(), model.training, model(x).requires_grad))
        return model(x)

    first, second = (legroom.evaluate(model, DataLoader(data(), 25), look) for _ in range(2))
    assert set(seen) == {(True, False, False)}
    assert torch.equal(first, second)


def test_every_module_has_its_mode_again_even_after_an_error():
    model = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.BatchNorm1d(6))
    model[2].eval()

    def broken(x, y):
        raise KeyError("x")

    with pytest.raises(KeyError):
        legroom.evaluate(model, DataLoader(data(), 25), broken)
    assert [module.training for module in model] == [True, True, False]


@pytest.mark.usefixtures("frozen_heap")
def test_a_full_gpu_is_survived_in_pieces():
    plain = small_model(width=512)
    loader = DataLoader(data(16_000), 8_000)
    expected = legroom.evaluate(plain, loader)
    with legroom.VirtualGPU("24MiB"):
        model = small_model(width=512).cuda()
        sizes = []

        def outputs(x, y):
            sizes.append(len(x))
            return model(x)

        found = legroom.evaluate(model, loader, outputs)
        assert max(sizes[1:]) < 8_000
        assert found.device.type == "cpu"
    torch.testing.assert_close(found, expected)


@pytest.mark.usefixtures("frozen_heap")
def test_one_row_that_does_not_fit_is_evaluated_on_the_host():
    plain = small_model(width=512)
    x = torch.randn(3, 6_000, 6)
    with legroom.VirtualGPU("8MiB"):
        model = small_model(width=512).cuda()
        found = legroom.evaluate(model, [x])
        assert next(model.parameters()).is_cuda
    torch.testing.assert_close(found, legroom.evaluate(plain, [x]))


@pytest.mark.parametrize(
    ("ask", "told"),
    [
        (lambda: legroom.evaluate(nn.Linear(2, 2), []), "the loader gave no batch"),
        (lambda: legroom.evaluate([], nn.Linear(2, 2)), "evaluate needs the model first"),
        (lambda: legroom.evaluate(nn.Linear(2, 2), [torch.ones(1, 2)], 3), "function of a batch, not a int"),
    ],
)
def test_bad_input_gets_one_sentence(ask, told):
    with pytest.raises(UsageError, match=told):
        ask()
