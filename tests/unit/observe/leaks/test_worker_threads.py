"""Calls to a model in worker threads: a server that keeps its results is reported, a server that delivers them is not."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import torch
from torch import nn

from legroom.memory.detected_leak import DetectedLeak
from legroom.observe import training_threads
from legroom.observe.leaks.detector import LeakDetector
from legroom.observe.leaks.iterations import IterationTracker

CALLS = 60


@pytest.fixture(autouse=True)
def no_earlier_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget earlier training on the main thread, which prevents scans on other threads."""
    monkeypatch.setattr(training_threads, "_registered", [])


def _leaks_of(serve: Callable[[nn.Module], None]) -> list[DetectedLeak]:
    found: dict[tuple[object, ...], DetectedLeak] = {}
    detector = LeakDetector(
        lambda leak: found.setdefault(leak.identity, leak) and None,
        on_device=lambda tensor: True,
        fraction=1e6,
    )
    detector.attach()
    try:
        serve(nn.Linear(4, 4).eval())
    finally:
        detector.detach()
    assert detector.error == ""
    return list(found.values())


@torch.no_grad()
def _predict(model: nn.Module) -> torch.Tensor:
    return model(torch.randn(3, 4))  # type: ignore[no-any-return]


def _fill_queue(model: nn.Module) -> None:
    results: queue.Queue[torch.Tensor] = queue.Queue()

    def work() -> None:
        for _ in range(CALLS):
            results.put(_predict(model))

    worker = threading.Thread(target=work)
    worker.start()
    worker.join()


def test_a_queue_that_a_worker_thread_fills_is_reported() -> None:
    (leak,) = _leaks_of(_fill_queue)
    assert (leak.name, leak.line) == ("results", _fill_queue.__code__.co_firstlineno + 5)


def _keep_futures(model: nn.Module) -> None:
    futures: list[Future[torch.Tensor]] = []
    with ThreadPoolExecutor(2) as pool:
        for _ in range(CALLS):
            futures.append(pool.submit(_predict, model))
            futures[-1].result()


def test_futures_that_keep_their_results_are_reported() -> None:
    (leak,) = _leaks_of(_keep_futures)
    assert (leak.name, leak.line) == ("futures", _keep_futures.__code__.co_firstlineno + 4)


def _one_thread_per_request(model: nn.Module) -> None:
    answers = []

    def answer() -> None:
        answers.append(_predict(model))

    for _ in range(CALLS):
        request = threading.Thread(target=answer)
        request.start()
        request.join()


def test_results_of_one_thread_per_request_are_reported() -> None:
    (leak,) = _leaks_of(_one_thread_per_request)
    assert (leak.name, leak.line) == ("answers", _one_thread_per_request.__code__.co_firstlineno + 4)


def test_results_that_another_thread_takes_from_the_queue_are_not_a_leak() -> None:
    def serve(model: nn.Module) -> None:
        taken: queue.Queue[torch.Tensor | None] = queue.Queue()

        def deliver() -> None:
            for _ in range(CALLS):
                taken.put(_predict(model))
            taken.put(None)

        threading.Thread(target=deliver).start()
        while (result := taken.get()) is not None:
            result.sum()

    assert _leaks_of(serve) == []


@pytest.mark.parametrize("with_gradients", [False, True])
def test_a_scan_runs_during_calls_of_other_threads_only_if_they_have_no_gradients(
    with_gradients: bool,
) -> None:
    inside, leave = threading.Event(), threading.Event()

    class Waiting(nn.Module):
        def forward(self) -> None:
            inside.set()
            leave.wait(10)

    def call(model: nn.Module) -> None:
        with torch.set_grad_enabled(with_gradients):
            model()

    tracker = IterationTracker(lambda: None)
    tracker.attach()
    worker = threading.Thread(target=call, args=(Waiting(),))
    try:
        worker.start()
        assert inside.wait(10)
        with training_threads.exclusive_scan() as allowed:
            assert allowed is not with_gradients
    finally:
        leave.set()
        worker.join()
        tracker.detach()
    assert not training_threads.inference_threads
