"""Mixed precision: the right format with its reason, the right order of scaling, and nonsense noticed."""

import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import legroom
from legroom.errors import UsageError
from legroom.findings import Finding
from legroom.observe.virtual.gpu import VirtualGPU
from legroom.train import precision_choice
from legroom.train.precision import Precision, precision

WIDTH = 8


@pytest.fixture
def gpu() -> Iterator[VirtualGPU]:
    with VirtualGPU("64MiB") as active:
        yield active


def network(device: str = "cpu") -> tuple[nn.Module, torch.optim.Optimizer, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1)).to(device)
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.01)
    return model, optimizer, torch.randn(16, WIDTH, device=device)


def train(
    format: Precision,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: torch.Tensor,
    *,
    steps: int = 1,
    factor: float = 1.0,
    clip: float | None = None,
) -> list[bool]:
    taken = []
    for _ in range(steps):
        with format.autocast():
            loss = model(batch).float().square().mean() * factor
        format.backward(loss)
        if clip is not None:
            format.clip_grad_norm_(optimizer, clip)
        taken.append(format.step(optimizer))
        format.update()
        optimizer.zero_grad()
    return taken


def told_by(kind: str, device: str | None = None, **options: float) -> tuple[Precision, list[Finding]]:
    findings: list[Finding] = []
    return precision(kind, device=device, on_finding=findings.append, **options), findings


# --- which format


def test_a_gpu_with_bfloat16_gets_it_with_the_reason(gpu):
    chosen = legroom.precision()
    assert (chosen.name, chosen.dtype, chosen.device_type) == ("bf16", torch.bfloat16, "cuda")
    assert chosen.scaler is None
    assert chosen.reason == (
        "Legroom virtual GPU 0 (compute capability 8.0) computes bfloat16; its range is float32's, so nothing needs scaling"
    )


@pytest.mark.parametrize(
    ("capability", "name"),
    [
        ((9, 0), "bf16"),
        ((8, 0), "bf16"),
        ((7, 5), "fp16"),
        ((7, 0), "fp16"),
        ((6, 0), "fp16"),
        ((6, 1), "fp32"),
    ],
)
def test_each_generation_gets_what_it_computes_well(gpu, monkeypatch, capability, name):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    chosen = precision("auto")
    assert chosen.name == name
    assert (chosen.scaler is not None) == (name == "fp16")


def test_a_format_that_would_be_emulated_says_so(gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (7, 5))
    assert "has no bfloat16, so it is emulated and slow: fp16 would be faster" in precision("bf16").reason


@pytest.mark.parametrize(("has_it", "name"), [(True, "bf16"), (False, "fp32")])
def test_a_cpu_gets_half_precision_only_with_instructions_for_it(monkeypatch, has_it, name):
    monkeypatch.setattr(precision_choice, "_cpu_has_bfloat16", lambda: has_it)
    assert precision("auto", device="cpu").name == name


def test_what_is_asked_for_is_given():
    for name in ("bf16", "fp16", "fp32"):
        assert precision(name, device="cpu").name == name


def test_one_that_is_made_is_passed_on():
    made = precision("fp32", device="cpu")
    assert precision(made) is made


def test_an_unknown_format_is_refused_with_the_known_ones():
    with pytest.raises(UsageError, match="'half' is no precision: write bf16, fp16, fp32 or auto"):
        precision("half")


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="there is no CUDA device here"):
        precision("bf16", device="cuda")


