"""What a training step asks of memory, as a list of requests that can be replayed on a GPU of any size.

Only the record: `tracing` makes one. Whoever judges a trace that another process made needs no torch.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from legroom.gpus.catalog import GpuSpec
from legroom.memory.events import Alloc, Category, Event, Free, Phase, Step
from legroom.predict.requests import KERNELS_RUN, LIBRARY_LOADED
from legroom.predict.requests import Request as Request
from legroom.units import MiB

Mode = Literal["fake", "cpu"]
LARGEST_OF_CUBLASLT = 4 * MiB
FURTHER_STEPS = 2
"""How often the last traced step is replayed once more."""


@dataclass(slots=True, kw_only=True)
class Trace:
    """One traced run: its events on an endless device."""

    gpu: GpuSpec
    """Whose kernels the trace describes."""
    mode: Mode
    """`fake`: tensors without data; `cpu`: real arithmetic, because the program needed its data."""
    events: list[Event] = field(default_factory=list)
    steps: int = 0
    trains: bool = False
    """Whether a backward pass or an optimizer step was seen."""
    batch_size: int | None = None
    doubt: int = 0
    """Bytes by which reserved memory may be higher, as far as kernels are known to be guesses (see `doubt`)."""
    doubts: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Memory of kernels whose size is a guess: its id → what it may be instead, likelier sizes first."""
    spare: set[int] = field(default_factory=set)
    """Memory of kernels that have another way where there is no room: its ids."""
    made_up: int = 0
    """How many values the program asked for and was given a stand-in."""
    differing_versions: dict[str, str] = field(default_factory=dict)
    """Library → its installed version, if the CUDA rules were measured with another one."""
    notes: list[str] = field(default_factory=list)

    def requests(self, device: int = 0, *, instead: dict[int, int] | None = None) -> list[Request]:
        """In order, all that one device is asked for; the last step once more, `FURTHER_STEPS` times.

        The cache of the allocator may still grow in steps after those traced, since what one leaves behind lies
        otherwise for the next; the steps themselves are alike. `instead`: other sizes for some ids.
        """
        instead = instead or {}
        asked: list[Request] = []
        alive: dict[int, Alloc] = {}
        ends: list[int] = []
        kernels_run = self._first_operation_ends(device)
        kept = self._kept_by_libraries()
        for position, event in enumerate(self.events):
            if position == kernels_run:
                asked.append(KERNELS_RUN)
            if type(event) is Alloc and event.device == device:
                alive[event.id] = event
                if event.id in kept:
                    asked.append(LIBRARY_LOADED)
                size = instead.get(event.id, event.bytes)
                asked.append(Request(event.id, size, event.stream, event.id in self.spare))
            elif type(event) is Free and alive.pop(event.id, None) is not None:
                asked.append(Request(event.id, -1, 0))
            elif type(event) is Step and event.device == device:
                ends.append(len(asked))
        if len(ends) >= 2:
            del asked[ends[-1] :]  # the end of the trace itself
            asked.extend(_again(asked[ends[-2] :], self._described(), FURTHER_STEPS))
        return asked

    def _first_operation_ends(self, device: int) -> int:
        """The position of the first event after the first operation that computes: it has got all its memory before its kernel runs."""
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

    def _kept_by_libraries(self) -> set[int]:
        """Ids of workspaces that are never given back: cuBLAS's, one for each of its handles (those of a MiB or two are cuBLASLt's)."""
        taken = {
            event.id
            for event in self.events
            if type(event) is Alloc
            and event.category is Category.WORKSPACE
            and event.bytes > LARGEST_OF_CUBLASLT
        }
        return taken - {event.id for event in self.events if type(event) is Free}

    def _described(self) -> dict[int, tuple[Any, ...]]:
        """By which storages of two steps are told to be each other's counterparts."""
        return {
            event.id: (event.bytes, event.op, event.module, event.phase, event.frame)
            for event in self.events
            if type(event) is Alloc
        }


def _again(step: list[Request], described: dict[int, tuple[Any, ...]], times: int) -> Iterator[Request]:
    """A step's requests, over and over: what it left behind dies in the next where its counterpart died in this."""
    born = {request.id for request in step if request.bytes >= 0}
    left = born - {request.id for request in step if request.bytes < 0}
    number = max(described, default=0)
    before = {id: id for id in born}
    for _ in range(times):
        now: dict[int, int] = {}
        heirs: dict[tuple[Any, ...], list[int]] = {}
        for id in left:
            heirs.setdefault(described[id], []).append(before[id])
        for request in step:
            if request.bytes >= 0:
                number += 1
                now[request.id] = number
                yield Request(number, request.bytes, request.stream, request.spare)
            elif request.id in born:
                yield Request(now[request.id], -1, 0)
            elif heirs.get(described[request.id]):
                yield Request(heirs[described[request.id]].pop(), -1, 0)
        before = now
