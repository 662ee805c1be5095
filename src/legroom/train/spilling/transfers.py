"""Copies between a device and the host for `Spill`, in parallel with the computation.

A copy to the host reads memory that the program would otherwise free and reuse. `record_stream` would block this memory
until the GPU has caught up with the host, so no memory would be saved. Instead, `Spill` keeps a reference while the
copy runs. Then `Spill` makes the compute stream wait for the copy, and drops the reference. Any later use of the memory
in this stream therefore comes after the copy. Only a few copies run at the same time.

On a GPU, host memory is page-locked and each direction has its own stream. On other devices (Apple, Intel), copies are
synchronous.
"""

import contextlib
from collections import deque
from collections.abc import Iterator
from typing import Any, Protocol

import torch
import torch.utils.deterministic


class HostLink(Protocol):
    """Copies between one device and the host. Buffers are flat `uint8` tensors."""

    @property
    def waited(self) -> float:
        """The total time in seconds that the device waited for copies."""

    def host_bytes(self, size: int) -> int: ...

    def to_host(self, source: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Start a copy to the host. Return the copy and a handle. Pass the handle to `wait` before another stream reads
        the copy and before the source is freed.
        """

    def to_device(self, source: torch.Tensor, after: Any) -> tuple[torch.Tensor, Any]: ...

    def wait(self, after: Any) -> None: ...

    def abandon(self, copy: torch.Tensor) -> None:
        """Keep the device memory of a copy valid until the copy is complete. Call this method if the copy is freed
        before `wait`.
        """


def host_link(device: torch.device) -> HostLink:
    return _CudaLink(device) if device.type == "cuda" else _PlainLink(device)


class _PlainLink:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.waited = 0.0

    def host_bytes(self, size: int) -> int:
        return size

    def to_host(self, source: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return source.to("cpu", copy=True), None

    def to_device(self, source: torch.Tensor, after: Any) -> tuple[torch.Tensor, Any]:
        return source.to(self._device, copy=True), None

    def wait(self, after: Any) -> None:
        """Do nothing, because the copy was synchronous."""

    def abandon(self, copy: torch.Tensor) -> None:
        """Do nothing, because the copy was synchronous."""


class _CudaLink:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._out = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._in = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._waits: deque[tuple[Any, Any]] = deque()
        self._waited = 0.0

    @property
    def waited(self) -> float:
        self._sum_finished(len(self._waits))
        return self._waited

    def host_bytes(self, size: int) -> int:
        """Return the size rounded up, because page-locked memory is allocated in powers of two."""
        return 1 << (size - 1).bit_length()

    def to_host(self, source: torch.Tensor) -> tuple[torch.Tensor, Any]:
        host = _empty(source.numel(), pin_memory=True)
        with self._on(self._out):
            host.copy_(source, non_blocking=True)
            return host, self._out.record_event()

    def to_device(self, source: torch.Tensor, after: Any) -> tuple[torch.Tensor, Any]:
        # Allocated on the compute stream. The copy stream waits for it, because it may still use the memory.
        result = _empty(source.numel(), device=self._device)
        with self._on(self._in):
            self._in.wait_event(after)
            result.copy_(source, non_blocking=True)
            return result, self._in.record_event()

    def wait(self, after: Any) -> None:
        compute_stream = torch.cuda.current_stream(self._device)
        before = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        before.record(compute_stream)
        compute_stream.wait_event(after)
        end.record(compute_stream)
        self._waits.append((before, end))
        self._sum_finished(len(self._waits) - 256)

    def abandon(self, copy: torch.Tensor) -> None:
        copy.record_stream(self._in)

    @contextlib.contextmanager
    def _on(self, stream: Any) -> Iterator[None]:
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            yield

    def _sum_finished(self, max_count: int) -> None:
        for _ in range(max_count):
            before, end = self._waits[0]
            if not end.query():
                return
            self._waited += before.elapsed_time(end) / 1000
            self._waits.popleft()


def _empty(size: int, **options: Any) -> torch.Tensor:
    """Allocate memory that is about to be overwritten. Unlike `torch.empty` in deterministic mode, this function does
    not fill the memory."""
    settings = torch.utils.deterministic
    fills = settings.fill_uninitialized_memory  # type: ignore[attr-defined]
    if not (fills and torch.are_deterministic_algorithms_enabled()):
        return torch.empty(size, dtype=torch.uint8, **options)
    settings.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        return torch.empty(size, dtype=torch.uint8, **options)
    finally:
        settings.fill_uninitialized_memory = True  # type: ignore[attr-defined]
