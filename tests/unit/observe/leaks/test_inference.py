"""Loops that only call a model under no_grad: results that stay on the device, and sequences of limited length."""

import functools
from collections.abc import Callable

import pytest
import torch
from torch import nn

from legroom.memory.detected_leak import DetectedLeak
from legroom.observe.leaks.detector import LeakDetector

pytestmark = pytest.mark.slow


def _leaks_of(loop: Callable[[nn.Module], None], *, on_device: bool = True) -> list[DetectedLeak]:
    """Return the leaks of `loop(model)`. All tensors count as device tensors if `on_device`."""
    found: dict[tuple[object, ...], DetectedLeak] = {}
    detector = LeakDetector(
        lambda leak: found.setdefault(leak.identity, leak) and None,
        on_device=lambda tensor: on_device,
        fraction=1e6,
    )
    detector.attach()
    try:
        with torch.no_grad():
            loop(nn.Linear(4, 4).eval())
    finally:
        detector.detach()
    assert detector.error == ""
    return list(found.values())


def _collect(model: nn.Module) -> None:
    answers = []
    for _ in range(30):
        answers.append(model(torch.randn(3, 4)))


def test_predictions_that_stay_on_the_device_are_reported() -> None:
    (leak,) = _leaks_of(_collect)
    assert (leak.name, leak.kind, leak.evaluation) == ("answers", "tensor", True)
    assert leak.line == _collect.__code__.co_firstlineno + 3


def test_predictions_on_the_host_are_not_a_leak() -> None:
    assert _leaks_of(_collect, on_device=False) == []


def test_a_short_series_of_predictions_is_not_a_leak() -> None:
    def loop(model: nn.Module) -> None:
        samples = []
        for _ in range(12):
            samples.append(model(torch.randn(3, 4)))

    assert _leaks_of(loop) == []


def _track(model: nn.Module) -> None:
    tracked: list[torch.Tensor] = []
    lost: list[torch.Tensor] = []
    for _ in range(60):
        tracked.extend(model(torch.randn(2, 4)).clone().unbind())
        while len(tracked) > 6:
            lost.append(tracked.pop(0))


def test_views_that_move_from_a_bounded_list_to_a_growing_list_are_reported() -> None:
    found = _leaks_of(_track)
    assert [(leak.name, leak.line) for leak in found] == [("lost", _track.__code__.co_firstlineno + 6)]


@pytest.mark.parametrize(("batches", "names"), [(24, []), (60, ["outputs"])])
def test_results_of_an_evaluation_are_reported_only_if_the_evaluation_is_long(
    batches: int, names: list[str]
) -> None:
    def loop(model: nn.Module) -> None:
        outputs = []
        for _ in range(batches):
            outputs.append(model(torch.randn(3, 4)))
        torch.cat(outputs)

    found = _leaks_of(loop)
    assert [leak.name for leak in found] == names


class _Session:
    def __init__(self) -> None:
        self.keys: list[torch.Tensor] = []


def test_sessions_that_are_never_closed_are_reported_as_the_growing_container() -> None:
    sessions: dict[str, _Session] = {}

    def answer(model: nn.Module, request: int) -> torch.Tensor:
        session = sessions.get(f"user {request}")
        if session is None:
            session = sessions[f"user {request}"] = _Session()
        session.keys.append(model(torch.randn(1, 4)))
        return torch.cat(session.keys)

    def loop(model: nn.Module) -> None:
        for request in range(12):
            for _ in range(4):
                answer(model, request)

    (leak,) = _leaks_of(loop)
    assert (leak.name, leak.line) == ("sessions", answer.__code__.co_firstlineno + 3)


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(4, 4)
        self.keys: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        key = self.project(x)
        self.keys = key if self.keys is None else torch.cat([self.keys, key])
        return torch.softmax(x @ self.keys.T, dim=-1) @ self.keys


class _ResetAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(4, 4)
        self.reset()

    def reset(self) -> None:
        self.past: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        value = self.project(x)
        self.past = value if self.past is None else torch.cat([self.past, value])
        return self.past.mean(0, keepdim=True)


