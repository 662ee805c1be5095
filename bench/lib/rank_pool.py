"""Worker processes that form one distributed job and run many tasks.

    with RankPool(2) as pool:
        results = pool.run(task, 1, 2)      # task(1, 2) on every rank; a list with each rank's result

Starting the ranks takes seconds, because torch is imported. Running a task takes a fraction of a second. If a rank
does not answer in time, `Hang` is raised.
"""

import gc
import multiprocessing
import os
import socket
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

virtual_gpu: Any = None
"""The virtual GPU of this rank."""


class Hang(AssertionError):  # noqa: N818
    """A rank did not answer in time."""


class RankPool:
    """A pool of `ranks` processes with a gloo group."""

    def __init__(self, ranks: int, *, gpu: str | None = None) -> None:
        """Start the processes. `gpu` contains the sizes of virtual GPUs, one per rank, as in "64MiB,32MiB". Every
        rank sees its own GPU as cuda:0."""
        server = multiprocessing.get_context("forkserver")  # imports torch once for all pools
        # Every optimizer imports torch._dynamo.
        server.set_forkserver_preload(["torch._dynamo", "torch.distributed.fsdp", "legroom"])
        port = _free_port()
        sizes = gpu.split(",") if gpu else [None] * ranks
        self._pipes: list[Connection] = []
        self._processes = []
        for rank, size in zip(range(ranks), sizes, strict=True):
            ours, theirs = server.Pipe()
            process = server.Process(target=_live, args=(theirs, rank, ranks, port, size), daemon=True)
            process.start()
            theirs.close()  # close our copy, so that a rank's death is noticed
            self._pipes.append(ours)
            self._processes.append(process)

    def run(
        self, task: Callable[..., Any], *arguments: Any, timeout: float = 60.0, may_die: bool = False
    ) -> list[Any]:
        """Run `task(*arguments)` on every rank. An error on a rank is raised as a RuntimeError with its traceback.

        With `may_die`, the result of a rank whose process exits is None.
        """
        for pipe in self._pipes:
            pipe.send((task, arguments))
        answers: dict[int, tuple[bool, Any]] = {}
        deadline = time.monotonic() + timeout
        while len(answers) < len(self._pipes):
            waiting = {pipe: rank for rank, pipe in enumerate(self._pipes) if rank not in answers}
            ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
            for pipe in ready:
                answers[waiting[pipe]] = _answer(pipe, may_die)
            for rank, (fine, result) in answers.items():
                if not fine:  # the other ranks may wait for it forever
                    self.close()
                    raise RuntimeError(f"rank {rank}:\n{result}")
            if not ready:
                self.close()
                late = ", ".join(map(str, waiting.values()))
                raise Hang(f"{task.__name__}{arguments}: ranks {late} did not finish within {timeout:.0f} s")
        return [answers[rank][1] for rank in range(len(self._pipes))]

    def close(self) -> None:
        """Terminate the processes."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()

    def __enter__(self) -> "RankPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _answer(pipe: Any, may_die: bool) -> tuple[bool, Any]:
    try:
        return pipe.recv()
    except EOFError:
        return (may_die, None if may_die else "its process exited")


def _live(pipe: Connection, rank: int, ranks: int, port: int, size: str | None) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(ranks))
    import contextlib

    import torch
    import torch.distributed as dist

    import legroom

    os.environ["LEGROOM_CACHE"] = "off"  # do not reuse sizes learned in the previous trial
    global virtual_gpu
    torch.set_num_threads(1)
    with legroom.VirtualGPU(size) if size else contextlib.nullcontext() as virtual_gpu:
        dist.init_process_group("nccl" if size else "gloo")
        gc.collect()
        gc.freeze()  # each recovery runs the garbage collector, which must not visit the objects of torch
        while True:
            try:
                task, arguments = pipe.recv()
            except EOFError:
                return
            gc.collect()  # wrapped models are reference cycles, so those of the previous task would fill the GPU
            try:
                pipe.send((True, task(*arguments)))
            except BaseException:
                pipe.send((False, traceback.format_exc()))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
