"""Habits of training loops that a trace must follow: benchmarking cuDNN, data parallel buckets, arithmetic on the CPU."""

import tempfile
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import DynamicOutputShapeException

from legroom.gpus.catalog import find_gpu
from legroom.memory.events import Alloc, Free, Phase
from legroom.observe.notes import BENCHMARK, COMMUNICATION, COMMUNICATION_BYTES
from legroom.predict.estimate import judge
from legroom.predict.tracing.trace import Mode, Trace
from legroom.predict.tracing.virtual_trace import needs_arithmetic, trace_steps

H200 = find_gpu("h200")


@pytest.fixture
def alone() -> Iterator[Callable[[], None]]:
    """Joins a process group of one, on request, and leaves it at the end."""

    def join() -> None:
        torch.distributed.init_process_group(
            "nccl", init_method=f"file://{tempfile.mkdtemp()}/meet", rank=0, world_size=1
        )

    yield join
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def convolve(benchmark: bool) -> Trace:
    before = torch.backends.cudnn.benchmark

    def make() -> Callable[[], object]:
        torch.backends.cudnn.benchmark = benchmark
        model = nn.Conv2d(3, 8, 3).to("cuda")
        return lambda: model(torch.randn(2, 3, 16, 16, device="cuda")).sum().backward()

    try:
        return trace_steps(make, H200)
    finally:
        torch.backends.cudnn.benchmark = before


def test_with_cudnn_benchmark_the_bound_is_the_whole_gpu_and_the_reason_is_said() -> None:
    told = judge(convolve(True))

    assert told.safe == H200.total
    assert BENCHMARK in told.notes
    assert told.verdict == "fits"


def test_without_it_nothing_is_said() -> None:
    told = judge(convolve(False))

    assert told.safe < H200.total
    assert BENCHMARK not in told.notes


def test_the_buckets_of_data_parallel_training_live_on_the_device(alone: Callable[[], None]) -> None:
    size = 512 * 512 * 4

    def make() -> Callable[[], object]:
        alone()
        model = nn.Linear(512, 512, bias=False).to("cuda")
        parallel = nn.parallel.DistributedDataParallel(model, device_ids=[0])

        def step() -> None:
            parallel(torch.randn(4, 512, device="cuda")).sum().backward()

        return step

    trace = trace_steps(make, H200)

    buckets = [
        event
        for event in trace.events
        if type(event) is Alloc and event.op == "aten.empty" and event.bytes == size
    ]
    assert buckets


def test_what_nccl_holds_is_counted_beside_and_said(alone: Callable[[], None]) -> None:
    def make() -> Callable[[], object]:
        alone()
        parallel = nn.parallel.DistributedDataParallel(nn.Linear(8, 8).to("cuda"), device_ids=[0])
        return lambda: parallel(torch.randn(4, 8, device="cuda")).sum().backward()

    told = judge(trace_steps(make, H200))

    assert COMMUNICATION in told.notes
    assert told.peak_device == told.peak_reserved + H200.context + COMMUNICATION_BYTES


def test_with_data_autocast_casts_as_cuda_does_too() -> None:
    def make() -> Callable[[], object]:
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.Dropout(0.5)).cuda()

        def step() -> None:
            with torch.autocast("cuda", torch.bfloat16):
                model(torch.randn(2, 3, 16, 16).cuda()).sum().backward()

        return step

    def activations(mode: Mode) -> list[tuple[str, int]]:
        events = trace_steps(make, H200, steps=1, mode=mode).events
        return [(e.op, e.bytes) for e in events if isinstance(e, Alloc) and e.phase is Phase.FORWARD]

    assert activations("cpu") == activations("fake")


def sparse_step() -> Callable[[], None]:
    table = nn.Embedding(5000, 64, sparse=True).cuda()
    optimizer = torch.optim.SparseAdam(table.parameters())
    rows = torch.arange(4096).remainder(1024).cuda()

    def step() -> None:
        table(rows).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def test_how_many_rows_a_sparse_gradient_has_is_not_made_up() -> None:
    with pytest.raises(DynamicOutputShapeException) as failed:
        trace_steps(sparse_step, H200)
    assert needs_arithmetic(failed.value)


def test_rows_of_a_sparse_gradient_that_are_equal_are_added_up_before_the_optimizers_temporaries() -> None:
    trace = trace_steps(sparse_step, H200, steps=1, mode="cpu")
    taken = [(event.op, event.bytes) for event in trace.events if isinstance(event, Alloc)]
    assert [size for op, size in taken if op == "aten._coalesce"][:4] == [4096 * 8] * 3 + [2 * 4096 * 8]
    assert ("aten.sparse_mask", 1024 * 64 * 4) in taken
    assert ("aten.pow", 1024 * 64 * 4) in taken


def test_the_gradient_of_a_view_that_was_changed_in_place_is_copied_and_let_go() -> None:
    def make() -> Callable[[], None]:
        first, norm, second = nn.Conv2d(3, 8, 1).cuda(), nn.InstanceNorm2d(8), nn.Conv2d(8, 4, 1).cuda()
        x = torch.randn(2, 3, 64, 64, device="cuda")
        return lambda: second(norm(first(x)).relu_()).sum().backward()

    events = trace_steps(make, H200, steps=1).events
    (copied,) = (n for n, event in enumerate(events) if isinstance(event, Alloc) and event.op == "aten.view")
    gradient = next(
        event
        for event in events
        if isinstance(event, Alloc)
        and event.op == "aten.convolution_backward"
        and event.bytes == 2 * 8 * 64 * 64 * 4
    )
    assert events[copied].bytes == gradient.bytes
    assert isinstance(events[copied + 1], Free)
    assert events[copied + 1].id == gradient.id
