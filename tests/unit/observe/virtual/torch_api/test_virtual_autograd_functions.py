"""Gradients that autograd creates as zeros are on the device of the output that they belong to."""

from typing import Any

import pytest
import torch
from torch import nn

from legroom import VirtualGPU


class Twice(torch.autograd.Function):
    """Doubles two tensors and records the devices of their gradients."""

    noted: list[torch.device]

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2, y * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        Twice.noted = [gradient.device for gradient in gradients]
        return tuple(gradient * 2 for gradient in gradients)


@pytest.mark.parametrize("used", [0, 1])
@pytest.mark.parametrize("devices", [("cuda:0", "cuda:1"), ("cpu", "cuda:1"), ("cuda:1", "cpu")])
def test_missing_gradients_are_zeros_on_the_device_of_their_output(
    devices: tuple[str, str], used: int
) -> None:
    with VirtualGPU("1GiB,1GiB"):
        inputs = [torch.ones(2, device=device, requires_grad=True) for device in devices]
        Twice.apply(*inputs)[used].sum().backward()  # type: ignore[no-untyped-call]
        assert [str(device) for device in Twice.noted] == list(devices)
        assert [(x.grad.device, x.grad[0].item()) for x in inputs if x.grad is not None] == [
            (x.device, 2.0 if index == used else 0.0) for index, x in enumerate(inputs)
        ]


class PartlyTrained(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.trained, self.unused = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.frozen.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> Any:
        return self.trained(self.frozen(x))


def test_data_parallel_trains_a_model_with_frozen_and_unused_layers() -> None:
    with VirtualGPU("1GiB,1GiB"):
        model = PartlyTrained().cuda()
        nn.DataParallel(model)(torch.ones(4, 4, device="cuda")).sum().backward()
        assert model.trained.weight.grad is not None
        assert model.trained.weight.grad.device == torch.device("cuda:0")
        assert model.frozen.weight.grad is None
