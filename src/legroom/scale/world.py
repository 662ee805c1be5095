"""The rank and device of this process, and its process group.

    world = read_world(os.environ)      # the variables of torchrun or `legroom launch`; starts nothing
    devices = setup_rank(world)         # the device of this rank; starts the process group if launched

A process without a launcher has no process group. A launched process has a process group even if it is the only rank,
so a single rank behaves like several ranks. A process group that the script has already started is used unchanged.
"""

import atexit
import os
import re
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from legroom.errors import UsageError
from legroom.log import log
from legroom.observe.virtual.gpu import VirtualGPU
from legroom.train.ranks import waiting

DEFAULT_TIMEOUT = 600.0
"""The time in seconds to wait for other ranks at the start. LEGROOM_TIMEOUT overrides this value."""


@dataclass(frozen=True, slots=True)
class World:
    """The rank of this process and the number of ranks, as set in the environment variables."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    launched: bool = False
    """Whether a launcher started this process. A launched process has a process group, even with one rank."""


@dataclass(frozen=True, slots=True)
class RankDevices:
    """The devices of this rank."""

    world: World
    device: torch.device
    devices: tuple[torch.device, ...]


def read_world(environ: Mapping[str, str]) -> World:
    names = ("RANK", "WORLD_SIZE")
    given = [name for name in names if name in environ]
    if not given:
        return World()
    if len(given) < len(names):
        missing = next(name for name in names if name not in environ)
        raise UsageError(
            f"{given[0]} is set, but {missing} is not. Start the script with `legroom launch` or torchrun, "
            f"or unset {given[0]}."
        )
    rank, size = (_number(environ, name) for name in names)
    if not 0 <= rank < size:
        raise UsageError(f"RANK={rank} is not valid with WORLD_SIZE={size}. Ranks start at 0.")
    return World(
        rank,
        size,
        _number(environ, "LOCAL_RANK", rank),
        _number(environ, "LOCAL_WORLD_SIZE", size),
        launched=True,
    )


def setup_rank(world: World) -> RankDevices:
    """Return the devices of this rank. In a launched process, the process group is started."""
    started = dist.is_available() and dist.is_initialized()
    if started:
        world = World(
            dist.get_rank(), dist.get_world_size(), world.local_rank, world.local_size, launched=True
        )
    device = _device(world)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if world.launched and not started:
        _init_process_group(world, device)
    if world.size > 1:
        _reject_shared_devices(device)
    return RankDevices(world, device, (device,) if world.size > 1 else _all_devices(device))


def _device(world: World) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if world.local_rank < count:
        return torch.device("cuda", world.local_rank)
    if count == 1 and _may_have_own_gpu():
        return torch.device("cuda", 0)
    raise UsageError(
        f"{world.local_size} ranks were started on this machine, which has only {count} GPU{'s' if count > 1 else ''}. "
        f"Start one rank per GPU (`legroom launch --nproc {count}`), or set CUDA_VISIBLE_DEVICES= to use the CPU."
    )


def _may_have_own_gpu() -> bool:
    """Return whether a job scheduler or a virtual GPU may have hidden the GPUs of other ranks. The only visible GPU
    then has index 0 on every rank.

    Two ranks with the same GPU are detected after the process group has started.
    """
    return VirtualGPU._active is not None or "," not in os.environ.get("CUDA_VISIBLE_DEVICES", ",")


def _all_devices(device: torch.device) -> tuple[torch.device, ...]:
    if device.type == "cpu":
        return (device,)
    return tuple(torch.device("cuda", index) for index in range(torch.cuda.device_count()))


def _reject_shared_devices(device: torch.device) -> None:
    """Raise an error if two ranks use the same GPU. NCCL's own error message does not name these ranks."""
    if device.type == "cpu" or VirtualGPU._active is not None:
        return
    identity = (socket.gethostname(), str(getattr(torch.cuda.get_device_properties(device), "uuid", "")))
    all_ranks: list[tuple[str, str]] = [("", "")] * dist.get_world_size()
    with waiting.waiting("legroom.parallel()"):
        dist.all_gather_object(all_ranks, identity)
    if not identity[1]:  # not available before torch 2.4
        return
    sharing = [rank for rank, other in enumerate(all_ranks) if other == identity]
    if len(sharing) > 1:
        raise UsageError(
            f"Ranks {' and '.join(map(str, sharing))} use the same GPU on {identity[0]}. Start one rank per GPU, or set "
            "CUDA_VISIBLE_DEVICES to a different GPU for each rank."
        )


def _init_process_group(world: World, device: torch.device) -> None:
    timeout = read_timeout(os.environ)
    address = f"{os.environ.get('MASTER_ADDR', '?')}:{os.environ.get('MASTER_PORT', '?')}"
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if name not in os.environ:
            raise UsageError(
                f"RANK is set, but {name} is not. Start the script with `legroom launch` or torchrun."
            )
    duration = timedelta(seconds=timeout)
    report = threading.Timer(
        waiting.REPORT_SECONDS,
        lambda: log.warning(
            "Rank %d of %d is still waiting for other ranks at %s. All ranks must call legroom.parallel().",
            world.rank,
            world.size,
            address,
        ),
    )
    report.daemon = True
    report.start()
    try:
        store, _, _ = next(
            dist.rendezvous("env://", world.rank, world.size, timeout=duration)  # type: ignore[attr-defined]
        )
        store.set_timeout(duration)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
            store=store,
            rank=world.rank,
            world_size=world.size,
        )
    except (RuntimeError, ValueError) as error:  # torch's network errors are RuntimeErrors
        raise _connection_error(str(error), address, world, timeout) from None
    finally:
        report.cancel()
    atexit.register(_destroy_process_group)


def _destroy_process_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def read_timeout(environ: Mapping[str, str]) -> float:
    text = environ.get("LEGROOM_TIMEOUT", str(DEFAULT_TIMEOUT))
    try:
        timeout = float(text)
    except ValueError:
        timeout = 0.0
    if not timeout > 0:
        raise UsageError(f"LEGROOM_TIMEOUT={text} is not valid. Use a positive number of seconds.")
    return timeout


_JOINED = re.compile(r"(\d+)/(\d+) clients joined")


def _connection_error(message: str, address: str, world: World, timeout: float) -> UsageError:
    port = address.rpartition(":")[2]
    if "EADDRINUSE" in message or "ddress already in use" in message:
        return UsageError(
            f"Port {port} is in use on this machine. Set MASTER_PORT to another port, or use `legroom "
            "launch`, which selects a free port."
        )
    joined = _JOINED.search(message)
    connected = f"{joined[1]} of {world.size} ranks" if joined else "some ranks"
    if joined or "imed out" in message or "timeout" in message.lower() or "onnection" in message:
        return UsageError(
            f"Rank {world.rank} of {world.size} waited {timeout:g} s, but only {connected} connected to {address}. Start all ranks with this "
            "address, and check that every machine can reach the port. LEGROOM_TIMEOUT sets the timeout in seconds."
        )
    return UsageError(f"The ranks could not connect at {address}: {message.splitlines()[0]}")


def _number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environ.get(name)
    if text is None and default is not None:
        return default
    try:
        return int(text or "")
    except ValueError:
        raise UsageError(f"{name}={text} is not an integer.") from None
