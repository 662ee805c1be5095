"""Runs a sweep case on a GPU or on a traced device, and returns its allocations.

Both sides return the bytes allocated (+) and freed (-), in order. Memory that libraries allocate once and keep is
allocated in advance (`warm_up`).
"""

from typing import Any

import torch

from bench.sweep.kit import Case

LARGEST_CACHE = 8 << 30


class Measured:
    """Runs cases on the real device and reads the allocator's history."""

    def requests(self, one: Case) -> list[int]:
        torch.manual_seed(0)
        torch.cuda.memory._record_memory_history(enabled=None)
        torch.cuda.memory._record_memory_history(max_entries=200_000, context=None)
        one.run()
        torch.cuda.synchronize()
        return requests_of(torch.cuda.memory._snapshot()["device_traces"][0])

    def rest(self) -> None:
        """Free the cache occasionally, because several processes share the device."""
        if torch.cuda.memory_reserved() > LARGEST_CACHE:
            torch.cuda.empty_cache()


def requests_of(trace: list[dict[str, Any]]) -> list[int]:
    """Return the bytes allocated and freed. Blocks of earlier cases are ignored."""
    sizes: dict[int, int] = {}
    requests = []
    for event in trace:
        if event["action"] == "alloc":
            sizes[event["addr"]] = event["size"]
            requests.append(event["size"])
        elif event["action"] == "free_completed" and event["addr"] in sizes:
            requests.append(-sizes.pop(event["addr"]))
    return requests


def warm_up() -> None:
    """Allocate the memory that libraries keep before counting starts, in this thread and in the thread of the
    backward pass."""
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x = torch.randn(64, 64, device="cuda", dtype=dtype, requires_grad=True)
        torch.nn.functional.linear(x, x, x[0]).sum().backward()
    torch.linalg.inv(torch.eye(4, device="cuda"))
    torch.cuda.synchronize()


class Traced:
    """Runs cases on a traced device. The device stays open between cases, because opening it takes most of the time."""

    def __init__(self) -> None:
        self._device: Any = None
        self._mode = ""
        self._events: list[Any] = []

    def requests(self, one: Case) -> list[int]:
        """Return the bytes allocated and freed."""
        from legroom.predict.tracing.virtual_trace import needs_arithmetic

        try:
            return self._in("fake", one)
        except Exception as error:
            self.close()
            if not needs_arithmetic(error):
                raise
        try:
            return self._in("cpu", one)
        except Exception:
            self.close()
            raise

    def _in(self, mode: str, one: Case) -> list[int]:
        if self._mode != mode:
            self.close()
            self._open(mode)
        torch.manual_seed(0)
        before = len(self._events)
        one.run()
        return signed(self._events, before)

    def _open(self, mode: Any) -> None:
        from legroom.gpus.catalog import find_gpu
        from legroom.predict.tracing.virtual_trace import make_device

        self._events = []
        self._device = make_device(find_gpu("h200"), mode, self._events.append)
        self._device.__enter__()
        self._mode = mode
        warm_up()

    def rest(self) -> None:
        """Do nothing, because only the device is kept between cases."""

    def close(self) -> None:
        if self._device is not None:
            self._device.__exit__(None, None, None)
        self._device, self._mode = None, ""


def signed(events: list[Any], before: int) -> list[int]:
    """Return the requests after event `before`. Blocks that already existed are ignored."""
    from legroom.memory.events import Alloc, Free

    sizes: dict[int, int] = {}
    requests = []
    for event in events[before:]:
        if isinstance(event, Alloc):
            sizes[event.id] = event.bytes
            requests.append(event.bytes)
        elif isinstance(event, Free) and event.id in sizes:
            requests.append(-sizes[event.id])
    return requests
