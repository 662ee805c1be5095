"""Sharded tensors on a virtual GPU: the memory of their shards is counted."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from legroom import VirtualGPU


@pytest.fixture
def sharded() -> Iterator[DTensor]:
    with VirtualGPU("1GiB"):
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
        yield distribute_tensor(
            torch.ones(1 << 20, device="cuda"), init_device_mesh("cuda", (1,)), [Shard(0)]
        )
        dist.destroy_process_group()


def test_a_dtensor_reports_that_it_is_on_the_gpu(sharded: DTensor) -> None:
    assert sharded.device == torch.device("cuda", 0)


def test_results_of_operations_on_shards_are_counted(sharded: DTensor) -> None:
    kept = [sharded * 2 for _ in range(3)]
    before = torch.cuda.memory_allocated()
    kept.append(sharded * 2)
    assert torch.cuda.memory_allocated() - before == 4 << 20
    assert kept[0].to_local().device.type == "cuda"
