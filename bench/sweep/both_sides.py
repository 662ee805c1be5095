"""The two sides of the sweep: what one case asks of a GPU's allocator, and what a trace of it does.

Both give bytes asked for (+) and given back (-), in order. What libraries take once and keep is taken beforehand (`warm_up`).
"""

from typing import Any

import torch

from bench.sweep.kit import Case

LARGEST_CACHE = 8 << 30


class Measured:
    """Cases run on the real device: its allocator's own history."""

    def requests(self, one: Case) -> list[int]:
        torch.manual_seed(0)
        torch.cuda.memory._record_memory_history(enabled=None)
        torch.cuda.memory._record_memory_history(max_entries=200_000, context=None)
        one.run()
        torch.cuda.synchronize()
        return told(torch.cuda.memory._snapshot()["device_traces"][0])

    def rest(self) -> None:
        """Several processes share the device: what is cached is given back now and then."""
        if torch.cuda.memory_reserved() > LARGEST_CACHE:
            torch.cuda.empty_cache()


def told(trace: list[dict[str, Any]]) -> list[int]:
    """Bytes asked for and given back; what an earlier case left is not this one's."""
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
    """What libraries take once and keep is taken before anything is counted: in this thread and in the backward pass's."""
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x = torch.randn(64, 64, device="cuda", dtype=dtype, requires_grad=True)
        torch.nn.functional.linear(x, x, x[0]).sum().backward()
    torch.linalg.inv(torch.eye(4, device="cuda"))
    torch.cuda.synchronize()


class Traced:
    """Cases run on a traced device, which stays open from one to the next, as that is most of the cost."""

    def __init__(self) -> None:
        self._device: Any = None
        self._mode = ""
        self._events: list[Any] = []

    def requests(self, one: Case) -> list[int]:
        """Bytes asked for and given back."""
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
        """Nothing is kept from one case to the next but the device."""

    def close(self) -> None:
        if self._device is not None:
            self._device.__exit__(None, None, None)
        self._device, self._mode = None, ""


def signed(events: list[Any], before: int) -> list[int]:
    """The requests among events from the `before`-th on; what was there before is not given back."""
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
