"""Storage births and deaths of a running program, as events, from a dispatch mode.

It works over real CPU tensors and over fake ones alike, since it looks only at storages: one is born when an
operation returns it for the first time, and dies when a weak reference to it says so. Nothing here keeps a tensor,
a frame or an exception alive.

Which storages count is a question of *place*. Watching the host, all do. On a virtual GPU only those that live on
a device do: an operation's result lives where its inputs live, unless the call said otherwise (`Context.target`).
"""

import contextlib
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, Protocol

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from legroom.memory.allocator import AllocationFailed
from legroom.memory.events import Alloc, Category, Event, Free, Phase, Segment, Sink, Step
from legroom.observe import meeting
from legroom.observe.attribution import ModuleStack, Origins, Place, current_node, user_frame
from legroom.observe.cuda_rules.plan import Plan
from legroom.observe.cuda_rules.rules import CudaRules
from legroom.observe.kernel_memory import KernelMemory
from legroom.observe.recording_mode import EagerMode, RecordingMode
from legroom.observe.roles import Roles
from legroom.observe.stand_ins import StandIns, fake_mode_in_force
from legroom.observe.storages import Live, is_imagined, storage_of, tensors_in
from legroom.observe.training import TrainingClock

HOST = -1
"""`Context.target`: what the call makes lives in host memory."""
INHERIT = -2
"""`Context.target`: what the call makes lives where its inputs live."""


class Memory(Protocol):
    """What serves requests for memory: a replayed caching allocator, or the host."""

    @property
    def allocated(self) -> int: ...

    @property
    def reserved(self) -> int: ...

    def malloc(self, size: int, stream: int = 0) -> Any: ...

    def free(self, block: Any) -> None: ...


class DeviceMemory(Protocol):
    """One device whose memory is accounted for."""

    @property
    def index(self) -> int: ...

    @property
    def allocator(self) -> Memory: ...


