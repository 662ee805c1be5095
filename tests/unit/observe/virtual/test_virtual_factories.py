"""A factory function with a virtual device skips the dispatch mode and has the same events as with the mode."""

from typing import Any

import pytest
import torch
from tests.unit.observe.operations import Operations

from legroom.memory.events import Alloc, Event, Free, Tag
from legroom.observe.dispatch import recorder
from legroom.observe.virtual.gpu import VirtualGPU


def program() -> torch.nn.Module:
    """Call factories outside and inside a module, with and without gradients. Some of the tensors are freed at
    once."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(8, 8, device="cuda"))
            self.register_buffer("mask", torch.ones(8, dtype=torch.bool, device="cuda"))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x @ self.weight + torch.rand(8, device=x.device)).sum()

    torch.manual_seed(0)
    net = Net()
    torch.empty(1000, device="cuda:0")
    torch.full((3,), 2.0, device=torch.device("cuda"), requires_grad=True)
    net(torch.randn(4, 8, device="cuda")).backward()
    with torch.no_grad():
        net(torch.arange(32.0, device="cuda").view(4, 8))
    return net


def allocations_of_the_program() -> list[Alloc | Free]:
    """Return the allocations, with their final categories, and the frees of the program, without times."""
    events: list[Event] = []
    with VirtualGPU("1GiB", sink=events.append):
        program()
    final = {event.id: event.category for event in events if isinstance(event, Tag)}
    return [
        event._replace(time=0.0, category=final.get(event.id, event.category))
        if isinstance(event, Alloc)
        else event._replace(time=0.0)
        for event in events
        if isinstance(event, Alloc | Free)
    ]


def test_the_events_are_the_same_without_the_shortcut(monkeypatch):
    created: list[Any] = []
    original = recorder.Recorder.create

    def create(self: Any, operation: Any, *args: Any) -> Any:
        made = original(self, operation, *args)
        created.append(None if made is None else operation)
        return made

    monkeypatch.setattr(recorder.Recorder, "create", create)
    shortcut = allocations_of_the_program()
    assert sum(operation is not None for operation in created) >= 4
    created.clear()
    monkeypatch.setattr(recorder, "_no_dispatch", None)  # as in torch versions without this private class
    assert allocations_of_the_program() == shortcut
    assert created
    assert not any(operation is not None for operation in created)
    assert any(isinstance(event, Alloc) and event.op == "aten.zeros" for event in shortcut)


def test_the_results_are_those_of_the_cpu():
    with VirtualGPU("1GiB"):
        torch.manual_seed(0)
        on_gpu = [
            torch.rand(3, device="cuda"),
            torch.randn(2, 2, device="cuda"),
            torch.zeros(1, device="cuda"),
        ]
        assert {tensor.device for tensor in on_gpu} == {torch.device("cuda", 0)}
        values = [tensor.cpu() for tensor in on_gpu]
    torch.manual_seed(0)
    for value, expected in zip(values, (torch.rand(3), torch.randn(2, 2), torch.zeros(1)), strict=True):
        assert torch.equal(value, expected)


def test_a_mode_of_the_program_still_sees_the_operation():
    with VirtualGPU("1GiB") as gpu, Operations() as mode:
        made = torch.zeros(4, device="cuda")
        assert mode.names == ["aten.zeros.default"]
        assert gpu.recorder.device_of(made) == 0


def test_factories_inside_a_function_transform_are_on_the_device():
    with VirtualGPU("1GiB") as gpu:
        x = torch.rand(3, 4, device="cuda")
        result = torch.func.vmap(lambda row: row + torch.ones(4, device="cuda"))(x)
        assert gpu.recorder.device_of(result) == 0


def test_a_factory_that_does_not_fit_raises_torchs_error_and_allocates_nothing():
    with VirtualGPU("64MiB") as gpu:
        torch.zeros(4, device="cuda")  # from now on, the free memory is known
        before = gpu.devices[0].allocator.allocated
        with pytest.raises(torch.OutOfMemoryError):
            torch.zeros(2**40, device="cuda")
        assert gpu.devices[0].allocator.allocated == before


def test_an_error_of_the_factory_is_raised():
    with VirtualGPU("1GiB"), pytest.raises(RuntimeError, match="negative"):
        torch.zeros(-1, device="cuda")
