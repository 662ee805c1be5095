"""How a linear layer adds its bias."""

import torch
import torch.nn.functional as F
from traced_plans import traced


def ran(x: torch.Tensor) -> list[str]:
    with traced() as log:
        weight = torch.empty(16, x.shape[-1], requires_grad=True)
        F.linear(torch.empty_strided(x.shape, x.stride()), weight, torch.empty(16))
    return log.names


def test_matrices_and_contiguous_inputs_are_one_fused_product() -> None:
    for shape in ((4, 8), (2, 4, 8), (2, 3, 4, 8)):
        names = ran(torch.empty(shape, device="meta"))
        assert "addmm" in names
        assert "add" not in names


def test_the_bias_is_added_in_place_if_the_input_is_not_contiguous() -> None:
    names = ran(torch.empty(4, 2, 8, device="meta").transpose(0, 1))

    assert "mm" in names
    assert "add_" in names
    assert "add" not in names


def test_gradients_flow_through_the_bias_added_in_place() -> None:
    with traced() as log:
        x = torch.empty(4, 2, 8, requires_grad=True)
        weight, bias = torch.empty(16, 8, requires_grad=True), torch.empty(16, requires_grad=True)
        F.linear(x.transpose(0, 1), weight, bias).sum().backward()
        assert x.grad is not None
        assert weight.grad is not None
        assert bias.grad is not None

    assert "add_" in log.names
