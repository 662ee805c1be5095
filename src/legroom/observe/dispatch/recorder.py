"""Records the allocation and the freeing of every storage of a running program as events. The recorder is a dispatch
mode.

The recorder works with real CPU tensors and with fake tensors, because it only tracks storages. A storage counts as
allocated when an operation first returns it, and as freed when a weak reference to the storage expires. The recorder
keeps no tensor, frame or exception alive.

`device_placement` decides which storages are recorded: all storages for a run in host memory, and storages on a device
for a virtual GPU. `location` finds the user's line of an operation, `categories` classifies the memory of the
operation, and `allocations` passes this memory to the allocator.
"""

import contextlib
import functools
import inspect
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch._ops import HigherOrderOperator
from torch.autograd.graph import increment_version
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode,
    _get_current_dispatch_mode_stack,
)

from legroom.memory.allocator.allocator import AllocationFailed
from legroom.memory.event_base import BEFORE_RECORDING, Category, Frame, Phase
from legroom.memory.events import Event, Sink, discard
from legroom.observe.cuda_rules.plan import MemoryPlan
from legroom.observe.cuda_rules.rules import CudaRules
from legroom.observe.dispatch.allocations import DeviceAllocations, TrackedDevice
from legroom.observe.dispatch.attribution import ModuleStack, OpLocation
from legroom.observe.dispatch.backward_engine import current_node, in_backward_pass
from legroom.observe.dispatch.categories import CategoryTracker
from legroom.observe.dispatch.checks.result_size import LARGEST_ELEMENT, ResultSizes, upper_bound
from legroom.observe.dispatch.device_placement import HOST, INHERIT, DevicePlacement
from legroom.observe.dispatch.kernel_memory import KernelMemory
from legroom.observe.dispatch.location import OpLocator
from legroom.observe.dispatch.operation_facts import FACTS, OperationFacts, facts_of
from legroom.observe.dispatch.storage_counts import surviving_storage, weak_references_end_early
from legroom.observe.dispatch.storages import (
    LiveStorage,
    is_shape_inference,
    is_wrapper,
    storage_of,
    tensors_in,
)
from legroom.observe.dispatch.wider_dtypes import in_wider_dtype, is_dtype_error
from legroom.observe.fake.fake_tensors import DEVICE_QUERY, FakeTensors, active_fake_mode, is_factory
from legroom.observe.graph_traces import graphs_are_traced_without_modes, is_tracing_graph
from legroom.observe.profiler_labels import labels_only_while_profiling
from legroom.observe.training import TrainingClock, live_optimizers


