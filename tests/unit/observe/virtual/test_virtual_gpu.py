"""Programs for CUDA on a machine without a GPU: tensor devices, out-of-memory errors, results."""

import copy
import gc
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from legroom import VirtualGPU
from legroom.errors import UsageError
from legroom.gpus.catalog import find_gpu
from legroom.memory.event_base import Category
from legroom.memory.events import Event, Holder, Oom
from legroom.memory.ledger import Ledger
from legroom.units import KiB, MiB

pytestmark = pytest.mark.slow


@pytest.fixture
def gpu() -> Iterator[VirtualGPU]:
    with VirtualGPU("1GiB", "512MiB") as gpu:
        yield gpu


# --- where things live


def test_tensors_report_their_device(gpu: VirtualGPU) -> None:
    x = torch.ones(4, device="cuda")
    assert (x.device, x.is_cuda, x.is_cpu, x.get_device()) == (torch.device("cuda:0"), True, False, 0)
    host = x.cpu()
    assert (host.device, host.is_cuda, host.get_device()) == (torch.device("cpu"), False, -1)
    assert "device='cuda:0'" in repr(x)
    assert "device" not in repr(host)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(3).cuda(),
        lambda: torch.ones(3).to("cuda"),
        lambda: torch.ones(3).to("cuda:0", torch.float64),
        lambda: torch.ones(3).to(torch.device("cuda"), non_blocking=True),
        lambda: torch.ones(3).to(device=0),
        lambda: torch.ones(3).to(torch.ones(1, device="cuda")),
        lambda: torch.ones(3).type("torch.cuda.FloatTensor"),
        lambda: torch.ones(3, device=torch.device(0)),
        lambda: torch.tensor([1, 2, 3], device="cuda"),
        lambda: torch.as_tensor([1, 2, 3], device="cuda"),
        lambda: torch.arange(3, device="cuda:0"),
        lambda: torch.randn(3, device="cuda", generator=torch.Generator("cuda")),
        lambda: torch.ones(3, device="cuda") + 1,
        lambda: torch.ones_like(torch.ones(3, device="cuda")),
        lambda: torch.ones(3, device="cuda").new_zeros(2),
        lambda: torch.empty(0, device="cuda"),
        lambda: nn.Linear(2, 2).cuda().weight,
        lambda: nn.Linear(2, 2, device="cuda").weight,
        lambda: copy.deepcopy(nn.BatchNorm1d(2).cuda()).running_mean,
        lambda: F.one_hot(torch.tensor([1], device="cuda"), 3),
        lambda: torch.cat([torch.ones(1, device="cuda")] * 2),
        lambda: torch.ones(2, 2, device="cuda").nonzero(),
    ],
)
def test_every_way_to_place_a_tensor_on_the_device_works(
    gpu: VirtualGPU, make: Callable[[], torch.Tensor]
) -> None:
    assert make().device == torch.device("cuda:0")


def test_moving_to_another_device_copies_and_to_the_same_does_not(gpu: VirtualGPU) -> None:
    host = torch.zeros(3)
    there = host.cuda()
    there += 1
    assert host.tolist() == [0, 0, 0]
    assert there.cuda() is there
    assert there.to("cuda:0") is there
    assert there.cpu().data_ptr() != there.data_ptr()


def test_default_devices_and_device_contexts_apply(gpu: VirtualGPU) -> None:
    torch.set_default_device("cuda")
    try:
        assert torch.zeros(2).is_cuda
        assert nn.Linear(2, 2).weight.is_cuda
    finally:
        torch.set_default_device(None)
    with torch.device("cuda:1"):
        assert torch.zeros(2).get_device() == 1
    with torch.cuda.device(1):
        assert torch.zeros(2, device="cuda").get_device() == 1
    assert not torch.zeros(2).is_cuda


def test_tensors_on_different_devices_raise_an_error(gpu: VirtualGPU) -> None:
    here, there = torch.ones(3, device="cuda:0"), torch.ones(3, device="cuda:1")
    with pytest.raises(RuntimeError, match="at least two devices, cuda:0 and cpu!"):
        here + torch.ones(3)
    with pytest.raises(RuntimeError, match="at least two devices, cuda:0 and cuda:1!"):
        here + there
    assert (here + torch.tensor(1.0)).tolist() == [2, 2, 2], "a host scalar may join"
    assert here[torch.tensor([0, 1])].is_cuda, "host indices may join"
    here.copy_(there)


def test_a_missing_device_is_an_invalid_ordinal_for_tensors(gpu: VirtualGPU) -> None:
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.ones(3, device="cuda:5")


def test_numpy_rejects_device_tensors(gpu: VirtualGPU) -> None:
    x = torch.ones(3, device="cuda")
    with pytest.raises(
        TypeError, match=r"can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu\(\)"
    ):
        x.numpy()
    assert x.cpu().numpy().sum() == 3


def test_numpy_memory_is_not_shared_with_the_device(gpu: VirtualGPU) -> None:
    import numpy

    array = numpy.zeros(3, dtype=numpy.float32)
    x = torch.as_tensor(array, device="cuda")
    x += 1
    assert array.sum() == 0


