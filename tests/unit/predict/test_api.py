"""`legroom.estimate`, `max_batch` and `plan` on models and step functions."""

from typing import Any

import pytest
import torch
from torch import nn

import legroom
from legroom.errors import UsageError
from legroom.observe.notes import ONE_STEP
from legroom.predict.fit import replay
from legroom.units import MiB

pytestmark = pytest.mark.slow


def model_and_batch() -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Dropout(0.1), nn.Linear(512, 10))
    return model, (torch.randn(32, 256), torch.randint(0, 10, (32,)))


def test_a_model_and_a_batch_are_estimated() -> None:
    model, batch = model_and_batch()
    result = legroom.estimate(model, batch, gpu="1GiB")
    parameters = sum(p.numel() for p in model.parameters()) * 4
    assert result.fits
    assert result.by_category["parameter"] >= parameters
    assert result.by_category["optimizer state"] >= 2 * parameters
    assert (
        result.peak_requested
        <= result.peak_allocated
        <= result.peak_reserved
        == result.peak_device
        <= result.safe
    )
    assert result.batch_size == 32
    assert result.max_batch_size is not None
    assert result.max_batch_size > 1000


def test_batches_larger_than_the_active_virtual_gpu_are_estimated() -> None:
    with legroom.VirtualGPU("64MiB"):
        model, batch = nn.Linear(1024, 4).cuda(), torch.randn(8, 1024, device="cuda")
        before = torch.cuda.max_memory_allocated()
        result = legroom.estimate(model, batch, gpu="1GiB")
        assert torch.cuda.max_memory_allocated() == before
    assert result.max_batch_size is not None
    assert result.max_batch_size > 100_000


def test_the_objects_of_the_caller_do_not_change() -> None:
    model, batch = model_and_batch()
    before = [p.clone() for p in model.parameters()]
    random = torch.get_rng_state()
    legroom.estimate(model, batch, gpu="1GiB", search=False)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(type(p) is nn.Parameter and p.grad is None for p in model.parameters())
    assert torch.equal(random, torch.get_rng_state())
    assert not torch.cuda.is_available()


def test_a_step_function_with_a_closure_is_estimated() -> None:
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

    result = legroom.estimate(step, *batch, gpu="1GiB", search=False)
    parameters = sum(p.numel() for p in model.parameters()) * 4
    assert parameters <= result.by_category["optimizer state"] < 1.2 * parameters, "momentum is one copy"
    assert not optimizer.state
    assert seen == []
    assert any(row["line"] == step.__code__.co_firstlineno + 4 for row in result.top)


