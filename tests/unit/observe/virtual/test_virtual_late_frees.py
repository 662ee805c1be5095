"""Tensors that another thread releases shortly after a collective, as gloo's threads do, cause no out-of-memory error."""

import threading
import time

import pytest
import torch

from legroom import VirtualGPU
from legroom.observe.virtual import gpu as virtual

MILLION = 1 << 20


def release_later(held: list[torch.Tensor]) -> threading.Thread:
    def release() -> None:
        time.sleep(0.02)
        held.clear()

    thread = threading.Thread(target=release)
    thread.start()
    return thread


def test_an_allocation_of_a_rank_waits_for_tensors_that_other_threads_release(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(virtual, "is_rank", lambda: True)
    monkeypatch.setattr(virtual, "GLOO_RELEASE_SECONDS", 30.0)
    with VirtualGPU("64MiB"):
        held = [torch.ones(10 * MILLION, device="cuda")]
        thread = release_later(held)
        assert torch.ones(10 * MILLION, device="cuda").is_cuda
        thread.join()
        assert torch.cuda.memory_stats()["num_ooms"] == 0


def test_an_allocation_fails_if_nothing_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual, "is_rank", lambda: True)
    with VirtualGPU("64MiB"):
        held = torch.ones(10 * MILLION, device="cuda")
        with pytest.raises(torch.OutOfMemoryError):
            torch.ones(10 * MILLION, device="cuda")
        assert torch.cuda.memory_stats()["num_ooms"] == 1
        assert held.is_cuda


def test_without_ranks_an_allocation_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual, "GLOO_RELEASE_SECONDS", 3600.0)
    with VirtualGPU("64MiB"):
        held = [torch.ones(10 * MILLION, device="cuda")]
        with pytest.raises(torch.OutOfMemoryError):
            torch.ones(10 * MILLION, device="cuda")
        held.clear()


def test_an_injected_failure_is_not_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual, "is_rank", lambda: True)
    monkeypatch.setattr(virtual, "GLOO_RELEASE_SECONDS", 3600.0)
    with VirtualGPU("64MiB") as gpu:
        gpu.fail_allocation(1)
        with pytest.raises(torch.OutOfMemoryError):
            torch.ones(4, device="cuda")