# --- when memory ends


def test_out_of_memory_is_raised_by_the_operation_and_the_run_continues() -> None:
    with VirtualGPU("64MiB"):
        kept = [torch.empty(8 * MiB, dtype=torch.uint8, device="cuda")]
        with pytest.raises(torch.OutOfMemoryError) as caught:
            for _ in range(100):
                kept.append(torch.empty(8 * MiB, dtype=torch.uint8, device="cuda"))
        assert len(kept) == 8 - 2  # three segments of 20 MiB, with two tensors each
        text = str(caught.value)
        assert text.startswith(
            "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 64.00 MiB"
        )
        assert "of which 4.00 MiB is free" in text
        assert (
            "48.00 MiB is allocated by PyTorch, and 12.00 MiB is reserved by PyTorch but unallocated" in text
        )
        kept.clear()
        del caught
        assert torch.cuda.memory_allocated() == 0
        torch.empty(60 * MiB, dtype=torch.uint8, device="cuda")


def test_the_error_keeps_no_tensor_of_the_failed_operation_alive() -> None:
    with VirtualGPU("64MiB"):

        def too_much() -> None:
            (torch.ones(10 * MiB // 4, device="cuda") * 2).repeat(100)

        failure: BaseException | None = None
        try:
            too_much()
        except torch.OutOfMemoryError as error:
            failure = error
        assert failure is not None
        assert torch.cuda.memory_allocated() == 0


def test_a_fallback_to_batch_size_one_works() -> None:
    def run_model(batch_size: int) -> float:
        model = nn.Linear(1024, 1024).cuda()
        return model(torch.ones(batch_size, 1024, device="cuda")).sum().item()

    with VirtualGPU("32MiB"):
        oom = False
        try:
            run_model(16 * 1024)
        except RuntimeError:
            oom = True
        assert oom
        for _ in range(2):
            run_model(1)


def test_an_out_of_memory_event_records_the_request_and_the_holders() -> None:
    events: list[Event] = []

    def train() -> None:
        history = []
        for _ in range(100):
            history.append(torch.ones(MiB, device="cuda"))

    with VirtualGPU("64MiB", sink=events.append), pytest.raises(torch.OutOfMemoryError):
        train()
    (oom,) = [event for event in events if isinstance(event, Oom)]
    assert (oom.requested, oom.capacity) == (4 * MiB, 64 * MiB)
    assert oom.frame is not None
    assert oom.frame.function == "train"
    assert oom.allocated + oom.cached + oom.fragmented == oom.reserved
    holder = next(event for event in events if isinstance(event, Holder))
    assert holder.path == f"history (list, {oom.allocated // (4 * MiB)} items)"
    assert holder.bytes == oom.allocated


def test_categories_are_known_at_an_out_of_memory_in_the_forward_pass() -> None:
    events: list[Event] = []
    with VirtualGPU("40MiB", sink=events.append), pytest.raises(torch.OutOfMemoryError):
        model = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(100)]).cuda()
        model(torch.ones(1024, 256, device="cuda"))
    by_category = Ledger(events).at_oom().by_category()
    assert by_category[Category.PARAMETER] == 100 * (256 * 256 + 256) * 4
    assert by_category[Category.INPUT] == 1024 * 256 * 4
    held = sum(by_category.values()) - by_category[Category.PARAMETER] - by_category[Category.INPUT]
    assert by_category[Category.ACTIVATION] >= 0.75 * held


def test_a_memory_fraction_limits_the_process() -> None:
    with VirtualGPU("100MiB"):
        torch.cuda.set_per_process_memory_fraction(0.5)
        with pytest.raises(torch.OutOfMemoryError, match="50.00 MiB allowed"):
            torch.empty(60 * MiB, dtype=torch.uint8, device="cuda")


def test_the_cuda_context_uses_memory() -> None:
    with VirtualGPU(replace(find_gpu("100MiB"), name="small", context=20 * MiB)):
        assert torch.cuda.mem_get_info() == (80 * MiB, 100 * MiB)
        with pytest.raises(
            torch.OutOfMemoryError, match="total capacity of 100.00 MiB of which 80.00 MiB is free"
        ):
            torch.empty(90 * MiB, dtype=torch.uint8, device="cuda")


def test_tensors_in_a_reference_cycle_are_freed_by_gc(gpu: VirtualGPU) -> None:
    class Node:
        other: "Node"
        data: torch.Tensor

    a, b = Node(), Node()
    a.other, b.other = b, a
    a.data = torch.ones(KiB, device="cuda")
    del a, b
    gc.collect()
    assert torch.cuda.memory_allocated() == 0


# --- what it computes

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p),
    "adamw fused": lambda p: torch.optim.AdamW(p, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, momentum=0.9, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p),
    "adadelta": lambda p: torch.optim.Adadelta(p),
    "adamax": lambda p: torch.optim.Adamax(p),
    "nadam": lambda p: torch.optim.NAdam(p),
    "radam": lambda p: torch.optim.RAdam(p),
    "asgd": lambda p: torch.optim.ASGD(p),
    "rprop": lambda p: torch.optim.Rprop(p),
    "adafactor": lambda p: torch.optim.Adafactor(p),
}


