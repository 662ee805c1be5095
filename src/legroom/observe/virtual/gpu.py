"""A GPU of any size on a machine with none.

    with legroom.VirtualGPU("8GiB"):
        train()          # written for CUDA, unmodified

The program's arithmetic runs on the CPU; `cuda` requests are served by CPU tensors whose storages count against a
replayed caching allocator of the given size. When that is full, `torch.OutOfMemoryError` is raised at that very
operation, with torch's wording. So a program's OOM, its handler and its leak are all real, on a laptop and in CI.

One is active at a time, for the whole process: threads started meanwhile belong to it, and so do forked children
(whose events go nowhere).
"""

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

import torch

from legroom.errors import UsageError
from legroom.gpus.catalog import GpuSpec, find_gpu, parse_gpus
from legroom.memory.allocator.allocator import AllocationFailed, Allocator
from legroom.memory.allocator.settings import AllocatorSettings
from legroom.memory.events import Event, Sink
from legroom.observe.cuda_rules.rules import CudaRules
from legroom.observe.dispatch.attribution import OpLocation
from legroom.observe.dispatch.recorder import Recorder
from legroom.observe.fake.fake_tensors import FakeTensors
from legroom.observe.virtual.faults import Faults, Injected
from legroom.observe.virtual.oom import report_out_of_memory
from legroom.observe.virtual.patching import replaced
from legroom.observe.virtual.placement import (
    Placement,
    default_device_is_ours,
    stand_ins_say_where,
)
from legroom.observe.virtual.torch_api import optimizers
from legroom.observe.virtual.torch_api.callbacks import in_callbacks_too
from legroom.observe.virtual.torch_api.cuda_api import patches
from legroom.observe.virtual.torch_api.device_type import numbers_name_devices
from legroom.observe.virtual.torch_api.distributed import SECONDS_TO_LET_GO, ranks_talk
from legroom.observe.virtual.torch_api.lazy_modules import lazy_parameters_without_data
from legroom.observe.virtual.torch_api.streams import current_stream_id

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(slots=True)
class VirtualDevice:
    """One pretended GPU."""

    index: int
    spec: GpuSpec
    allocator: Allocator

    @property
    def name(self) -> str:
        """What `torch.cuda.get_device_name()` answers."""
        card = "" if self.spec.is_size else f" ({self.spec.name.upper()})"
        return f"Legroom virtual GPU {self.index}{card}"

    @property
    def capacity(self) -> int:
        """Total memory in bytes."""
        return self.spec.total

    @property
    def context_bytes(self) -> int:
        """Bytes that the CUDA context uses."""
        return self.spec.context


