"""Requests replayed on a full device: a program can continue without optional requests, but not without others."""

from collections.abc import Callable

import torch
from torch import nn

from legroom.gpus.catalog import SOLVER_BYTES, find_gpu
from legroom.memory.events import Alloc
from legroom.predict.requests import KERNELS_RUN, LIBRARY_LOADED, MemoryRequest, replay_requests
from legroom.predict.tracing.virtual_trace import trace_steps
from legroom.units import MiB


def test_a_program_fails_at_the_request_that_does_not_fit() -> None:
    requests = [MemoryRequest(1, 64 * MiB, 0), MemoryRequest(2, 64 * MiB, 0)]
    assert replay_requests(requests, 100 * MiB).failed_at == 1


def test_a_program_continues_without_optional_memory() -> None:
    requests = [
        MemoryRequest(1, 64 * MiB, 0),
        MemoryRequest(2, 64 * MiB, 0, optional=True),
        MemoryRequest(2, -1, 0),
        MemoryRequest(3, 30 * MiB, 0),
    ]
    assert replay_requests(requests, 100 * MiB).failed_at is None


def test_optional_memory_is_allocated_if_it_fits() -> None:
    requests = [MemoryRequest(1, 64 * MiB, 0), MemoryRequest(2, 64 * MiB, 0, optional=True)]
    assert replay_requests(requests, 200 * MiB).reserved == 128 * MiB
    assert replay_requests(requests).reserved == 128 * MiB


def test_an_optional_request_that_failed_is_not_repeated() -> None:
    """After the failure, torch uses another kernel, so the request must not use memory that becomes free later."""
    requests = [
        MemoryRequest(1, 64 * MiB, 0),
        MemoryRequest(2, 64 * MiB, 0, optional=True),
        MemoryRequest(1, -1, 0),
        MemoryRequest(3, 64 * MiB, 0, optional=True),
        MemoryRequest(4, 64 * MiB, 0),
    ]
    assert replay_requests(requests, 100 * MiB).failed_at is None


def test_the_workspaces_of_a_convolution_are_optional() -> None:
    def make() -> Callable[[], None]:
        layer = nn.Conv2d(64, 128, 3, padding=1, device="cuda")
        x = torch.empty(32, 64, 56, 56, device="cuda", requires_grad=True)
        return lambda: layer(x).sum().backward()

    trace = trace_steps(make, find_gpu("h200"), steps=1)
    optional = [event for event in trace.events if isinstance(event, Alloc) and event.id in trace.optional]
    assert {event.category for event in optional} == {"workspace"}
    less = replay_requests(trace.requests()).allocated - 4 * MiB
    assert replay_requests(trace.requests(), less).failed_at is None
    assert (
        replay_requests([request._replace(optional=False) for request in trace.requests()], less).failed_at
        is not None
    )


def test_kernels_run_after_the_first_operation_has_allocated_its_memory() -> None:
    def make() -> Callable[[], None]:
        layer = nn.Linear(64, 64).cuda()
        x = torch.empty(32, 64, device="cuda")
        return lambda: layer(x).sum().backward()

    requests = trace_steps(make, find_gpu("h200"), steps=1).requests()
    assert requests.count(KERNELS_RUN) == 1
    before = [request.bytes for request in requests[: requests.index(KERNELS_RUN)]]
    assert before[-5:] == [32 * 64 * 4, 32 * 64 * 4, LIBRARY_LOADED.bytes, 32 * MiB, MiB]


def test_cublas_is_loaded_before_each_of_its_two_workspaces() -> None:
    def make() -> Callable[[], None]:
        layer = nn.Linear(64, 64).cuda()
        x = torch.empty(32, 64, device="cuda")
        return lambda: layer(x).sum().backward()

    requests = trace_steps(make, find_gpu("h200"), steps=2).requests()
    positions = [position for position, request in enumerate(requests) if request == LIBRARY_LOADED]
    assert [requests[position + 1].bytes for position in positions] == [32 * MiB] * 2


HANDLE = 66 * MiB


def backward_after(cached: int) -> list[MemoryRequest]:
    """Return the requests of a program that caches memory in the forward pass and then creates the cuBLAS handle of
    the backward pass."""
    return [
        LIBRARY_LOADED, MemoryRequest(1, 32 * MiB, 0), MemoryRequest(2, cached, 0), MemoryRequest(2, -1, 0),
        LIBRARY_LOADED, MemoryRequest(3, 32 * MiB, 0),
    ]  # fmt: skip


def test_a_handle_fails_if_pytorch_has_reserved_its_memory() -> None:
    capacity = 1000 * MiB  # after both handles
    assert replay_requests(backward_after(900 * MiB), capacity, handle=HANDLE).failed_at is None
    # Until the second handle exists, 1066 MiB are available, so caching 1000 MiB succeeds. torch does not free its cache for a handle.
    failing = backward_after(1000 * MiB)
    assert replay_requests(failing, capacity, handle=HANDLE).failed_at == failing.index(LIBRARY_LOADED, 1)


def test_without_a_limit_handles_do_not_fail() -> None:
    assert replay_requests(backward_after(1000 * MiB), handle=HANDLE).failed_at is None


def test_libraries_that_a_program_uses_need_memory_outside_pytorch() -> None:
    def make() -> Callable[[], None]:
        x = torch.empty(32, 3, 16, 16, device="cuda")
        convolution, square = nn.Conv2d(3, 8, 3).cuda(), torch.eye(8, device="cuda")

        def step() -> None:
            convolution(x).sum().backward()
            torch.linalg.eigh(square)

        return step

    trace = trace_steps(make, find_gpu("h200"), steps=1)
    # The step creates one cuSOLVER handle and no cuBLAS handle, but the context includes two cuBLAS handles.
    assert trace.library_bytes() == SOLVER_BYTES - 2 * HANDLE
