"""The annotations that describe the program when memory ran out."""

import contextlib
import inspect
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from legroom.memory.annotations import (
    BroadcastTensors,
    FoundSetting,
    HandledError,
    LiveOptimizer,
    ModelCall,
    ProgramState,
)
from legroom.memory.events import Event, Oom
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


class OwnAdam(torch.optim.Adam):
    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters)


def test_option_that_the_constructor_lacks_is_set_in_the_groups() -> None:
    parameter = nn.Parameter(torch.ones(93, 3))
    assert not describe(torch.optim.Adam([parameter])).options_in_groups
    assert describe(OwnAdam([parameter])).options_in_groups


@pytest.mark.parametrize("option", [{}, {"foreach": False}, {"fused": True}])
def test_options_of_a_loaded_checkpoint_are_recognized(option: dict[str, Any]) -> None:
    saved = nn.Parameter(torch.ones(94, 3))
    before = torch.optim.Adam([saved])
    for _ in range(3):
        saved.grad = torch.ones_like(saved)
        before.step()
    after = torch.optim.Adam([nn.Parameter(torch.ones(95, 3))], **option)
    assert not describe(after).options_in_groups
    state = before.state_dict()
    for each in state["state"].values():
        each.update({name: torch.ones(95, 3) for name in ("exp_avg", "exp_avg_sq")})
    after.load_state_dict(state)
    described = describe(after)
    assert (described.update, described.options_in_groups) == ("foreach", True)


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


def events_of(kind: type, action: Any, memory: str = "64MiB") -> list[Any]:
    """Return the events of one kind that follow the last out-of-memory error of a function on a virtual GPU."""
    events: list[Event] = []
    with VirtualGPU(memory, sink=events.append), contextlib.suppress(torch.OutOfMemoryError):
        action()
    last = max(index for index, each in enumerate(events) if isinstance(each, Oom))
    return [each for each in events[last:] if isinstance(each, kind)]


def fill() -> torch.Tensor:
    return torch.empty(128 << 20, device="cuda")


def test_a_retry_in_an_except_block_is_recorded_with_its_line() -> None:
    def train() -> None:
        try:
            fill()
        except RuntimeError:
            fill()  # the line of the retry

    (handled,) = events_of(HandledError, train)
    lines, first = inspect.getsourcelines(train)
    assert (handled.function, lines[handled.line - first].strip()) == (
        "train",
        "fill()  # the line of the retry",
    )


@pytest.mark.parametrize("cause", ["another error", "after the block"])
def test_only_out_of_memory_errors_that_are_being_handled_are_recorded(cause: str) -> None:
    def train() -> None:
        failed = False
        try:
            if cause == "another error":
                raise ValueError("out of memory")  # the type is not a RuntimeError
            fill()
        except ValueError:
            fill()
        except RuntimeError:
            failed = True
        if failed:
            fill()

    assert events_of(HandledError, train) == []


def test_an_error_that_another_error_replaced_still_retains_its_tensors() -> None:
    def train() -> None:
        try:
            try:
                fill()
            except RuntimeError as error:
                raise ValueError("failed") from error
        except ValueError:
            fill()

    (handled,) = events_of(HandledError, train)
    assert handled.function == "train"


def test_calls_since_the_last_backward_pass_are_recorded_with_what_is_trained() -> None:
    def train() -> None:
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)).cuda()
        teacher = nn.Linear(8, 4).cuda()
        optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
        x = torch.ones(2, 8, device="cuda")
        model(x).sum().backward()
        optimizer.step()
        with torch.no_grad():
            model(x)
        teacher(model[0](x))
        model(x)
        fill()

    calls = events_of(ModelCall, train)
    assert [(each.model, each.untrained, each.input_requires_grad) for each in calls] == [
        ("Linear", ("",), False),
        ("Linear", ("",), True),
        ("Sequential", ("0",), False),
    ]
    assert [each.trained_bytes for each in calls] == [0, 0, 4 * (8 * 4 + 4)]
    assert {each.dtype for each in calls} == {"float32"}
    assert (calls[2].largest, calls[2].largest_kind, calls[2].largest_shape) == ("0", "Linear", (8, 8))
    assert calls[2].largest_bytes == 4 * 8 * 8
    assert {each.others_are_trained for each in calls[:2]} == {True}
    assert calls[0].started < calls[1].started < calls[2].started < calls[0].time


def test_the_calls_before_a_backward_pass_stay_known_until_the_next_call() -> None:
    def train() -> None:
        model = nn.Linear(8, 4).cuda()
        model(torch.ones(2, 8, device="cuda")).sum().backward()
        fill()

    assert len(events_of(ModelCall, train)) == 1


@pytest.mark.parametrize(
    ("column", "row", "found"),
    [((256, 1), (256,), True), ((256, 1), (128,), False), ((256, 2), (256,), False), ((8, 1), (8,), False)],
)
def test_variables_that_broadcast_to_a_square_are_recorded(column: Any, row: Any, found: bool) -> None:
    def loss(prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return fill()

    def train() -> None:
        loss(torch.ones(column, device="cuda"), torch.ones(row, device="cuda"))

    pairs = [
        (each.column, each.row, each.samples, each.bytes, each.function)
        for each in events_of(BroadcastTensors, train)
    ]
    assert pairs == ([("prediction", "target", 256, 256 * 256 * 4, "loss")] if found else [])


def test_arguments_of_a_loss_function_of_torch_are_reported_in_the_function_that_called_it() -> None:
    def train() -> None:
        nn.functional.l1_loss(torch.ones(8192, 1, device="cuda"), torch.ones(8192, device="cuda"))

    with pytest.warns(UserWarning, match="target size"):
        pairs = events_of(BroadcastTensors, train)
    assert [(each.column, each.row, each.function) for each in pairs] == [("input", "target", "train")]


def test_a_pair_is_reported_in_the_outermost_function_that_has_both_variables() -> None:
    def error(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return fill()

    def train() -> None:
        prediction, price = torch.ones(256, 1, device="cuda"), torch.ones(256, device="cuda")
        error(prediction, price)

    pairs = [(each.column, each.row, each.function) for each in events_of(BroadcastTensors, train)]
    assert pairs == [("prediction", "price", "train")]


@pytest.mark.parametrize("is_replaced", [True, False])
def test_the_state_of_an_optimizer_is_unused_if_a_newer_one_updates_its_parameters(is_replaced: bool) -> None:
    def train() -> None:
        model, other = nn.Linear(8, 4).cuda(), nn.Linear(8, 5).cuda()
        optimizers = []
        for each in (model, model if is_replaced else other):
            optimizers.append(torch.optim.Adam(each.parameters()))
            each(torch.ones(2, 8, device="cuda")).sum().backward()
            optimizers[-1].step()
        fill()

    described = [each.unused_bytes for each in events_of(LiveOptimizer, train) if each.trainable_bytes < 200]
    assert sorted(described) == ([0, 2 * 4 * (8 * 4 + 4)] if is_replaced else [0, 0])
