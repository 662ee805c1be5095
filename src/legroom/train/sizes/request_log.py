"""Logs the GPU allocation requests that a block of code makes.

On a real GPU, the log comes from the allocator's history. The history is recorded without stacks, so the overhead is
small. On a virtual GPU, the log comes from the recorder.

The history is not available if it is already being recorded, if a different allocator is in use, or if the block makes
too many requests. Without the history, `RequestLog.requests` is None, and only the peaks are known.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from legroom.memory.events import Alloc, Event, Free
from legroom.observe.virtual.gpu import VirtualGPU
from legroom.predict.requests import MemoryRequest

MAX_ENTRIES = 400_000
"""The maximum number of entries of the allocator's history. Three steps of a large model need fewer entries."""


class SegmentLayout(NamedTuple):
    bytes: int
    stream: int
    blocks: list[tuple[int | None, int]]
    """The allocation id and the size in bytes of each block in the segment. The id of a free block is None."""


@dataclass(slots=True)
class RequestLog:
    """The segments and the memory requests of one block of code."""

    segments: list[SegmentLayout] = field(default_factory=list)
    requests: list[MemoryRequest] | None = None
    """The requests in order, or None if the history is not available. An entry that frees memory has negative `bytes`."""


@contextlib.contextmanager
def log_requests(device: torch.device) -> Iterator[RequestLog]:
    log = RequestLog()
    virtual = VirtualGPU._active
    with _log_virtual(virtual, device, log) if virtual is not None else _log_history(device, log):
        yield log


@contextlib.contextmanager
def _log_virtual(gpu: VirtualGPU, device: torch.device, log: RequestLog) -> Iterator[None]:
    index = device.index or 0
    recorder = gpu.recorder
    on_device = [live for live in recorder.live.values() if live.device == index]
    alive = {live.id for live in on_device}
    ids = {live.block.address: live.id for live in on_device if live.block is not None}  # type: ignore[attr-defined]
    log.segments = _segments(index, ids)
    requests: list[MemoryRequest] = []
    original_sink = recorder.allocations.sink

    def sink(event: Event) -> None:
        if type(event) is Alloc and event.device == index:
            alive.add(event.id)
            requests.append(MemoryRequest(event.id, event.bytes, event.stream))
        elif type(event) is Free and event.id in alive:
            alive.discard(event.id)
            requests.append(MemoryRequest(event.id, -1, 0))
        original_sink(event)

    recorder.allocations.sink = sink
    try:
        yield
    finally:
        recorder.allocations.sink = original_sink
        log.requests = requests


@contextlib.contextmanager
def _log_history(device: torch.device, log: RequestLog) -> Iterator[None]:
    if not _start_history():
        yield
        return
    try:
        log.segments = _segments(device.index or 0, None)
        yield
        entries = torch.cuda.memory._snapshot()["device_traces"][device.index or 0]
    finally:
        torch.cuda.memory._record_memory_history(None)
    if len(entries) < MAX_ENTRIES:
        existing = {id for segment in log.segments for id, _ in segment.blocks if id is not None}
        log.requests = _requests(entries, existing)


def _start_history() -> bool:
    """Enable the allocator's history. Return False if the history is already enabled or cannot be enabled."""
    record = getattr(torch.cuda.memory, "_record_memory_history", None)
    enabled = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    if record is None or (enabled is not None and enabled()):
        return False
    if torch.cuda.get_allocator_backend() != "native":
        return False
    try:
        record("all", context=None, max_entries=MAX_ENTRIES)
    except (RuntimeError, TypeError):
        return False
    return True


def _segments(index: int, ids: dict[int, int] | None) -> list[SegmentLayout]:
    """Return the segments of a device. For a virtual GPU, `ids` maps addresses to allocation ids."""
    return [
        SegmentLayout(segment["total_size"], segment["stream"], list(_blocks(segment, ids)))
        for segment in torch.cuda.memory._snapshot()["segments"]
        if segment["device"] == index
    ]


def _blocks(segment: dict[str, Any], ids: dict[int, int] | None) -> Iterator[tuple[int | None, int]]:
    address = segment["address"]
    for block in segment["blocks"]:
        id = address if ids is None else ids.get(address, -address)
        yield (id if block["state"] != "inactive" else None), block["size"]
        address += block["size"]


def _requests(entries: list[dict[str, Any]], existing: set[int]) -> list[MemoryRequest]:
    """Return the requests with unique ids, because addresses are reused."""
    ids = {address: address for address in existing}
    requests: list[MemoryRequest] = []
    for entry in entries:
        action = entry["action"]
        if action == "alloc":
            ids[entry["addr"]] = -len(requests) - 1
            requests.append(MemoryRequest(ids[entry["addr"]], entry["size"], entry["stream"]))
        elif action == "free_requested" and entry["addr"] in ids:
            requests.append(MemoryRequest(ids.pop(entry["addr"]), -1, 0))
    return requests
