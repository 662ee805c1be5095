"""TorchScript on a virtual GPU: tensors that scripts create and move are on the device that they name."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from legroom import VirtualGPU
from legroom.errors import Unsupported

script: Any = torch.jit.script


@pytest.fixture(autouse=True)
def gpu() -> Iterator[None]:
    with VirtualGPU("1GiB,1GiB"):
        yield


def create(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.zeros(2, device="cuda"), torch.zeros(2, device=x.device), torch.zeros(2), torch.ones_like(x)


def test_a_scripted_function_creates_tensors_on_the_device_it_names() -> None:
    made = script(create)(torch.ones(2, device="cuda:1"))
    assert [str(each.device) for each in made] == ["cuda:0", "cuda:1", "cpu", "cuda:1"]


def move(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, bool]:
    return x.to("cuda"), x.cuda(), x.to(torch.device("cuda:1")), x.is_cuda


def test_a_scripted_function_moves_tensors_and_sees_their_device() -> None:
    *moved, is_cuda = script(move)(torch.ones(2))
    assert [str(each.device) for each in moved] == ["cuda:0", "cuda:0", "cuda:1"]
    assert (is_cuda, script(move)(torch.ones(2, device="cuda"))[-1]) == (False, True)


class Created(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        literal, like_input, host = (
            torch.zeros(2, device="cuda"),
            torch.zeros(2, device=x.device),
            torch.zeros(2),
        )
        return self.linear(x), literal, like_input, host


def test_a_scripted_module_creates_tensors_on_the_device_of_its_inputs() -> None:
    module = script(Created().to("cuda:1"))
    made = module(torch.ones(1, 2, device="cuda:1"))
    assert [str(each.device) for each in made] == ["cuda:1", "cuda:0", "cuda:1", "cpu"]
    made[0].sum().backward()
    assert str(module.linear.weight.grad.device) == "cuda:1"


def test_a_traced_module_creates_tensors_on_the_device_of_its_inputs() -> None:
    class Added(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.arange(2.0, device=x.device)

    x = torch.ones(2, device="cuda")
    traced: Any = torch.jit.trace(Added(), x)  # type: ignore[no-untyped-call]
    assert str(traced(x).device) == "cuda:0"


class Moved(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to("cuda")


def test_moving_a_tensor_inside_a_scripted_module_is_rejected_with_the_remedy() -> None:
    with pytest.raises(Unsupported, match="Move the tensors before the call"):
        script(Moved())(torch.ones(2))