class Recorder:
    """Tracks the live storages of one run and emits an event for every allocation, free and category change.

    `attach()` starts recording on this thread. `mode()` returns a dispatch mode for another thread, which shares the
    state of this recorder. Python threads (DataParallel) share the devices, so one lock protects the state.
    """

    def __init__(
        self,
        sink: Sink,
        devices: Sequence[TrackedDevice],
        *,
        host_only: bool = False,
        eager: bool = False,
        stream_on: Callable[[int], int] | None = None,
        rules: CudaRules | None = None,
        fake_tensors: FakeTensors | None = None,
        on_failure: Callable[["Recorder", AllocationFailed, int, OpLocation, str], BaseException | None]
        | None = None,
        room: Callable[[], int] | None = None,
        current_device: Callable[[], int] | None = None,
    ) -> None:
        """Set the options of the recording.

        - `host_only`: record every storage, as memory of device 0.
        - `eager`: the program does not use `torch.compile` until `compiles()` is called, so recording is cheaper.
        - `stream_on(device)` returns the current stream of a device, if the program uses several streams.
        - `rules`: also record the memory that CUDA kernels allocate in addition to their results.
        - `fake_tensors`: device tensors have no data.
        - `on_failure(recorder, failure, device, location, op)` returns the exception that an operation raises when an
          allocation fails, or None to retry.
        - `room()` returns the memory left on the fullest device. An operation fails before it is computed if its
          results need more memory.
        - `current_device()` returns the device that `cuda` without an index refers to, if the devices are virtual.
        """
        self.rules = rules
        self.fake_tensors = fake_tensors
        self.live: dict[int, LiveStorage] = {}
        self.placement = DevicePlacement(self.live)
        self.context = self.placement.context
        self.categories = CategoryTracker(self.live, self.emit, host_only=host_only)
        self.modules = ModuleStack(self._module_entered)
        self.clock = TrainingClock(
            on_step_end=self._step_ended,
            on_optimizer=self.categories.optimizer_called,
            on_batch=self.categories.batch_loaded,
        )
        self.allocations = DeviceAllocations(
            sink, devices, self.clock, stream_on=stream_on, on_failure=self._allocation_failed
        )
        self._host_only = host_only
        self._locator = OpLocator(self.modules, self.clock, self.categories)
        self._kernels = KernelMemory(rules) if rules is not None else None
        self._fake_mode = None if fake_tensors is None else fake_tensors.mode
        """The mode whose fake tensors are recorded: the mode of `fake_tensors`, or a mode that the program entered
        itself.
        """
        self._eager = eager
        self._modes: weakref.WeakSet[RecordingMode] = weakref.WeakSet()
        self._on_failure = on_failure
        self.room = room
        self.current_device = current_device
        self._result_sizes = ResultSizes()
        self._ignores_aliases = rules is None and not host_only
        """True if a view of an unknown storage can be ignored. On a virtual GPU, the recorder knows all device
        storages, so an unknown storage is in host memory.
        """
        self.lock = threading.RLock()
        self._expired: deque[LiveStorage] = deque()
        self._on_expired = self._storage_expired
        """The callback of all weak references, stored because each access to a method creates a new object."""
        self._exit = contextlib.ExitStack()
        self.on_line: Callable[[Frame | None], None] | None = None
        """Called with the user's line after each operation that allocates memory."""

    # --- starting and stopping

    def attach(self, *, again: bool = False) -> None:
        """Record the operations of this thread, and install torch's global hooks, until `detach`. Set `again` to
        continue the recording after `pause`.
        """
        if not again:
            self.allocations.start()
        if self.fake_tensors is None:
            self._fake_mode = active_fake_mode()
        self.modules.attach()
        self._exit.callback(self.modules.detach)
        self.clock.attach()
        self._exit.callback(self.clock.detach)
        self._exit.enter_context(labels_only_while_profiling())
        for handle in (
            nn.modules.module.register_module_parameter_registration_hook(
                self.categories.parameter_registered
            ),
            nn.modules.module.register_module_buffer_registration_hook(self.categories.buffer_registered),
        ):
            self._exit.callback(handle.remove)
        self._exit.enter_context(graphs_are_traced_without_modes())
        self._exit.enter_context(self.mode())
        _attached.append(self)

    def detach(self) -> None:
        # Storages that are still alive get no `Free` event.
        self.pause()
        self.live.clear()

    def pause(self) -> None:
        # Storages that the recorder already tracks stay tracked, so their `Free` events are recorded.
        if self in _attached:
            _attached.remove(self)
        self._exit.close()

    def mode(self) -> TorchDispatchMode:
        mode = EagerMode(self) if self._eager else RecordingMode(self)
        self._modes.add(mode)
        return mode

    def compiles(self) -> None:
        """Prepare for compiled functions, before the program compiles a function for the first time."""
        if self._eager:
            self._eager = False
            for mode in self._modes:
                mode.__class__ = RecordingMode

    def is_recording(self) -> bool:
        """Return whether operations of this thread are recorded. Inside an operation, no operations are recorded."""
        return any(
            isinstance(mode, RecordingMode) and mode._recorder is self
            for mode in _get_current_dispatch_mode_stack()
        )

    # --- allocations and frees

    def check_room(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any] | None) -> None:
        """Raise an error for an operation whose results cannot fit, before the CPU computes them in host memory. Call
        this method if the results may need more than `DeviceAllocations.room_left`.
        """
        assert self.room is not None
        bound = upper_bound(args) * LARGEST_ELEMENT
        room = self.allocations.room_left = self.room()
        nbytes = 0 if bound <= room else self._result_sizes.new_bytes(func, args, kwargs, room)
        # A fake mode of the program allocates nothing.
        if not nbytes or active_fake_mode() is not self._fake_mode:
            return
        target = self.context.target
        if target == INHERIT:
            found, _ = self.placement.device_of_inputs(
                func, args, kwargs, in_backward=self._locator.in_backward
            )
            target = HOST if found is None else found
        if target == HOST:
            return
        with self.lock:
            self._free_expired()
            location = self._locator.locate(args, depth=3)
            category = self._locator.initial_category(func, location.phase)
            # This call raises an error, unless another device is full or memory was freed meanwhile.
            number, block = self.allocations.allocate(nbytes, target, category, location, func)
            self.allocations.free_workspace(number, block, target)

    def record_operation(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: dict[str, Any] | None,
        out: Any,
        facts: OperationFacts,
    ) -> None:
        live = self.live
        new: list[tuple[int, Any]] | None = None
        if isinstance(out, torch.Tensor):
            storage = storage_of(out)
            if storage is not None:
                key = storage._cdata
                if key in live:
                    silent = facts.is_silent_on_host if self._host_only else facts.is_silent
                    if silent and self._kernels is None:
                        state = self._locator.threads.state
                        if state.in_backward and current_node() is None:
                            state.in_backward = False
                        return
                    if facts.resizes:
                        self._maybe_resized(storage, func)
                elif not (facts.only_aliases and self._is_alias_of_known(args, key)):
                    new = [(key, storage)]
        elif isinstance(out, (tuple, list)):
            for tensor in tensors_in(out[:-1] if facts.last_result_on_host else out):
                storage = storage_of(tensor)
                if storage is not None and storage._cdata not in live:
                    new = new or []
                    if all(storage._cdata != key for key, _ in new):
                        new.append((storage._cdata, storage))
        plan = None if self._kernels is None else self._kernels.rules.plan(func, args, kwargs, out)
        if new is None and plan is None:
            if facts.checks_in_place and not self._host_only:
                self.placement.check_in_place(func, args, kwargs)
            if facts.is_detach:
                self.categories.maybe_gradient(out)
            elif self._locator.in_backward and current_node() is None:
                self._locator.interrupted()
            return
        self._record_results(func, args, kwargs, new or [], out, plan)

    def _is_alias_of_known(self, args: Sequence[Any], key: int) -> bool:
        """Return whether an unknown storage can be skipped, because the first argument is in host memory or already
        recorded.

        The result can have a different storage than the first argument in two cases. An in-place operation on a tensor
        with data returns a tensor without data if another argument has no data. The indices and values of a sparse
        tensor have different storages.
        """
        storage = storage_of(args[0]) if args and isinstance(args[0], torch.Tensor) else None
        if storage is None:
            return False
        if storage._cdata != key:
            return self._fake_mode is not None and storage._cdata in self.live
        return self._ignores_aliases and self.context.target == INHERIT

    def _record_results(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: dict[str, Any] | None,
        new: list[tuple[int, Any]],
        out: Any,
        plan: MemoryPlan | None,
    ) -> None:
        target = self.context.target
        has_no_data = type(out) is not torch.Tensor and is_shape_inference(out, self._fake_mode)
        if self._host_only:
            if has_no_data:
                return
            device = 0
        elif target == HOST:
            return
        elif target != INHERIT:
            device = target
        else:
            found, aliases = self.placement.device_of_inputs(
                func, args, kwargs, in_backward=self._locator.in_backward
            )
            if found is None:
                return
            device = found
            if aliases:
                new = [(key, storage) for key, storage in new if key not in aliases]
        if has_no_data:  # the tensor is on the device, but uses no memory
            for _, storage in new:
                self.register_storage(storage, device, nbytes=0)
            return
        with self.lock:
            if self._expired:
                self._free_expired()
            location = self._locator.locate(args, depth=4)
            if location.phase is Phase.BACKWARD and not self._host_only:
                self.context.backward_device = device
            if plan is not None and self._kernels is not None:
                self._kernels.replay(
                    plan, self.allocations, self._add_storage, self._reallocate, device, location, func, out, dict(new)
                )  # fmt: skip
            else:
                for key, storage in new:
                    self._add_storage(key, storage, device, location, func)
                if self._expired:
                    self._free_expired()
        if self.on_line is not None and new:
            self.on_line(location.frame)

    def create(
        self, operation: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], device: int
    ) -> Any:
        """Call a function that runs only `operation`, which has no tensor inputs, and record its result on `device`.

        During the call, the dispatch modes are disabled, because they would take about ten times as long as creating a
        small tensor. Return None without calling the function if other modes are active, if CUDA rules or fake tensors
        are used, or if the result may be too large.
        """
        if (
            self.rules is not None
            or self.fake_tensors is not None
            or self.room is None
            or upper_bound(args) * LARGEST_ELEMENT > self.allocations.room_left
        ):
            return None
        mode = _only_mode()
        if not isinstance(mode, RecordingMode) or mode._recorder is not self:
            return None
        try:
            with _no_dispatch():
                made = func(*args, **kwargs)
        except RuntimeError:  # the dispatch mode raises the error again, or handles it
            return None
        storage = storage_of(made)
        if storage is not None:
            with self.lock:
                if self._expired:
                    self._free_expired()
                location = self._locator.locate((), depth=4)
                self._add_storage(storage._cdata, storage, device, location, operation, Category.INPUT)
        return made

    def register_storage(
        self,
        storage: Any,
        device: int,
        category: Category | None = None,
        nbytes: int | None = None,
    ) -> None:
        """Record a storage that no operation created (it was loaded, copied or shared) as memory of `device`. `nbytes`
        is the memory that the storage uses on the device, if it differs from the storage size.
        """
        key = storage._cdata
        known = self.live.get(key)
        if known is not None:
            if category is not None:
                self.categories.tag(known, category)
            return
        with self.lock:
            if self._expired:
                self._free_expired()
            location = self._locator.locate((), depth=2)
            self._add_storage(key, storage, device, location, None, category, nbytes)

    def register_existing(self, storage: Any, device: int, category: Category) -> None:
        # The line that created the storage is unknown.
        if storage._cdata not in self.live:
            with self.lock:
                self._add_storage(storage._cdata, storage, device, _EXISTING, None, category)

    def live_storages(self) -> list[LiveStorage]:
        """Return the storages that use memory now. The caller holds the lock."""
        self._free_expired()
        return [storage for storage in self.live.values() if storage.block is not None]

    def _add_storage(
        self,
        key: int,
        storage: Any,
        device: int,
        location: OpLocation,
        func: Any,
        category: Category | None = None,
        nbytes: int | None = None,
    ) -> None:
        if nbytes is None:
            nbytes = storage.nbytes()
        live = LiveStorage(storage, self._on_expired)
        live.key = key
        live.device = device
        live.nbytes = nbytes
        live.phase = phase = location.phase
        live.frame = location.frame
        live.step = self.clock.step
        if category is None:
            category = self.context.category or self._locator.initial_category(func, phase)
        live.category = category
        if nbytes:
            live.id, live.block = self.allocations.allocate(nbytes, device, category, location, func)
        else:  # the storage has a device but uses no memory
            live.id, live.block = 0, None
        self.live[key] = live

    def wait_for_frees(self, seconds: float) -> bool:
        """Wait up to `seconds` seconds for another thread to drop storages, then free their memory. Return whether
        memory was freed. The caller holds the lock, so other threads can only append to `_expired`.
        """
        deadline = time.monotonic() + seconds
        while not self._expired:
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL_SECONDS)
        self._free_expired()
        return True

    def _allocation_failed(
        self, failure: AllocationFailed, device: int, location: OpLocation, op: str
    ) -> BaseException | None:
        if self._on_failure is None:
            return failure
        error = self._on_failure(self, failure, device, location, op)
        if error is None:
            return None
        self.clock.interrupted()
        self._locator.interrupted()
        return error

    def _storage_expired(self, expired: Any) -> None:
        """Record that a storage was freed. This callback of the weak references may run at any time on any thread, even
        inside the allocator during a garbage collection. The callback therefore does not free the memory itself. The
        thread that holds the lock frees the memory, when it releases the lock or later.
        """
        if weak_references_end_early and (storage := surviving_storage(expired.key)) is not None:
            again = LiveStorage(storage, self._storage_expired)
            for name in LiveStorage.__slots__:
                setattr(again, name, getattr(expired, name))
            self.live[expired.key] = again
            return
        lock: Any = self.lock
        if lock._is_owned() or not lock.acquire(False):
            self._expired.append(expired)
            return
        try:
            if self._expired:
                self._free_expired()
            known = self.live.get(expired.key)
            if known is not None and known is expired:
                del self.live[known.key]
                self.allocations.free_storage(known)
            if self._expired:  # storages that were freed meanwhile
                self._free_expired()
        finally:
            lock.release()

    def _free_expired(self) -> None:
        while self._expired:
            expired = self._expired.popleft()
            if self.live.get(expired.key) is expired:
                del self.live[expired.key]
                self.allocations.free_storage(expired)

    def _reallocate(self, key: int, location: OpLocation, func: Any) -> None:
        """Move a storage to other memory of the same size: allocate the new memory, then free the old memory. The
        caller holds the lock.
        """
        known = self.live.get(key)
        storage = None if known is None else known()
        if known is not None and storage is not None:
            self._add_storage(key, storage, known.device, location, func, known.category)
            self.allocations.free_storage(known)

    def storage_resized(self, storage: Any) -> None:
        if storage._cdata in self.live:
            self._maybe_resized(storage, None)

    def _maybe_resized(self, storage: Any, func: Any) -> None:
        known = self.live[storage._cdata]
        if storage.nbytes() == known.nbytes:
            return
        with self.lock:
            # Like CUDA, allocate the new memory first. If the allocation fails, the storage keeps its old memory.
            location = self._locator.locate((), depth=4)
            self._add_storage(storage._cdata, storage, known.device, location, func, known.category)
            self.allocations.free_storage(known)

    # --- hooks and queries

    def _module_entered(self, module: nn.Module, args: tuple[Any, ...], is_root: bool) -> None:
        if is_tracing_graph():  # sizes are tensors
            return
        if is_root:
            self.clock.model_called(module, args)
        self.categories.module_entered(module, args, is_root)

    def _step_ended(self, step: int, seconds: float) -> None:
        with self.lock:
            self._free_expired()
        self.allocations.end_step(step, seconds)

    def update_categories(self, tensors: Iterable[torch.Tensor], by_holder: Mapping[int, Category]) -> None:
        self.categories.update(tensors, live_optimizers(), by_holder)

    def device_of(self, tensor: torch.Tensor) -> int | None:
        return self.placement.device_of(tensor)

    def is_on_device(self, values: Any) -> bool:
        return not self._host_only and any(
            self.device_of(tensor) is not None for tensor in tensors_in(values)
        )

    def measure(self, tensor: torch.Tensor) -> tuple[int, int] | None:
        return self.placement.measure(tensor)

    def emit(self, event: Event) -> None:
        self.allocations.sink(event)


class RecordingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that applies CUDA rules and fake tensors to each operation of one thread, and passes the
    operation to the recorder.
    """

    supports_higher_order_operators = True
    """An operation that takes functions, such as flex attention, counts as one operation, like its CUDA kernel."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        fake_tensors = self._recorder.fake_tensors
        if func is DEVICE_QUERY and fake_tensors is not None:  # torch's own code calls it very often
            return fake_tensors.device_of(args[0])
        if types and any(is_wrapper(kind) for kind in types):
            return NotImplemented  # operations on the inner tensors are dispatched here as well
        if torch.is_inference_mode_enabled() and _is_composite(func):
            with self:  # in other modes, torch decomposes the operation before it is dispatched here
                return _decomposed(func, args, kwargs or {})
        if kwargs and "device" in kwargs and self._recorder.current_device is not None:
            device = kwargs["device"]
            if device is not None and device.type == "cuda":
                return self._on_named_device(func, types, args, kwargs)
        recorder = self._recorder
        with torch._C.DisableTorchFunction():
            if recorder.rules is not None:
                func = recorder.rules.instead_of(func, args, kwargs)
            facts = FACTS.get(id(func)) or facts_of(func)
            if facts.device_position is not None and len(args) > facts.device_position:
                return self._with_named_device(func, types, args, kwargs, facts.device_position)
            try:
                if (
                    recorder.room is not None
                    and not facts.only_aliases
                    and upper_bound(args) * LARGEST_ELEMENT > recorder.allocations.room_left
                ):
                    recorder.check_room(func, args, kwargs)
            except BaseException as error:
                # The traceback keeps this frame alive, so drop the operation's tensors and our frames.
                args = kwargs = ()  # type: ignore[assignment]
                raise error.with_traceback(None) from None
            if fake_tensors is None:
                try:
                    out = facts.call(*args, **kwargs) if kwargs else facts.call(*args)
                except RuntimeError as error:
                    if not is_dtype_error(error) or not recorder.is_on_device((args, kwargs)):
                        raise
                    out = in_wider_dtype(func, args, kwargs, error)
            else:
                out = fake_tensors.run(func, args, kwargs or {}, self._targets_device(func))
            if facts.changes_list:
                increment_version(args[0])
            try:
                recorder.record_operation(func, args, kwargs, out, facts)
            except BaseException as error:
                args = kwargs = out = ()  # type: ignore[assignment]
                raise error.with_traceback(None) from None
        return out

    def _with_named_device(
        self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None, position: int
    ) -> Any:
        """Run an operation and pass its argument `device` by name. FSDP2 in torch 2.6 and 2.8 passes `device` by
        position.
        """
        parameters = func._schema.arguments[position : len(args)]
        named = {each.name: value for each, value in zip(parameters, args[position:], strict=True)}
        return self.__torch_dispatch__(func, types, args[:position], {**named, **(kwargs or {})})

    def _on_named_device(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation that has a device argument and is not passed to the function mode. Operations that
        TorchScript, C++ or another torch function calls are not passed to the function mode.
        """
        recorder, context = self._recorder, self._recorder.context
        assert recorder.current_device is not None
        index = kwargs["device"].index
        index = recorder.current_device() if index is None else index
        if not 0 <= index < len(recorder.allocations.devices):
            raise RuntimeError("CUDA error: invalid device ordinal")
        if func is _TO_COPY and recorder.device_of(args[0]) == index:
            dtype = kwargs.get("dtype")
            if dtype is None or dtype is args[0].dtype:
                return _ALIAS(args[0])  # on a GPU, torch would return the tensor itself
        outer = context.target
        context.target = index
        try:
            return self.__torch_dispatch__(func, types, args, {**kwargs, "device": _CPU})
        finally:
            context.target = outer

    def _targets_device(self, func: Any) -> bool:
        """Return whether the results are on a device, even if all inputs are on the host. The call may have requested
        the device, or a backward pass may run a factory function.
        """
        context = self._recorder.context
        if context.target >= 0:
            return True
        if not is_factory(func) or not in_backward_pass():
            return False
        target = context.factory_target
        return (context.backward_device if target == INHERIT else target) >= 0


class EagerMode(RecordingMode):  # type: ignore[no-untyped-call]
    """A `RecordingMode` for programs that do not use `torch.compile`, without torch's wrapper that disables the
    compiler inside a mode.
    """


EagerMode.__torch_dispatch__ = inspect.unwrap(RecordingMode.__torch_dispatch__)  # type: ignore[method-assign]


def _with_rules_for_modes(dispatch: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `HigherOrderOperator.dispatch` for versions of torch without `supports_higher_order_operators`. These
    versions raise an error if the operation has no registered rule for the class of the active dispatch mode.
    """

    @functools.wraps(dispatch)
    def run(self: Any, /, dispatch_key: Any, *args: Any, **kwargs: Any) -> Any:
        kind = type(_get_current_dispatch_mode())
        if kind in (RecordingMode, EagerMode) and kind not in self.python_key_table:

            def rule(mode: Any, *args: Any, **kwargs: Any) -> Any:
                return mode.__torch_dispatch__(self, [], args, kwargs)

            self.py_impl(kind)(rule)
        return dispatch(self, dispatch_key, *args, **kwargs)

    return run


if not hasattr(TorchDispatchMode, "supports_higher_order_operators"):
    HigherOrderOperator.dispatch = _with_rules_for_modes(HigherOrderOperator.dispatch)  # type: ignore[method-assign]


@functools.cache
def _is_composite(func: Any) -> bool:
    """Return whether an operation is composed of other operations, which are recorded in its place.

    An operation that is composite only in torch's Python decompositions (`native_batch_norm`) is one kernel in eager
    mode. Such an operation has no composite C++ kernel.
    """
    if getattr(func, "namespace", "") != "aten" or _COMPOSITE in getattr(func, "py_kernels", ()):
        return False
    return bool(func.has_kernel_for_dispatch_key(_COMPOSITE))


def _decomposed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run the operations of which `func` is composed, as in torch's C++ code. If torch's private `_op_dk` is missing,
    run torch's Python decomposition.
    """
    run = getattr(func, "_op_dk", None)
    return func.decompose(*args, **kwargs) if run is None else run(_COMPOSITE, *args, **kwargs)


_attached: list[Recorder] = []


def active_recorder() -> Recorder | None:
    return next((each for each in reversed(_attached) if each.is_recording()), None)


def _discard_events_of_forks() -> None:
    """Discard the events of a forked child, such as a DataLoader worker, because they must not mix with the events of
    the parent.
    """
    for recorder in _attached:
        recorder.allocations.sink = discard


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_discard_events_of_forks)


POLL_SECONDS = 0.001
_EXISTING = OpLocation(BEFORE_RECORDING, "", Phase.OTHER)
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_no_dispatch: Any = getattr(torch._C, "_DisableTorchDispatch", None)
_count_modes: Callable[[], int] | None = getattr(torch._C, "_len_torch_dispatch_stack", None)
_transform: Callable[[], Any] | None = getattr(
    getattr(torch._C, "_functorch", None), "peek_interpreter_stack", None
)
_mode_at: Callable[[int], Any] | None = getattr(torch._C, "_get_dispatch_stack_at", None)
"""If one of these four private functions of torch is missing, every operation goes through the dispatch modes."""


def _only_mode() -> Any:
    """Return the active dispatch mode, or None if several modes or a `torch.func` transform are active. A single mode
    can be bypassed without hiding operations from other modes.
    """
    if (
        _no_dispatch is None
        or _count_modes is None
        or _mode_at is None
        or _transform is None
        or _count_modes() != 1
        or _transform() is not None
    ):
        return None
    return _mode_at(0)


_TO_COPY = torch.ops.aten._to_copy.default
_ALIAS = torch.ops.aten.alias.default
_CPU = torch.device("cpu")
