"""Requests played on a device that is full: what can be done without is, and nothing else."""

from collections.abc import Callable

import torch
from torch import nn

from legroom.gpus.catalog import find_gpu
from legroom.memory.events import Alloc
from legroom.predict.requests import KERNELS_RUN, LIBRARY_LOADED, Request, play
from legroom.predict.tracing.virtual_trace import trace_steps
from legroom.units import MiB


def test_a_request_that_is_refused_is_where_a_program_fails() -> None:
    asked = [Request(1, 64 * MiB, 0), Request(2, 64 * MiB, 0)]
    assert play(asked, 100 * MiB).failed_at == 1


def test_a_program_goes_on_without_what_it_can_spare() -> None:
    asked = [
        Request(1, 64 * MiB, 0),
        Request(2, 64 * MiB, 0, spare=True),
        Request(2, -1, 0),
        Request(3, 30 * MiB, 0),
    ]
    assert play(asked, 100 * MiB).failed_at is None


def test_what_it_can_spare_is_taken_where_there_is_room() -> None:
    asked = [Request(1, 64 * MiB, 0), Request(2, 64 * MiB, 0, spare=True)]
    assert play(asked, 200 * MiB).reserved == 128 * MiB
    assert play(asked).reserved == 128 * MiB


def test_what_was_refused_once_is_not_asked_for_again() -> None:
    """Else it would take the room that is free by then, which the kernel chosen instead leaves alone."""
    asked = [
        Request(1, 64 * MiB, 0),
        Request(2, 64 * MiB, 0, spare=True),
        Request(1, -1, 0),
        Request(3, 64 * MiB, 0, spare=True),
        Request(4, 64 * MiB, 0),
    ]
    assert play(asked, 100 * MiB).failed_at is None


def test_a_convolution_can_spare_its_workspaces() -> None:
    def make() -> Callable[[], None]:
        layer = nn.Conv2d(64, 128, 3, padding=1, device="cuda")
        x = torch.empty(32, 64, 56, 56, device="cuda", requires_grad=True)
        return lambda: layer(x).sum().backward()

    trace = trace_steps(make, find_gpu("h200"), steps=1)
    spare = [event for event in trace.events if isinstance(event, Alloc) and event.id in trace.spare]
    assert {event.category for event in spare} == {"workspace"}
    less = play(trace.requests()).allocated - 4 * MiB
    assert play(trace.requests(), less).failed_at is None
    assert play([request._replace(spare=False) for request in trace.requests()], less).failed_at is not None


def test_kernels_run_once_the_first_operation_has_all_its_memory() -> None:
    def make() -> Callable[[], None]:
        layer = nn.Linear(64, 64).cuda()
        x = torch.empty(32, 64, device="cuda")
        return lambda: layer(x).sum().backward()

    asked = trace_steps(make, find_gpu("h200"), steps=1).requests()
    assert asked.count(KERNELS_RUN) == 1
    before = [request.bytes for request in asked[: asked.index(KERNELS_RUN)]]
    assert before[-5:] == [32 * 64 * 4, 32 * 64 * 4, LIBRARY_LOADED.bytes, 32 * MiB, MiB]


def test_cublas_takes_its_place_before_each_of_its_two_workspaces() -> None:
    def make() -> Callable[[], None]:
        layer = nn.Linear(64, 64).cuda()
        x = torch.empty(32, 64, device="cuda")
        return lambda: layer(x).sum().backward()

    asked = trace_steps(make, find_gpu("h200"), steps=2).requests()
    places = [position for position, request in enumerate(asked) if request == LIBRARY_LOADED]
    assert [asked[position + 1].bytes for position in places] == [32 * MiB] * 2
