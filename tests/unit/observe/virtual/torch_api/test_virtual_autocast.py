"""Mixed precision on virtual GPUs: autocast for CUDA applies to CPU tensors."""

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch.cuda.amp import GradScaler as GradScalerImportedBefore
from virtual_host import virtual_gpus

from legroom.observe.virtual.gpu import VirtualGPU
from legroom.units import GiB

A = torch.ones(4, 4)


@pytest.fixture
def host() -> Iterator[Any]:
    with virtual_gpus(GiB, GiB) as host:
        yield host


def product() -> torch.dtype:
    """Return the data type of a matrix product under the current autocast state."""
    return (A @ A).dtype


def test_autocast_uses_float16_by_default(host: Any) -> None:
    with torch.autocast("cuda"):
        assert product() == torch.float16
    assert product() == torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_uses_the_given_data_type(host: Any, dtype: torch.dtype) -> None:
    with torch.autocast(device_type="cuda", dtype=dtype):
        assert product() == dtype
        assert torch.get_autocast_dtype("cuda") == dtype


def test_is_autocast_enabled_reports_the_state_for_cuda(host: Any) -> None:
    assert torch.amp.is_autocast_available("cuda")
    assert not torch.is_autocast_enabled("cuda")
    with torch.autocast("cuda"):
        assert torch.is_autocast_enabled("cuda")
        assert torch.is_autocast_enabled()
    assert not torch.is_autocast_enabled("cuda")


def test_a_region_can_be_disabled_inside_another(host: Any) -> None:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        with torch.autocast("cuda", enabled=False):
            assert product() == torch.float32
            with torch.autocast("cuda", dtype=torch.float16):
                assert product() == torch.float16
        assert product() == torch.bfloat16


def test_the_autocast_state_of_the_cpu_is_restored(host: Any) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.autocast("cuda"):
            assert product() == torch.float16
        assert product() == torch.bfloat16
        with torch.autocast("cuda", enabled=False):
            pass
        assert torch.is_autocast_enabled("cpu")
    assert not torch.is_autocast_enabled("cpu")
    assert torch.get_autocast_dtype("cpu") == torch.bfloat16


def test_the_autocast_state_is_restored_after_an_error(host: Any) -> None:
    with pytest.raises(ZeroDivisionError), torch.autocast("cuda"):
        _ = 1 / 0
    assert product() == torch.float32


def test_autocast_is_a_decorator(host: Any) -> None:
    @torch.autocast("cuda")
    def decorated() -> torch.dtype:
        return product()

    assert [decorated(), decorated()] == [torch.float16] * 2
    assert product() == torch.float32


def test_torch_cuda_amp_autocast_works(host: Any) -> None:
    with pytest.warns(FutureWarning, match="deprecated"), torch.cuda.amp.autocast(dtype=torch.bfloat16):
        assert product() == torch.bfloat16


def test_autocast_for_the_cpu_is_unchanged(host: Any) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert product() == torch.bfloat16
        assert not torch.is_autocast_enabled("cuda")


def test_autocast_does_not_warn_that_cuda_is_missing(host: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            product()
        torch.amp.GradScaler("cuda")


def test_custom_fwd_sees_the_autocast_state(host: Any) -> None:
    seen: list[tuple[str, torch.dtype]] = []

    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda")
        def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
            seen.append(("forward", (a @ a).dtype))
            return a * 1

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            seen.append(("backward", (gradient @ gradient).dtype))
            return gradient

    a = torch.ones(4, 4, requires_grad=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = Product.apply(a)
    out.sum().backward()
    assert seen == [("forward", torch.bfloat16), ("backward", torch.bfloat16)]


def test_checkpointing_recomputes_in_the_same_precision(host: Any) -> None:
    seen: list[torch.dtype] = []

    def step(a: torch.Tensor) -> torch.Tensor:
        seen.append((a @ a).dtype)
        return (a @ a).sin()

    a = torch.ones(4, 4, requires_grad=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = torch.utils.checkpoint.checkpoint(step, a, use_reentrant=False)
    out.sum().backward()
    assert seen == [torch.bfloat16] * 2


def test_weights_are_cast_once_in_a_region(host: Any) -> None:
    layer = torch.nn.Linear(4, 4)
    with torch.autocast("cuda"):
        first, second = layer(A), layer(A)
    assert first.grad_fn.next_functions[2][0] is not None
    assert (
        first.grad_fn.next_functions[2][0].next_functions[0][0]
        is second.grad_fn.next_functions[2][0].next_functions[0][0]
    )


def scaled_step(scaler: Any, gradient: float) -> tuple[float, float]:
    """Run one SGD step with a weight of 1 and this gradient. Return the weight and the scale after the step."""
    weight = torch.nn.Parameter(torch.tensor([1.0]))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler.scale((weight * gradient).sum()).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    return weight.item(), scaler.get_scale()


def test_a_step_with_a_grad_scaler_equals_a_step_without(host: Any) -> None:
    weight, scale = scaled_step(torch.amp.GradScaler("cuda", init_scale=1024.0), 0.25)
    assert (weight, scale) == (0.75, 1024.0)


def test_a_step_with_an_infinite_gradient_is_skipped(host: Any) -> None:
    weight, scale = scaled_step(torch.amp.GradScaler("cuda", init_scale=1024.0), float("inf"))
    assert (weight, scale) == (1.0, 512.0)


def test_the_state_of_a_scaler_is_saved_and_loaded(host: Any) -> None:
    first = torch.amp.GradScaler("cuda", init_scale=1024.0)
    scaled_step(first, float("inf"))
    second = torch.amp.GradScaler("cuda")
    second.load_state_dict(first.state_dict())
    assert second.get_scale() == 512.0


def test_a_grad_scaler_class_imported_earlier_is_enabled(host: Any) -> None:
    with pytest.warns(FutureWarning, match="deprecated") as caught:
        assert GradScalerImportedBefore().is_enabled()
    assert len(caught) == 1


def test_loss_of_probabilities_raises_in_an_autocast_region() -> None:
    with VirtualGPU(GiB):
        check_losses_of_probabilities()


def check_losses_of_probabilities() -> None:
    probabilities, targets = torch.rand(4, device="cuda"), torch.ones(4, device="cuda")
    with torch.autocast("cuda"):
        with pytest.raises(RuntimeError, match="BCELoss are unsafe to autocast"):
            torch.nn.BCELoss()(probabilities, targets)
        with pytest.raises(RuntimeError, match="BCELoss are unsafe to autocast"):
            torch.nn.functional.binary_cross_entropy(probabilities.double(), targets.double())
        torch.nn.BCELoss()(probabilities.cpu(), targets.cpu())
        torch.nn.BCEWithLogitsLoss()(probabilities, targets)
        with torch.autocast("cuda", enabled=False):
            torch.nn.BCELoss()(probabilities, targets)
    torch.nn.BCELoss()(probabilities, targets)
