"""Attention with dropout on a virtual GPU: the results of the CPU, and the memory of a fused CUDA kernel."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from legroom.observe.virtual.gpu import VirtualGPU
from legroom.units import MiB

SCORES = 2 * 4 * 512 * 512 * 4
"""The size of the scores of `_inputs`."""


def _inputs(device: str, length: int = 512) -> list[Any]:
    torch.manual_seed(0)
    return [torch.randn(2, 4, length, 16).to(device).requires_grad_() for _ in range(3)]


def _attend(*inputs: Any, **options: Any) -> Any:
    return F.scaled_dot_product_attention(*inputs, dropout_p=0.25, **options)


def _in_checkpoint(*inputs: Any, use_reentrant: bool) -> Any:
    return checkpoint(_attend, *inputs, use_reentrant=use_reentrant)


def _masked(*inputs: Any) -> Any:
    mask = torch.arange(512, device=inputs[0].device) < 400
    return _attend(*inputs, attn_mask=mask[None, None, None])


@pytest.mark.parametrize(
    "attend",
    [
        _attend,
        _masked,
        lambda *inputs: _attend(*inputs, is_causal=True),
        lambda *inputs: _attend(*inputs, scale=0.3),
        lambda *inputs: _in_checkpoint(*inputs, use_reentrant=False),
        lambda *inputs: _in_checkpoint(*inputs, use_reentrant=True),
        lambda query, key, value: _attend(query, key.detach(), value),
    ],
)
def test_results_are_those_of_the_cpu_without_the_memory_of_the_scores(attend: Callable[..., Any]) -> None:
    expected = _inputs("cpu")
    output = attend(*expected)
    output.square().sum().backward()
    with VirtualGPU("1GiB"):
        inputs = _inputs("cuda")
        result = attend(*inputs)
        result.square().sum().backward()
        peak = torch.cuda.max_memory_allocated()
        assert torch.equal(result.cpu(), output)
        for each, other in zip(inputs, expected, strict=True):
            assert (each.grad is None) == (other.grad is None)
            if each.grad is not None:
                assert each.grad.is_cuda
                assert torch.equal(each.grad.cpu(), other.grad)
    assert peak < SCORES / 2


def test_a_layer_trains_like_on_the_cpu() -> None:
    def train(device: str) -> list[float]:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True).to(device)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        losses = []
        for _ in range(3):
            loss = layer(torch.randn(2, 300, 32).to(device)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    expected = train("cpu")
    with VirtualGPU("1GiB"):
        assert train("cuda") == expected
        assert torch.cuda.max_memory_allocated() < 4 * MiB  # the scores would need 3 MiB several times


def test_the_inputs_are_freed_after_the_backward_pass_while_the_result_is_alive() -> None:
    with VirtualGPU("1GiB"):
        leaves = _inputs("cuda")
        result = _attend(*[each * 2 for each in leaves])
        result.sum().backward()
        held = result, *leaves, *(each.grad for each in leaves)
        assert torch.cuda.memory_allocated() == sum(each.nbytes for each in held)


def test_expanded_inputs() -> None:
    query, key, value = _inputs("cpu", 8)
    expected = _attend(query, key[:, :1].expand_as(key), value)
    with VirtualGPU("1GiB"):
        query, key, value = _inputs("cuda", 8)
        result = _attend(query, key[:, :1].expand_as(key), value)
        assert torch.equal(result.cpu(), expected)
        result.sum().backward()
        assert key.grad.shape == key.shape


def test_the_math_kernel_counts_the_scores() -> None:
    with VirtualGPU("1GiB"), torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        _attend(*_inputs("cuda"))
        assert torch.cuda.max_memory_allocated() > SCORES


def test_without_gradients_only_the_result_is_allocated() -> None:
    with VirtualGPU("1GiB"), torch.no_grad():
        inputs = _inputs("cuda")
        before = torch.cuda.memory_allocated()
        _attend(*inputs)
        assert torch.cuda.max_memory_allocated() == before + inputs[0].nbytes


def test_one_tensor_for_all_inputs_and_transforms_follow_the_cpu() -> None:
    expected = _attend(*[_inputs("cpu", 8)[0]] * 3)
    with VirtualGPU("1GiB"):
        assert torch.equal(_attend(*[_inputs("cuda", 8)[0]] * 3).cpu(), expected)
        inputs = [each.detach() for each in _inputs("cuda", 8)]
        result = torch.func.vmap(_attend, randomness="different")(*(each[:, None] for each in inputs))
        assert result.shape == (2, 1, 4, 8, 16)
