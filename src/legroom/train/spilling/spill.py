"""Keeps saved activations in host memory until the backward pass needs them.

    with legroom.Spill("16GiB"):            # the limit on host memory; by default 80% of the free memory
        loss = loss_fn(model(x), y)
    loss.backward()                         # the same gradients, bit for bit

Autograd passes each saved tensor to a hook, and another hook returns the tensor in the backward pass. Large tensors on
a device are copied to the host. A storage is copied once, even if several operations save it. The device memory of a
tensor is freed when no other object references the tensor. In the backward pass, tensors are prefetched before they are
needed.

Some tensors stay on the device: parameters and their views, tensors smaller than `min_size`, and tensor subclasses. A
slice of a large storage, such as a batch of a dataset on the GPU, also stays on the device, because a copy would free
no memory. If the budget or the host memory is used up, all further tensors stay on the device too.

Without hooks, autograd raises an error if a saved tensor was modified in place. With hooks, autograd does not detect
the modification, so `Spill` checks for it. If a tensor is modified after its copy is complete, `Spill` raises no error,
because the backward pass uses the copy. Changes that PyTorch does not detect (through `.data`) may or may not be
included in the copy.
"""

import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from legroom.diagnose.oom.recognize import classify
from legroom.gpus.machine import host_usage
from legroom.gpus.nvml import NotAvailable
from legroom.memory.annotations import SpillTotals
from legroom.train.spilling.transfers import HostLink, host_link
from legroom.units import MiB, format_size, parse_size

MAX_PENDING_COPIES = 4
"""The maximum number of pending copies to the host. One copy is running, and the other copies wait while the
computation continues.
"""
PREFETCHED_COPIES = 2
MAX_PENDING_BYTES = 256 * MiB
"""The maximum total size in bytes of pending and prefetched copies, which use device memory. Two pending copies and
one prefetched copy are always allowed, even if they exceed this limit.
"""
FREE_HOST_MEMORY_FRACTION = 0.8
MAX_STORAGE_FACTOR = 8
"""The maximum ratio between the size of a storage and the size of the tensor. Up to this ratio, the whole storage is
moved with the tensor.
"""


