"""Saved activations wait in host memory until the backward pass wants them.

    with legroom.Spill("16GiB"):            # at most so much host memory; without a size, most of what is free
        loss = loss_fn(model(x), y)
    loss.backward()                         # the same gradients, bit for bit

Autograd hands over each tensor that it saves and asks for it again in the backward pass. What is large and lives on a
device is copied to the host, once for each storage however many operations save it or parts of it, and the device's memory is free
as soon as nothing else holds it. On the way back the next ones are fetched ahead.

Left where it is: parameters (leaves that want a gradient, and views of them), host tensors, what is smaller than `smallest`, a
small part of a large storage (a batch cut out of a data set on the GPU: to copy it would free nothing), tensor subclasses. When
the budget is used up or the host has no more memory, the rest stays on the device.

autograd checks that a saved tensor was not changed in place, but not behind hooks; `Spill` checks it itself. A tensor that
was changed after its copy was done gives the right gradient where PyTorch would refuse. Changes that PyTorch does not
see either (through `.data`) may or may not reach the copy.
"""

import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from legroom.diagnose.oom.recognize import classify
from legroom.gpus.machine import NotAvailable, host_usage
from legroom.train.spilling.saved_tensor_hooks import stepping_aside
from legroom.train.spilling.transfers import Lane, lane_to
from legroom.units import MiB, format_size, parse_size

UNDER_WAY = 4
"""Copies to the host at the same time: one that runs, and some that the computation is ahead."""
FETCHED_AHEAD = 2
"""Copies that are brought back before they are asked for."""
BYTES_ON_THE_WAY = 256 * MiB
"""Both take device memory, so of large ones only two, or one."""
SHARE_OF_FREE_HOST_MEMORY = 0.8
LARGEST_STORAGE_PER_TENSOR = 8
"""A tensor is moved with its whole storage, unless that is so many times larger."""


