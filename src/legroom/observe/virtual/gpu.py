"""A GPU of any size on a machine without a GPU.

```
with legroom.VirtualGPU("8GiB"):
    train()          # written for CUDA, unmodified
```

The program computes on the CPU. Tensors on `cuda` are CPU tensors. A simulated CUDA caching allocator of the given
size allocates their storages. When the allocator is full, the operation raises `torch.OutOfMemoryError` with torch's
message. Out-of-memory errors, error handlers and leaks can therefore be tested on a laptop and in CI.

Only one virtual GPU can be active at a time. A virtual GPU applies to the whole process, including threads that start
while it is active. A forked child process also has the virtual GPU, but its events are discarded.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

import torch

from legroom.errors import UsageError
from legroom.gpus.catalog import GpuSpec, find_gpu, parse_gpus
from legroom.memory.allocator.allocator import AllocationFailed, Allocator
from legroom.memory.allocator.settings import AllocatorSettings
from legroom.memory.events import Sink, discard
from legroom.observe.children.captures import sink_of_this_process
from legroom.observe.cuda_rules.attention import with_data
from legroom.observe.cuda_rules.rules import CudaRules
from legroom.observe.dispatch.attribution import OpLocation
from legroom.observe.dispatch.device_placement import HOST, INHERIT
from legroom.observe.dispatch.recorder import Recorder
from legroom.observe.fake.fake_tensors import FakeTensors
from legroom.observe.virtual.host import VirtualDevice
from legroom.observe.virtual.oom import Faults, InjectedFailure, report_out_of_memory
from legroom.observe.virtual.placement import (
    PlacementMode,
    cuda_default_device,
    fake_tensors_report_device,
    is_placement_active,
)
from legroom.observe.virtual.processes import inherited_gpus, other_processes
from legroom.observe.virtual.torch_api.callbacks import mode_in_callbacks
from legroom.observe.virtual.torch_api.cuda_api import patches
from legroom.observe.virtual.torch_api.devices import integers_name_devices
from legroom.observe.virtual.torch_api.functions import lazy_parameters_without_data
from legroom.observe.virtual.torch_api.operator_kernels import operator_kernels
from legroom.observe.virtual.torch_api.parallel.distributed import GLOO_RELEASE_SECONDS, is_rank
from legroom.observe.virtual.torch_api.streams import current_stream_id
from legroom.units import format_size

P = ParamSpec("P")
R = TypeVar("R")

_enable_torch_function: Any = getattr(torch._C, "_EnableTorchFunction", None)
"""A private torch class that enables function modes inside an operation. If this version of torch lacks the class,
kernels that the program registers receive CPU tensors.
"""


class VirtualGPU:
    """Simulates one or more GPUs, as a context manager or a decorator.

    `gpus` contains one value per device, in the format of `--gpu`. A value is a size (`"8GiB"`, `"8GiB:sm90"`, bytes)
    or a name (`"t4"`). A size is the memory that PyTorch can use. One string may list several GPUs, as in
    `"8GiB,8GiB"`. `sink` receives every event. Allocator settings come from `PYTORCH_ALLOC_CONF` and
    `PYTORCH_CUDA_ALLOC_CONF`.
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
        suspends_active: bool = False,
    ) -> None:
        """Create one virtual GPU for each size or name in `gpus`. The other options are used only for estimates. With
        `rules`, memory that CUDA kernels allocate in addition to their results is also counted. With `fake_tensors`,
        device tensors have no data. With `bounded=False`, allocations never fail, and the size is used only in reports.
        With `suspends_active`, a virtual GPU that is already active is suspended while this one is active.
        """
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
            sink or discard,
            self.devices,
            eager=True,
            stream_on=current_stream_id,
            rules=rules,
            fake_tensors=fake_tensors,
            on_failure=self._out_of_memory,
            room=self._room if bounded and fake_tensors is None else None,
            current_device=lambda: self.current,
        )
        for index, spec in enumerate(specs):
            allocator = Allocator(
                spec.usable if bounded else None,
                total=spec.total,
                settings=settings,
                on_segment=partial(self.recorder.allocations.segment_changed, index),
            )
            self.devices.append(VirtualDevice(index, spec, allocator))
        self._placement = PlacementMode(self, self.recorder)
        self._is_inherited = False
        self._suspends_active = suspends_active
        self._is_suspended = False
        self._selected = _Selected()
        self._faults: Faults | None = None
        self._exit = contextlib.ExitStack()

    def _room(self) -> int:
        return min(
            (device.allocator.limit or device.spec.usable) - device.allocator.allocated
            for device in self.devices
        )

    # --- being active

    @classmethod
    def active(cls) -> "VirtualGPU | None":
        """Return the virtual GPU that is active in this process, or None."""
        return cls._active

    def __enter__(self) -> "VirtualGPU":
        if VirtualGPU._active is not None and VirtualGPU._active._is_inherited:
            VirtualGPU._active.__exit__()  # the process has its own GPU instead of its parent's GPU
        with contextlib.ExitStack() as entering:
            if self._suspends_active and VirtualGPU._active is not None:
                entering.enter_context(VirtualGPU._active.suspended())
            self._activate(entering)
            self._exit = entering.pop_all()
        return self

    def _activate(self, entering: contextlib.ExitStack, *, again: bool = False) -> None:
        if VirtualGPU._active is not None:
            raise UsageError(
                "A virtual GPU is already active. Exit its `with` block first, or deactivate it with `legroom.use(None)`. "
                "To use several virtual GPUs, list their sizes: `VirtualGPU('8GiB,8GiB')`."
            )
        VirtualGPU._active = self
        entering.callback(_deactivate)
        entering.enter_context(patches(self))
        entering.enter_context(other_processes(self, _EnterWhenUnpickled))
        entering.enter_context(integers_name_devices())
        entering.enter_context(cuda_default_device())
        entering.enter_context(_threads_follow(self))
        self.recorder.attach(again=again)
        entering.callback(self._stop_recording)
        if self._rules is not None:
            installed = self._rules.installed(
                lambda tensor: self.device_of(tensor) is not None, with_data=self.fake_tensors is None
            )
            entering.enter_context(installed)
        entering.enter_context(fake_tensors_report_device(self))
        if self.fake_tensors is None:
            fused_attention = with_data.installed(
                lambda tensor: self.device_of(tensor) is not None, self.devices[0].spec
            )
            entering.enter_context(fused_attention)
        else:
            entering.enter_context(self.fake_tensors.fake_modules())
            entering.enter_context(lazy_parameters_without_data())
        entering.enter_context(mode_in_callbacks(self._placement))
        entering.enter_context(operator_kernels(self, self._user_code))
        entering.enter_context(self._placement)

    def _stop_recording(self) -> None:
        if self._is_suspended:
            self.recorder.pause()
        else:
            self.recorder.detach()

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Deactivate this virtual GPU inside the `with` block, so that another one can be active. Inside the block, the
        tensors of this virtual GPU are ordinary CPU tensors, but their memory stays allocated on the virtual GPU.
        """
        if self.recorder.allocations.followers:
            raise UsageError(
                "A recording of this virtual GPU is running, so no estimate or summary can run. Move the call out of "
                "the `with legroom.record()` block."
            )
        self._is_suspended = True
        self._exit.close()
        try:
            yield
        finally:
            with contextlib.ExitStack() as entering:
                self._activate(entering, again=True)
                self._exit = entering.pop_all()
            self._is_suspended = False

    def __repr__(self) -> str:
        sizes = ", ".join(f"cuda:{device.index} {format_size(device.spec.total)}" for device in self.devices)
        state = "active" if VirtualGPU._active is self else "not active"
        return f"<virtual GPU: {sizes}, {state}>"

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
        """Enable the modes of the virtual GPU on the current thread, which the program started."""
        with self.recorder.mode(), self._placement:
            yield

    @contextlib.contextmanager
    def _user_code(self) -> Iterator[None]:
        """Enable the virtual GPU's modes while torch calls a function of the program inside an operation. PyTorch
        disables all modes inside an operation.
        """
        if VirtualGPU._active is not self:
            yield
            return
        context = self.recorder.context
        outer = context.factory_target, context.call, context.target, context.category
        context.factory_target, context.call, context.target, context.category = HOST, None, INHERIT, None
        try:
            with contextlib.ExitStack() as modes:
                if _enable_torch_function is not None:
                    modes.enter_context(_enable_torch_function())
                if not self.recorder.is_recording():
                    modes.enter_context(self.recorder.mode())
                if not is_placement_active():
                    modes.enter_context(self._placement)
                yield
        finally:
            context.factory_target, context.call, context.target, context.category = outer

    # --- injecting failures

    @property
    def allocations(self) -> int:
        """The number of successful allocations so far, on all devices."""
        return self.recorder.allocations.count

    def fail_allocation(self, number: int = 1, *, times: int = 1, device: int | None = None) -> Faults:
        """Make `times` consecutive allocations fail, starting with allocation `number`. The next allocation has the
        number 1.

        The operation raises `torch.OutOfMemoryError` as if the GPU were full. With `device`, only allocations on this
        device are counted, and only these allocations fail. A later call replaces the failures that an earlier call
        requested.
        """
        if self._faults is not None:
            self._faults.disarm()
        chosen = self.devices if device is None else [self.devices[device]]
        self._faults = Faults([each.allocator for each in chosen], number, times)
        return self._faults

    # --- the `VirtualHost` of the replaced torch.cuda functions

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

    def mark(self, storage: torch.UntypedStorage, index: int, *, counted: bool = True) -> None:
        self.recorder.register_storage(storage, index, nbytes=None if counted else 0)

    def resized(self, storage: torch.UntypedStorage) -> None:
        self.recorder.storage_resized(storage)

    @contextlib.contextmanager
    def factories_on(self, index: int, *, if_named: bool = False) -> Iterator[None]:
        context = self.recorder.context
        outer = context.factory_target, context.only_named_factories
        context.factory_target, context.only_named_factories = index, if_named
        try:
            yield
        finally:
            context.factory_target, context.only_named_factories = outer

    def empty_cache(self) -> None:
        with self.recorder.lock:  # another thread may be inside the allocator
            for device in self.devices:
                device.allocator.empty_cache()

    def set_memory_fraction(self, index: int, fraction: float) -> None:
        self.devices[index].allocator.set_memory_fraction(fraction)
        self.recorder.allocations.room_left = 0

    def reset_peaks(self, index: int) -> None:
        self.devices[index].allocator.reset_peaks()

    def _out_of_memory(
        self, recorder: Recorder, failure: AllocationFailed, device: int, location: OpLocation, op: str
    ) -> torch.OutOfMemoryError | None:
        if not isinstance(failure, InjectedFailure) and recorder.wait_for_frees(
            GLOO_RELEASE_SECONDS if is_rank() else 0.0
        ):
            self.devices[device].allocator.discount_oom()
            return None
        return report_out_of_memory(recorder, failure, self.devices[device], location, op)


class _Selected(threading.local):
    # As in CUDA, each thread selects its own device.

    index = 0


def _deactivate() -> None:
    VirtualGPU._active = None


@contextlib.contextmanager
def _threads_follow(gpu: VirtualGPU) -> Iterator[None]:
    """Enter the dispatch and function modes of the active virtual GPU in every new thread, because modes apply to one
    thread only. The method that calls `Thread.run` is wrapped instead of `run` itself, because subclasses such as
    `threading.Timer` override `run`.
    """
    original = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    def start(thread: threading.Thread) -> None:
        if VirtualGPU._active is gpu and not type(thread).__module__.startswith("legroom."):
            with gpu.on_this_thread():
                original(thread)
        else:
            original(thread)

    threading.Thread._bootstrap_inner = start  # type: ignore[attr-defined]
    try:
        yield
    finally:
        threading.Thread._bootstrap_inner = original  # type: ignore[attr-defined]


class _EnterWhenUnpickled:
    """An object that activates virtual GPUs when it is unpickled. The virtual GPUs stay active until the process exits."""

    def __init__(self, gpus: Sequence[GpuSpec]) -> None:
        self._gpus = gpus

    def __reduce__(self) -> tuple[Any, ...]:
        return enter_in_spawned_process, tuple(self._gpus)


def enter_in_spawned_process(*gpus: GpuSpec) -> None:
    if VirtualGPU._active is None and gpus:
        gpu = VirtualGPU(*gpus, sink=sink_of_this_process())
        gpu._is_inherited = True
        gpu.__enter__()


def enter_inherited() -> None:
    enter_in_spawned_process(*inherited_gpus())
