"""`legroom.estimate` and its kin on models and steps of one's own."""

from typing import Any

import pytest
import torch
from torch import nn

import legroom
from legroom.errors import UsageError
from legroom.predict.fit import replay
from legroom.units import MiB


def model_and_batch() -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Dropout(0.1), nn.Linear(512, 10))
    return model, (torch.randn(32, 256), torch.randint(0, 10, (32,)))


def test_a_model_and_a_batch() -> None:
    model, batch = model_and_batch()
    told = legroom.estimate(model, batch, gpu="1GiB")
    parameters = sum(p.numel() for p in model.parameters()) * 4
    assert told.fits
    assert told.by_category["parameter"] >= parameters
    assert told.by_category["optimizer state"] >= 2 * parameters
    assert told.peak_requested <= told.peak_allocated <= told.peak_reserved == told.peak_device <= told.safe
    assert told.batch_size == 32
    assert told.max_batch_size is not None
    assert told.max_batch_size > 1000


def test_nothing_of_the_users_is_changed() -> None:
    model, batch = model_and_batch()
    before = [p.clone() for p in model.parameters()]
    random = torch.get_rng_state()
    legroom.estimate(model, batch, gpu="1GiB", search=False)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(type(p) is nn.Parameter and p.grad is None for p in model.parameters())
    assert torch.equal(random, torch.get_rng_state())
    assert not torch.cuda.is_available()


def test_a_step_of_ones_own_with_its_closure() -> None:
    model, batch = model_and_batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    device = torch.device("cpu")
    seen: list[float] = []

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        seen.append(loss.item())

    told = legroom.estimate(step, *batch, gpu="1GiB", search=False)
    parameters = sum(p.numel() for p in model.parameters()) * 4
    assert parameters <= told.by_category["optimizer state"] < 1.2 * parameters, "momentum is one copy"
    assert not optimizer.state
    assert seen == []
    assert any(row["line"] == step.__code__.co_firstlineno + 4 for row in told.top)


