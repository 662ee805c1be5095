"""Transforms of `torch.func` are traced: what they make from nothing lives where their tensors do, and their zeros take no memory."""

import torch
from torch import nn
from torch.func import functional_call, hessian, jvp, vmap

from legroom.gpus.catalog import find_gpu
from legroom.memory.events import Alloc, Event
from legroom.predict.tracing.virtual_trace import make_device


def test_a_derivative_in_forward_mode_is_traced_and_its_zeros_take_no_memory():
    events: list[Event] = []
    with make_device(find_gpu("h200"), "fake", events.append):
        layer = nn.Linear(700, 700, device="cuda").requires_grad_(False)
        x = torch.randn(16, 700, device="cuda")
        before = len(events)
        tangent = jvp(layer, (x,), (torch.ones_like(x),))[1]
        assert tangent.shape == (16, 700)
    made = {event.op for event in events[before:] if isinstance(event, Alloc)}
    assert "aten.addmm" in made
    assert "aten._efficientzerotensor" not in made


def test_a_hessian_of_every_row_is_traced():
    events: list[Event] = []
    with make_device(find_gpu("h200"), "fake", events.append):
        model = nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 1)).to("cuda")
        weights = dict(model.named_parameters())

        def told(point: torch.Tensor) -> torch.Tensor:
            return functional_call(model, weights, (point,)).squeeze(0)

        bends = vmap(lambda point: torch.diagonal(hessian(told)(point)).sum())(
            torch.randn(40, 5, device="cuda")
        )
        bends.square().mean().backward()
        assert weights["0.weight"].grad is not None


def test_a_tensor_inside_a_transform_says_that_it_is_on_the_gpu():
    seen = []

    def told(row: torch.Tensor) -> torch.Tensor:
        seen.append(row.device.type)
        return row.sum()

    with make_device(find_gpu("h200"), "fake", lambda event: None):
        vmap(told)(torch.randn(4, 3, device="cuda"))
    assert seen == ["cuda"]