class Net(nn.Module):
    """A model with convolution, normalization, attention, dropout, recurrence and checkpointing."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2)
        )
        self.attention = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
        self.rnn = nn.GRU(32, 16, batch_first=True)
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x).flatten(2).transpose(1, 2).reshape(x.shape[0], -1, 32)
        y = checkpoint(self.attention, y, use_reentrant=False)
        return self.head(self.rnn(y)[0][:, -1])


def trained(device: str, make_optimizer: Callable[[Any], torch.optim.Optimizer]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = Net().to(device)
    optimizer = make_optimizer(model.parameters())
    data = TensorDataset(torch.randn(12, 1, 8, 8), torch.randint(0, 10, (12,)))
    losses = []
    for x, y in DataLoader(data, batch_size=4, shuffle=True, pin_memory=device == "cuda"):
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach().cpu())
    model.eval()
    with torch.no_grad():
        losses.append(model(data.tensors[0].to(device)).cpu())
    return losses + [value.cpu() for value in model.state_dict().values()]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_has_bit_for_bit_the_results_of_the_cpu(gpu: VirtualGPU, optimizer: str) -> None:
    there = trained("cuda", OPTIMIZERS[optimizer])
    here = trained("cpu", OPTIMIZERS[optimizer])
    assert all(torch.equal(a, b) for a, b in zip(here, there, strict=True))


def test_data_parallel_on_two_virtual_gpus_has_the_gradients_of_one(gpu: VirtualGPU) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).cuda()
    x = torch.randn(6, 8, device="cuda")
    model(x).square().mean().backward()
    whole = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    out = nn.DataParallel(model, device_ids=[0, 1])(x)
    assert out.get_device() == 0
    assert torch.cuda.max_memory_allocated(1) > 0
    out.square().mean().backward()
    split = [p.grad for p in model.parameters() if p.grad is not None]
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(whole, split, strict=True))


def test_manual_model_parallelism_works(gpu: VirtualGPU) -> None:
    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8).to("cuda:0"), nn.Linear(8, 2).to("cuda:1")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x).to("cuda:1"))

    model = Halves()
    model(torch.ones(3, 8, device="cuda:0")).sum().backward()
    assert [p.grad.get_device() for p in model.parameters() if p.grad is not None] == [0, 0, 1, 1]


# --- around it


def test_tensors_of_threads_are_counted(gpu: VirtualGPU) -> None:
    seen: list[Any] = []

    def work() -> None:
        x = torch.ones(KiB, device="cuda")
        seen.append((x * 2).device)
        seen.append(torch.cuda.memory_allocated() > 0)

    class Worker(threading.Thread):
        def run(self) -> None:
            work()

    for thread in (threading.Thread(target=work), Worker()):
        thread.start()
        thread.join()
    assert seen == [torch.device("cuda:0"), True] * 2


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_a_forked_child_computes_and_emits_no_events() -> None:
    events: list[Event] = []
    with VirtualGPU("64MiB", sink=events.append):
        torch.ones(3, device="cuda")
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            before = len(events)
            torch.ones(3, device="cuda") + 1
            os.write(write, b"silent" if len(events) == before else b"spoke")
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(read, 10) == b"silent"


def test_loader_workers_run(gpu: VirtualGPU) -> None:
    loader = DataLoader(TensorDataset(torch.arange(8.0)), batch_size=4, num_workers=1, pin_memory=True)
    assert [batch.cuda().sum().item() for (batch,) in loader] == [6.0, 22.0]


def test_a_second_virtual_gpu_is_rejected(gpu: VirtualGPU) -> None:
    with pytest.raises(UsageError, match="already active"), VirtualGPU("1GiB"):
        pass


def test_torch_is_restored_after_the_block() -> None:
    with VirtualGPU("1GiB"):
        x = torch.ones(3, device="cuda")
        assert torch.cuda.is_available()
    assert not torch.cuda.is_available()
    assert x.device == torch.device("cpu")
    with VirtualGPU("1GiB"):
        assert torch.cuda.memory_allocated() == 0


def test_a_virtual_gpu_can_decorate_a_function() -> None:
    @VirtualGPU("1GiB")
    def where() -> torch.device:
        return torch.ones(1, device="cuda").device

    assert [where(), where()] == [torch.device("cuda:0")] * 2


@pytest.mark.parametrize("size", ["lots", "", "0GiB", "-3GiB", "8GiB,"])
def test_an_invalid_gpu_is_rejected(size: str) -> None:
    with pytest.raises(UsageError, match="is not a valid GPU"):
        VirtualGPU(size)


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("kind", ["SGD", "Adam", "RMSprop"])
def test_a_backward_pass_after_an_optimizer_step_fails_as_with_cuda(kind: str, foreach: bool) -> None:
    with VirtualGPU("1GiB"):
        layer = nn.Linear(4, 4).to("cuda")
        loss = layer(layer(torch.ones(2, 4, device="cuda"))).sum()
        loss.backward(retain_graph=True)
        getattr(torch.optim, kind)(layer.parameters(), lr=0.1, foreach=foreach).step()

        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