def test_the_largest_batch_fits_and_a_thousandth_more_does_not() -> None:
    model, batch = model_and_batch()
    largest = legroom.max_batch(model, batch, gpu="600MiB")
    assert largest is not None
    room = legroom.estimate(model, batch, gpu="600MiB", search=False).gpu
    for size, fits in ((largest, True), (largest + largest // 1000 + 1, False)):
        bigger = (torch.zeros(size, 256), torch.zeros(size, dtype=torch.long))
        trace = legroom.estimate(model, bigger, gpu="600MiB", search=False).trace
        assert (replay(trace, room.usable).failed_at is None) is fits


def test_it_says_when_it_does_not_fit() -> None:
    model = nn.Linear(8192, 8192)
    told = legroom.estimate(model, torch.zeros(4, 8192), gpu="1GiB", search=False)
    assert told.verdict == "does-not-fit"
    assert told.peak_device > told.gpu.total


def test_a_plan_has_means_that_were_traced_in_the_order_of_their_price() -> None:
    model = nn.Sequential(
        *[nn.Sequential(nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh()) for _ in range(6)]
    )
    options = legroom.plan(model, torch.zeros(20_000, 512), gpu="2GiB")
    means = [option.means for option in options]
    assert "activation checkpointing" in means
    assert "activations in host memory" in means
    assert means == sorted(
        means,
        key=[
            "fused optimizer",
            "optimizer in a loop",
            "bf16 autocast",
            "activation checkpointing",
            "8-bit optimizer state",
            "activations in host memory",
            "frozen backbone",
        ].index,
    )
    assert all(option.saves > 0 and option.price and option.how for option in options)


def test_a_smaller_batch_is_a_means_where_todays_does_not_fit() -> None:
    model, _ = model_and_batch()
    batch = (torch.zeros(200_000, 256), torch.zeros(200_000, dtype=torch.long))
    options = {option.means: option for option in legroom.plan(model, batch, gpu="1GiB")}
    largest = legroom.max_batch(model, batch, gpu="1GiB")
    assert largest is not None
    smaller = options[f"batch of {largest}"]
    assert smaller.verdict in ("fits", "uncertain")
    assert f"over {-(-200_000 // largest)} batches" in smaller.price


class Blocks(nn.Module):
    """One part only, so that there is no backbone to freeze."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.Tanh()) for _ in range(12)])

    def forward(self, x: torch.Tensor) -> Any:
        return self.blocks(x)


def test_means_are_put_together_where_none_is_enough() -> None:
    long = torch.zeros(1, 20_000, 1024)  # a batch of one: it cannot be made smaller
    alone = legroom.plan(Blocks(), long, gpu="24GiB")
    least = min(option.peak_device for option in alone)
    options = legroom.plan(Blocks(), long, gpu=least - 20 * MiB)
    assert [option.means for option in options[:-1]] == [option.means for option in alone]
    assert " + " in options[-1].means
    assert options[-1].fits


def test_a_means_that_changes_nothing_is_not_offered() -> None:
    model, batch = model_and_batch()
    optimizer = torch.optim.RMSprop(model.parameters())

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    means = [option.means for option in legroom.plan(step, *batch, gpu="24GiB")]
    assert "bf16 autocast" not in means
    assert "fused optimizer" not in means, "this optimizer has no fused form"


def test_models_that_copy_their_layers_while_they_are_built() -> None:
    def step() -> None:
        layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
        model = nn.TransformerEncoder(layer, 2).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.zeros(2, 16, 256, device="cuda")).sum().backward()
        optimizer.step()

    told = legroom.estimate(step, gpu="1GiB", search=False)
    assert told.by_category["parameter"] >= 2 * (4 * 256 * 256 + 2 * 256 * 1024) * 4


def test_a_big_model_needs_no_memory_of_its_own() -> None:
    import psutil

    with torch.device("meta"):
        model = nn.Sequential(*[nn.Linear(8192, 8192, bias=False) for _ in range(8)])  # 2 GiB of parameters
    before = psutil.Process().memory_info().rss
    told = legroom.estimate(model, torch.zeros(8, 8192), gpu="80GiB", search=False)
    assert told.by_category["parameter"] == 8 * 8192 * 8192 * 4
    assert psutil.Process().memory_info().rss - before < 300 * MiB


def test_at_a_prompt_it_is_a_sentence() -> None:
    model, batch = model_and_batch()
    shown = repr(legroom.estimate(model, batch, gpu="8GiB", search=False))
    assert shown.startswith("<Estimate: fits, ")
    assert " of 8.00 GiB, at most " in shown
    assert "parameter" in shown
    assert "Trace(" not in shown


def test_html_for_notebooks() -> None:
    model, batch = model_and_batch()
    page = legroom.estimate(model, batch, gpu="rtx4090", search=False)._repr_html_()
    assert "Fits" in page
    assert "rtx4090" in page


@pytest.mark.parametrize(
    ("target", "args", "sentence"),
    [
        (3, (), "give a model or a step function, not a int"),
        (nn.Linear(2, 2), (), "give a model and one batch"),
    ],
)
def test_bad_input_is_one_sentence(target: Any, args: tuple[Any, ...], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        legroom.estimate(target, *args, gpu="1GiB")


def test_a_batch_that_does_not_suit_the_model_gives_its_error_and_no_log(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(RuntimeError, match="same reduction dim|cannot be multiplied"):
        legroom.estimate(nn.Linear(64, 8), torch.zeros(4, 60), gpu="8GiB")
    assert capfd.readouterr().err == ""


def test_attention_with_a_function_of_its_own_is_one_operation():
    from torch.nn.attention.flex_attention import flex_attention

    model = nn.Linear(32, 96)

    def loss(x: torch.Tensor) -> torch.Tensor:
        query, key, value = model(x).view(2, 1, 64, 3, 32).unbind(3)
        return flex_attention(query, key, value, score_mod=lambda s, b, h, i, j: s + (i - j)).sum()

    told = legroom.estimate(lambda x: loss(x).backward(), torch.ones(2, 64, 32), gpu="8GiB", search=False)

    assert told.peak_allocated >= 2 * 64 * 32 * 4
