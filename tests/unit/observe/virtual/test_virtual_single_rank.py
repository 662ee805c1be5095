"""A rank that is traced alone: the world size is that of the whole run, but no other ranks exist."""

import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import device_mesh
from torch.distributed.fsdp import fully_shard

import legroom
from legroom import VirtualGPU
from legroom.observe.virtual.single_rank import VARIABLE


@pytest.fixture
def third_of_four(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name, value in {VARIABLE: str(tmp_path), "RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    with VirtualGPU("1GiB"):
        dist.init_process_group("nccl")
        yield
        dist.destroy_process_group()


@pytest.mark.usefixtures("third_of_four")
def test_rank_and_world_size_are_those_of_the_environment() -> None:
    assert (dist.get_rank(), dist.get_world_size()) == (2, 4)


@pytest.mark.usefixtures("third_of_four")
def test_collectives_do_not_wait_for_other_ranks() -> None:
    dist.barrier()
    ones = torch.ones(4, device="cuda")
    dist.all_reduce(ones)
    objects: list[object] = ["unchanged"]
    dist.broadcast_object_list(objects, src=0)
    assert objects == ["unchanged"]


def test_objects_broadcast_by_rank_0_reach_ranks_traced_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    received = []
    for rank in ("0", "1"):
        for name, value in {VARIABLE: str(tmp_path), "RANK": rank, "WORLD_SIZE": "2"}.items():
            monkeypatch.setenv(name, value)
        with VirtualGPU("1GiB"):
            dist.init_process_group("nccl")
            for item in ("plan", "path"):
                objects = [item if rank == "0" else None]
                dist.broadcast_object_list(objects, src=0)
                received += objects
            dist.destroy_process_group()
    assert received == ["plan", "path", "plan", "path"]


@pytest.mark.usefixtures("third_of_four")
def test_a_ddp_replica_trains_a_step() -> None:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8).cuda())
    model(torch.ones(2, 8, device="cuda")).sum().backward()
    assert next(model.parameters()).grad is not None


@pytest.mark.usefixtures("third_of_four")
def test_gathered_objects_of_other_ranks_are_those_of_this_rank() -> None:
    objects = [None] * 4
    dist.all_gather_object(objects, "own")
    assert objects == ["own"] * 4


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("rank", ["0", "1"])
def test_legroom_parallel_splits_the_batch_as_with_all_ranks(
    rank: str, strategy: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The second GPU has half the memory of the first GPU, so its rank gets a third of the samples."""
    world = {"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": "2"}
    for name, value in {VARIABLE: str(tmp_path), "MASTER_ADDR": "?", "MASTER_PORT": "1", **world}.items():
        monkeypatch.setenv(name, value)
    batch = torch.ones(30, 8), torch.ones(30, 8)
    with VirtualGPU("512MiB", "256MiB"):
        model = torch.nn.Linear(8, 8)
        run = legroom.parallel(model, torch.optim.SGD(model.parameters()), strategy, batch=batch)
        guard = run.guard()
        for x, y in run.loader(torch.utils.data.TensorDataset(*batch), batch_size=30):
            guard.step(lambda x, y: (run.model(x) - y).square().mean(), x, y)
            assert (len(x), x.device.index) == ((20, 0), (10, 1))[int(rank)]
        dist.destroy_process_group()


@pytest.mark.usefixtures("third_of_four")
def test_a_sharded_model_allocates_its_shard_only() -> None:
    model = torch.nn.Linear(1024, 1024, bias=False).cuda()
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    model(torch.ones(2, 1024, device="cuda")).sum().backward()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    optimizer.step()
    shard = 1024 * 1024  # a quarter of 4 MiB
    assert torch.cuda.memory_allocated() - before == shard  # the momentum
    assert (
        torch.cuda.max_memory_allocated() - before <= 2 * shard
    )  # and at most one temporary, never full tensors


@pytest.mark.skipif(
    "LOCAL_RANK" not in inspect.getsource(device_mesh),
    reason="this torch does not read LOCAL_RANK for a mesh",
)
def test_a_sharded_model_is_on_the_gpu_of_the_local_rank(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in {VARIABLE: str(tmp_path), "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    with VirtualGPU("1GiB", "1GiB"):
        dist.init_process_group("nccl")
        with torch.device("meta"):
            model = torch.nn.Linear(8, 8)
        fully_shard(model)
        model.to_empty(device="cuda:1")
        model(torch.ones(2, 8, device="cuda:1")).sum().backward()
        assert model.weight.grad is not None
        assert model.weight.grad.device == torch.device("cuda", 1)
        dist.destroy_process_group()
