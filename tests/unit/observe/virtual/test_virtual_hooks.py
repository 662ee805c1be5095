"""Saved-tensor hooks on a virtual GPU: tensors are on the device that the hook specifies."""

import pytest
import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from legroom import VirtualGPU
from legroom.units import MiB


def layers(value: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(value.exp(), value.shape[1:]).exp()


@pytest.mark.parametrize("pinned", [False, True])
def test_save_on_cpu_frees_device_memory(pinned: bool) -> None:
    with VirtualGPU("64MiB"):
        leaf = torch.zeros(1024, 256, device="cuda", requires_grad=True)
        with save_on_cpu(pin_memory=pinned):
            total = layers(leaf).sum()
        assert torch.cuda.memory_allocated() < 1.5 * MiB
        total.backward()
        assert leaf.grad is not None
        assert leaf.grad.is_cuda


def test_tensors_that_a_hook_creates_are_on_the_host() -> None:
    made: list[torch.device] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        made.append(torch.empty(8).device)
        return tensor.detach()

    with VirtualGPU("64MiB"):
        leaf = torch.zeros(1024, 256, device="cuda", requires_grad=True)
        with saved_tensors_hooks(pack, lambda tensor: tensor):
            layers(leaf).sum().backward()
    assert made
    assert {device.type for device in made} == {"cpu"}
