"""Large random tensors on the host are filled only at their beginning."""

import resource
from collections.abc import Callable

import pytest
import torch

import legroom.observe.fake.host_data as host_data
from legroom.gpus.catalog import find_gpu
from legroom.predict.tracing.virtual_trace import make_device

pytestmark = pytest.mark.slow

ROWS = 1 << 14
"""The number of rows for which a float32 tensor with 1024 columns has 64 MiB."""


@pytest.mark.parametrize(
    "create",
    [
        lambda rows: torch.randn(rows, 1024),
        lambda rows: torch.rand((rows, 1024), dtype=torch.float64),
        lambda rows: torch.randn_like(torch.empty(rows, 1024)),
        lambda rows: torch.empty(rows, 1024).normal_(),
        lambda rows: torch.empty(rows, 1024).uniform_(2.0, 3.0),
    ],
)
def test_a_large_random_tensor_uses_no_memory(create: Callable[[int], torch.Tensor]) -> None:
    with make_device(find_gpu("8GiB"), "fake", lambda event: None):
        small = create(16)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        large = create(4 * ROWS)
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        assert (large.shape, large.dtype, large.is_contiguous()) == ((4 * ROWS, 1024), small.dtype, True)
        assert small.std() > 0
        assert large[0].std() > 0
        assert large[-1].abs().sum() == 0
        assert large.cuda().shape == large.shape
    assert faults < large.nbytes / 4096 / 4, "the pages were not written"


def test_other_tensors_are_filled() -> None:
    with make_device(find_gpu("8GiB"), "fake", lambda event: None):
        assert torch.randint(5, 9, (ROWS, 512)).min() == 5
        assert torch.ones(ROWS, 1024).min() == 1
        assert torch.randn(ROWS // 2, 1024)[-1].std() > 0
        transposed = torch.empty(1024, ROWS).t().normal_()
        assert transposed[-1].std() > 0
    assert host_data.LARGE_BYTES == ROWS * 1024 * 4
