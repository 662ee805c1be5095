"""Storage births and deaths of a running program, as events, from a dispatch mode.

It works over real CPU tensors and over fake ones alike, since it looks only at storages: one is born when an
operation returns it for the first time, and dies when a weak reference to it says so. Nothing here keeps a tensor,
a frame or an exception alive.

Which storages count is a question of *place* (`residence`). Watching the host, all do; on a virtual GPU only those that live
on a device. Where in the program an operation stands is told by `whereabouts`, what its memory is by `roles`; what it is charged goes
through `charges`.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from legroom.memory.allocator.allocator import AllocationFailed
from legroom.memory.events import Category, Event, Phase, Sink
from legroom.observe.cuda_rules.plan import Plan
from legroom.observe.cuda_rules.rules import CudaRules
from legroom.observe.dispatch import device_mismatch
from legroom.observe.dispatch.allocations import Charges, DeviceMemory
from legroom.observe.dispatch.attribution import ModuleStack, Place
from legroom.observe.dispatch.categories import Roles
from legroom.observe.dispatch.device_placement import HOST, INHERIT, Residence
from legroom.observe.dispatch.kernel_memory import KernelMemory
from legroom.observe.dispatch.location import Whereabouts
from legroom.observe.dispatch.operations import overloads
from legroom.observe.dispatch.recording_mode import EagerMode, RecordingMode
from legroom.observe.dispatch.storages import Live, is_imagined, storage_of, tensors_in
from legroom.observe.fake.fake_tensors import StandIns, fake_mode_in_force
from legroom.observe.training import TrainingClock


class Recorder:
    """Keeps the live storages of one run and tells the sink of every birth, death and discovery.

    `attach()` starts it on this thread; `modes()` gives further threads their own dispatch mode over the same
    state. All bookkeeping is under one lock, because Python threads (DataParallel) share the devices.
    """

    def __init__(
        self,
        sink: Sink,
        devices: Sequence[DeviceMemory],
        *,
        everywhere: bool = False,
        eager: bool = False,
        stream_on: Callable[[int], int] | None = None,
        rules: CudaRules | None = None,
        stand_ins: StandIns | None = None,
        on_failure: Callable[["Recorder", AllocationFailed, int, Place, str], BaseException | None]
        | None = None,
    ) -> None:
        """`everywhere`: every storage counts, on device 0 (watching the host). `eager`: nothing the program runs
        is compiled by `torch.compile`, which makes each operation cheaper to watch. `stream_on(device)`: the stream
        at work there, for several. `rules`: what CUDA's kernels take beyond their results is counted too.
        `stand_ins`: device tensors have no data (see there). `on_failure(recorder, failure, device, place, op)` turns
        a failed allocation into the exception that the operation raises; None: it is tried again."""
        self.everywhere = everywhere
        self.rules = rules
        self.stand_ins = stand_ins
        self.live: dict[int, Live] = {}
        self.residence = Residence(self.live)
        self.context = self.residence.context
        self.roles = Roles(self.live, self.emit, everywhere=everywhere)
        self.modules = ModuleStack(self._module_entered)
        self.clock = TrainingClock(
            on_step_end=self._step_ended,
            on_optimizer=self.roles.optimizer_at_work,
            on_batch=self.roles.batch_given,
        )
        self.charges = Charges(sink, devices, self.clock, stream_on=stream_on, on_failure=self._failed)
        self._where = Whereabouts(self.modules, self.clock, self.roles)
        self._kernels = KernelMemory(rules) if rules is not None else None
        self._fake_mode = None if stand_ins is None else stand_ins.mode
        """Whose tensors without data count: the stand-ins', or those of a mode that the program itself is in."""
        self._eager = eager
        self._on_failure = on_failure
        self._lock = threading.RLock()
        self._dead: deque[Live] = deque()
        self._exit = contextlib.ExitStack()

    # --- starting and stopping

    def attach(self) -> None:
        """Watch this thread, and torch's global hooks, until `detach`."""
        self.charges.start()
        if self.stand_ins is None:
            self._fake_mode = fake_mode_in_force()
        self.modules.attach()
        self._exit.callback(self.modules.detach)
        self.clock.attach()
        self._exit.callback(self.clock.detach)
        for handle in (
            nn.modules.module.register_module_parameter_registration_hook(self.roles.parameter_registered),
            nn.modules.module.register_module_buffer_registration_hook(self.roles.buffer_registered),
        ):
            self._exit.callback(handle.remove)
        self._exit.enter_context(self.mode())

    def detach(self) -> None:
        """Stop watching. Storages still alive are forgotten without a death event: they did not die."""
        self._exit.close()
        self.live.clear()

    def mode(self) -> TorchDispatchMode:
        """A dispatch mode for one thread, over this recorder's state."""
        return EagerMode(self) if self._eager else RecordingMode(self)

    # --- births and deaths

    def after(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any] | None, out: Any) -> None:
        """An operation has run and returned `out`."""
        live = self.live
        fresh: list[tuple[int, Any]] | None = None
        if isinstance(out, torch.Tensor):
            storage = storage_of(out)
            if storage is not None:
                if storage._cdata not in live:
                    fresh = [(storage._cdata, storage)]
                elif id(func) in _RESIZING:
                    self._maybe_resized(storage, func)
        elif isinstance(out, tuple | list):
            for tensor in tensors_in(out if id(func) not in device_mismatch.HOST_LAST else out[:-1]):
                storage = storage_of(tensor)
                if storage is not None and storage._cdata not in live:
                    fresh = fresh or []
                    if all(storage._cdata != key for key, _ in fresh):
                        fresh.append((storage._cdata, storage))
        plan = None if self._kernels is None else self._kernels.rules.plan(func, args, kwargs, out)
        if fresh is None and plan is None:
            if id(func) in device_mismatch.WITHOUT_RESULT and not self.everywhere:
                self.residence.check_written_together(func, args, kwargs)
            if func is _DETACH:
                self.roles.maybe_gradient(out)
            else:
                self._where.nothing_was_made()
            return
        self._births(func, args, kwargs, fresh or [], out, plan)

    def _births(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: dict[str, Any] | None,
        fresh: list[tuple[int, Any]],
        out: Any,
        plan: Plan | None,
    ) -> None:
        target = self.context.target
        if is_imagined(out, self._fake_mode):
            return
        if self.everywhere:
            device = 0
        elif target == HOST:
            return
        elif target != INHERIT:
            device = target
        else:
            found, aliases = self.residence.of_inputs(func, args, kwargs, in_backward=self._where.in_backward)
            if found is None:
                return
            device = found
            if aliases:
                fresh = [(key, storage) for key, storage in fresh if key not in aliases]
        with self._lock:
            if self._dead:
                self._bury()
            place = self._where.locate(args, depth=4)
            if place.phase is Phase.BACKWARD:
                self.residence.backward_device = device
            if plan is not None and self._kernels is not None:
                self._kernels.play(
                    plan, self.charges, self.born, self._moved, device, place, func, out, dict(fresh)
                )
                return
            for key, storage in fresh:
                self.born(key, storage, device, place, func)

    def mark(self, storage: Any, device: int, category: Category | None = None) -> None:
        """A storage made outside any operation (loaded, copied, shared) lives on `device` from now on."""
        key = storage._cdata
        known = self.live.get(key)
        if known is not None:
            if category is not None:
                self.roles.tag(known, category)
            return
        with self._lock:
            place = self._where.locate((), depth=2)
            self.born(key, storage, device, place, None, category)

    def born(
        self,
        key: int,
        storage: Any,
        device: int,
        place: Place,
        func: Any,
        category: Category | None = None,
        nbytes: int | None = None,
    ) -> None:
        """A storage is allocated now, with `nbytes` where that is not its own size."""
        if nbytes is None:
            nbytes = storage.nbytes()
        live = Live(storage, self._died)
        live.key = key
        live.device = device
        live.nbytes = nbytes
        live.phase = phase = place.phase
        live.frame = place.frame
        live.step = self.clock.step
        if category is None:
            category = self.context.category or self._where.category_at_birth(func, phase)
        live.category = category
        if nbytes:
            live.id, live.block = self.charges.charge(nbytes, device, category, place, func)
        else:  # lives somewhere, takes nothing
            live.id, live.block = 0, None
        self.live[key] = live

    def came_back(self, patience: float) -> bool:
        """Whether storages have died that other threads held, or do so within so many seconds: their memory is free now. The lock is held, so
        only their deaths are told meanwhile."""
        deadline = time.monotonic() + patience
        while not self._dead:
            if time.monotonic() >= deadline:
                return False
            time.sleep(SECONDS_BETWEEN_LOOKS)
        self._bury()
        return True

    def _failed(self, failure: AllocationFailed, device: int, place: Place, op: str) -> BaseException | None:
        if self._on_failure is None:
            return failure
        error = self._on_failure(self, failure, device, place, op)
        if error is None:
            return None
        self.clock.interrupted()
        self._where.in_backward = False
        return error

    def _died(self, dead: Any) -> None:
        """May run at any moment and on any thread: whoever holds the lock does the work."""
        if _outlives is not None:
            storage = _outlives(dead.key)
            if storage is not None:
                again = Live(storage, self._died)
                for name in Live.__slots__:
                    setattr(again, name, getattr(dead, name))
                self.live[dead.key] = again
                return
        self._dead.append(dead)
        if self._lock.acquire(False):
            try:
                self._bury()
            finally:
                self._lock.release()

    def _bury(self) -> None:
        """Free what has died. The lock is held."""
        while self._dead:
            dead = self._dead.popleft()
            if self.live.get(dead.key) is dead:
                del self.live[dead.key]
                self.charges.release(dead)

    def _moved(self, key: int, place: Place, func: Any) -> None:
        """A storage gets other memory of the same size: the new first, then the old is free. The lock is held."""
        known = self.live.get(key)
        storage = None if known is None else known()
        if known is not None and storage is not None:
            self.born(key, storage, known.device, place, func, known.category)
            self.charges.release(known)

    def resized(self, storage: Any) -> None:
        """A storage was given other memory outside any operation."""
        if storage._cdata in self.live:
            self._maybe_resized(storage, None)

    def _maybe_resized(self, storage: Any, func: Any) -> None:
        """`resize_` and friends give a storage other memory while it lives."""
        known = self.live[storage._cdata]
        if storage.nbytes() == known.nbytes:
            return
        with self._lock:
            # The new memory first, as CUDA has it: if there is none, the storage keeps what it had.
            place = self._where.locate((), depth=4)
            self.born(storage._cdata, storage, known.device, place, func, known.category)
            self.charges.release(known)

    # --- what hooks tell, and what others ask

    def _module_entered(self, module: nn.Module, args: tuple[Any, ...], is_root: bool) -> None:
        if is_root:
            self.clock.model_called()
        self.roles.module_entered(module, args, is_root)

    def _step_ended(self, step: int, seconds: float) -> None:
        with self._lock:
            self._bury()
        self.charges.end_step(step, seconds)

    def discover(self, tensors: Iterable[torch.Tensor], held: Mapping[int, Category]) -> None:
        """Tell all roles that can be told now: before a report of this very moment (see `Roles.discover`)."""
        known = (reference() for reference in self.clock.optimizers)
        self.roles.discover(tensors, [optimizer for optimizer in known if optimizer is not None], held)

    def device_of(self, tensor: torch.Tensor) -> int | None:
        """The device a tensor lives on, or None for the host."""
        return self.residence.device_of(tensor)

    def measure(self, tensor: torch.Tensor) -> tuple[int, int] | None:
        """The key of a tensor's storage and the bytes it is charged, or None for the host."""
        return self.residence.measure(tensor)

    def emit(self, event: Event) -> None:
        self.charges.sink(event)


def _storage_that_outlives(key: int) -> Any:
    """The storage behind `key` if only its Python object died: torch 2.6 lets the cycle collector take that alone.

    Called from the weak reference's own callback, when the storage is still there in either case.
    """
    if torch._C._storage_Use_Count(key) > 1:
        return torch.UntypedStorage._new_with_weak_ptr(key)
    return None


_outlives = (
    _storage_that_outlives if torch.__version__ < "2.8" and hasattr(torch._C, "_storage_Use_Count") else None
)
SECONDS_BETWEEN_LOOKS = 0.001
_DETACH = torch.ops.aten.detach.default
_RESIZING = overloads("resize_", "resize_as_", "set_")
