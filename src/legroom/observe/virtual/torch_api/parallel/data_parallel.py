"""`nn.DataParallel` over virtual GPUs: copies between devices, and replicas that run one after another.

With real GPUs, each replica runs in its own thread. With virtual GPUs, all replicas run in the calling thread, because
they share the CPU and the placement mode applies only to the thread that entered it.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from legroom.observe.virtual.patching import Replacement, optional_module, table


def replacements() -> Iterable[Replacement]:
    yield from table(
        torch._C,
        {
            "_broadcast": _broadcast,
            "_broadcast_out": _broadcast_out,
            "_broadcast_coalesced": _broadcast_coalesced,
            "_scatter": _scatter,
            "_gather": _gather,
            "_gather_out": _gather_out,
        },
        add=True,
    )
    threads = SimpleNamespace(Thread=_SynchronousThread, Lock=threading.Lock)
    yield from table(optional_module("torch.nn.parallel.parallel_apply"), {"threading": threads})
    # torch caches the streams of these copies. The streams must not outlive the virtual GPU.
    functions = optional_module("torch.nn.parallel._functions")
    yield from table(functions, {"_streams": None})


class _SynchronousThread:
    def __init__(self, target: Callable[..., Any], args: Sequence[Any] = (), kwargs: Any = None) -> None:
        self._target, self._arguments, self._options = target, args, kwargs or {}

    def start(self) -> None:
        self._target(*self._arguments, **self._options)

    def join(self) -> None: ...


def _broadcast(tensor: torch.Tensor, devices: Sequence[int]) -> list[torch.Tensor]:
    return [tensor.to(torch.device("cuda", device)) for device in devices]


def _broadcast_out(tensor: torch.Tensor, out: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    for destination in out:
        destination.copy_(tensor)
    return out


def _broadcast_coalesced(
    tensors: Sequence[torch.Tensor], devices: Sequence[int], buffer_size: int = 0
) -> list[list[torch.Tensor]]:
    return [[tensor.to(torch.device("cuda", device)) for tensor in tensors] for device in devices]


def _scatter(
    tensor: torch.Tensor,
    devices: Sequence[int],
    chunk_sizes: Sequence[int] | None,
    dim: int,
    streams: Any = None,
) -> list[torch.Tensor]:
    if chunk_sizes is None:
        chunks = torch.chunk(tensor, len(devices), dim)
    else:
        chunks = torch.split(tensor, list(chunk_sizes), dim)
    return [chunk.to(torch.device("cuda", device)) for chunk, device in zip(chunks, devices, strict=False)]


def _gather(tensors: Sequence[torch.Tensor], dim: int, destination: int | None) -> torch.Tensor:
    if destination is not None and destination < 0:
        device = torch.device("cpu")
    else:
        device = torch.device("cuda", torch.cuda.current_device() if destination is None else destination)
    return torch.cat([tensor.to(device) for tensor in tensors], dim)


def _gather_out(tensors: Sequence[torch.Tensor], out: torch.Tensor, dim: int) -> torch.Tensor:
    return out.copy_(torch.cat([tensor.to(out.device) for tensor in tensors], dim))