class Spill:
    """Moves saved activations to host memory. A context manager for the forward pass, as often as wanted, in any thread."""

    def __init__(self, budget: str | int | None = None, *, smallest: str | int = "1MiB") -> None:
        """`budget`: how much host memory it may use at most (None: four fifths of what is free when it is first needed).
        `smallest`: tensors below this stay on the device."""
        self.budget = None if budget is None else parse_size(budget)
        self._most = self.budget
        self.moved_bytes = 0
        """Moved to the host, over its whole life."""
        self.moved_tensors = 0
        self.host_bytes = 0
        """Host memory in use now."""
        self.peak_host_bytes = 0
        self.left_bytes = 0
        """Not moved for want of host memory, over its whole life."""
        self._smallest = parse_size(smallest)
        self._lanes: dict[torch.device, Lane] = {}
        self._copies: dict[int, tuple[weakref.ref[Any], weakref.ref[_Copy]]] = {}
        # Weakly: a graph that is gone must not leave tensors behind here.
        self._under_way: deque[weakref.ref[_Copy]] = deque()
        self._fetched: deque[weakref.ref[_Copy]] = deque()
        self._last: weakref.ref[_Copy] | None = None
        self._in_hooks = 0.0
        self._lock = threading.RLock()
        self._entered = threading.local()

    @property
    def seconds(self) -> float:
        """What it cost: how long the device waited for copies, or the program was held up by making them, whichever is more."""
        return max(self._in_hooks, sum(lane.waited for lane in self._lanes.values()))

    def __enter__(self) -> "Spill":
        hooks = saved_tensors_hooks(self._pack, self._unpack)
        hooks.__enter__()
        self._stack.append(hooks)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.pop().__exit__(*error)
        # Nobody will ask for what is under way, and its memory may be wanted to recover.
        if error[0] is not None:
            with self._lock:
                self._let_go(0)

    @contextlib.contextmanager
    def everywhere(self) -> Iterator["Spill"]:
        """In this thread and in every thread that is started meanwhile: autograd's hooks belong to a thread. Steps aside where
        torch allows no hooks."""
        original = threading.Thread.run
        spill = self

        def run(thread: threading.Thread) -> None:
            with spill:
                original(thread)

        threading.Thread.run = run  # type: ignore[method-assign,assignment]
        try:
            with self, stepping_aside(lambda: self._stack[-1] if self._stack else None):
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

    # --- what autograd calls

    def _pack(self, tensor: torch.Tensor) -> "_Moved | _Kept":
        began = time.perf_counter()
        with self._lock:
            moved = self._move(tensor)
            self._in_hooks += time.perf_counter() - began
        # Without its history: a node must not hold its own result.
        return moved or _Kept(tensor.detach(), tensor._version)

    def _unpack(self, packed: "_Moved | _Kept") -> torch.Tensor:
        if isinstance(packed, _Kept):
            _check_unchanged(packed.tensor.size(), packed.tensor._version, packed.version)
            return packed.tensor
        began = time.perf_counter()
        with self._lock, torch.no_grad():
            flat = self._bring(packed.copy, packed)
            self._fetch_ahead(packed.copy)
            self._in_hooks += time.perf_counter() - began
            return flat.view(packed.dtype).as_strided(packed.size, packed.stride, packed.offset)

    # --- to the host

    def _move(self, tensor: torch.Tensor) -> "_Moved | None":
        if not _is_movable(tensor) or tensor.nbytes < self._smallest:
            return None
        storage = tensor.untyped_storage()
        copy = self._copy_of(storage, tensor._version)
        if copy is None:
            size = storage.nbytes()
            if size > LARGEST_STORAGE_PER_TENSOR * tensor.nbytes or size % tensor.element_size():
                return None
            copy = self._begin(tensor, storage, size)
        if copy is None or copy.bytes % tensor.element_size():
            return None
        return _Moved(copy, tensor.dtype, tensor.size(), tensor.stride(), int(tensor.storage_offset()))

    def _copy_of(self, storage: torch.UntypedStorage, version: int) -> "_Copy | None":
        """The copy that was made of the storage as it is now."""
        known = self._copies.get(storage._cdata)
        copy = None if known is None else known[1]()
        return copy if copy is not None and copy.version == version else None

    def _begin(self, tensor: torch.Tensor, storage: torch.UntypedStorage, size: int) -> "_Copy | None":
        lane = self._lanes.get(tensor.device)
        if lane is None:
            lane = self._lanes[tensor.device] = lane_to(tensor.device)
        taken = lane.host_bytes(size)
        if self.host_bytes + taken > self._limit():
            self._let_go(max(len(self._under_way) - 1, 0))  # no new copy will push the old ones out
            self.left_bytes += size
            return None
        with torch.no_grad():
            elements = tensor.detach().as_strided((size // tensor.element_size(),), (1,), 0)
            try:
                arrived, after = lane.to_host(elements.view(torch.uint8))
            except (RuntimeError, MemoryError) as error:
                if not classify(error).is_memory:
                    raise
                # The host has no more to give: not to be asked for each tensor again.
                self.budget = self.host_bytes
                self.left_bytes += size
                return None
        copy = _Copy(self, lane, arrived, after, size, taken, elements, tensor._version)
        self._count(copy)
        key, copies = storage._cdata, self._copies
        copies[key] = weakref.ref(storage, lambda _dead: copies.pop(key, None)), weakref.ref(copy)
        copy.previous, self._last = self._last, weakref.ref(copy)
        self._under_way.append(weakref.ref(copy))
        self._let_go(UNDER_WAY, BYTES_ON_THE_WAY)
        return copy

    def _let_go(self, most: int, most_bytes: int = 0) -> None:
        """Drop the device's memory of all but the latest copies under way; of large ones the last two stay."""
        waiting = [copy for copy in (reference() for reference in self._under_way) if copy is not None]
        total = sum(copy.bytes for copy in waiting)
        while len(waiting) > most or (total > most_bytes and len(waiting) > min(most, 2)):
            copy = waiting.pop(0)
            total -= copy.bytes
            if copy.original is not None:
                copy.lane.wait(copy.after)
                copy.spoiled_by = _change(copy)
                copy.original = None
        self._under_way = deque(weakref.ref(copy) for copy in waiting)

    def _limit(self) -> int:
        if self._most is None:
            self._most = int(free_host_memory() * SHARE_OF_FREE_HOST_MEMORY)
        return self._most

    def _count(self, copy: "_Copy") -> None:
        self.moved_bytes += copy.bytes
        self.moved_tensors += 1
        self.host_bytes += copy.taken
        self.peak_host_bytes = max(self.peak_host_bytes, self.host_bytes)

    # --- and back

    def _bring(self, copy: "_Copy", wanted: "_Moved") -> torch.Tensor:
        """The bytes on the device, ready for the computation."""
        if copy.original is not None:  # it never left
            _check_unchanged(wanted.size, copy.original._version, copy.version)
            return copy.original.view(torch.uint8)
        if copy.spoiled_by is not None:
            _check_unchanged(wanted.size, copy.spoiled_by, copy.version)
        storage = copy.back_on_device
        if storage is not None:  # another operation still has it
            copy.lane.wait(copy.back_after)
            return torch.empty(0, dtype=torch.uint8, device=copy.device).set_(storage)
        flat, copy.back_after = copy.fetched or copy.lane.to_device(copy.host, copy.after)
        copy.fetched = None
        copy.lane.wait(copy.back_after)
        copy.back = weakref.ref(flat.untyped_storage())
        return flat

    def _fetch_ahead(self, copy: "_Copy") -> None:
        """Begin to bring back what was saved just before."""
        following: _Copy | None = copy
        total = 0
        for _ in range(FETCHED_AHEAD):
            following = following.previous() if following is not None and following.previous else None
            if following is None or (total and total + following.bytes > BYTES_ON_THE_WAY):
                break
            total += following.bytes
            if following.is_away:
                try:
                    following.fetched = following.lane.to_device(following.host, following.after)
                except torch.OutOfMemoryError:  # it was only ahead of its time
                    break
                self._fetched.append(weakref.ref(following))
        while len(self._fetched) > FETCHED_AHEAD:
            passed_by = self._fetched.popleft()()
            if passed_by is not None:
                passed_by.abandon()


class _Copy:
    """The bytes of one storage, on the host; on the device too while they travel."""

    __slots__ = (
        "__weakref__", "after", "back", "back_after", "bytes", "device", "fetched", "host", "lane", "original", "owner", "previous",
        "spoiled_by", "taken", "version",
    )  # fmt: skip

    def __init__(
        self,
        owner: Spill,
        lane: Lane,
        host: torch.Tensor,
        after: Any,
        size: int,
        taken: int,
        original: torch.Tensor,
        version: int,
    ) -> None:
        self.owner = owner
        self.lane = lane
        self.host = host
        self.after = after
        self.bytes = size
        self.taken = taken
        self.device = original.device
        self.original: torch.Tensor | None = original
        """The device's own memory, until the copy to the host is done."""
        self.version = version
        self.spoiled_by: int | None = None
        """The version that overtook the copy while it was under way."""
        self.fetched: tuple[torch.Tensor, Any] | None = None
        """On its way back, and not asked for yet."""
        self.back: weakref.ref[Any] | None = None
        self.back_after: Any = None
        self.previous: weakref.ref[_Copy] | None = None

    @property
    def is_away(self) -> bool:
        """Only on the host."""
        return self.original is None and self.fetched is None and self.back_on_device is None

    @property
    def back_on_device(self) -> Any:
        """The storage that it was brought back into, while an operation has it."""
        return None if self.back is None else self.back()

    def abandon(self) -> None:
        if self.fetched is not None:
            self.lane.abandon(self.fetched[0])
            self.fetched = None

    def __del__(self) -> None:
        self.abandon()
        with self.owner._lock:
            self.owner.host_bytes -= self.taken


@dataclass(slots=True)
class _Moved:
    """What autograd keeps instead of a tensor: where its bytes are, and its shape."""

    copy: _Copy
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


@dataclass(slots=True)
class _Kept:
    tensor: torch.Tensor
    version: int


def free_host_memory() -> int:
    """What this process may still use, by the machine and by the control group that it runs in."""
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


def _change(copy: _Copy) -> int | None:
    assert copy.original is not None
    version = copy.original._version
    return None if version == copy.version else version


def _check_unchanged(size: torch.Size, found: int, expected: int) -> None:
    if found != expected:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: a tensor of "
            f"shape {list(size)} is at version {found}; expected version {expected} instead."
        )
