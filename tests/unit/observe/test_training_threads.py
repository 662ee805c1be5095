"""Detection of threads that train. Scans and training on other threads exclude each other."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from legroom.observe import training_threads
from legroom.observe.leaks.detector import LeakDetector
from legroom.observe.training_threads import (
    exclusive_scan,
    other_threads_train,
    register_training_thread,
    thread_serial,
)

SECONDS = 60.0


@pytest.fixture(autouse=True)
def _no_thread_has_trained() -> None:
    training_threads._forget_other_threads()


@contextmanager
def on_thread(work: Callable[[], object]) -> Iterator[None]:
    """Run `work` on a thread that stays alive until the end of the block."""
    done, leave = threading.Event(), threading.Event()

    def run() -> None:
        work()
        done.set()
        leave.wait(SECONDS)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert done.wait(SECONDS)
    try:
        yield
    finally:
        leave.set()
        thread.join(SECONDS)


def test_other_threads_train_while_they_are_alive() -> None:
    assert not other_threads_train()
    with on_thread(register_training_thread):
        assert other_threads_train()
    assert not other_threads_train()


def test_training_in_the_current_thread_does_not_count_as_another_thread() -> None:
    register_training_thread()
    assert not other_threads_train()


def test_there_is_no_scan_while_another_thread_trains() -> None:
    with on_thread(register_training_thread), exclusive_scan() as allowed:
        assert not allowed
    with exclusive_scan() as allowed:
        assert allowed


def test_a_thread_that_starts_to_train_waits_for_a_scan() -> None:
    registered = threading.Event()

    def work() -> None:
        register_training_thread()
        registered.set()

    with exclusive_scan() as allowed:
        assert allowed
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        assert not registered.wait(0.2)
    assert registered.wait(SECONDS)
    thread.join(SECONDS)


def test_a_thread_waits_for_a_scan_only_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_threads, "MAX_WAIT_SECONDS", 0.05)
    with exclusive_scan():
        thread = threading.Thread(target=register_training_thread, daemon=True)
        thread.start()
        thread.join(SECONDS)
        assert not thread.is_alive()


def test_there_is_no_scan_while_another_thread_runs_a_model() -> None:
    inside, leave = threading.Event(), threading.Event()

    class Waits(nn.Module):
        def forward(self) -> None:
            inside.set()
            leave.wait(SECONDS)

    thread = threading.Thread(target=Waits(), daemon=True)
    thread.start()
    assert inside.wait(SECONDS)
    with exclusive_scan() as allowed:
        assert not allowed
    leave.set()
    thread.join(SECONDS)


def test_serial_numbers_of_threads_are_not_reused() -> None:
    serials: set[int] = {thread_serial()}
    for _ in range(3):
        thread = threading.Thread(target=lambda: serials.add(thread_serial()))
        thread.start()
        thread.join()
    assert len(serials) == 4


def _train(steps: int) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        loss = model(torch.randn(4, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.mark.slow
def test_four_training_threads_have_one_detector_and_no_leaks() -> None:
    found: list[object] = []
    detector = LeakDetector(found.append, fraction=1e6)
    barrier = threading.Barrier(4)

    def work() -> None:
        barrier.wait(SECONDS)
        _train(40)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
    detector.attach()
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
    finally:
        detector.detach()
    assert not any(thread.is_alive() for thread in threads)
    assert (found, detector.error) == ([], "")
    assert detector.several_threads


def test_only_the_loop_of_one_thread_is_counted() -> None:
    detector = LeakDetector(lambda leak: None, fraction=1e6)
    detector.attach()
    try:
        _train(5)
        with on_thread(lambda: _train(7)):
            assert detector.iteration == 5
    finally:
        detector.detach()


@pytest.mark.slow
def test_a_leak_is_found_in_a_thread_that_trains_after_another_ended() -> None:
    found: list[object] = []
    detector = LeakDetector(found.append, fraction=1e6)

    def leaks() -> None:
        model, losses = nn.Linear(4, 2), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(14):
            loss = model(torch.randn(3, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss)

    detector.attach()
    try:
        for work in (lambda: _train(8), leaks):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join(SECONDS)
    finally:
        detector.detach()
    assert [getattr(leak, "name", "") for leak in found] == ["losses"]