class VirtualGPU:
    """One or several virtual GPUs, as a context manager or a decorator.

    `gpus`: one per device, as for `--gpu`: a size (`"8GiB"`, `"8GiB:sm90"`, bytes), which is the memory that PyTorch can
    use, or a name (`"t4"`); a single text may list several, `"8GiB,8GiB"`. `sink` receives every event. Allocator
    settings come from `PYTORCH_ALLOC_CONF` / `PYTORCH_CUDA_ALLOC_CONF`.
    """

    _active: "VirtualGPU | None" = None

    def __init__(
        self,
        *gpus: str | int | GpuSpec,
        sink: Sink | None = None,
        settings: AllocatorSettings | None = None,
        rules: CudaRules | None = None,
        fake_tensors: FakeTensors | None = None,
        bounded: bool = True,
    ) -> None:
        """The rest is for estimates. `rules`: count what CUDA's kernels take beyond their results, too. `fake_tensors`:
        device tensors without data. `bounded=False`: never fail; the sizes are only what the devices say of themselves."""
        if not gpus:
            raise UsageError("A virtual GPU needs a size or a name: `VirtualGPU('8GiB')`.")
        specs = [
            spec for gpu in gpus for spec in (parse_gpus(gpu) if isinstance(gpu, str) else [find_gpu(gpu)])
        ]
        settings = settings or AllocatorSettings.from_environment(os.environ, torch.__version__)
        self.devices: list[VirtualDevice] = []
        self.fake_tensors = fake_tensors
        self._rules = rules
        self.recorder = Recorder(
            sink or _nowhere,
            self.devices,
            eager=True,
            stream_on=current_stream_id,
            rules=rules,
            fake_tensors=fake_tensors,
            on_failure=self._out_of_memory,
            room=self._room if bounded and fake_tensors is None else None,
        )
        for index, spec in enumerate(specs):
            allocator = Allocator(
                spec.usable if bounded else None,
                total=spec.total,
                settings=settings,
                on_segment=partial(self.recorder.allocations.segment_changed, index),
            )
            self.devices.append(VirtualDevice(index, spec, allocator))
        self._selected = _Selected()
        self._faults: Faults | None = None
        self._exit = contextlib.ExitStack()

    def _room(self) -> int:
        """Bytes that are not allocated, on the fullest device."""
        return min(
            (device.allocator.limit or device.spec.usable) - device.allocator.allocated
            for device in self.devices
        )

    # --- being active

    def __enter__(self) -> "VirtualGPU":
        if VirtualGPU._active is not None:
            raise UsageError("a virtual GPU is already active: leave it first, or give it several sizes")
        with contextlib.ExitStack() as entering:
            VirtualGPU._active = self
            entering.callback(_deactivate)
            entering.enter_context(patches(self))
            entering.enter_context(replaced(optimizers.replacements()))
            entering.enter_context(numbers_name_devices())
            entering.enter_context(default_device_is_ours())
            entering.enter_context(_threads_follow(self))
            self.recorder.attach()
            entering.callback(self.recorder.detach)
            if self._rules is not None:
                in_force = self._rules.installed(
                    lambda tensor: self.device_of(tensor) is not None, with_data=self.fake_tensors is None
                )
                entering.enter_context(in_force)
            if self.fake_tensors is not None:
                entering.enter_context(self.fake_tensors.fake_modules())
                entering.enter_context(stand_ins_say_where(self))
                entering.enter_context(lazy_parameters_without_data())
            entering.enter_context(in_callbacks_too(lambda: Placement(self, self.recorder)))
            entering.enter_context(Placement(self, self.recorder))
            _silence_forks(self.recorder)
            self._exit = entering.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._exit.close()

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def on_virtual_gpu(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return on_virtual_gpu

    @contextlib.contextmanager
    def on_this_thread(self) -> Iterator[None]:
        """A thread of the program joins: its operations count too."""
        with self.recorder.mode(), Placement(self, self.recorder):
            yield

    # --- failing on purpose

    @property
    def allocations(self) -> int:
        """How many allocations have succeeded so far, on all devices."""
        return self.recorder.allocations.count

    def fail_allocation(self, number: int = 1, *, times: int = 1, device: int | None = None) -> Faults:
        """Let allocation `number` from now (1 is the next) run out of memory, and the `times - 1` after it.

        The operation that asks raises `torch.OutOfMemoryError` as if the GPU were full. `device`: count and fail
        there only. One set of faults at a time: a new one replaces it.
        """
        if self._faults is not None:
            self._faults.disarm()
        chosen = self.devices if device is None else [self.devices[device]]
        self._faults = Faults([each.allocator for each in chosen], number, times)
        return self._faults

    # --- what the torch.cuda API asks (see `host`)

    @property
    def current(self) -> int:
        return self._selected.index

    @current.setter
    def current(self, index: int) -> None:
        self._selected.index = index

    def device_of(self, value: torch.Tensor | torch.UntypedStorage) -> int | None:
        if isinstance(value, torch.UntypedStorage):
            known = self.recorder.live.get(value._cdata)
            return None if known is None else known.device
        with torch._C.DisableTorchFunction():
            return self.recorder.device_of(value)

    def mark(self, storage: torch.UntypedStorage, index: int) -> None:
        self.recorder.register_storage(storage, index)

    def resized(self, storage: torch.UntypedStorage) -> None:
        self.recorder.storage_resized(storage)

    def empty_cache(self) -> None:
        for device in self.devices:
            device.allocator.empty_cache()

    def reset_peaks(self, index: int) -> None:
        self.devices[index].allocator.reset_peaks()

    def _out_of_memory(
        self, recorder: Recorder, failure: AllocationFailed, device: int, place: OpLocation, op: str
    ) -> torch.OutOfMemoryError | None:
        if not isinstance(failure, Injected) and recorder.wait_for_frees(
            SECONDS_TO_LET_GO if ranks_talk() else 0.0
        ):
            self.devices[device].allocator.forgive()
            return None
        return report_out_of_memory(recorder, failure, self.devices[device], place, op)


class _Selected(threading.local):
    """The current device: each thread has its own, as in CUDA."""

    index = 0


def _nowhere(event: Event) -> None:
    pass


def _deactivate() -> None:
    VirtualGPU._active = None


@contextlib.contextmanager
def _threads_follow(gpu: VirtualGPU) -> Iterator[None]:
    """Dispatch and function modes are per thread: give them to every thread started meanwhile."""
    original = threading.Thread.run

    def run(thread: threading.Thread) -> None:
        if VirtualGPU._active is gpu:
            with gpu.on_this_thread():
                original(thread)
        else:
            original(thread)

    threading.Thread.run = run  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        threading.Thread.run = original  # type: ignore[method-assign]


def _silence_forks(recorder: Recorder) -> None:
    """A forked child (a DataLoader worker) goes on computing; its events must not mix with the parent's."""
    reference = weakref.ref(recorder)

    def in_child() -> None:
        child: Any = reference()
        if child is not None:
            child.allocations.sink = _nowhere

    os.register_at_fork(after_in_child=in_child)
