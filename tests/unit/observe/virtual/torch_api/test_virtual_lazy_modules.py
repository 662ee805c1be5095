"""Lazy modules, whose parameters have no shape until the first forward pass."""

import pytest
import torch
from torch import nn

import legroom
from legroom.gpus.catalog import find_gpu
from legroom.predict.tracing.virtual_trace import make_device


def lazy_model() -> nn.Module:
    return nn.Sequential(
        nn.LazyConv2d(4, 3), nn.Flatten(), nn.LazyLinear(16), nn.LazyBatchNorm1d(), nn.LazyLinear(2)
    )


def known_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 6 * 6, 16), nn.BatchNorm1d(16), nn.Linear(16, 2)
    )


def test_a_lazy_model_trains_on_a_virtual_gpu() -> None:
    with legroom.VirtualGPU("1GiB") as gpu:
        model = lazy_model().cuda()
        assert gpu.devices[0].allocator.allocated == 512, (
            "a batch norm's count of batches has its shape already"
        )
        images = torch.randn(5, 3, 8, 8, device="cuda")
        model(images).sum().backward()
        assert all(p.is_cuda and p.grad is not None and p.grad.is_cuda for p in model.parameters())
        assert model[2].weight.shape == (16, 4 * 6 * 6)


def test_parameters_of_a_lazy_model_are_fake_tensors_once_their_shapes_are_known() -> None:
    with make_device(find_gpu("1GiB"), "fake", lambda event: None):
        model = lazy_model().cuda()
        model(torch.randn(5, 3, 8, 8).cuda())
        assert all(isinstance(p, nn.Parameter) and p.is_cuda for p in model.parameters())
        assert [tuple(p.shape) for p in model.parameters()] == [
            tuple(p.shape) for p in known_model().parameters()
        ]


def test_a_lazy_layer_can_be_created_on_the_device_of_a_trace() -> None:
    with make_device(find_gpu("1GiB"), "fake", lambda event: None):
        layer = nn.LazyLinear(16, device="cuda")
        assert layer(torch.randn(5, 8, device="cuda")).shape == (5, 16)
        assert layer.weight.is_cuda


@pytest.mark.slow
def test_a_lazy_model_is_estimated_from_a_batch() -> None:
    batch = (torch.randn(5, 3, 8, 8), torch.zeros(5, dtype=torch.long))
    lazy = legroom.estimate(lazy_model(), batch, gpu="1GiB", search=False)
    known = legroom.estimate(known_model(), batch, gpu="1GiB", search=False)
    assert lazy.by_category["optimizer state"] == known.by_category["optimizer state"] > 0