def test_the_largest_batch_fits_and_one_that_is_slightly_larger_does_not() -> None:
    model, batch = model_and_batch()
    largest = legroom.max_batch(model, batch, gpu="600MiB")
    assert largest is not None
    capacity = legroom.estimate(model, batch, gpu="600MiB", search=False).gpu.usable
    for size, fits in ((largest, True), (largest + largest // 1000 + 1, False)):
        bigger = (torch.zeros(size, 256), torch.zeros(size, dtype=torch.long))
        trace = legroom.estimate(model, bigger, gpu="600MiB", search=False).trace
        assert (replay(trace, capacity).failed_at is None) is fits


def test_a_step_that_does_not_fit_is_reported() -> None:
    model = nn.Linear(8192, 8192)
    result = legroom.estimate(model, torch.zeros(4, 8192), gpu="1GiB", search=False)
    assert result.verdict == "does-not-fit"
    assert result.peak_device > result.gpu.total


def test_a_plan_lists_traced_options_ordered_by_cost() -> None:
    model = nn.Sequential(
        *[nn.Sequential(nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh()) for _ in range(6)]
    )
    options = legroom.plan(model, torch.zeros(20_000, 512), gpu="2GiB")
    names = [option.name for option in options]
    assert "activation checkpointing" in names
    assert "activations in host memory" in names
    assert names == sorted(
        names,
        key=[
            "fused optimizer",
            "for-loop optimizer",
            "bf16 autocast",
            "activation checkpointing",
            "8-bit optimizer state",
            "activations in host memory",
            "frozen backbone",
        ].index,
    )
    assert all(option.saves > 0 and option.cost and option.how for option in options)


def test_a_smaller_batch_is_an_option_if_the_current_one_does_not_fit() -> None:
    model, _ = model_and_batch()
    batch = (torch.zeros(200_000, 256), torch.zeros(200_000, dtype=torch.long))
    options = {option.name: option for option in legroom.plan(model, batch, gpu="1GiB")}
    largest = legroom.max_batch(model, batch, gpu="1GiB", safe=True)
    assert largest is not None
    smaller = options[f"batch size {largest}"]
    assert smaller.verdict == "fits"
    assert f"over {-(-200_000 // largest)} batches" in smaller.cost


class Blocks(nn.Module):
    """A model with a single child module, so that there is no backbone to freeze."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.Tanh()) for _ in range(12)])

    def forward(self, x: torch.Tensor) -> Any:
        return self.blocks(x)


def test_options_are_combined_if_no_single_one_is_enough() -> None:
    long = torch.zeros(1, 20_000, 1024)  # a batch of one sample cannot be reduced
    single = legroom.plan(Blocks(), long, gpu="24GiB")
    least = min(option.peak_device for option in single)
    options = legroom.plan(Blocks(), long, gpu=least - 20 * MiB)
    assert [option.name for option in options[:-1]] == [option.name for option in single]
    assert " + " in options[-1].name
    assert options[-1].fits


def test_an_option_without_effect_is_not_listed() -> None:
    model, batch = model_and_batch()
    optimizer = torch.optim.RMSprop(model.parameters())

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    names = [option.name for option in legroom.plan(step, *batch, gpu="24GiB")]
    assert "bf16 autocast" not in names
    assert "fused optimizer" not in names, "this optimizer has no fused implementation"


def test_a_model_that_copies_its_layers_is_estimated() -> None:
    def step() -> None:
        layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
        model = nn.TransformerEncoder(layer, 2).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.zeros(2, 16, 256, device="cuda")).sum().backward()
        optimizer.step()

    result = legroom.estimate(step, gpu="1GiB", search=False)
    assert result.by_category["parameter"] >= 2 * (4 * 256 * 256 + 2 * 256 * 1024) * 4


def test_a_large_model_needs_no_host_memory() -> None:
    import psutil

    with torch.device("meta"):
        model = nn.Sequential(*[nn.Linear(8192, 8192, bias=False) for _ in range(8)])  # 2 GiB of parameters
    before = psutil.Process().memory_info().rss
    result = legroom.estimate(model, torch.zeros(8, 8192), gpu="80GiB", search=False)
    assert result.by_category["parameter"] == 8 * 8192 * 8192 * 4
    assert psutil.Process().memory_info().rss - before < 300 * MiB


def test_the_repr_is_one_line() -> None:
    model, batch = model_and_batch()
    shown = repr(legroom.estimate(model, batch, gpu="8GiB", search=False))
    assert shown.startswith("<Estimate: fits, ")
    assert " of 8.00 GiB, at most " in shown
    assert "parameter" in shown
    assert "Trace(" not in shown


def test_the_html_repr_shows_the_verdict_and_the_gpu() -> None:
    model, batch = model_and_batch()
    page = legroom.estimate(model, batch, gpu="rtx4090", search=False)._repr_html_()
    assert "Fits" in page
    assert "rtx4090" in page


@pytest.mark.parametrize(
    ("target", "args", "message"),
    [
        (3, (), "Pass a model or a step function, not int"),
        (nn.Linear(2, 2), (), "Pass a model and one batch"),
    ],
)
def test_invalid_input_is_rejected_with_the_remedy(target: Any, args: tuple[Any, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        legroom.estimate(target, *args, gpu="1GiB")


def test_a_batch_with_the_wrong_shape_raises_the_error_and_logs_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(RuntimeError, match="same reduction dim|cannot be multiplied"):
        legroom.estimate(nn.Linear(64, 8), torch.zeros(4, 60), gpu="8GiB")
    assert capfd.readouterr().err == ""


def test_flex_attention_is_traced():
    from torch.nn.attention.flex_attention import flex_attention

    model = nn.Linear(32, 96)

    def loss(x: torch.Tensor) -> torch.Tensor:
        query, key, value = model(x).view(2, 1, 64, 3, 32).unbind(3)
        return flex_attention(query, key, value, score_mod=lambda s, b, h, i, j: s + (i - j)).sum()

    result = legroom.estimate(lambda x: loss(x).backward(), torch.ones(2, 64, 32), gpu="8GiB", search=False)

    assert result.peak_allocated >= 2 * 64 * 32 * 4


@pytest.mark.parametrize(
    ("optimizer", "steps", "is_noted"),
    [(torch.optim.AdamW, 1, True), (torch.optim.AdamW, 2, False), (torch.optim.SGD, 1, False)],
)
def test_a_single_step_of_an_optimizer_with_state_is_noted(
    optimizer: type[torch.optim.Optimizer], steps: int, is_noted: bool
) -> None:
    result = legroom.estimate(
        nn.Linear(64, 64),
        torch.zeros(8, 64),
        gpu="1GiB",
        optimizer=lambda parameters: optimizer(parameters, lr=0.1),
        steps=steps,
        search=False,
    )
    assert (ONE_STEP in result.notes) == is_noted
    assert result.as_json()["notes"] == list(result.notes)


KEPT: list[torch.Tensor] = []


class GrowingStep:
    def __init__(self) -> None:
        self.model = nn.Linear(8, 8)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)

    def __call__(self, x: torch.Tensor) -> None:
        KEPT.append(torch.zeros(1 << 20, device=x.device))
        self.model(x).sum().backward()
        self.optimizer.step()


def test_the_growth_of_a_step_function_is_reported() -> None:
    result = legroom.estimate(GrowingStep(), torch.zeros(4, 8), gpu="1GiB", search=False)
    KEPT.clear()
    assert result.steps == 4
    assert result.growth is not None
    assert (result.growth.bytes, result.growth.file) == (4 << 20, __file__)
    assert result.growth.steps_left == pytest.approx(1024 / 4, rel=0.1)