def test_no_deprecated_spelling_is_used(gpu):
    model, optimizer, batch = network("cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        warnings.simplefilter("error", DeprecationWarning)
        train(precision("fp16"), model, optimizer, batch)


# --- one step


@pytest.mark.parametrize("name", ["bf16", "fp16", "fp32"])
def test_the_forward_pass_computes_in_the_format(gpu, name):
    model, _, batch = network("cuda")
    chosen = precision(name)
    with chosen.autocast():
        assert model[0](batch).dtype is chosen.dtype
    assert model[0](batch).dtype is torch.float32


def test_float32_switches_an_autocast_around_it_off():
    model, _, batch = network()
    with torch.autocast("cpu", dtype=torch.bfloat16), precision("fp32", device="cpu").autocast():
        assert model(batch).dtype is torch.float32


def test_the_backward_pass_runs_outside_autocast():
    seen: list[bool] = []
    model, _, batch = network()
    chosen = precision("bf16", device="cpu")
    with chosen.autocast():
        loss = model(batch).float().square().mean()
        loss.register_hook(lambda gradient: seen.append(torch.is_autocast_enabled("cpu")))
        chosen.backward(loss)
    assert seen == [False]


def test_clipping_sees_gradients_of_their_true_size(gpu):
    norms = {}
    for name in ("fp32", "fp16"):
        model, optimizer, batch = network("cuda")
        chosen = precision(name)
        with chosen.autocast():
            loss = model(batch).float().square().mean()
        chosen.backward(loss)
        norms[name] = float(chosen.clip_grad_norm_(optimizer, 0.01))
        clipped = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
        assert float(clipped) == pytest.approx(0.01, rel=1e-3)
    assert norms["fp16"] == pytest.approx(norms["fp32"], rel=0.02)


def test_unscaling_twice_is_unscaling_once(gpu):
    model, optimizer, batch = network("cuda")
    chosen = precision("fp16")
    with chosen.autocast():
        loss = model(batch).float().square().mean()
    chosen.backward(loss)
    chosen.unscale_(optimizer)
    once = model[0].weight.grad.clone()
    chosen.unscale_(optimizer)
    assert torch.equal(model[0].weight.grad, once)
    assert chosen.step(optimizer)
    chosen.update()


def test_a_step_in_float16_equals_torch_s_own_recipe(gpu):
    model, optimizer, batch = network("cuda")
    train(precision("fp16"), model, optimizer, batch, steps=3, clip=1.0)
    ours = [p.detach().cpu() for p in model.parameters()]
    model, optimizer, batch = network("cuda")
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(3):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(batch).float().square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert all(torch.equal(a, b.detach().cpu()) for a, b in zip(ours, model.parameters(), strict=True))


def test_a_skipped_step_says_so(gpu):
    model, optimizer, batch = network("cuda")
    chosen, _ = told_by("fp16")
    before = model[0].weight.detach().clone()
    assert train(chosen, model, optimizer, batch, factor=float("inf")) == [False]
    assert torch.equal(model[0].weight, before)
    assert train(chosen, model, optimizer, batch) == [True]


def test_a_step_that_was_begun_can_be_repeated(gpu):
    model, optimizer, batch = network("cuda")
    chosen = precision("fp16")
    with chosen.autocast():
        loss = model(batch).float().square().mean()
    chosen.backward(loss)
    chosen.unscale_(optimizer)
    optimizer.zero_grad()
    chosen.discard()
    assert train(chosen, model, optimizer, batch, clip=1.0) == [True]


# --- what lasts


def test_the_scale_lives_in_the_checkpoint(gpu):
    model, optimizer, batch = network("cuda")
    first, _ = told_by("fp16")
    train(first, model, optimizer, batch, steps=2, factor=float("inf"))
    resumed = precision("fp16")
    resumed.load_state_dict(first.state_dict())
    assert resumed.scaler is not None
    assert resumed.scaler.get_scale() == 65536 / 4
    assert resumed.state_dict() == first.state_dict()


def test_a_checkpoint_of_another_format_can_be_resumed():
    resumed = precision("bf16", device="cpu")
    resumed.load_state_dict(precision("fp16", device="cpu").state_dict())
    assert resumed.state_dict()["scaler"] is None


def test_a_state_of_something_else_is_refused():
    with pytest.raises(UsageError, match="no state of legroom.precision"):
        precision("fp32", device="cpu").load_state_dict({"scale": 1.0})


# --- noticing


def test_a_scale_that_collapses_is_told_once(gpu):
    model, optimizer, batch = network("cuda")
    chosen, findings = told_by("fp16")
    train(chosen, model, optimizer, batch, steps=20, factor=float("nan"))
    assert [finding.code for finding in findings] == ["LG420"]
    assert findings[0].message == (
        "The loss scale has collapsed to 0.5 by step 17: gradients overflow float16 at any scale."
    )
    assert chosen.findings() == tuple(findings)


def test_skips_while_the_scale_is_being_found_are_normal(gpu):
    model, optimizer, batch = network("cuda")
    chosen, findings = told_by("fp16")
    train(chosen, model, optimizer, batch, steps=5, factor=float("inf"))
    train(chosen, model, optimizer, batch, steps=110)
    assert findings == []


def test_many_skipped_steps_are_told(gpu):
    model, optimizer, batch = network("cuda")
    chosen, findings = told_by("fp16")
    for _ in range(10):
        train(chosen, model, optimizer, batch, steps=9)
        train(chosen, model, optimizer, batch, factor=float("inf"), steps=1)
    assert [finding.code for finding in findings] == ["LG421"]
    assert "in 10 of the last 100 steps" in findings[0].message


@pytest.mark.parametrize("name", ["bf16", "fp32"])
def test_gradients_that_are_not_finite_are_told_with_the_parameter(name):
    model, optimizer, batch = network()
    chosen, findings = told_by(name, "cpu")
    train(chosen, model, optimizer, batch, steps=3)
    train(chosen, model, optimizer, batch, steps=2, factor=float("nan"))
    assert [finding.code for finding in findings] == ["LG421"]
    assert findings[0].message.startswith(
        "The gradients of 4 parameters are not finite at step 4, 0.weight first"
    )


def test_a_look_that_finds_no_memory_does_not_stop_the_step(monkeypatch):
    def fails(gradients: list[torch.Tensor]) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")

    monkeypatch.setattr(torch.nn.utils, "get_total_norm", fails)
    model, optimizer, batch = network()
    chosen, findings = told_by("fp32", "cpu")
    assert train(chosen, model, optimizer, batch) == [True]
    assert findings == []


def test_without_a_listener_there_is_one_warning():
    model, optimizer, batch = network()
    chosen = precision("fp32", device="cpu")
    with pytest.warns(RuntimeWarning, match="LG421: The gradients of 4 parameters") as caught:
        train(chosen, model, optimizer, batch, steps=4, factor=float("inf"))
    assert len(caught) == 1