def test_a_cache_that_no_request_resets_is_reported() -> None:
    def loop(_: nn.Module) -> None:
        attention = _Attention().eval()
        for _ in range(8):
            token = torch.randn(1, 4)
            for _ in range(5):
                token = attention(token)

    (leak,) = _leaks_of(loop)
    assert (leak.name, leak.kind) == ("attention.keys", "larger")


def test_a_cache_that_a_request_resets_is_not_a_leak() -> None:
    def loop(_: nn.Module) -> None:
        attention = _ResetAttention().eval()
        attention.reset()
        token = torch.randn(1, 4)
        for _ in range(40):
            token = attention(token)

    assert _leaks_of(loop) == []


def test_a_sequence_that_is_the_input_of_the_next_call_is_not_a_leak() -> None:
    def loop(model: nn.Module) -> None:
        text = torch.randn(1, 4)
        for _ in range(40):
            text = torch.cat([text, model(text)[-1:]])

    assert _leaks_of(loop) == []


def test_tokens_in_a_list_are_not_a_leak() -> None:
    def loop(model: nn.Module) -> None:
        tokens, x = [], torch.randn(1, 4)
        for _ in range(40):
            x = model(x)
            tokens.append(x.argmax())

    assert _leaks_of(loop) == []


def test_views_of_a_base_that_only_they_reference_are_reported() -> None:
    def loop(model: nn.Module) -> None:
        halves = []
        for _ in range(30):
            first, _ = model(torch.randn(3, 4)).chunk(2, dim=-1)
            halves.append(first)

    (leak,) = _leaks_of(loop)
    assert leak.name == "halves"


class _Filter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(4, 4)
        self.state: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.state = self.cell(x, self.state)
        return self.state


def test_a_state_that_keeps_its_graph_is_reported_once_it_is_too_long_for_an_unrolled_network(
    no_earlier_optimizers: None,
) -> None:
    def loop(calls: int) -> None:
        model = _Filter()
        with torch.enable_grad():
            for _ in range(calls):
                model(torch.randn(2, 4)).sum().item()

    (leak,) = _leaks_of(lambda _: loop(160))
    assert (leak.name, leak.kind) == ("model.state", "graph")
    assert _leaks_of(lambda _: loop(60)) == []


def test_a_queue_that_is_sliced_and_copied_is_not_a_leak() -> None:
    def loop(model: nn.Module) -> None:
        queue = torch.empty(0, 4)
        for _ in range(40):
            queue = torch.cat([queue, model(torch.randn(3, 4))])[-36:].clone()

    assert _leaks_of(loop) == []


def _serve_from_cache(model: nn.Module) -> None:
    @functools.cache
    def embed(request: int) -> torch.Tensor:
        return model(torch.randn(3, 4))  # type: ignore[no-any-return]

    for request in range(62):
        embed(request)


def test_a_function_cache_of_a_service_is_reported_although_the_cached_function_is_running() -> None:
    (leak,) = _leaks_of(_serve_from_cache)
    assert (leak.name, leak.how) == ("embed", "cache")
    assert leak.line == _serve_from_cache.__code__.co_firstlineno + 1


def test_a_function_cache_that_a_loop_clears_is_not_a_leak() -> None:
    def loop(model: nn.Module) -> None:
        @functools.cache
        def encode(request: int) -> torch.Tensor:
            return model(torch.randn(3, 4))  # type: ignore[no-any-return]

        for request in range(62):
            encode(request)
            if request % 16 == 15:
                encode.cache_clear()

    assert _leaks_of(loop) == []


def test_a_function_cache_of_a_few_prompts_is_not_a_leak() -> None:
    def loop(model: nn.Module) -> None:
        @functools.cache
        def prompt(label: int) -> torch.Tensor:
            return model(torch.randn(3, 4))  # type: ignore[no-any-return]

        for request in range(62):
            prompt(request % 20)

    assert _leaks_of(loop) == []
