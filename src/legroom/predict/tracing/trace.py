"""The memory requests of a training step, which can be replayed on a GPU of any size.

`virtual_trace` creates traces. This module contains only the data structure, so a process that reads a trace does not
need torch.
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
REPEATED_STEPS = 2
GROWTH_STEPS = 4
"""The number of steps that are traced if memory grows. Fewer steps do not show whether memory continues to grow: a
program that keeps the results of its previous step also has more memory after the second step than after the first.
"""
MIN_GROWTH = 64 * 1024
"""The minimum growth per step in bytes. Scalars, such as a list of losses, are ignored."""


@dataclass(slots=True, kw_only=True)
class Trace:
    """The events of a traced run on a device with unlimited memory."""

    gpu: GpuSpec
    """The GPU whose kernels the trace describes."""
    mode: Mode
    """`fake` if tensors have no data, or `cpu` if the program needs real values."""
    events: list[Event] = field(default_factory=list)
    steps: int = 0
    trains: bool = False
    batch_size: int | None = None
    uncertain_bytes: int = 0
    """The number of bytes by which the reserved memory may exceed the prediction (see `uncertainty`)."""
    alternatives: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Maps the id of each workspace of uncertain size to its other possible sizes. The most likely size comes first."""
    optional: set[int] = field(default_factory=set)
    """The ids of optional workspaces. If an optional workspace cannot be allocated, the program continues without it.
    """
    values_substituted: int = 0
    """The number of placeholders that the program received when it read values of tensors without data."""
    differing_versions: dict[str, str] = field(default_factory=dict)
    """The installed version of each library whose version differs from the measured version."""
    notes: list[str] = field(default_factory=list)
    validation_starts: int | None = None
    """The index in `events` of the first event after the training steps, if a validation batch follows them."""
    validates: bool = True
    """Whether the events after the training steps include a validation batch. They may also include other code, for
    example code that loads a checkpoint.
    """

    first_batch: int | None = None
    """The index in `events` at which the first batch starts, if the time limit allowed only one training step."""
    is_settled: bool = True
    """False if an optimizer stepped for the first time in the last traced step (see `TrainingClock`)."""
    is_finished: bool = False
    """Whether the script ended during the trace. If True, the trace includes all events after the last step."""
    is_partial: bool = False
    untraced_evaluation: str = ""
    """The location of an evaluation in the script that the trace does not contain, for example `train.py:89`."""

    @property
    def lacks_second_step(self) -> bool:
        """Whether the first step allocated optimizer state, and neither the trace nor `requests` contains a later step."""
        return (
            self.trains
            and self.first_batch is None
            and sum(type(event) is Step for event in self.events) == 1
            and any(
                isinstance(event, Alloc | Tag) and event.category is Category.OPTIMIZER_STATE
                for event in self.events
            )
        )

    def has_grown(self) -> bool:
        """Return whether a device has more memory allocated at the end of the last step than at the end of the step
        before.
        """
        ends: dict[int, list[int]] = {}
        for event in self.events:
            if type(event) is Step:
                ends.setdefault(event.device, []).append(event.allocated)
        return any(len(sizes) > 1 and sizes[-1] - sizes[-2] >= MIN_GROWTH for sizes in ends.values())

    def requests(self, device: int = 0, *, instead: dict[int, int] | None = None) -> list[MemoryRequest]:
        """Return all requests to one device, in order, with the last step repeated `REPEATED_STEPS` times.

        All steps make the same requests, but each step starts with the cache that the previous step left. Therefore the
        cache may still grow after the traced steps. `instead` maps ids to sizes that replace the recorded sizes.
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
        """Remove the events of all devices except `device`, which becomes device 0."""
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
        """Return the index after the first operation that runs a kernel. It is assumed that this operation allocates
        all its memory before its kernel runs.
        """
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
        """Return the ids of the cuBLAS workspaces, which are never freed. Each cuBLAS handle has one workspace. Smaller
        workspaces are attributed to cuBLASLt.
        """
        large = {
            event.id
            for event in self.events
            if type(event) is Alloc
            and event.category is Category.WORKSPACE
            and event.bytes > MAX_CUBLASLT_WORKSPACE
        }
        return large - {event.id for event in self.events if type(event) is Free}

    def library_bytes(self, device: int = 0) -> int:
        """Return the memory in bytes that CUDA libraries of this program use outside PyTorch's allocator, in addition
        to `GpuSpec.context`.

        The result is negative if the program uses fewer cuBLAS handles than `GpuSpec.context` includes.
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
        """Map the id of each allocation to a key. Allocations of the same storage in different steps have the same key."""
        return {
            event.id: (event.bytes, event.op, event.module, event.phase, event.frame)
            for event in self.events
            if type(event) is Alloc
        }


def _second_step(first: list[MemoryRequest], last_id: int) -> list[MemoryRequest]:
    """Return the requests of a second step, for a trace that contains only the first step of an optimizer.

    The second step repeats the requests whose memory the first step frees. All other memory, such as gradients and
    optimizer state, is already allocated at the start of the second step. Therefore the second step has a higher peak.
    """
    allocated = {request.id for request in first if request.bytes >= 0}
    temporary = allocated & {request.id for request in first if request.bytes < 0}
    return [request._replace(id=last_id + request.id) for request in first if request.id in temporary]


_SOLVER = re.compile(
    r"linalg_(?!vector|matrix_norm|cross|vecdot)|cholesky|\bsvd\b|\bqr\b|triangular_solve|\blu_|ormqr|geqrf"
)


def _without_single_allocations(
    step: list[MemoryRequest], others: list[MemoryRequest], signatures: dict[int, tuple[Any, ...]]
) -> list[MemoryRequest]:
    """Return the requests of a step, without the allocations that occur only in this step and that it does not free.

    For example, `DistributedDataParallel` replaces its buckets once, at the start of the second step. If the requests
    outside this step (`others`) also allocate a matching storage, the storage is a leak that recurs in every step, and
    it is kept.
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
    return {id for id, size, *_ in step if size > 0} - {id for id, size, *_ in step if size < 0}


def _repeated(
    step: list[MemoryRequest], signatures: dict[int, tuple[Any, ...]], times: int
) -> tuple[list[MemoryRequest], dict[int, int]]:
    """Return the requests of a step, repeated `times` times, and a dict that maps the ids of the step to the ids of the
    last repetition.

    A storage that outlives its step is freed where the next step frees the matching storage.
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