class Context(threading.local):
    """What the call in progress on this thread said about its results."""

    target: int = INHERIT
    orphans: int = INHERIT
    """Where results of an operation without tensor inputs live: such are made inside larger ones (a causal mask
    inside attention). INHERIT outside any call: the engine made it, and it lives where the backward pass is."""
    category: Category | None = None
    call: tuple[Any, Any, Any] | None = None
    """The torch function that the program called, its arguments and its named arguments, while it runs."""


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
        on_failure: Callable[["Recorder", AllocationFailed, int, Place, str], BaseException] | None = None,
    ) -> None:
        """`everywhere`: every storage counts, on device 0 (watching the host). `eager`: nothing the program runs
        is compiled by `torch.compile`, which makes each operation cheaper to watch. `stream_on(device)`: the stream
        at work there, for several. `rules`: what CUDA's kernels take beyond their results is counted too.
        `stand_ins`: device tensors have no data (see there). `on_failure(recorder, failure, device, place, op)` turns
        a failed allocation into the exception that the operation raises."""
        self.sink = sink
        self.devices = devices
        self.everywhere = everywhere
        self.context = Context()
        self.live: dict[int, Live] = {}
        self.roles = Roles(self.live, self.emit, everywhere=everywhere)
        self.modules = ModuleStack(self._module_entered)
        self.clock = TrainingClock(
            on_step_end=self._step_ended,
            on_optimizer=self.roles.optimizer_at_work,
            on_batch=self.roles.batch_given,
        )
        self.origins = Origins()
        self._eager = eager
        self._stream_on = stream_on
        self.rules = rules
        self._kernels = KernelMemory(rules) if rules is not None else None
        self.stand_ins = stand_ins
        self._fake_mode = None if stand_ins is None else stand_ins.mode
        """Whose tensors without data count: the stand-ins', or those of a mode that the program itself is in."""
        self.doubts: dict[int, tuple[int, ...]] = {}
        """Of memory that kernels took: its number → what it may have been instead, where that is not known."""
        self.spare: set[int] = set()
        """Numbers of what kernels would have done without."""
        self._on_failure = on_failure
        self._lock = threading.RLock()
        self._dead: deque[Live] = deque()
        self._count = 0
        self._in_backward = False
        self._backward_device = HOST
        self._started = _now()
        self._peaks: dict[int, list[int]] = {}
        self._exit = contextlib.ExitStack()

    # --- starting and stopping

    def attach(self) -> None:
        """Watch this thread, and torch's global hooks, until `detach`."""
        self._started = _now()
        if self.stand_ins is None:
            self._fake_mode = fake_mode_in_force()
        self._peaks = {device.index: [0, 0] for device in self.devices}
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

    @property
    def seconds(self) -> float:
        return _now() - self._started

    @property
    def allocations(self) -> int:
        return self._count

    def emit(self, event: Event) -> None:
        self.sink(event)

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
            for tensor in tensors_in(out if id(func) not in meeting.HOST_LAST else out[:-1]):
                storage = storage_of(tensor)
                if storage is not None and storage._cdata not in live:
                    fresh = fresh or []
                    if all(storage._cdata != key for key, _ in fresh):
                        fresh.append((storage._cdata, storage))
        plan = None if self._kernels is None else self._kernels.rules.plan(func, args, kwargs, out)
        if fresh is None and plan is None:
            if id(func) in meeting.WITHOUT_RESULT and not self.everywhere:
                here = self.device_of(args[0])
                for other in args[1:]:
                    if isinstance(other, torch.Tensor) and self.device_of(other) != here:
                        self._check_meeting(func, args, kwargs)
                        break
            if func is _DETACH:
                self.roles.maybe_gradient(out)
            elif self._in_backward and current_node() is None:
                self._in_backward = False
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
            found, aliases = self._place_of_inputs(func, args, kwargs)
            if found is None:
                return
            device = found
            if aliases:
                fresh = [(key, storage) for key, storage in fresh if key not in aliases]
        with self._lock:
            if self._dead:
                self._bury()
            place = self._locate(args, depth=4)
            if place.phase is Phase.BACKWARD:
                self._backward_device = device
            if plan is not None and self._kernels is not None:
                self._kernels.play(plan, self, device, place, func, out, dict(fresh))
                return
            for key, storage in fresh:
                self.born(key, storage, device, place, func)

    def take(self, nbytes: int, device: int, place: Place, func: Any) -> tuple[int, Any]:
        """Memory that a kernel takes for itself: its number and block, for `give`. No bytes take no block, and are told
        all the same where there may have been some."""
        if nbytes:
            return self._charge(nbytes, device, Category.WORKSPACE, place, func)
        number = self._count = self._count + 1
        self.sink(
            Alloc(
                self.seconds, number, 0, 0, device, 0, Category.WORKSPACE, place.phase, self.clock.step, place.module,
                place.frame, _op_name(func),
            )
        )  # fmt: skip
        return number, None

    def note_doubt(self, number: int, others: tuple[int, ...]) -> None:
        """What a kernel took as `number` may have been one of the `others` as well."""
        self.doubts[number] = others

    def note_spare(self, number: int) -> None:
        """What a kernel took as `number` it would have done without, had there been no room."""
        self.spare.add(number)

    def give(self, number: int, block: Any, device: int) -> None:
        """A kernel gives back what it took."""
        if block is not None:
            self.devices[device].allocator.free(block)
        self.sink(Free(self.seconds, number))

    def mark(self, storage: Any, device: int, category: Category | None = None) -> None:
        """A storage made outside any operation (loaded, copied, shared) lives on `device` from now on."""
        key = storage._cdata
        known = self.live.get(key)
        if known is not None:
            if category is not None:
                self.roles.tag(known, category)
            return
        with self._lock:
            place = self._locate((), depth=2)
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
            category = self.context.category or self._category_at_birth(func, phase)
        live.category = category
        if nbytes:
            live.id, live.block = self._charge(nbytes, device, category, place, func)
        else:  # lives somewhere, takes nothing
            live.id, live.block = 0, None
        self.live[key] = live

    def _charge(
        self, nbytes: int, device: int, category: Category, place: Place, func: Any
    ) -> tuple[int, Any]:
        """Take memory from the device's allocator and tell of it: the event's number, and the block."""
        allocator = self.devices[device].allocator
        stream = 0 if self._stream_on is None else self._stream_on(device)
        try:
            block = allocator.malloc(nbytes, stream)
        except AllocationFailed as failure:
            failed = failure.with_traceback(None)  # or it and this frame would hold each other
        else:
            number = self._count = self._count + 1
            self._note_peaks(device)
            self.sink(
                _new(
                    Alloc,
                    (
                        _now() - self._started, number, nbytes, block.size, device, stream, category,
                        place.phase, self.clock.step, place.module, place.frame, _op_name(func),
                    ),
                )
            )  # fmt: skip
            return number, block
        return self._fail(failed, device, place, func)

    def _note_peaks(self, device: int) -> None:
        allocator, peaks = self.devices[device].allocator, self._peaks[device]
        if allocator.allocated > peaks[0]:
            peaks[0] = allocator.allocated
            if allocator.reserved > peaks[1]:
                peaks[1] = allocator.reserved

    def _fail(self, failure: AllocationFailed, device: int, place: Place, func: Any) -> NoReturn:
        if self._on_failure is None:
            raise failure
        error = self._on_failure(self, failure, device, place, _op_name(func))
        self.clock.interrupted()
        self._in_backward = False
        raise error from None

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
            if self.live.get(dead.key) is not dead:
                continue
            del self.live[dead.key]
            if dead.block is not None:
                self.devices[dead.device].allocator.free(dead.block)
                self.sink(_new(Free, (_now() - self._started, dead.id)))

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
            place = self._locate((), depth=4)
            self.born(storage._cdata, storage, known.device, place, func, known.category)
            if known.block is not None:
                self.devices[known.device].allocator.free(known.block)
                self.sink(Free(self.seconds, known.id))

    # --- where and what

    def discover(self, tensors: Iterable[torch.Tensor] = ()) -> None:
        """Tell all roles that can be told now: before a report of this very moment."""
        known = (reference() for reference in self.clock.optimizers)
        self.roles.discover(tensors, [optimizer for optimizer in known if optimizer is not None])

    def device_of(self, tensor: torch.Tensor) -> int | None:
        """The device a tensor lives on, or None for the host."""
        storage = storage_of(tensor)
        known = self.live.get(storage._cdata) if storage is not None else None
        if known is None:
            local = getattr(tensor, "_local_tensor", None)  # a sharded tensor has no storage, its shard has
            return None if local is None else self.device_of(local)
        return known.device

    def measure(self, tensor: torch.Tensor) -> tuple[int, int] | None:
        """The key of a tensor's storage and the bytes it is charged, or None for the host."""
        storage = storage_of(tensor)
        known = self.live.get(storage._cdata) if storage is not None else None
        return None if known is None or known.block is None else (storage._cdata, known.block.size)

    def _place_of_inputs(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any] | None
    ) -> tuple[int | None, set[int]]:
        """The device that an operation's inputs live on, and the host storages among them.

        Raises torch's own sentence where tensors of two devices meet, as CUDA would.
        """
        device: int | None = None
        hosts: set[int] = set()
        mixed = any_tensor = False
        for tensor in tensors_in((args, kwargs) if kwargs else args):
            storage = storage_of(tensor)
            if storage is None:
                continue
            any_tensor = True
            known = self.live.get(storage._cdata)
            if known is None:
                hosts.add(storage._cdata)
            elif device is None:
                device = known.device
            elif device != known.device:
                mixed = True
        if device is not None and (mixed or hosts):
            self._check_meeting(func, args, kwargs)
        if device is None and not any_tensor:
            orphans = self.context.orphans
            if orphans == INHERIT:
                orphans = self._backward_device if self._in_backward else HOST
            device = None if orphans == HOST else orphans
        return device, hosts

    def _check_meeting(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any] | None) -> None:
        call = self.context.call
        meeting.check(
            func,
            args,
            tensors_in((args, kwargs) if kwargs else args),
            self.device_of,
            None if call is None else (call[0], tensors_in((call[1], call[2] or {}))),
        )

    def _locate(self, args: Sequence[Any], depth: int) -> Place:
        """Where the operation in progress stands. `depth`: how many frames above this one are ours."""
        node = current_node()
        frame, engine = user_frame(sys._getframe(depth))
        modules = self.modules
        if node is not None:
            if not self._in_backward:
                self._in_backward = self.clock.trains = True
                self.roles.find_activations([node])
            if engine and not modules.stack:
                origin = self.origins.find(node)
                if origin is not None:
                    return Place(origin.frame, origin.module, Phase.BACKWARD)
            place = Place(frame, modules.path, Phase.BACKWARD)
            if torch.is_grad_enabled():  # recomputed for a checkpoint: its own backward follows
                self.origins.leave(place)
            return place
        self._in_backward = False
        if modules.stack:
            place = Place(frame, modules.path, Phase.FORWARD)
        elif self.clock.in_optimizer:
            return Place(frame, "", Phase.OPTIMIZER)
        elif torch.is_grad_enabled() and _requires_grad(args):
            place = Place(frame, "", Phase.FORWARD)
        else:
            return Place(frame, "", Phase.OTHER)
        if torch.is_grad_enabled():
            self.origins.leave(place)
        return place

    def _category_at_birth(self, func: Any, phase: Phase) -> Category:
        """The first guess; identity corrects it when it becomes known."""
        if phase is Phase.BACKWARD:
            node = current_node()
            if node is not None and "AccumulateGrad" in node.name():
                return Category.GRADIENT
        elif phase is Phase.OTHER and id(func) in _FACTORIES:
            return Category.INPUT
        return Category.TEMPORARY

    def _module_entered(self, module: nn.Module, args: tuple[Any, ...], is_root: bool) -> None:
        if is_root:
            self.clock.model_called()
        self.roles.module_entered(module, args, is_root)

    def _step_ended(self, step: int, seconds: float) -> None:
        with self._lock:
            self._bury()
        for device in self.devices:
            allocator, peaks = device.allocator, self._peaks[device.index]
            self.sink(
                Step(
                    self.seconds, step, seconds, device.index, allocator.allocated, allocator.reserved,
                    max(peaks[0], allocator.allocated), max(peaks[1], allocator.reserved),
                )
            )  # fmt: skip
            peaks[0] = peaks[1] = 0

    def segment_changed(self, device: int, change: int) -> None:
        """An allocator took memory from its device, or gave it back."""
        self.sink(Segment(self.seconds, device, change))


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


def _requires_grad(args: Sequence[Any]) -> bool:
    return any(item.requires_grad for item in tensors_in(args))


_new = tuple.__new__
_now = time.perf_counter
_op_names: dict[int, str] = {id(None): ""}


def _op_name(func: Any) -> str:
    name = _op_names.get(id(func))
    if name is None:
        packet = getattr(func, "overloadpacket", None)
        name = _op_names[id(func)] = str(packet if packet is not None else func)
    return name


_DETACH = torch.ops.aten.detach.default
_RESIZING = meeting.overloads("resize_", "resize_as_", "set_")
_FACTORIES = meeting.overloads(
    "empty", "empty_strided", "zeros", "ones", "full", "rand", "randn", "randint", "randperm", "arange", "linspace",
    "logspace", "eye", "normal", "scalar_tensor", "tril_indices", "triu_indices", "_to_copy", "clone", "lift_fresh",
)  # fmt: skip
