"""Transforms of `torch.func` are traced: new tensors are on the device of their inputs, and zero tangents use no memory."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, hessian, jvp, vmap

from legroom.gpus.catalog import find_gpu
from legroom.memory.events import Alloc, Event
from legroom.predict.tracing.virtual_trace import make_device


def test_a_forward_mode_derivative_is_traced_and_its_zeros_use_no_memory():
    events: list[Event] = []
    with make_device(find_gpu("h200"), "fake", events.append):
        layer = nn.Linear(700, 700, device="cuda").requires_grad_(False)
        x = torch.randn(16, 700, device="cuda")
        before = len(events)
        tangent = jvp(layer, (x,), (torch.ones_like(x),))[1]
        assert tangent.shape == (16, 700)
    operations = {event.op for event in events[before:] if isinstance(event, Alloc)}
    assert "aten.addmm" in operations
    assert "aten._efficientzerotensor" not in operations


@pytest.mark.slow
def test_a_hessian_per_sample_is_traced():
    events: list[Event] = []
    with make_device(find_gpu("h200"), "fake", events.append):
        model = nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 1)).to("cuda")
        weights = dict(model.named_parameters())

        def output(point: torch.Tensor) -> torch.Tensor:
            return functional_call(model, weights, (point,)).squeeze(0)

        traces = vmap(lambda point: torch.diagonal(hessian(output)(point)).sum())(
            torch.randn(40, 5, device="cuda")
        )
        traces.square().mean().backward()
        assert weights["0.weight"].grad is not None


def test_a_tensor_inside_a_transform_is_on_the_gpu():
    devices = []

    def record(sample: torch.Tensor) -> torch.Tensor:
        devices.append(sample.device.type)
        return sample.sum()

    with make_device(find_gpu("h200"), "fake", lambda event: None):
        vmap(record)(torch.randn(4, 3, device="cuda"))
    assert devices == ["cuda"]
