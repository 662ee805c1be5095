"""A trace contains the first rank that a script spawns. The report lists processes that the trace does not contain."""

import multiprocessing
import multiprocessing.process
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from legroom import VirtualGPU
from legroom.predict.tracing.started_processes import (
    first_spawned_rank_in_this_process,
    started_processes_noted,
)


def test_the_first_spawned_rank_runs_here_in_a_group_of_the_full_size(tmp_path: Path) -> None:
    notes: list[str] = []
    seen: list[object] = []
    with VirtualGPU("64MiB"), first_spawned_rank_in_this_process(tmp_path, notes.append):
        from torch.distributed import init_process_group  # as a script imports it, before it spawns

        def train(rank: int, size: int) -> None:
            init_process_group("nccl", init_method="tcp://127.0.0.1:1", world_size=size, rank=rank)
            model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2).cuda(rank))
            model(torch.ones(1, 2, device="cuda")).sum().backward()
            dist.all_reduce(torch.ones(1, device="cuda"))
            seen.append((dist.get_rank(), dist.get_world_size()))
            dist.destroy_process_group()

        mp.spawn(train, args=(4,), nprocs=2)
        assert mp.start_processes(seen.append, nprocs=2, join=False).join()
    assert seen == [(0, 4), 0]
    assert notes == ["The script starts 2 processes with `spawn`. Only the first process was traced"] * 2


def test_an_error_of_the_spawned_rank_is_raised_where_it_occurred(tmp_path: Path) -> None:
    def fail(rank: int) -> None:
        raise ValueError(rank)

    with (
        first_spawned_rank_in_this_process(tmp_path, lambda note: None),
        pytest.raises(ValueError, match="0"),
    ):
        mp.spawn(fail)
    assert mp.spawn.__module__ == "torch.multiprocessing.spawn"
    assert "legroom" not in mp.spawn.__code__.co_filename


def test_processes_of_the_script_are_named_but_not_loader_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", lambda process: None)

    def train() -> None: ...

    def worker_loop() -> None: ...

    worker_loop.__module__ = "torch.utils.data._utils.worker"
    with started_processes_noted(notes.append):
        multiprocessing.Process(target=worker_loop).start()
        multiprocessing.Process().start()
        assert not notes
        multiprocessing.Process(target=train).start()
    assert len(notes) == 1
    assert "(`train`)" in notes[0]
