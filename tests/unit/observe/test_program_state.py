"""The annotations that describe the program when memory ran out."""

import contextlib
import inspect
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from legroom.memory.annotations import FoundSetting, LiveOptimizer, ProgramState
from legroom.memory.events import Event
from legroom.observe.program_state import follow_settings, program_state
from legroom.observe.source.script_settings import ScriptSettings
from legroom.observe.training import TrainingClock
from legroom.observe.virtual.gpu import VirtualGPU

OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("Adam", {}), ("Adam", {"amsgrad": True}), ("AdamW", {}), ("NAdam", {}), ("RAdam", {}), ("Adamax", {}),
    ("Adadelta", {}), ("Adagrad", {}), ("ASGD", {}), ("Rprop", {}), ("RMSprop", {}),
    ("RMSprop", {"momentum": 0.9, "centered": True}), ("SGD", {"lr": 0.1}), ("SGD", {"lr": 0.1, "momentum": 0.9}),
]  # fmt: skip


def describe(optimizer: torch.optim.Optimizer) -> LiveOptimizer:
    """Return the annotation of this optimizer. Optimizers of other tests may be alive as well."""
    size = sum(each.numel() * 4 for group in optimizer.param_groups for each in group["params"])
    found = [each for each in program_state(0.0, TrainingClock()) if isinstance(each, LiveOptimizer)]
    return next(
        each for each in found if (each.name, each.trainable_bytes) == (type(optimizer).__name__, size)
    )


@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_predicted_state_is_the_state_after_a_step(name: str, options: dict[str, Any]) -> None:
    chosen = (37 + OPTIONS.index((name, options)), 64)  # a size that no other test has
    parameter = nn.Parameter(torch.ones(chosen))
    optimizer = getattr(torch.optim, name)([parameter], **options)
    predicted = describe(optimizer).state_bytes
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    state = optimizer.state[parameter].values()
    tensors = [each for each in state if isinstance(each, torch.Tensor) and each.ndim > 0]
    assert predicted == sum(each.numel() * each.element_size() for each in tensors)


@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD", "RMSprop", "Adadelta", "Adamax", "Adagrad"])
def test_fused_is_known_for_the_optimizers_that_have_it_on_cuda(name: str) -> None:
    kind = getattr(torch.optim, name)
    described = describe(kind([nn.Parameter(torch.ones(91, 3))], lr=0.1))
    has_option = "fused" in inspect.signature(kind).parameters
    assert described.supports_fused == (has_option and name != "Adagrad")


@pytest.mark.parametrize(
    ("options", "update"),
    [
        ({}, "foreach"),
        ({"fused": True}, "fused"),
        ({"foreach": False}, "single"),
        ({"foreach": True}, "foreach"),
    ],
)
def test_the_update_method_of_an_optimizer_is_recorded(options: dict[str, Any], update: str) -> None:
    described = describe(torch.optim.Adam([nn.Parameter(torch.ones(92, 3))], **options))
    assert described.update == update
    assert (described.temporary_bytes > 0) == (update == "foreach")


def run_out_of_memory(*, training: bool) -> list[Event]:
    events: list[Event] = []
    loader = DataLoader(TensorDataset(torch.ones(10, 64, 1024)), batch_size=4)
    with VirtualGPU("32MiB", sink=events.append), torch.set_grad_enabled(training):
        model = nn.Linear(1024, 256).cuda().train(training)
        with pytest.raises(torch.OutOfMemoryError):
            for (batch,) in loader:
                model(batch.cuda())
                torch.empty(64 << 20, device="cuda")
    return events


@pytest.mark.parametrize("training", [True, False])
def test_state_of_the_program_follows_the_failure(training: bool) -> None:
    state = next(each for each in run_out_of_memory(training=training) if isinstance(each, ProgramState))
    assert (state.gradients_enabled, state.is_training, state.batch_size) == (training, training, 4)


def test_shapes_of_the_first_and_last_input_of_the_model_follow_the_failure() -> None:
    events: list[Event] = []
    with VirtualGPU("32MiB", sink=events.append):
        model, other = nn.Linear(8, 256).cuda(), nn.Linear(8, 8).cuda()
        for size in (64, 32, 100_000):
            other(torch.ones(7, 8, device="cuda"))
            with contextlib.suppress(torch.OutOfMemoryError):
                model(torch.ones(size, 8, device="cuda"))
    state = next(each for each in events if isinstance(each, ProgramState))
    assert (state.first_input_shape, state.input_shape) == ((64, 8), (100_000, 8))


def test_settings_of_the_script_follow_the_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScriptSettings, "_sources", lambda self: iter(()))
    follow_settings(ScriptSettings(("--batch-size", "4")))
    try:
        events = run_out_of_memory(training=True)
    finally:
        follow_settings(None)
    found = [each for each in events if isinstance(each, FoundSetting)]
    assert [(each.name, each.value, each.is_given) for each in found] == [("--batch-size", 4, True)]
