"""What another thread lets go a moment later does not fill a virtual GPU of ranks that talk: gloo's threads do so after each collective."""

import threading
import time

import pytest
import torch

from legroom import VirtualGPU
from legroom.observe.virtual import gpu as virtual

MILLION = 1 << 20


def let_go_later(held: list[torch.Tensor]) -> threading.Thread:
    def let_go() -> None:
        time.sleep(0.02)
        held.clear()

    thread = threading.Thread(target=let_go)
    thread.start()
    return thread


def test_a_request_of_a_rank_waits_for_what_other_threads_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual, "ranks_talk", lambda: True)
    monkeypatch.setattr(virtual, "SECONDS_TO_LET_GO", 30.0)
    with VirtualGPU("64MiB"):
        held = [torch.ones(10 * MILLION, device="cuda")]
        thread = let_go_later(held)
        assert torch.ones(10 * MILLION, device="cuda").is_cuda
        thread.join()
        assert torch.cuda.memory_stats()["num_ooms"] == 0


def test_what_nobody_lets_go_fails_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual, "ranks_talk", lambda: True)
    with VirtualGPU("64MiB"):
        held = torch.ones(10 * MILLION, device="cuda")
        with pytest.raises(torch.OutOfMemoryError):
            torch.ones(10 * MILLION, device="cuda")
        assert torch.cuda.memory_stats()["num_ooms"] == 1
        assert held.is_cuda


def test_without_ranks_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual, "SECONDS_TO_LET_GO", 3600.0)
    with VirtualGPU("64MiB"):
        held = [torch.ones(10 * MILLION, device="cuda")]
        with pytest.raises(torch.OutOfMemoryError):
            torch.ones(10 * MILLION, device="cuda")
        held.clear()


def test_a_failure_that_was_asked_for_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual, "ranks_talk", lambda: True)
    monkeypatch.setattr(virtual, "SECONDS_TO_LET_GO", 3600.0)
    with VirtualGPU("64MiB") as gpu:
        gpu.fail_allocation(1)
        with pytest.raises(torch.OutOfMemoryError):
            torch.ones(4, device="cuda")
