"""Sharded tensors on a virtual GPU: the memory of their shards is counted."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import tensor as dtensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.two_tensor import TwoTensor

from legroom import VirtualGPU
from legroom.observe.virtual.torch_api.parallel.dtensor import _distribute_region

store: Any = dist.HashStore  # type: ignore[attr-defined]


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    with VirtualGPU("1GiB"):
        dist.init_process_group("nccl", store=store(), rank=0, world_size=1)
        yield init_device_mesh("cuda", (1,))
        dist.destroy_process_group()


@pytest.fixture
def sharded(mesh: DeviceMesh) -> DTensor:
    return distribute_tensor(torch.ones(1 << 20, device="cuda"), mesh, [Shard(0)])


def test_a_dtensor_reports_that_it_is_on_the_gpu(sharded: DTensor) -> None:
    assert sharded.device == torch.device("cuda", 0)


def test_results_of_operations_on_shards_are_counted(sharded: Any) -> None:
    kept = [sharded * 2 for _ in range(3)]
    before = torch.cuda.memory_allocated()
    kept.append(sharded * 2)
    assert torch.cuda.memory_allocated() - before == 4 << 20
    assert kept[0].to_local().device.type == "cuda"


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.up, self.down = nn.Embedding(16, 8), nn.Linear(8, 32), nn.Linear(32, 8)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> Any:
        return self.down(self.dropout(torch.relu(self.up(self.embed(x)))))


def shard(model: nn.Module, mesh: DeviceMesh) -> None:
    fsdp: Any = pytest.importorskip("torch.distributed.fsdp")
    if not hasattr(fsdp, "fully_shard"):
        pytest.skip("this version of torch has no FSDP2")
    fsdp.fully_shard(model, mesh=mesh)


def parallelize(model: nn.Module, mesh: DeviceMesh) -> None:
    plan: Any = {
        "embed": RowwiseParallel(input_layouts=Replicate()), "up": ColwiseParallel(), "down": RowwiseParallel()
    }  # fmt: skip
    parallelize_module(model, mesh, plan)


@pytest.mark.parametrize("distribute", [shard, parallelize])
def test_a_model_from_the_meta_device_is_sharded_initialized_and_trained(
    mesh: DeviceMesh, distribute: Callable[[nn.Module, DeviceMesh], None]
) -> None:
    with torch.device("meta"):
        model = Layers()
    distribute(model, mesh)
    model.to_empty(device="cuda")
    torch.manual_seed(0)
    for module in (model.embed, model.up, model.down):
        module.reset_parameters()
    torch.manual_seed(0)
    assert torch.equal(cpu_data(model.embed.weight), nn.Embedding(16, 8).weight)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.zeros(4, dtype=torch.long, device="cuda")).sum().backward()
    optimizer.step()
    assert {str(parameter.device) for parameter in model.parameters()} == {"cuda:0"}
    assert {str(state["exp_avg"].device) for state in optimizer.state.values()} == {"cuda:0"}


def cpu_data(parameter: Any) -> torch.Tensor:
    return parameter.full_tensor().cpu() if isinstance(parameter, DTensor) else parameter.detach().cpu()


def test_functions_that_create_dtensors_create_them_on_the_gpu(mesh: DeviceMesh) -> None:
    for create in (dtensor.zeros, dtensor.ones, dtensor.randn, dtensor.rand):
        made: Any = create(8, 4, device_mesh=mesh, placements=[Shard(0)])
        assert (str(made.device), str(made.to_local().device)) == ("cuda:0", "cuda:0")
    made = None
    before = torch.cuda.memory_allocated()
    made = dtensor.zeros(1 << 18, device_mesh=mesh, placements=[Shard(0)])
    assert torch.cuda.memory_allocated() - before == 4 * made.numel()
    assert str(DTensor.from_local(torch.ones(2), mesh, [Replicate()]).device) == "cuda:0"


@pytest.mark.parametrize(("is_sharded", "are_equal"), [(True, False), (False, True)])
def test_shards_have_different_random_numbers_and_replicas_the_same(
    is_sharded: bool, are_equal: bool
) -> None:
    placement = Shard(0) if is_sharded else Replicate()
    drawn, next_numbers = [], []
    for rank in range(2):
        torch.manual_seed(3)
        rank_mesh = SimpleNamespace(get_coordinate=lambda rank=rank: [rank], size=lambda dimension: 2)
        tracker = SimpleNamespace(distribute_region_enabled=True)
        with _distribute_region(tracker, SimpleNamespace(mesh=rank_mesh, placements=[placement])):
            drawn.append(torch.rand(4))
        next_numbers.append(torch.rand(4))
    assert torch.equal(*drawn) == are_equal
    assert torch.equal(*next_numbers)


def test_tensors_inside_other_tensors_are_counted_and_report_their_device() -> None:
    with VirtualGPU("1GiB"):
        pair: Any = TwoTensor(torch.ones(1 << 18, device="cuda"), torch.ones(1 << 18, device="cuda"))  # type: ignore[no-untyped-call]
        before = torch.cuda.memory_allocated()
        twice = pair * 2
        assert (str(twice.device), twice.is_cuda) == ("cuda:0", True)
        assert torch.cuda.memory_allocated() - before == 2 << 20
        (pair.requires_grad_() * 2).sum().backward()  # crashes if the C++ code sees a real device
        assert str(pair.grad.device) == "cuda:0"
        nested: Any = torch.nested.nested_tensor(
            [torch.ones(2, 3, device="cuda"), torch.ones(1, 3, device="cuda")], layout=torch.jagged
        )
        assert {str(each.device) for each in (nested, nested * 2, nested.values(), nested.offsets())} == {
            "cuda:0"
        }
