"""Mixed precision: the choice of format, the order of scaling, and the detection of non-finite gradients."""

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
    chosen: Precision,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: torch.Tensor,
    *,
    steps: int = 1,
    factor: float = 1.0,
    clip: float | None = None,
) -> list[bool]:
    stepped = []
    for _ in range(steps):
        with chosen.autocast():
            loss = model(batch).float().square().mean() * factor
        chosen.backward(loss)
        if clip is not None:
            chosen.clip_grad_norm_(optimizer, clip)
        stepped.append(chosen.step(optimizer))
        chosen.update()
        optimizer.zero_grad()
    return stepped


def with_findings(kind: str, device: str | None = None, **options: float) -> tuple[Precision, list[Finding]]:
    findings: list[Finding] = []
    return precision(kind, device=device, on_finding=findings.append, **options), findings


# --- choice of format


def test_auto_selects_bfloat16_on_a_gpu_that_supports_it(gpu):
    chosen = legroom.precision()
    assert (chosen.name, chosen.dtype, chosen.device_type) == ("bf16", torch.bfloat16, "cuda")
    assert chosen.scaler is None
    assert chosen.reason == (
        "Legroom virtual GPU 0 (compute capability 8.0) supports bfloat16, which has about the same range as float32 and needs no loss scaling"
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
def test_auto_depends_on_the_compute_capability(gpu, monkeypatch, capability, name):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    chosen = precision("auto")
    assert chosen.name == name
    assert (chosen.scaler is not None) == (name == "fp16")


def test_the_reason_mentions_emulation(gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (7, 5))
    assert (
        "does not support bfloat16, so bf16 is emulated and slow, and fp16 would be faster"
        in precision("bf16").reason
    )


@pytest.mark.parametrize(("supported", "name"), [(True, "bf16"), (False, "fp32")])
def test_auto_selects_bfloat16_only_on_cpus_that_support_it(monkeypatch, supported, name):
    monkeypatch.setattr(precision_choice, "_cpu_has_bfloat16", lambda: supported)
    assert precision("auto", device="cpu").name == name


def test_an_explicit_format_is_used():
    for name in ("bf16", "fp16", "fp32"):
        assert precision(name, device="cpu").name == name


def test_a_precision_object_is_returned_unchanged():
    existing = precision("fp32", device="cpu")
    assert precision(existing) is existing


def test_an_unknown_format_is_rejected():
    with pytest.raises(
        UsageError, match="'half' is not a valid precision. Use 'bf16', 'fp16', 'fp32' or 'auto'"
    ):
        precision("half")


def test_a_missing_device_is_rejected(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="No CUDA device is available"):
        precision("bf16", device="cuda")


def test_no_deprecated_api_is_used(gpu):
    model, optimizer, batch = network("cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        warnings.simplefilter("error", DeprecationWarning)
        train(precision("fp16"), model, optimizer, batch)


# --- one step


@pytest.mark.parametrize("name", ["bf16", "fp16", "fp32"])
def test_the_forward_pass_runs_in_the_format(gpu, name):
    model, _, batch = network("cuda")
    chosen = precision(name)
    with chosen.autocast():
        assert model[0](batch).dtype is chosen.dtype
    assert model[0](batch).dtype is torch.float32


def test_float32_disables_an_outer_autocast():
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


def test_clipping_uses_unscaled_gradients(gpu):
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


def test_unscaling_twice_has_no_effect(gpu):
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


def test_a_float16_step_equals_the_torch_recipe(gpu):
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


def test_step_returns_false_if_skipped(gpu):
    model, optimizer, batch = network("cuda")
    chosen, _ = with_findings("fp16")
    before = model[0].weight.detach().clone()
    assert train(chosen, model, optimizer, batch, factor=float("inf")) == [False]
    assert torch.equal(model[0].weight, before)
    assert train(chosen, model, optimizer, batch) == [True]


def test_a_discarded_step_can_be_repeated(gpu):
    model, optimizer, batch = network("cuda")
    chosen = precision("fp16")
    with chosen.autocast():
        loss = model(batch).float().square().mean()
    chosen.backward(loss)
    chosen.unscale_(optimizer)
    optimizer.zero_grad()
    chosen.discard()
    assert train(chosen, model, optimizer, batch, clip=1.0) == [True]


# --- state


def test_the_loss_scale_is_part_of_the_state(gpu):
    model, optimizer, batch = network("cuda")
    first, _ = with_findings("fp16")
    train(first, model, optimizer, batch, steps=2, factor=float("inf"))
    resumed = precision("fp16")
    resumed.load_state_dict(first.state_dict())
    assert resumed.scaler is not None
    assert resumed.scaler.get_scale() == 65536 / 4
    assert resumed.state_dict() == first.state_dict()


def test_a_state_of_another_format_can_be_loaded():
    resumed = precision("bf16", device="cpu")
    resumed.load_state_dict(precision("fp16", device="cpu").state_dict())
    assert resumed.state_dict()["scaler"] is None


def test_the_state_of_another_object_is_rejected():
    with pytest.raises(UsageError, match="not the state of legroom.precision"):
        precision("fp32", device="cpu").load_state_dict({"scale": 1.0})


# --- checks


def test_a_collapsed_loss_scale_is_reported_once(gpu):
    model, optimizer, batch = network("cuda")
    chosen, findings = with_findings("fp16")
    train(chosen, model, optimizer, batch, steps=20, factor=float("nan"))
    assert [finding.code for finding in findings] == ["LG420"]
    assert findings[0].message == (
        "The loss scale dropped to 0.5 at step 17: gradients overflow float16 at any scale."
    )
    assert chosen.findings() == tuple(findings)


@pytest.mark.slow
def test_skipped_steps_at_the_start_are_not_reported(gpu):
    model, optimizer, batch = network("cuda")
    chosen, findings = with_findings("fp16")
    train(chosen, model, optimizer, batch, steps=5, factor=float("inf"))
    train(chosen, model, optimizer, batch, steps=110)
    assert findings == []


@pytest.mark.slow
def test_many_skipped_steps_are_reported(gpu):
    model, optimizer, batch = network("cuda")
    chosen, findings = with_findings("fp16")
    for _ in range(10):
        train(chosen, model, optimizer, batch, steps=9)
        train(chosen, model, optimizer, batch, factor=float("inf"), steps=1)
    assert [finding.code for finding in findings] == ["LG421"]
    assert "10 of the last 100 steps were skipped" in findings[0].message


@pytest.mark.parametrize("name", ["bf16", "fp32"])
def test_non_finite_gradients_are_reported_with_the_parameter(name):
    model, optimizer, batch = network()
    chosen, findings = with_findings(name, "cpu")
    train(chosen, model, optimizer, batch, steps=3)
    train(chosen, model, optimizer, batch, steps=2, factor=float("nan"))
    assert [finding.code for finding in findings] == ["LG421"]
    assert findings[0].message.startswith("Non-finite gradients of 4 parameters at step 4 (first: 0.weight)")


def test_an_oom_in_the_check_does_not_stop_the_step(monkeypatch):
    def fails(gradients: list[torch.Tensor]) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")

    monkeypatch.setattr(torch.nn.utils, "get_total_norm", fails)
    model, optimizer, batch = network()
    chosen, findings = with_findings("fp32", "cpu")
    assert train(chosen, model, optimizer, batch) == [True]
    assert findings == []


def test_without_on_finding_there_is_one_warning():
    model, optimizer, batch = network()
    chosen = precision("fp32", device="cpu")
    with pytest.warns(RuntimeWarning, match="LG421: Non-finite gradients of 4 parameters") as caught:
        train(chosen, model, optimizer, batch, steps=4, factor=float("inf"))
    assert len(caught) == 1