class Spill:
    """Moves saved activations to host memory. Use this class as a context manager for the forward pass. A `Spill` is
    reusable and thread-safe."""

    def __init__(self, budget: str | int | None = None, *, min_size: str | int = "1MiB") -> None:
        """`budget` is the limit on host memory. By default, the limit is 80% of the memory that is free at the first
        use.

        Tensors smaller than `min_size` stay on the device.
        """
        self.budget = None if budget is None else parse_size(budget)
        self._max_host_bytes = self.budget
        self.moved_bytes = 0
        """The total number of bytes moved to the host."""
        self.moved_tensors = 0
        self.host_bytes = 0
        """The current number of bytes in host memory."""
        self.peak_host_bytes = 0
        self.skipped_bytes = 0
        """The total number of bytes that stayed on the GPU because the limit on host memory was reached."""
        self._min_size = parse_size(min_size)
        self._links: dict[torch.device, HostLink] = {}
        self._copies: dict[int, tuple[weakref.ref[Any], weakref.ref[_Copy]]] = {}
        # Weak references, so that tensors are freed together with their graph.
        self._pending: deque[weakref.ref[_Copy]] = deque()
        self._prefetched: deque[weakref.ref[_Copy]] = deque()
        self._last: weakref.ref[_Copy] | None = None
        self._hook_seconds = 0.0
        self._lock = threading.RLock()
        self._entered = threading.local()

    @property
    def seconds(self) -> float:
        """The time in seconds that the device waited for copies, or the time spent in the hooks if that is longer."""
        return max(self._hook_seconds, sum(link.waited for link in self._links.values()))

    def totals(self, time: float) -> SpillTotals:
        return SpillTotals(
            time,
            moved_bytes=self.moved_bytes,
            moved_tensors=self.moved_tensors,
            peak_host_bytes=self.peak_host_bytes,
            skipped_bytes=self.skipped_bytes,
            budget_bytes=self.budget or 0,
            seconds=round(self.seconds, 6),
        )

    def __enter__(self) -> "Spill":
        hooks = saved_tensors_hooks(self._pack, self._unpack)
        hooks.__enter__()
        self._stack.append(hooks)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.pop().__exit__(*error)
        # Pending copies will not be requested, and their memory may be needed for recovery.
        if error[0] is not None:
            with self._lock:
                self._drop_pending(0)

    @contextlib.contextmanager
    def all_threads(self) -> Iterator["Spill"]:
        """Spill in this thread and in threads that are started inside the block. Each thread needs its own autograd
        hooks.

        The hooks are removed inside transforms that do not allow hooks.
        """
        original = threading.Thread.run
        spill = self

        def run(thread: threading.Thread) -> None:
            with spill:
                original(thread)

        threading.Thread.run = run  # type: ignore[method-assign,assignment]
        try:
            with self, _removed_inside_transforms(lambda: self._stack[-1] if self._stack else None):
                yield self
        finally:
            threading.Thread.run = original  # type: ignore[method-assign]

    def __repr__(self) -> str:
        budget = "" if self.budget is None else f"{format_size(self.budget)}, "
        return f"<Spill {budget}{format_size(self.moved_bytes)} moved, {format_size(self.host_bytes)} on the host now>"

    @property
    def _stack(self) -> list[Any]:
        if not hasattr(self._entered, "hooks"):
            self._entered.hooks = []
        hooks: list[Any] = self._entered.hooks
        return hooks

    # --- hooks

    def _pack(self, tensor: torch.Tensor) -> "_MovedTensor | _UnmovedTensor":
        start = time.perf_counter()
        with self._lock:
            moved = self._move(tensor)
            self._hook_seconds += time.perf_counter() - start
        # Detached, because a node must not reference its own result.
        return moved or _UnmovedTensor(tensor.detach(), tensor._version)

    def _unpack(self, packed: "_MovedTensor | _UnmovedTensor") -> torch.Tensor:
        if isinstance(packed, _UnmovedTensor):
            _check_unmodified(packed.tensor.size(), packed.tensor._version, packed.version)
            return packed.tensor
        start = time.perf_counter()
        with self._lock, torch.no_grad():
            flat = self._bytes_on_device(packed.copy, packed)
            self._prefetch(packed.copy)
            self._hook_seconds += time.perf_counter() - start
            return flat.view(packed.dtype).as_strided(packed.size, packed.stride, packed.offset)

    # --- to the host

    def _move(self, tensor: torch.Tensor) -> "_MovedTensor | None":
        if not _is_movable(tensor) or tensor.nbytes < self._min_size:
            return None
        storage = tensor.untyped_storage()
        copy = self._existing_copy(storage, tensor._version)
        if copy is None:
            size = storage.nbytes()
            if size > MAX_STORAGE_FACTOR * tensor.nbytes or size % tensor.element_size():
                return None
            copy = self._start_copy(tensor, storage, size)
        if copy is None or copy.bytes % tensor.element_size():
            return None
        return _MovedTensor(copy, tensor.dtype, tensor.size(), tensor.stride(), int(tensor.storage_offset()))

    def _existing_copy(self, storage: torch.UntypedStorage, version: int) -> "_Copy | None":
        entry = self._copies.get(storage._cdata)
        copy = None if entry is None else entry[1]()
        return copy if copy is not None and copy.version == version else None

    def _start_copy(self, tensor: torch.Tensor, storage: torch.UntypedStorage, size: int) -> "_Copy | None":
        link = self._links.get(tensor.device)
        if link is None:
            link = self._links[tensor.device] = host_link(tensor.device)
        host_bytes = link.host_bytes(size)
        if self.host_bytes + host_bytes > self._limit():
            self._drop_pending(max(len(self._pending) - 1, 0))  # no new copy will replace the pending ones
            self.skipped_bytes += size
            return None
        with torch.no_grad():
            elements = tensor.detach().as_strided((size // tensor.element_size(),), (1,), 0)
            try:
                host, after = link.to_host(elements.view(torch.uint8))
            except (RuntimeError, MemoryError) as error:
                if not classify(error).is_memory:
                    raise
                # The host memory is used up: do not try again for each tensor.
                self.budget = self.host_bytes
                self.skipped_bytes += size
                return None
        copy = _Copy(self, link, host, after, size, host_bytes, elements, tensor._version)
        self._count(copy)
        key, copies = storage._cdata, self._copies
        copies[key] = weakref.ref(storage, lambda _: copies.pop(key, None)), weakref.ref(copy)
        copy.previous, self._last = self._last, weakref.ref(copy)
        self._pending.append(weakref.ref(copy))
        self._drop_pending(MAX_PENDING_COPIES, MAX_PENDING_BYTES)
        return copy

    def _drop_pending(self, max_count: int, max_bytes: int = 0) -> None:
        """Free the device memory of the oldest pending copies until the limits are met. At least two copies stay
        pending, even if they are large."""
        pending = [copy for copy in (reference() for reference in self._pending) if copy is not None]
        total = sum(copy.bytes for copy in pending)
        while len(pending) > max_count or (total > max_bytes and len(pending) > min(max_count, 2)):
            copy = pending.pop(0)
            total -= copy.bytes
            if copy.original is not None:
                copy.link.wait(copy.after)
                copy.modified_version = _modified_version(copy)
                copy.original = None
        self._pending = deque(weakref.ref(copy) for copy in pending)

    def _limit(self) -> int:
        if self._max_host_bytes is None:
            self._max_host_bytes = int(free_host_memory() * FREE_HOST_MEMORY_FRACTION)
        return self._max_host_bytes

    def _count(self, copy: "_Copy") -> None:
        self.moved_bytes += copy.bytes
        self.moved_tensors += 1
        self.host_bytes += copy.host_bytes
        self.peak_host_bytes = max(self.peak_host_bytes, self.host_bytes)

    # --- to the device

    def _bytes_on_device(self, copy: "_Copy", tensor: "_MovedTensor") -> torch.Tensor:
        """Return the bytes of the storage as a tensor on the device. The compute stream waits for the copy."""
        if copy.original is not None:  # still on the device
            _check_unmodified(tensor.size, copy.original._version, copy.version)
            return copy.original.view(torch.uint8)
        if copy.modified_version is not None:
            _check_unmodified(tensor.size, copy.modified_version, copy.version)
        storage = copy.restored_storage
        if storage is not None:  # another operation still uses it
            copy.link.wait(copy.restored_after)
            return torch.empty(0, dtype=torch.uint8, device=copy.device).set_(storage)
        flat, copy.restored_after = copy.prefetched or copy.link.to_device(copy.host, copy.after)
        copy.prefetched = None
        copy.link.wait(copy.restored_after)
        copy.restored = weakref.ref(flat.untyped_storage())
        return flat

    def _prefetch(self, copy: "_Copy") -> None:
        """Prefetch the tensors that were saved before this copy, because the backward pass needs them next."""
        following: _Copy | None = copy
        total = 0
        for _ in range(PREFETCHED_COPIES):
            following = following.previous() if following is not None and following.previous else None
            if following is None or (total and total + following.bytes > MAX_PENDING_BYTES):
                break
            total += following.bytes
            if following.is_only_on_host:
                try:
                    following.prefetched = following.link.to_device(following.host, following.after)
                except torch.OutOfMemoryError:  # prefetching is optional
                    break
                self._prefetched.append(weakref.ref(following))
        while len(self._prefetched) > PREFETCHED_COPIES:
            skipped = self._prefetched.popleft()()
            if skipped is not None:
                skipped.abandon()


class _Copy:
    """The bytes of one storage on the host. Until the copy is complete, the storage also stays on the device."""

    __slots__ = (
        "__weakref__", "after", "bytes", "device", "host", "host_bytes", "link", "modified_version", "original", "owner",
        "prefetched", "previous", "restored", "restored_after", "version",
    )  # fmt: skip

    def __init__(
        self,
        owner: Spill,
        link: HostLink,
        host: torch.Tensor,
        after: Any,
        size: int,
        host_bytes: int,
        original: torch.Tensor,
        version: int,
    ) -> None:
        self.owner = owner
        self.link = link
        self.host = host
        self.after = after
        self.bytes = size
        self.host_bytes = host_bytes
        self.device = original.device
        self.original: torch.Tensor | None = original
        self.version = version
        self.modified_version: int | None = None
        """The version counter of the tensor if the tensor was modified before its copy was complete, otherwise None."""
        self.prefetched: tuple[torch.Tensor, Any] | None = None
        self.restored: weakref.ref[Any] | None = None
        self.restored_after: Any = None
        self.previous: weakref.ref[_Copy] | None = None

    @property
    def is_only_on_host(self) -> bool:
        return self.original is None and self.prefetched is None and self.restored_storage is None

    @property
    def restored_storage(self) -> Any:
        return None if self.restored is None else self.restored()

    def abandon(self) -> None:
        if self.prefetched is not None:
            self.link.abandon(self.prefetched[0])
            self.prefetched = None

    def __del__(self) -> None:
        self.abandon()
        with self.owner._lock:
            self.owner.host_bytes -= self.host_bytes


@dataclass(slots=True)
class _MovedTensor:
    """The object that autograd saves instead of a tensor that was moved to the host."""

    copy: _Copy
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


@dataclass(slots=True)
class _UnmovedTensor:
    """A saved tensor that stays on the device."""

    tensor: torch.Tensor
    version: int


def free_host_memory() -> int:
    """Return the host memory that this process can still use, limited by the machine and its control group."""
    memory = host_usage()
    free = [0 if isinstance(memory.available, NotAvailable) else memory.available]
    if not isinstance(memory.limit, NotAvailable) and not isinstance(memory.used_of_limit, NotAvailable):
        free.append(max(memory.limit - memory.used_of_limit, 0))
    return min(free)


def _is_movable(tensor: torch.Tensor) -> bool:
    if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided:
        return False
    if tensor.device.type in ("cpu", "meta") or tensor.is_conj() or tensor.is_neg() or tensor.is_quantized:
        return False
    owner = tensor if tensor._base is None else tensor._base
    return not (owner.is_leaf and owner.requires_grad)


def _modified_version(copy: _Copy) -> int | None:
    assert copy.original is not None
    version = copy.original._version
    return None if version == copy.version else version


def _check_unmodified(size: torch.Size, found: int, expected: int) -> None:
    if found != expected:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: a tensor of "
            f"shape {list(size)} is at version {found}; expected version {expected} instead."
        )


@contextlib.contextmanager
def _removed_inside_transforms(current: Callable[[], Any]) -> Iterator[None]:
    """Disable the hooks inside transforms of `torch.func`, which raise an error if hooks are active.

    `current()` returns the context manager of this thread's hooks, or None. Tensors that are saved inside a transform
    stay on the device. If torch lacks the private functions that disable and enable hooks, this function does nothing,
    and the transforms raise the error.
    """
    functions: Any = torch._C._autograd
    disable = getattr(functions, "_saved_tensors_hooks_disable", None)
    enable = getattr(functions, "_saved_tensors_hooks_enable", None)
    if disable is None or enable is None:
        yield
        return
    removed = threading.local()

    def disable_hooks(*args: Any, **kwargs: Any) -> None:
        hooks = current()
        if hooks is not None and getattr(removed, "hooks", None) is None:
            hooks.__exit__()
            removed.hooks = hooks
        disable(*args, **kwargs)

    def enable_hooks() -> None:
        enable()
        hooks, removed.hooks = getattr(removed, "hooks", None), None
        if hooks is not None:
            hooks.__enter__()

    functions._saved_tensors_hooks_disable = disable_hooks
    functions._saved_tensors_hooks_enable = enable_hooks
    try:
        yield
    finally:
        functions._saved_tensors_hooks_disable = disable
        functions._saved_tensors_hooks_enable = enable
