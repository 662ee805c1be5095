"""State that is computed from its previous value, together with its graph: the line of the update is reported."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import pytest
import torch
from tests.unit.observe.leaks.loops import leaks_of
from torch import nn

from legroom.memory.detected_leak import DetectedLeak
from legroom.observe.leaks.detector import LeakDetector

pytestmark = pytest.mark.slow


def _line(function: Callable[..., Any], text: str) -> int:
    """Return the number of the line of `function` that contains `text`."""
    lines, first = inspect.getsourcelines(function)
    return next(first + number for number, line in enumerate(lines) if text in line)


class _WithMean(nn.Module):
    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(2))


class _RunningMean(_WithMean):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return x


class _InPlaceMean(_WithMean):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean.mul_(0.9).add_(0.1 * x.mean(0))
        return x


class _MeanInDict(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stats = {"mean": torch.zeros(2)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.stats["mean"] = torch.lerp(self.stats["mean"], x.mean(0), 0.1)
        return x


class _MeanByName(_WithMean):
    name = "mean"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        old = getattr(self, self.name)
        setattr(self, self.name, 0.9 * old + 0.1 * x.mean(0))
        return x


class _MeanInBuffers(_WithMean):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._buffers["mean"] = 0.9 * self._buffers["mean"] + 0.1 * x.mean(0)  # type: ignore[operator]
        return x


class _MeanByFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = torch.ones(2), torch.ones(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = x.detach()
        scaled = torch.tanh(self.norm + x.mean(0))
        self.norm = torch.nn.functional.normalize(scaled, dim=0)
        return x


class _DetachedMean(_WithMean):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0).detach()
        return x


class _LastMean(_WithMean):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean = x.mean(0)
        return x


def _leaks_of_layers(layer: type[nn.Module]) -> list[DetectedLeak]:
    net = nn.Module()
    net.layers = nn.ModuleList([layer() for _ in range(6)])

    def run(step: int, loss: Any, output: Any) -> None:
        for each in net.layers:
            output = each(output)

    return leaks_of(run, iterations=36)


@pytest.mark.parametrize(
    ("layer", "name", "update"),
    [
        (_RunningMean, ".mean", "self.mean = 0.9"),
        (_InPlaceMean, ".mean", "self.mean.mul_"),
        (_MeanInDict, '.stats["mean"]', 'self.stats["mean"] ='),
        (_MeanByName, ".mean", "setattr(self"),
        (_MeanInBuffers, ".mean", 'self._buffers["mean"] ='),
        (_MeanByFunction, ".norm", "self.norm ="),
    ],
)
def test_running_statistics_in_a_list_of_layers_are_reported_once_at_the_update(
    layer: type[nn.Module], name: str, update: str
) -> None:
    (leak,) = _leaks_of_layers(layer)
    assert leak.name.startswith("net.layers.")
    assert leak.name.endswith(name)
    assert (leak.kind, leak.line) == ("graph", _line(layer.forward, update))


def test_statistics_of_a_single_layer_that_are_assigned_by_name_are_reported_at_the_update() -> None:
    layer = _MeanByName()
    (leak,) = leaks_of(lambda step, loss, output: layer(output), iterations=36)
    assert (leak.name, leak.line) == ("layer.mean", _line(_MeanByName.forward, "setattr(self"))


class _Meters:
    def __init__(self, *names: str) -> None:
        for name in names:
            setattr(self, name, 0.0)

    def update(self, **values: Any) -> None:
        for name, value in values.items():
            setattr(self, name, getattr(self, name) + value)


def test_totals_that_are_assigned_by_name_are_reported_at_the_call_and_not_at_the_constructor() -> None:
    meters = _Meters("objective", "count")

    def keep(step: int, loss: Any, output: Any) -> None:
        meters.update(objective=loss, count=1)

    (leak,) = leaks_of(keep)
    assert (leak.name, leak.line) == ("meters.objective", _line(keep, "meters.update"))


class _Stats:
    def __init__(self) -> None:
        self.values: dict[str, torch.Tensor] = {}

    def create(self, name: str) -> None:
        self.values[name] = torch.zeros(())

    def value(self, name: str) -> torch.Tensor:
        return self.values[name]


def test_a_total_in_a_dict_that_is_changed_in_place_is_reported_at_the_change() -> None:
    stats = _Stats()
    stats.create("loss")

    def keep(step: int, loss: Any, output: Any) -> None:
        stats.value("loss").add_(loss)

    (leak,) = leaks_of(keep, iterations=30)
    assert (leak.name, leak.line) == ("stats.values", _line(keep, "add_(loss)"))


@pytest.mark.parametrize("layer", [_DetachedMean, _LastMean])
def test_statistics_without_earlier_graphs_are_not_a_leak(layer: type[nn.Module]) -> None:
    assert _leaks_of_layers(layer) == []


@dataclass
class _State:
    x: torch.Tensor
    v: torch.Tensor


class _Slots:
    __slots__ = ("v", "x")

    def __init__(self, x: torch.Tensor, v: torch.Tensor) -> None:
        self.x, self.v = x, v


class _Fields(NamedTuple):
    x: torch.Tensor
    v: torch.Tensor


@dataclass
class _Outer:
    inner: _State

    @property
    def x(self) -> torch.Tensor:
        return self.inner.x

    @property
    def v(self) -> torch.Tensor:
        return self.inner.v


def _outer(x: torch.Tensor, v: torch.Tensor) -> _Outer:
    return _Outer(_State(x, v))


_MODEL = nn.Linear(4, 4).eval()


def _advance(state: Any, create: Callable[..., Any]) -> Any:
    v = 0.9 * state.v + 0.1 * _MODEL(state.x)
    return create(state.x + v, v)


def _loop_with_variable(state: Any, create: Callable[..., Any]) -> None:
    for _ in range(40):
        state = _advance(state, create)


class _Simulation:
    def __init__(self, state: Any) -> None:
        self.state = state

    def run(self, create: Callable[..., Any]) -> None:
        for _ in range(40):
            self.state = _advance(self.state, create)


def _loop_with_attribute(state: Any, create: Callable[..., Any]) -> None:
    _Simulation(state).run(create)


def _fold(state: Any, noise: torch.Tensor) -> Any:
    v = state.v + _MODEL(state.x)
    return _State(state.x + v + noise, v)


def _loop_without_variable(state: Any, create: Callable[..., Any]) -> None:
    reduce(_fold, (torch.randn(3, 4) for _ in range(40)), state)


def _loop_that_detaches(state: Any, create: Callable[..., Any]) -> None:
    for _ in range(40):
        state = _advance(state, create)
        state = create(state.x.detach(), state.v.detach())


def _leaks_of_loop(
    loop: Callable[..., None], create: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> list[DetectedLeak]:
    # The source of a program that only evaluates does not mention a backward pass.
    monkeypatch.setattr("legroom.observe.leaks.search.suspects.may_train", lambda: False)
    monkeypatch.setattr("legroom.observe.leaks.window.UNROLLED_CALLS", 0)
    found: dict[tuple[object, ...], DetectedLeak] = {}
    detector = LeakDetector(lambda leak: found.setdefault(leak.identity, leak) and None, fraction=1e6)
    detector.attach()
    try:
        loop(create(torch.randn(3, 4), torch.zeros(3, 4)), create)
    finally:
        detector.detach()
    assert detector.error == ""
    return list(found.values())


@pytest.mark.parametrize("create", [_State, _Slots, _Fields, _outer])
def test_a_state_in_new_objects_is_reported_at_the_loop_that_carries_it(
    create: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (leak,) = _leaks_of_loop(_loop_with_variable, create, monkeypatch)
    assert (leak.name, leak.how) == ("state", "carried")
    assert leak.line == _line(_loop_with_variable, "state = _advance")


def test_a_state_in_an_attribute_is_reported_at_the_assignment(monkeypatch: pytest.MonkeyPatch) -> None:
    (leak,) = _leaks_of_loop(_loop_with_attribute, _State, monkeypatch)
    assert (leak.name, leak.how) == ("self.state", "carried")
    assert leak.line == _line(_Simulation.run, "self.state = _advance")


def test_a_state_that_no_variable_carries_is_reported_where_the_object_is_created(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (leak,) = _leaks_of_loop(_loop_without_variable, _State, monkeypatch)
    assert leak.name.startswith("state.")
    assert leak.line == _line(_fold, "return _State")


def test_a_state_that_the_loop_detaches_is_not_a_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _leaks_of_loop(_loop_that_detaches, _State, monkeypatch) == []


class _Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(6, 8, batch_first=True)
        self.head = nn.Linear(8, 1)
        self.reset()

    def reset(self) -> None:
        self.hidden: Any = (torch.zeros(1, 4, 8), torch.zeros(1, 4, 8))


class _AssignsState(_Policy):
    def forward(self, x: torch.Tensor) -> Any:
        out, self.hidden = self.rnn(x, self.hidden)
        return self.head(out[:, -1])


class _AssignsLocalState(_Policy):
    def forward(self, x: torch.Tensor) -> Any:
        out, hidden = self.rnn(x, self.hidden)
        self.hidden = hidden
        return self.head(out[:, -1])


class _AssignsParts(_Policy):
    def forward(self, x: torch.Tensor) -> Any:
        out, (h, c) = self.rnn(x, tuple(self.hidden))
        self.hidden = [h, c]
        return self.head(out[:, -1])


class _ResetsToZeros(_Policy):
    def forward(self, x: torch.Tensor) -> Any:
        state = self.hidden
        out, state = self.rnn(x, state)
        self.hidden = state
        return self.head(out[:, -1])

    def reset(self) -> None:
        super().reset()
        self.hidden = tuple(torch.zeros_like(each) for each in self.hidden)


@pytest.mark.parametrize(
    ("policy", "assignment"),
    [
        (_AssignsState, "out, self.hidden"),
        (_AssignsLocalState, "self.hidden = hidden"),
        (_AssignsParts, "self.hidden = [h, c]"),
        (_ResetsToZeros, "self.hidden = state"),
    ],
)
def test_a_hidden_state_is_reported_once_at_the_forward_pass_and_not_at_its_initial_value(
    policy: type[_Policy], assignment: str
) -> None:
    found: dict[tuple[object, ...], DetectedLeak] = {}
    detector = LeakDetector(lambda leak: found.__setitem__(leak.identity, leak), fraction=1e6)
    model = policy()
    optimizer = torch.optim.SGD(model.head.parameters(), lr=1e-3)
    detector.attach()
    try:
        for _ in range(24):
            loss = model(torch.randn(4, 3, 6)).square().mean()
            optimizer.zero_grad()
            loss.backward(retain_graph=True)
            optimizer.step()
    finally:
        detector.detach()
    (leak,) = found.values()
    assert (leak.name, leak.how) == ("model.hidden", "carried")
    assert leak.line == _line(policy.forward, assignment)
