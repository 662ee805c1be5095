"""What a stretch of a program asks of a GPU's memory, request by request.

On a real GPU the allocator's own history says it, on a virtual one the recorder. Nothing is slowed down: the history is
kept without stacks. Where there is none (somebody else is recording, another allocator is at work, or the stretch was too
long) `RequestLog.requests` is None, and whoever asks has the peaks alone.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from legroom.memory.events import Alloc, Event, Free
from legroom.observe.virtual.gpu import VirtualGPU
from legroom.predict.tracing.trace import Request

MOST_ENTRIES = 400_000
"""Of the allocator's history: more than three steps of a large model make."""


class Held(NamedTuple):
    """A segment that the allocator had before: its size and stream, and its blocks in order."""

    bytes: int
    stream: int
    blocks: list[tuple[int | None, int]]
    """The number of what is in it, or None for a free one, and its bytes."""


@dataclass(slots=True)
class RequestLog:
    """Filled when the stretch has ended."""

    held: list[Held] = field(default_factory=list)
    """What the allocator had before."""
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
    mine = [live for live in recorder.live.values() if live.device == index]
    alive = {live.id for live in mine}
    names = {live.block.address: live.id for live in mine if live.block is not None}  # type: ignore[attr-defined]
    log.held = _held(index, names)
    requests: list[Request] = []
    passed_on = recorder.allocations.sink

    def sink(event: Event) -> None:
        if type(event) is Alloc and event.device == index:
            alive.add(event.id)
            requests.append(Request(event.id, event.bytes, event.stream))
        elif type(event) is Free and event.id in alive:
            alive.discard(event.id)
            requests.append(Request(event.id, -1, 0))
        passed_on(event)

    recorder.allocations.sink = sink
    try:
        yield
    finally:
        recorder.allocations.sink = passed_on
        log.requests = requests


@contextlib.contextmanager
def _of_history(device: torch.device, log: RequestLog) -> Iterator[None]:
    if not _start():
        yield
        return
    try:
        log.held = _held(device.index or 0, None)
        yield
        entries = torch.cuda.memory._snapshot()["device_traces"][device.index or 0]
    finally:
        torch.cuda.memory._record_memory_history(None)
    if len(entries) < MOST_ENTRIES:
        log.requests = _requests(
            entries, {name for held in log.held for name, _ in held.blocks if name is not None}
        )


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


def _held(index: int, names: dict[int, int] | None) -> list[Held]:
    """Every segment of a device. `names`: what stands for an address, on a virtual one."""
    return [
        Held(segment["total_size"], segment["stream"], list(_blocks(segment, names)))
        for segment in torch.cuda.memory._snapshot()["segments"]
        if segment["device"] == index
    ]


def _blocks(segment: dict[str, Any], names: dict[int, int] | None) -> Iterator[tuple[int | None, int]]:
    address = segment["address"]
    for block in segment["blocks"]:
        name = address if names is None else names.get(address, -address)
        yield (name if block["state"] != "inactive" else None), block["size"]
        address += block["size"]


def _requests(entries: list[dict[str, Any]], held: set[int]) -> list[Request]:
    """With a number of its own for each: addresses are used again and again."""
    now = {address: address for address in held}
    requests: list[Request] = []
    for entry in entries:
        action = entry["action"]
        if action == "alloc":
            now[entry["addr"]] = -len(requests) - 1
            requests.append(Request(now[entry["addr"]], entry["size"], entry["stream"]))
        elif action == "free_requested" and entry["addr"] in now:
            requests.append(Request(now.pop(entry["addr"]), -1, 0))
    return requests
