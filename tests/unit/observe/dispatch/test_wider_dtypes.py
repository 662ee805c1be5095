"""Operations that CUDA supports for a dtype and the CPU does not."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from legroom.observe.fake.fake_tensors import FakeTensors
from legroom.observe.virtual.gpu import VirtualGPU


@pytest.fixture(params=["data", "no data"], autouse=True)
def _device(request: pytest.FixtureRequest) -> Iterator[None]:
    fake = FakeTensors() if request.param == "no data" else None
    with VirtualGPU("1GiB", fake_tensors=fake, bounded=fake is None):
        yield


def ones(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.ones(shape, device="cuda", dtype=dtype)


@pytest.mark.parametrize(
    ("operation", "dtype", "expected"),
    [
        (lambda: torch.histc(ones(4, dtype=torch.int64), 3, 0, 2), torch.int64, (3,)),
        (lambda: F.avg_pool3d(ones(1, 2, 2, 2, dtype=torch.bfloat16), 2), torch.bfloat16, (1, 1, 1, 1)),
        (lambda: torch.fft.rfft(ones(8, dtype=torch.float16)), torch.complex32, (5,)),
        (lambda: torch.abs(ones(2, dtype=torch.bool)), torch.bool, (2,)),
        (lambda: torch.trace(ones(2, 2, dtype=torch.bool)), torch.int64, ()),
        (lambda: ones(2, dtype=torch.complex32).exp(), torch.complex32, (2,)),
        (lambda: ones(2, dtype=torch.complex32).sqrt_(), torch.complex32, (2,)),
    ],
)
def test_results_have_the_dtype_and_device_that_cuda_returns(
    operation: Callable[[], Any], dtype: torch.dtype, expected: tuple[int, ...]
) -> None:
    result = operation()
    assert (result.dtype, tuple(result.shape), result.is_cuda) == (dtype, expected, True)


def test_gradients_of_a_half_precision_pool_are_half_precision() -> None:
    x = ones(1, 1, 4, 4, 4, dtype=torch.float16).requires_grad_()
    F.avg_pool3d(x, 2).sum().backward()
    assert x.grad is not None
    assert (x.grad.dtype, x.grad.is_cuda) == (torch.float16, True)


def test_host_tensors_keep_the_error_of_the_cpu() -> None:
    with pytest.raises(RuntimeError, match="not implemented for 'Long'"):
        torch.histc(torch.ones(4, dtype=torch.int64))


def test_values_are_computed_and_written_in_place(request: pytest.FixtureRequest) -> None:
    if "no data" in request.node.name:
        pytest.skip("A trace has no values.")
    x = torch.full((2,), 4, device="cuda", dtype=torch.complex32)
    assert x.sqrt_() is x
    assert x.tolist() == [2, 2]
    assert torch.histc(torch.tensor([0, 1, 1, 2], device="cuda"), 3, 0, 2).tolist() == [1, 2, 1]


def test_operations_that_cuda_lacks_as_well_keep_their_error(request: pytest.FixtureRequest) -> None:
    if "no data" in request.node.name:
        pytest.skip("Shape inference accepts any dtype.")
    for operation in (torch.linalg.cholesky, torch.linalg.inv, torch.special.bessel_j0):
        with pytest.raises(RuntimeError):
            operation(torch.eye(2, device="cuda", dtype=torch.float16))
    with pytest.raises(RuntimeError):
        torch.softmax(torch.ones(2, device="cuda", dtype=torch.int64), 0)
