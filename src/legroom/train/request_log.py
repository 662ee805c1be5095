"""What a stretch of a program asks of a GPU's memory, request by request.

On a real GPU the allocator's own history says it, on a virtual one the recorder. Nothing is slowed down: the history is
kept without stacks. Where there is none (somebody else is recording, another allocator is at work, or the stretch was too
long) `RequestLog.requests` is None, and whoever asks has the peaks alone.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from legroom.memory.events import Alloc, Event, Free
from legroom.observe.virtual.gpu import VirtualGPU
from legroom.predict.trace import Request

MOST_ENTRIES = 400_000
"""Of the allocator's history: more than three steps of a large model make."""


@dataclass(slots=True)
class RequestLog:
    """Filled when the stretch has ended."""

    held: list[Request] = field(default_factory=list)
    """What was allocated before, in the order of its addresses."""
    requests: list[Request] | None = None
    """In order; what is given back has `bytes` below zero. None: not known."""


@contextlib.contextmanager
def recorded(device: torch.device) -> Iterator[RequestLog]:
    """Logs what is asked of `device` inside the block."""
    log = RequestLog()
    virtual = VirtualGPU._active
    with _of_virtual(virtual, device, log) if virtual is not None else _of_history(device, log):
        yield log


@contextlib.contextmanager
def _of_virtual(gpu: VirtualGPU, device: torch.device, log: RequestLog) -> Iterator[None]:
    index = device.index or 0
    recorder = gpu.recorder
    alive = {live.id for live in recorder.live.values() if live.device == index}
    log.held = [Request(live.id, live.nbytes, 0) for live in recorder.live.values() if live.device == index]
    requests: list[Request] = []
    passed_on = recorder.sink

    def sink(event: Event) -> None:
        if type(event) is Alloc and event.device == index:
            alive.add(event.id)
            requests.append(Request(event.id, event.bytes, event.stream))
        elif type(event) is Free and event.id in alive:
            alive.discard(event.id)
            requests.append(Request(event.id, -1, 0))
        passed_on(event)

    recorder.sink = sink
    try:
        yield
    finally:
        recorder.sink = passed_on
        log.requests = requests


@contextlib.contextmanager
def _of_history(device: torch.device, log: RequestLog) -> Iterator[None]:
    if not _start():
        yield
        return
    try:
        log.held = [
            Request(block["address"], block.get("requested_size", block["size"]), segment["stream"])
            for segment in sorted(
                torch.cuda.memory._snapshot()["segments"], key=lambda segment: segment["address"]
            )
            if segment["device"] == (device.index or 0)
            for block in _with_addresses(segment)
            if block["state"] == "active_allocated"
        ]
        yield
        entries = torch.cuda.memory._snapshot()["device_traces"][device.index or 0]
    finally:
        torch.cuda.memory._record_memory_history(None)
    if len(entries) < MOST_ENTRIES:
        log.requests = _requests(entries, {request.id for request in log.held})


def _start() -> bool:
    """Whether the allocator's history could be switched on, and nobody else had it on."""
    record = getattr(torch.cuda.memory, "_record_memory_history", None)
    enabled = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    if record is None or (enabled is not None and enabled()):
        return False
    if torch.cuda.get_allocator_backend() != "native":
        return False
    try:
        record("all", context=None, max_entries=MOST_ENTRIES)
    except (RuntimeError, TypeError):
        return False
    return True


def _with_addresses(segment: dict[str, Any]) -> Iterator[dict[str, Any]]:
    address = segment["address"]
    for block in segment["blocks"]:
        yield {"address": address, **block}
        address += block["size"]


def _requests(entries: list[dict[str, Any]], held: set[int]) -> list[Request]:
    """With a number of its own for each: addresses are used again and again."""
    now = {address: address for address in held}
    requests: list[Request] = []
    for entry in entries:
        action, address = entry["action"], entry["addr"]
        if action == "alloc":
            now[address] = -len(requests) - 1
            requests.append(Request(now[address], entry["size"], entry["stream"]))
        elif action == "free_requested" and address in now:
            requests.append(Request(now.pop(address), -1, 0))
    return requests
