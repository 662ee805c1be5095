"""The memory requests of a training step, which can be replayed on a GPU of any size.

This module defines only the data structure of a trace (`virtual_trace` creates traces), so a process that reads a trace
does not need torch.
"""

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

from legroom.gpus.catalog import (
    CUBLAS_HANDLES,
    FOURIER_BYTES,
    SOLVER_BYTES,
    STREAM_BYTES,
    GpuSpec,
    cublas_handle_bytes,
)
from legroom.memory.event_base import Category, Phase
from legroom.memory.events import Alloc, Event, Free, Oom, SegmentChange, Step, Tag
from legroom.predict.requests import KERNELS_RUN, LIBRARY_LOADED, MemoryRequest
from legroom.units import MiB

Mode = Literal["fake", "cpu"]
MAX_CUBLASLT_WORKSPACE = 4 * MiB
"""The maximum size of a cuBLASLt workspace. Larger workspaces that are never freed are attributed to cuBLAS."""
NOT_TRACED = "The script starts processes"
"""The prefix of the note about processes that are not traced."""
REPEATED_STEPS = 2
"""The number of times that a replay repeats the last traced step."""


@dataclass(slots=True, kw_only=True)
class Trace:
    """A traced run with its events on an unlimited device."""

    gpu: GpuSpec
    """The GPU whose kernels the trace describes."""
    mode: Mode
    """`fake` if tensors have no data, or `cpu` if the program needed real values."""
    events: list[Event] = field(default_factory=list)
    steps: int = 0
    trains: bool = False
    """True if the trace contains a backward pass or an optimizer step."""
    batch_size: int | None = None
    uncertain_bytes: int = 0
    """The number of bytes by which the reserved memory may be higher than predicted (see `uncertainty`)."""
    alternatives: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Maps the id of each workspace of uncertain size to other possible sizes, most likely first."""
    optional: set[int] = field(default_factory=set)
    """Ids of optional workspaces. The program continues if one of these workspaces cannot be allocated."""
    values_substituted: int = 0
    """The number of values that the program read from tensors without data. The program got a placeholder for each of
    them.
    """
    differing_versions: dict[str, str] = field(default_factory=dict)
    """Maps each library whose version differs from the measured version to its installed version."""
    notes: list[str] = field(default_factory=list)
    validation_starts: int | None = None
    """The position in `events` after the training steps, if a validation batch follows them."""

    first_batch: int | None = None
    """The position in `events` at the first batch, if the time limit allowed only one training step."""
    is_settled: bool = True
    """True if every optimizer that stepped in the last traced step had already stepped before (see `TrainingClock`)."""
    is_finished: bool = False
    """True if the script ended during the trace. In that case, all events after the last step are part of the trace."""
    is_partial: bool = False
    """True if the trace was stopped before a training step was complete."""

    @property
    def lacks_second_step(self) -> bool:
        """True if the first step allocated optimizer state, and neither the trace nor `requests` contains a later step."""
        return (
            self.trains
            and self.first_batch is None
            and sum(type(event) is Step for event in self.events) == 1
            and any(
                isinstance(event, Alloc | Tag) and event.category is Category.OPTIMIZER_STATE
                for event in self.events
            )
        )

    def requests(self, device: int = 0, *, instead: dict[int, int] | None = None) -> list[MemoryRequest]:
        """Return all requests to one device, in order, with the last step repeated `REPEATED_STEPS` times.

        All steps make the same requests, but each step starts with the cache that the previous step left. The cache may
        therefore grow even after the traced steps. `instead` maps ids to sizes that replace the recorded sizes.
        """
        instead = instead or {}
        requests: list[MemoryRequest] = []
        alive: dict[int, Alloc] = {}
        ends: list[int] = []
        first_batch = 0
        kernels_run = self._first_operation_ends(device)
        library_workspaces = self._library_workspaces()
        for position, event in enumerate(self.events):
            if position == self.first_batch:
                first_batch = len(requests)
            if position == kernels_run:
                requests.append(KERNELS_RUN)
            if type(event) is Alloc and event.device == device:
                alive[event.id] = event
                if event.id in library_workspaces:
                    requests.append(LIBRARY_LOADED)
                size = instead.get(event.id, event.bytes)
                requests.append(MemoryRequest(event.id, size, event.stream, event.id in self.optional))
            elif type(event) is Free and alive.pop(event.id, None) is not None:
                requests.append(MemoryRequest(event.id, -1, 0))
            elif type(event) is Step and event.device == device:
                ends.append(len(requests))
        if len(ends) >= 2:
            # Unless the script continued, the remaining events are only the frees at the end of the trace.
            goes_on = self.is_finished or self.validation_starts is not None
            rest = requests[ends[-1] :] if goes_on else []
            others = requests[: ends[-2]] + requests[ends[-1] :]
            del requests[ends[-1] :]
            last_step, last = requests[ends[-2] :], dict[int, int]()
            if self.is_settled:
                signatures = self._signatures()
                last_step = _without_single_allocations(last_step, others, signatures)
                repeated, last = _repeated(last_step, signatures, REPEATED_STEPS)
            else:
                repeated = _second_step(last_step, max(self._signatures()))
            requests.extend(repeated)
            requests.extend(request._replace(id=last.get(request.id, request.id)) for request in rest)
        elif ends and self.first_batch is not None:
            repeated = _second_step(requests[first_batch : ends[0]], max(self._signatures()))
            requests[ends[0] : ends[0]] = repeated
        return requests

    def keep_device(self, device: int) -> None:
        """Remove the events of all devices except `device`. `device` becomes device 0."""
        kept: list[Event] = []
        dropped: set[int] = set()
        validation_starts, first_batch = self.validation_starts, self.first_batch
        for position, event in enumerate(self.events):
            if position == validation_starts:
                self.validation_starts = len(kept)
            if position == first_batch:
                self.first_batch = len(kept)
            if isinstance(event, Alloc | Step | SegmentChange | Oom):
                if event.device == device:
                    kept.append(event._replace(device=0))
                elif isinstance(event, Alloc):
                    dropped.add(event.id)
            elif not (isinstance(event, Free | Tag) and event.id in dropped):
                kept.append(event)
        self.events[:] = kept

    def _first_operation_ends(self, device: int) -> int:
        """Return the position after the first operation that runs a kernel. It is assumed that this operation allocates
        all its memory before its kernel runs."""
        first: tuple[str, str] | None = None
        for position, event in enumerate(self.events):
            if type(event) is Alloc and event.device == device:
                if first is None and event.phase is not Phase.OTHER:
                    first = (event.op, event.module)
                elif first is not None and first != (event.op, event.module):
                    return position
            elif type(event) is Free and first is not None:
                return position
        return len(self.events)

    def _library_workspaces(self) -> set[int]:
        """Return the ids of cuBLAS workspaces, which are never freed. There is one workspace per cuBLAS handle. Smaller
        workspaces are attributed to cuBLASLt."""
        large = {
            event.id
            for event in self.events
            if type(event) is Alloc
            and event.category is Category.WORKSPACE
            and event.bytes > MAX_CUBLASLT_WORKSPACE
        }
        return large - {event.id for event in self.events if type(event) is Free}

    def library_bytes(self, device: int = 0) -> int:
        """Return the memory that CUDA libraries of this program use outside PyTorch's allocator, in bytes. Memory that
        `GpuSpec.context` includes is not counted.

        If the program uses fewer cuBLAS handles than `GpuSpec.context` includes, the result is negative.
        """
        operations, streams, handles = set(), set(), 0
        workspaces = self._library_workspaces()
        for event in self.events:
            if type(event) is Alloc and event.device == device:
                operations.add(event.op)
                streams.add(event.stream)
                handles += event.id in workspaces
        return (
            (handles - CUBLAS_HANDLES) * cublas_handle_bytes(self.gpu.capability)
            + (STREAM_BYTES if len(streams) > 1 else 0)
            + (SOLVER_BYTES if any(_SOLVER.search(name) for name in operations) else 0)
            + (FOURIER_BYTES if any("_fft" in name for name in operations) else 0)
        )

    def _signatures(self) -> dict[int, tuple[Any, ...]]:
        """Return a dict that maps the id of each allocation to a key, which is the same for allocations of the same
        storage in different steps.
        """
        return {
            event.id: (event.bytes, event.op, event.module, event.phase, event.frame)
            for event in self.events
            if type(event) is Alloc
        }


def _second_step(first: list[MemoryRequest], last_id: int) -> list[MemoryRequest]:
    """Return the requests of a second step, for traces that contain only the first step of an optimizer.

    The second step repeats the requests whose memory the first step frees. All other memory (gradients, optimizer
    state) is already allocated at the start of the second step, so the second step has a higher peak.
    """
    allocated = {request.id for request in first if request.bytes >= 0}
    temporary = allocated & {request.id for request in first if request.bytes < 0}
    return [request._replace(id=last_id + request.id) for request in first if request.id in temporary]


_SOLVER = re.compile(
    r"linalg_(?!vector|matrix_norm|cross|vecdot)|cholesky|\bsvd\b|\bqr\b|triangular_solve|\blu_|ormqr|geqrf"
)
"""Operations that create a cuSOLVER handle."""


def _without_single_allocations(
    step: list[MemoryRequest], others: list[MemoryRequest], signatures: dict[int, tuple[Any, ...]]
) -> list[MemoryRequest]:
    """Return the requests of a step, without the storages that this step allocates for the rest of the run and that no
    other step allocates.

    For example, `DistributedDataParallel` replaces its buckets once, at the start of the second step. If `others` (the
    requests outside this step) also allocate a matching storage, the storage is a leak that recurs in every step.
    """
    leaked = {signatures[id] for id, size, *_ in others if size > 0}
    allocated = {request.id for request in step if request.bytes > 0}
    replaced = Counter(signatures[id] for id, size, *_ in step if size < 0 and id not in allocated)
    single: set[int] = set()
    for id in sorted(_surviving(step)):
        signature = signatures[id]
        if replaced[signature] > 0:
            replaced[signature] -= 1
        elif signature not in leaked:
            single.add(id)
    return [request for request in step if request.bytes and request.id not in single]


def _surviving(step: list[MemoryRequest]) -> set[int]:
    """Return the ids of the storages that a step allocates and does not free."""
    return {id for id, size, *_ in step if size > 0} - {id for id, size, *_ in step if size < 0}


def _repeated(
    step: list[MemoryRequest], signatures: dict[int, tuple[Any, ...]], times: int
) -> tuple[list[MemoryRequest], dict[int, int]]:
    """Return the requests of a step, repeated `times` times. Also return a dict that maps the ids of the step to the
    ids of the last repetition.

    If a storage outlives its step, it is freed at the position where the matching storage is freed in the next step.
    """
    requests: list[MemoryRequest] = []
    allocated = {request.id for request in step if request.bytes > 0}
    surviving = _surviving(step)
    number = max(signatures, default=0)
    before = {id: id for id in allocated}
    for _ in range(times):
        now: dict[int, int] = {}
        previous: dict[tuple[Any, ...], list[int]] = {}
        for id in surviving:
            previous.setdefault(signatures[id], []).append(before[id])
        for request in step:
            if request.bytes > 0:
                number += 1
                now[request.id] = number
                requests.append(MemoryRequest(number, request.bytes, request.stream, request.optional))
            elif request.id in allocated:
                requests.append(MemoryRequest(now[request.id], -1, 0))
            elif previous.get(signatures[request.id]):
                requests.append(MemoryRequest(previous[signatures[request.id]].pop(), -1, 0))
        before = now
    return requests, before
