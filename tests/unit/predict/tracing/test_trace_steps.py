"""Traces of training steps: cuDNN benchmarking, data-parallel buckets, sparse gradients, real values on the CPU."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import DynamicOutputShapeException

from legroom.gpus.catalog import find_gpu
from legroom.memory.event_base import Phase
from legroom.memory.events import Alloc, Free
from legroom.memory.ledger import Ledger
from legroom.observe.notes import BENCHMARK, COMMUNICATION, COMMUNICATION_BYTES, COMMUNICATION_EXCLUDED
from legroom.observe.virtual.single_rank import first_of_spawned_ranks
from legroom.predict.estimate import estimate_from_trace
from legroom.predict.tracing.trace import REPEATED_STEPS, Mode, Trace
from legroom.predict.tracing.virtual_trace import needs_arithmetic, trace_steps

H200 = find_gpu("h200")


@pytest.fixture
def join_group() -> Iterator[Callable[[], None]]:
    """Yield a function that joins a process group of one rank. The group is destroyed after the test."""

    def join() -> None:
        torch.distributed.init_process_group(
            "nccl", init_method=f"file://{tempfile.mkdtemp()}/store", rank=0, world_size=1
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


def test_with_cudnn_benchmark_the_safe_bound_is_the_whole_gpu() -> None:
    result = estimate_from_trace(convolve(True))

    assert result.safe == H200.total
    assert BENCHMARK in result.notes
    assert result.verdict == "fits"


def test_without_cudnn_benchmark_the_safe_bound_is_lower() -> None:
    result = estimate_from_trace(convolve(False))

    assert result.safe < H200.total
    assert BENCHMARK not in result.notes


def test_data_parallel_buckets_are_on_the_device(join_group: Callable[[], None]) -> None:
    size = 512 * 512 * 4

    def make() -> Callable[[], object]:
        join_group()
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


def test_data_parallel_buckets_are_replaced_only_once(join_group: Callable[[], None]) -> None:
    def make() -> Callable[[], object]:
        join_group()
        model = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 512), nn.Linear(512, 512)).to("cuda")
        parallel = nn.parallel.DistributedDataParallel(model, device_ids=[0], bucket_cap_mb=1)
        optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)

        def step() -> None:
            parallel(torch.randn(4, 512, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    trace = trace_steps(make, H200)

    assert estimate_from_trace(trace).peak_allocated == Ledger(trace.events).peak().bytes


def test_copying_gradients_to_buckets_allocates_nothing(
    join_group: Callable[[], None], tmp_path: Path
) -> None:
    def make() -> Callable[[], object]:
        torch.distributed.init_process_group("nccl", rank=0, world_size=2)
        model = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 512)).to("cuda")
        parallel = nn.parallel.DistributedDataParallel(model, device_ids=[0])
        return lambda: parallel(torch.randn(4, 512, device="cuda")).sum().backward()

    with first_of_spawned_ranks(2, tmp_path):
        trace = trace_steps(make, H200)

    assert [event for event in trace.events if type(event) is Alloc and event.op == "aten.copy_"] == []


def test_a_leak_grows_in_repeated_steps() -> None:
    size = 512 * 4

    def make() -> Callable[[], object]:
        model = nn.Linear(512, 512).to("cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        kept = []

        def step() -> None:
            model(torch.randn(4, 512, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            kept.append(torch.zeros(512, device="cuda"))

        return step

    requests = trace_steps(make, H200).requests()

    freed = {request.id for request in requests if request.bytes < 0}
    assert len([r for r in requests if r.bytes == size and r.id not in freed]) == 1 + 2 + REPEATED_STEPS


def test_nccl_buffers_are_counted_for_a_gpu_by_name_and_not_for_a_size(
    join_group: Callable[[], None],
) -> None:
    def make() -> Callable[[], object]:
        join_group()
        parallel = nn.parallel.DistributedDataParallel(nn.Linear(8, 8).to("cuda"), device_ids=[0])
        return lambda: parallel(torch.randn(4, 8, device="cuda")).sum().backward()

    trace = trace_steps(make, H200)
    result = estimate_from_trace(trace)

    assert COMMUNICATION in result.notes
    assert result.peak_device == result.peak_reserved + H200.context + COMMUNICATION_BYTES

    trace.gpu = find_gpu("8GiB")
    result = estimate_from_trace(trace)

    assert COMMUNICATION_EXCLUDED in result.notes
    assert result.peak_device == result.peak_reserved


def test_with_real_values_autocast_uses_the_operation_lists_of_cuda() -> None:
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


def test_the_size_of_a_sparse_gradient_needs_real_values() -> None:
    with pytest.raises(DynamicOutputShapeException) as failed:
        trace_steps(sparse_step, H200)
    assert needs_arithmetic(failed.value)


def test_a_sparse_gradient_is_coalesced_before_the_optimizer_step() -> None:
    trace = trace_steps(sparse_step, H200, steps=1, mode="cpu")
    allocated = [(event.op, event.bytes) for event in trace.events if isinstance(event, Alloc)]
    assert [size for op, size in allocated if op == "aten._coalesce"][:4] == [4096 * 8] * 3 + [2 * 4096 * 8]
    assert ("aten.sparse_mask", 1024 * 64 * 4) in allocated
    assert ("aten.pow", 1024 * 64 * 4) in allocated


def test_the_gradient_of_a_view_that_was_changed_in_place_is_copied_and_freed() -> None:
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


def test_the_state_of_a_second_optimizer_is_counted_once() -> None:
    def make() -> Callable[[], object]:
        generator, critic = nn.Linear(512, 512).to("cuda"), nn.Linear(512, 512).to("cuda")
        optimizers = [torch.optim.Adam(model.parameters()) for model in (generator, critic)]

        def step() -> None:
            for model, optimizer in zip((generator, critic), optimizers, strict=True):
                optimizer.zero_grad()
                model(torch.randn(8, 512, device="cuda")).sum().backward()
                optimizer.step()

        return step

    result = estimate_from_trace(trace_steps(make, H200))

    assert result.peak_requested == sum(result.by_category.values())
