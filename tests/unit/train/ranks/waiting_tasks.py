"""Tasks that each rank runs in the tests of waiting for other ranks."""

import multiprocessing.util
import os
import time
from typing import Any

import torch
import torch.distributed as dist
from tests.unit.train.checkpoints.checkpoint_rank_tasks import build, logged

import legroom
from legroom.errors import LegroomError
from legroom.train.ranks import waiting


def last_rank_exits(kind: str, call: str, folder: str) -> str:
    """Make the last rank exit without an error before the third call. Return the error of this rank."""
    model, optimizer = build(kind)
    guard = legroom.Guard(model, optimizer) if call == "step" else None
    checkpoints = legroom.Checkpoints(folder)
    checkpoints.track(model=model, optimizer=optimizer)
    x = torch.randn(2, 4)
    try:
        for step in range(4):
            if step == 2 and dist.get_rank() == dist.get_world_size() - 1:
                exit_process()
            if guard is not None:
                guard.step(lambda x: model(x).square().mean(), x)
            elif call == "save":
                checkpoints.save(step)
            else:
                legroom.evaluate(model, [x])
    except LegroomError as error:
        return str(error)
    return "no error"


def exit_process() -> None:
    """Exit the way a process of `multiprocessing` does."""
    multiprocessing.util._exit_function()  # type: ignore[attr-defined]
    os._exit(0)


def ddp_waits(other: str) -> list[str]:
    """Make rank 0 wait in the backward pass of DDP. Rank 1 `sleeps`, `computes` or `has left`, depending on `other`.
    Return the messages."""
    waiting.REPORT_SECONDS, waiting._POLL_SECONDS = 0.3, 0.05
    waiting.observe_main_thread()
    observer = waiting._observer
    assert observer is not None
    model, _ = build("ddp")
    with logged() as messages:
        if dist.get_rank() == 1:
            deadline = time.monotonic() + 1.5
            if other == "has left":  # its process still runs, because gloo would notice the exit
                observer._answer = lambda: None  # type: ignore[method-assign]
                observer._leave("has exited")
            while other == "computes" and time.monotonic() < deadline:
                torch.randn(100).sum()
            time.sleep(max(deadline - time.monotonic(), 0))
        model(torch.randn(2, 4)).sum().backward()
    dist.barrier()
    return messages


def without_store() -> list[str]:
    """Remove the store while a rank waits. Return the messages."""
    waiting.REPORT_SECONDS, waiting._POLL_SECONDS = 0.3, 0.05
    with logged() as messages, waiting.waiting("a test"):
        observer = waiting._observer
        assert observer is not None
        observer._store = _LostStore()
        time.sleep(1.0)
    return messages


class _LostStore:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("Connection reset by peer")
