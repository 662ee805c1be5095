"""Where this process stands among those that train one model: its rank, its device, and the meeting with the others.

    world = read_world(os.environ)      # what torchrun or `legroom launch` wrote there; nothing is started
    place = take_place(world)           # the device of this rank, and the process group if there is one to be

A process that nobody launched is alone: no process group, no port, no waiting. One that was launched, even as the only one, gets
its group, so that one rank behaves as many do. A group that the script has started already is used as it is.
"""

import atexit
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from legroom.errors import UsageError
from legroom.observe.virtual.gpu import VirtualGPU

PATIENCE = 600.0
"""Seconds to wait at the start for ranks that have not come; LEGROOM_PATIENCE changes it."""


@dataclass(frozen=True, slots=True)
class World:
    """What the environment says."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    launched: bool = False
    """Whether a launcher started this process: then there is a group, even of one."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where this rank computes."""

    world: World
    device: torch.device
    devices: tuple[torch.device, ...]
    """All that this process may use: more than one where it is alone on a machine with several GPUs."""

    @property
    def alone(self) -> bool:
        return not self.world.launched


def read_world(environ: Mapping[str, str]) -> World:
    """The ranks as torchrun, `legroom launch` and other launchers write them down."""
    names = ("RANK", "WORLD_SIZE")
    given = [name for name in names if name in environ]
    if not given:
        return World()
    if len(given) < len(names):
        missing = next(name for name in names if name not in environ)
        raise UsageError(
            f"{given[0]} is set and {missing} is not: start the script with `legroom launch` or torchrun, which set both, "
            f"or unset {given[0]}"
        )
    rank, size = (_number(environ, name) for name in names)
    if not 0 <= rank < size:
        raise UsageError(f"RANK={rank} is none of WORLD_SIZE={size} ranks: they are counted from 0")
    return World(
        rank,
        size,
        _number(environ, "LOCAL_RANK", rank),
        _number(environ, "LOCAL_WORLD_SIZE", size),
        launched=True,
    )


def take_place(world: World) -> Place:
    """The device of this rank; the process group is started if the process was launched and has none yet."""
    started = dist.is_available() and dist.is_initialized()
    if started:
        world = World(
            dist.get_rank(), dist.get_world_size(), world.local_rank, world.local_size, launched=True
        )
    device = _device(world)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if world.launched and not started:
        _meet(world, device)
    if world.size > 1:
        _refuse_shared_devices(device)
    return Place(world, device, (device,) if world.launched else _all_devices(device))


def _device(world: World) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if world.local_rank < count:
        return torch.device("cuda", world.local_rank)
    if count == 1 and _has_a_gpu_of_its_own():
        return torch.device("cuda", 0)
    raise UsageError(
        f"{world.local_size} ranks on this machine and {count} GPU{'s' if count > 1 else ''}: start {count} "
        f"(`legroom launch --nproc {count}`), or leave the GPUs out with CUDA_VISIBLE_DEVICES="
    )


def _has_a_gpu_of_its_own() -> bool:
    """Launchers that show each rank one GPU (a batch system's task, a virtual GPU): its number is 0 everywhere.

    Whether two were shown the same is found out when they have met.
    """
    return VirtualGPU._active is not None or "," not in os.environ.get("CUDA_VISIBLE_DEVICES", ",")


def _all_devices(device: torch.device) -> tuple[torch.device, ...]:
    if device.type == "cpu":
        return (device,)
    return tuple(torch.device("cuda", index) for index in range(torch.cuda.device_count()))


def _refuse_shared_devices(device: torch.device) -> None:
    """Two ranks on one GPU: NCCL would stop with an error that names neither."""
    if device.type == "cpu" or VirtualGPU._active is not None:
        return
    identity = (socket.gethostname(), str(getattr(torch.cuda.get_device_properties(device), "uuid", "")))
    everyone: list[tuple[str, str]] = [("", "")] * dist.get_world_size()
    dist.all_gather_object(everyone, identity)
    if not identity[1]:  # torch before 2.4 does not tell
        return
    sharing = [rank for rank, other in enumerate(everyone) if other == identity]
    if len(sharing) > 1:
        raise UsageError(
            f"ranks {' and '.join(map(str, sharing))} would share one GPU of {identity[0]}: start one rank per GPU, or show each "
            "rank a GPU of its own with CUDA_VISIBLE_DEVICES"
        )


def _meet(world: World, device: torch.device) -> None:
    patience = patience_in(os.environ)
    where = f"{os.environ.get('MASTER_ADDR', '?')}:{os.environ.get('MASTER_PORT', '?')}"
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if name not in os.environ:
            raise UsageError(
                f"RANK is set and {name} is not: start the script with `legroom launch` or torchrun"
            )
    waiting = timedelta(seconds=patience)
    try:
        store, _, _ = next(rendezvous("env://", world.rank, world.size, timeout=waiting))
        store.set_timeout(waiting)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
            store=store,
            rank=world.rank,
            world_size=world.size,
        )
    except (RuntimeError, ValueError) as error:  # torch's network errors are RuntimeErrors
        raise _why_nobody_met(str(error), where, world, patience) from None
    atexit.register(_part)


def _part() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def patience_in(environ: Mapping[str, str]) -> float:
    """LEGROOM_PATIENCE, or what is waited by default."""
    told = environ.get("LEGROOM_PATIENCE", str(PATIENCE))
    try:
        patience = float(told)
    except ValueError:
        patience = 0.0
    if not patience > 0:
        raise UsageError(f"LEGROOM_PATIENCE={told} is no number of seconds above zero")
    return patience


_JOINED = re.compile(r"(\d+)/(\d+) clients joined")


def _why_nobody_met(told: str, where: str, world: World, patience: float) -> UsageError:
    port = where.rpartition(":")[2]
    if "EADDRINUSE" in told or "ddress already in use" in told:
        return UsageError(
            f"port {port} of this machine is in use: set MASTER_PORT to another one, or start with `legroom launch`, which takes "
            "a free one"
        )
    joined = _JOINED.search(told)
    came = f"{joined[1]} of {world.size} ranks came" if joined else "not all ranks came"
    if joined or "imed out" in told or "timeout" in told.lower() or "onnection" in told:
        return UsageError(
            f"rank {world.rank} of {world.size} waited {patience:g} s at {where} and {came}: start all of them with this address, and "
            "see that the port can be reached from every machine (LEGROOM_PATIENCE=seconds waits longer)"
        )
    return UsageError(f"the ranks could not meet at {where}: {told.splitlines()[0]}")


def _number(environ: Mapping[str, str], name: str, otherwise: int | None = None) -> int:
    told = environ.get(name)
    if told is None and otherwise is not None:
        return otherwise
    try:
        return int(told or "")
    except ValueError:
        raise UsageError(f"{name}={told} is no whole number") from None
