"""Starts a rank as a process on a Ray worker, and sends its output to the mailbox."""

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

from legroom.scale.launching.folder import LaunchFolder, RankFiles
from legroom.scale.launching.rank_settings import ATTEMPT_VARIABLE, SETTINGS_VARIABLE

POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class RankTask:
    """The program that every worker starts, with its arguments and environment variables."""

    arguments: tuple[str, ...]
    """The command-line arguments for Python, which start with the program of the rank."""
    environment: dict[str, str]
    folder: str
    """The working directory of the launch. As in a launch with torchrun, this directory must contain the script on
    every node.
    """


def run_on_worker(config: dict[str, Any]) -> None:
    """Run the rank as a Ray Train training function. Raise an error if the rank fails."""
    import ray
    import ray.train
    import torch.distributed as distributed

    mailbox, task = config["mailbox"], config["task"]
    context = ray.train.get_context()
    rank = context.get_world_rank()
    shared: list[Any] = [None]
    if rank == 0:
        shared = [(_own_address(), _free_port(), ray.get(mailbox.begin.remote()))]
    distributed.broadcast_object_list(shared, src=0)
    address, port, attempt = shared[0]
    with tempfile.TemporaryDirectory(prefix="legroom-rank-") as folder:
        variables = {
            **task.environment,
            "RANK": str(rank),
            "LOCAL_RANK": str(context.get_local_rank()),
            "WORLD_SIZE": str(context.get_world_size()),
            "LOCAL_WORLD_SIZE": str(context.get_local_world_size()),
            "GROUP_RANK": str(context.get_node_rank()),
            "MASTER_ADDR": address,
            "MASTER_PORT": str(port),
            "TORCHELASTIC_RESTART_COUNT": str(attempt),
            ATTEMPT_VARIABLE: "0",  # every attempt has its own folder here; the mailbox stores its number
            SETTINGS_VARIABLE: json.dumps(
                {**json.loads(task.environment[SETTINGS_VARIABLE]), "folder": folder}
            ),
        }
        code = _run_rank(
            task,
            variables,
            LaunchFolder(Path(folder)).files(rank),
            send=lambda name, data: ray.get(mailbox.put.remote(attempt, rank, name, data)),
        )
    ray.get(mailbox.exited.remote(attempt, rank, code))
    if code != 0:
        raise RuntimeError(f"rank {rank} exited with code {code}")


def _run_rank(
    task: RankTask, variables: Mapping[str, str], files: RankFiles, send: Callable[[str, bytes], object]
) -> int:
    settings = {**os.environ, **variables}
    settings.pop("LEGROOM", None)
    with files.out.open("wb") as out, files.err.open("wb") as err:
        process = subprocess.Popen(
            [sys.executable, *task.arguments], env=settings, cwd=task.folder, stdout=out, stderr=err
        )
    sent = {"out": 0, "err": 0}
    sent_record = b""
    running = True
    while running:
        try:
            process.wait(POLL_SECONDS)
            running = False
        except subprocess.TimeoutExpired:
            pass
        chunks = {name: _read(getattr(files, name), start) for name, start in sent.items()}
        exit_record = _read(files.exit_record, 0)
        if exit_record != sent_record:  # the rank writes its record before its traceback
            sent_record = exit_record
            send("exit_record", exit_record)
        for name, chunk in chunks.items():
            if chunk:
                sent[name] += len(chunk)
                send(name, chunk)
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
