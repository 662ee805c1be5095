"""What happens on a Ray worker: it starts its rank as a process, and sends what that leaves to the mailbox."""

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from legroom.scale.launching.folder import RankFiles, RunFolder
from legroom.scale.launching.rank_settings import ATTEMPT, ORDER

LOOK_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class RankOrder:
    """What every worker is told."""

    words: tuple[str, ...]
    """For this machine's Python."""
    environment: dict[str, str]
    folder: str
    """Where the launch was started: the script must be there on every node, as with torchrun."""


def run_on_worker(config: dict[str, Any]) -> None:
    """Ray Train's training function: returns when the rank has ended well, raises otherwise."""
    import ray
    import ray.train
    import torch.distributed as distributed

    mailbox, order = config["mailbox"], config["order"]
    context = ray.train.get_context()
    rank = context.get_world_rank()
    agreed: list[Any] = [None]
    if rank == 0:
        agreed = [(_own_address(), _free_port(), ray.get(mailbox.begin.remote()))]
    distributed.broadcast_object_list(agreed, src=0)
    address, port, attempt = agreed[0]
    with tempfile.TemporaryDirectory(prefix="legroom-rank-") as place:
        variables = {
            **order.environment,
            "RANK": str(rank),
            "LOCAL_RANK": str(context.get_local_rank()),
            "WORLD_SIZE": str(context.get_world_size()),
            "LOCAL_WORLD_SIZE": str(context.get_local_world_size()),
            "GROUP_RANK": str(context.get_node_rank()),
            "MASTER_ADDR": address,
            "MASTER_PORT": str(port),
            "TORCHELASTIC_RESTART_COUNT": str(attempt),
            ATTEMPT: "0",  # here every attempt has a folder of its own; the mailbox knows which it is
            ORDER: json.dumps({**json.loads(order.environment[ORDER]), "folder": place}),
        }
        code = _run_rank(
            order,
            variables,
            RunFolder(Path(place)).files(rank),
            send=lambda name, data: ray.get(mailbox.put.remote(attempt, rank, name, data)),
        )
    ray.get(mailbox.leave.remote(attempt, rank, code))
    if code != 0:
        raise RuntimeError(f"rank {rank} ended with code {code}")


def _run_rank(
    order: RankOrder, variables: Mapping[str, str], files: RankFiles, send: Callable[[str, bytes], object]
) -> int:
    settings = {**os.environ, **variables}
    settings.pop("LEGROOM", None)
    with files.out.open("wb") as out, files.err.open("wb") as err:
        process = subprocess.Popen(
            [sys.executable, *order.words], env=settings, cwd=order.folder, stdout=out, stderr=err
        )
    sent = {"out": 0, "err": 0}
    told = b""
    running = True
    while running:
        try:
            process.wait(LOOK_SECONDS)
            running = False
        except subprocess.TimeoutExpired:
            pass
        pieces = {name: _read(getattr(files, name), start) for name, start in sent.items()}
        ending = _read(files.ending, 0)
        if ending != told:  # ahead of the traceback, in the order in which the rank wrote them
            told = ending
            send("ending", ending)
        for name, piece in pieces.items():
            if piece:
                sent[name] += len(piece)
                send(name, piece)
    if files.capture.exists():
        send("capture", files.capture.read_bytes())
    return process.returncode


def _read(path: Path, start: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read()
    except OSError:
        return b""


def _own_address() -> str:
    import ray.util

    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
