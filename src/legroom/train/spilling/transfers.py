"""How bytes travel between a device and the host for `Spill`: beside the computation, and never too early or too late.

A copy to the host reads memory that the program would otherwise free and use again. Telling the allocator so
(`record_stream`) keeps the memory blocked until the GPU has caught up with the host, which undoes the saving. So the lane
holds the memory itself while the copy is under way, then makes the computing stream wait for the copy and lets go: from there
on any use of that memory comes after the copy, by the order of the stream. Only a few copies may be under way at once.

On a GPU the host side is page-locked, and each direction has a stream of its own. Elsewhere (Apple, Intel) copies are plain
ones, done when the call returns.
"""

import contextlib
from collections import deque
from collections.abc import Iterator
from typing import Any, Protocol

import torch
import torch.utils.deterministic


class Lane(Protocol):
    """Between one device and the host. Bytes are flat tensors of `uint8`."""

    @property
    def waited(self) -> float:
        """Seconds that the device is known to have waited for copies."""

    def host_bytes(self, size: int) -> int:
        """How much host memory really goes for so many bytes."""

    def to_host(self, source: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Begin to copy. The second is what `wait` wants before the copy may be read by another stream, and before the
        source may be let go."""

    def to_device(self, source: torch.Tensor, after: Any) -> tuple[torch.Tensor, Any]:
        """Begin to copy back."""

    def wait(self, after: Any) -> None:
        """Let the computation go on only after a copy."""

    def abandon(self, copy: torch.Tensor) -> None:
        """A copy to the device that nobody waited for is about to be let go."""


def lane_to(device: torch.device) -> Lane:
    return _CudaLane(device) if device.type == "cuda" else _PlainLane(device)


class _PlainLane:
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
        """The copy was done when it returned."""

    def abandon(self, copy: torch.Tensor) -> None:
        """Nothing reads or writes it any more."""


class _CudaLane:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._out = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._in = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._waits: deque[tuple[Any, Any]] = deque()
        self._waited = 0.0

    @property
    def waited(self) -> float:
        self._settle(len(self._waits))
        return self._waited

    def host_bytes(self, size: int) -> int:
        """Page-locked memory is handed out in powers of two."""
        return 1 << (size - 1).bit_length()

    def to_host(self, source: torch.Tensor) -> tuple[torch.Tensor, Any]:
        host = _empty(source.numel(), pin_memory=True)
        with self._on(self._out):
            host.copy_(source, non_blocking=True)
            return host, self._out.record_event()

    def to_device(self, source: torch.Tensor, after: Any) -> tuple[torch.Tensor, Any]:
        # Made on the computing stream, whose memory it is; the lane waits for that stream, which may still use the memory.
        made = _empty(source.numel(), device=self._device)
        with self._on(self._in):
            self._in.wait_event(after)
            made.copy_(source, non_blocking=True)
            return made, self._in.record_event()

    def wait(self, after: Any) -> None:
        computing = torch.cuda.current_stream(self._device)
        before = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        behind = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        before.record(computing)
        computing.wait_event(after)
        behind.record(computing)
        self._waits.append((before, behind))
        self._settle(len(self._waits) - 256)

    def abandon(self, copy: torch.Tensor) -> None:
        copy.record_stream(self._in)

    @contextlib.contextmanager
    def _on(self, stream: Any) -> Iterator[None]:
        """On `stream`, after everything that the computation has been given so far."""
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            yield

    def _settle(self, most: int) -> None:
        """Add up waits that are over, the oldest first."""
        for _ in range(most):
            before, behind = self._waits[0]
            if not behind.query():
                return
            self._waited += before.elapsed_time(behind) / 1000
            self._waits.popleft()


def _empty(size: int, **where: Any) -> torch.Tensor:
    """Bytes that are about to be overwritten. In torch's deterministic mode new memory is filled first: not this."""
    settings = torch.utils.deterministic
    fills = settings.fill_uninitialized_memory  # type: ignore[attr-defined]
    if not (fills and torch.are_deterministic_algorithms_enabled()):
        return torch.empty(size, dtype=torch.uint8, **where)
    settings.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        return torch.empty(size, dtype=torch.uint8, **where)
    finally:
        settings.fill_uninitialized_memory = True  # type: ignore[attr-defined]
