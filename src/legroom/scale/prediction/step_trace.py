"""What a step would take on devices like these, traced without data and without touching the run.

    peaks = foreseen(likeness_of(device), 2, make_step)       # one per device

A trace needs the whole process for itself: where the run itself is on a virtual GPU, it is made in a fork, which nobody notices. There
it counts what a virtual GPU counts, tensors alone; for a real GPU, what CUDA's kernels take as well.
"""

import contextlib
import gc
import logging
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from legroom.errors import LegroomError
from legroom.gpus.catalog import GpuSpec, find_gpu, real_gpu
from legroom.memory.events import Alloc, Category, Event, Free, Tag
from legroom.observe.cuda_rules.optimizers import installed as optimizers_by_lists
from legroom.observe.cuda_rules.rules import CudaRules
from legroom.observe.fake.fake_tensors import FakeTensors
from legroom.observe.virtual.gpu import VirtualGPU
from legroom.predict.requests import ReplayPeaks, replay_requests
from legroom.predict.tracing.copying import DeviceCopies
from legroom.predict.tracing.trace import Trace

T = TypeVar("T")
MakeStep = Callable[[DeviceCopies], Callable[[], object]]
"""Copies what a step works on onto the traced devices, and gives the step."""


@dataclass(frozen=True, slots=True)
class Likeness:
    """What kind of device is traced."""

    gpu: GpuSpec
    kernels: bool
    """Whether kernels' own memory counts: it does not on a virtual GPU."""

    @property
    def room(self) -> int:
        """Bytes that PyTorch may take of it."""
        return self.gpu.usable


@dataclass(frozen=True, slots=True)
class Foreseen:
    """Steps on devices without data."""

    peaks: tuple[ReplayPeaks, ...]
    """One per device."""
    if_divided: tuple[int, ...]
    """Of one device: its peak if weights, gradients and optimizer state were divided among as many as were asked for."""
    looked_at_values: bool
    """Whether the step asked for values: then it may go another way with other data."""


def likeness_of(device: torch.device) -> Likeness:
    """A GPU of this kind and size; a host has none, and is taken for a large one."""
    if device.type != "cuda":
        return Likeness(find_gpu("a100-80gb"), kernels=True)
    active = VirtualGPU._active
    if active is not None:
        return Likeness(
            active.devices[active.current if device.index is None else device.index].spec, kernels=False
        )
    properties = torch.cuda.get_device_properties(device)
    gpu = real_gpu(
        properties.name,
        int(properties.total_memory),
        capability=(properties.major, properties.minor),
        sm_count=properties.multi_processor_count,
    )
    return Likeness(gpu, kernels=True)


def foreseen(
    like: Likeness, devices: int, make_step: MakeStep, *, steps: int = 2, divided_among: Sequence[int] = ()
) -> Foreseen:
    """Peaks of `steps` steps and the further ones that are like them."""

    def trace() -> Foreseen:
        with traced(like, devices) as (events, device):
            step = make_step(DeviceCopies())
            for _ in range(steps):
                step()
            looked_at_values = bool(device.fake_tensors and device.fake_tensors.values_read)
            del step
        trace = Trace(gpu=like.gpu, mode="fake", events=events)
        return Foreseen(
            tuple(replay_requests(trace.requests(index)) for index in range(devices)),
            tuple(_peaks_if_divided(events, divided_among)),
            looked_at_values,
        )

    return undisturbed(trace)


@contextlib.contextmanager
def traced(like: Likeness, devices: int = 1) -> Iterator[tuple[list[Event], VirtualGPU]]:
    """Endless devices whose tensors have no data; what happens on them is in the list."""
    events: list[Event] = []
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    was_disabled, logger.disabled = logger.disabled, True  # an error is raised: torch need not log it too
    try:
        with (
            VirtualGPU(
                *[like.gpu] * devices,
                sink=events.append,
                rules=CudaRules(like.gpu) if like.kernels else None,
                fake_tensors=FakeTensors(),
                bounded=False,
            ) as device,
            # the rules bring it along; a virtual GPU's optimizers work on whole lists of tensors as well
            contextlib.nullcontext() if like.kernels else optimizers_by_lists(),
        ):
            yield events, device
    finally:
        logger.disabled = was_disabled


def _peaks_if_divided(events: list[Event], ranks: Sequence[int]) -> list[int]:
    """The highest sum of what stays whole and of what is divided, at any time, for each number of ranks; 0 for endlessly many."""
    kinds = {event.id: event.category for event in events if type(event) is Alloc}
    kinds.update({event.id: event.category for event in events if type(event) is Tag})
    divided = whole = 0
    most = [0] * len(ranks)
    sizes: dict[int, int] = {}
    for event in events:
        if type(event) is Alloc:
            change = sizes[event.id] = event.block_bytes
        elif type(event) is Free and event.id in sizes:
            change = -sizes.pop(event.id)
        else:
            continue
        if kinds[event.id] in _DIVIDED:
            divided += change
        else:
            whole += change
        for place, count in enumerate(ranks):
            most[place] = max(most[place], whole + (-(-divided // count) if count else 0))
    return most


_DIVIDED = (Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE)


def undisturbed(function: Callable[[], T]) -> T:
    """`function()` where no virtual GPU is active: here, or in a fork that has left it."""
    if VirtualGPU._active is None:
        return function()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _in_child(writing, function)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    if not told:
        raise LegroomError("the process that looks ahead ended without a word: is there enough host memory?")
    fine, result = pickle.loads(told)
    if not fine:
        raise result
    return result  # type: ignore[no-any-return]


def _in_child(writing: int, function: Callable[[], Any]) -> None:
    """Never returns: nothing that the program would do at its end happens here."""
    try:
        try:
            active = VirtualGPU._active
            assert active is not None
            gc.freeze()
            # OpenMP's threads did not come along: a computation that waits for them would wait for ever.
            torch.set_num_threads(1)
            active.__exit__()
            told = pickle.dumps((True, function()))
        except Exception as error:
            told = _as_told(error)
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(told)
    finally:
        os._exit(0)


def _as_told(error: Exception) -> bytes:
    """An error that crosses between processes; one that cannot is told by its words."""
    try:
        told = pickle.dumps((False, error))
        pickle.loads(told)
        return told
    except Exception:
        return pickle.dumps((False, LegroomError(f"{type(error).__name__}: {error}")))
