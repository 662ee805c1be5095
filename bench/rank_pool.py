"""Processes that form one job and live on: each task runs on all of them, and one that hangs is found out.

    with RankPool(2) as pool:
        results = pool.run(task, 1, 2)      # task(1, 2) on every rank; a list with each rank's result

Starting a rank takes seconds (importing torch), a task a fraction of one: hundreds of failures fit into one life.
"""

import multiprocessing
import os
import socket
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any


class Hang(AssertionError):  # noqa: N818
    """A rank did not answer in time."""


class RankPool:
    """`ranks` processes with a gloo group among them."""

    def __init__(self, ranks: int, *, gpu: str | None = None) -> None:
        """`gpu`: sizes of virtual GPUs, one per rank, as "64MiB,32MiB"; every rank sees its own as cuda:0."""
        spawn = multiprocessing.get_context("spawn")
        port = _free_port()
        sizes = gpu.split(",") if gpu else [None] * ranks
        self._pipes: list[Connection] = []
        self._processes = []
        for rank, size in zip(range(ranks), sizes, strict=True):
            ours, theirs = spawn.Pipe()
            process = spawn.Process(target=_live, args=(theirs, rank, ranks, port, size), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, task: Callable[..., Any], *arguments: Any, timeout: float = 60.0) -> list[Any]:
        """`task(*arguments)` on every rank. An error on a rank comes back as its traceback, in a RuntimeError."""
        for pipe in self._pipes:
            pipe.send((task, arguments))
        deadline = time.monotonic() + timeout
        results = []
        for rank, pipe in enumerate(self._pipes):
            if not pipe.poll(max(0.0, deadline - time.monotonic())):
                self.close()
                raise Hang(f"rank {rank} did not finish {task.__name__}{arguments} within {timeout:.0f} s")
            results.append(pipe.recv())
        for rank, (fine, result) in enumerate(results):
            if not fine:
                raise RuntimeError(f"rank {rank}:\n{result}")
        return [result for _, result in results]

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()

    def __enter__(self) -> "RankPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _live(pipe: Connection, rank: int, ranks: int, port: int, size: str | None) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(ranks))
    import contextlib

    import torch
    import torch.distributed as dist

    import legroom

    torch.set_num_threads(1)
    with legroom.VirtualGPU(size) if size else contextlib.nullcontext():
        dist.init_process_group("nccl" if size else "gloo")
        while True:
            try:
                task, arguments = pipe.recv()
            except EOFError:
                return
            try:
                pipe.send((True, task(*arguments)))
            except BaseException:
                pipe.send((False, traceback.format_exc()))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
