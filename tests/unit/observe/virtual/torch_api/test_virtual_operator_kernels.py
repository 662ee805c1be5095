"""Operators with Python kernels: the virtual device selects the kernel, and the kernel sees this device."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from legroom import VirtualGPU

NAMESPACE = "legroom_kernel_tests"
Library: Any = torch.library.Library


@pytest.fixture
def library() -> Iterator[Any]:
    made = Library(NAMESPACE, "FRAGMENT")
    made.define("op(Tensor x) -> Tensor")
    yield made
    made._destroy()


@pytest.fixture
def gpu() -> Iterator[VirtualGPU]:
    with VirtualGPU("1GiB,1GiB") as active:
        yield active


def operator(x: torch.Tensor) -> Any:
    return torch.ops.legroom_kernel_tests.op(x)


def test_a_kernel_for_cuda_sees_the_device_and_creates_tensors_there(gpu: VirtualGPU, library: Any) -> None:
    seen = []

    def kernel(x: torch.Tensor) -> torch.Tensor:
        seen.append((str(x.device), str((x * 2).device)))
        return x + torch.ones(2, device=x.device)

    library.impl("op", kernel, "CUDA")
    assert str(operator(torch.ones(2, device="cuda:1")).device) == "cuda:1"
    assert seen == [("cuda:1", "cuda:1")]
    with pytest.raises(NotImplementedError, match="arguments from the 'CPU' backend"):
        operator(torch.ones(2))


def test_the_device_selects_between_kernels_for_cuda_and_the_cpu(gpu: VirtualGPU, library: Any) -> None:
    library.impl("op", lambda x: x + 1, "CPU")
    with pytest.raises(NotImplementedError, match="arguments from the 'CUDA' backend"):
        operator(torch.zeros(1, device="cuda"))
    library.impl("op", lambda x: x + 2, "CUDA")
    assert (operator(torch.zeros(1)).item(), operator(torch.zeros(1, device="cuda")).item()) == (1, 2)


def test_a_kernel_for_cuda_replaces_the_one_for_all_devices(gpu: VirtualGPU, library: Any) -> None:
    library.impl("op", lambda x: x + 1, "CompositeExplicitAutograd")
    library.impl("op", lambda x: x + 2, "CUDA")
    assert (operator(torch.zeros(1)).item(), operator(torch.zeros(1, device="cuda")).item()) == (1, 2)


def test_a_kernel_for_all_devices_may_be_registered_after_the_one_for_cuda(
    gpu: VirtualGPU, library: Any
) -> None:
    library.impl("op", lambda x: x + 2, "CUDA")
    library.impl("op", lambda x: x + 1, "CompositeExplicitAutograd")
    assert (operator(torch.zeros(1)).item(), operator(torch.zeros(1, device="cuda")).item()) == (1, 2)


@pytest.mark.skipif(not hasattr(torch.library, "get_kernel"), reason="torch cannot call the replaced kernel")
@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
def test_a_kernel_for_an_operator_of_torch_affects_cuda_only(gpu: VirtualGPU) -> None:
    replaced = Library("aten", "IMPL")
    replaced.impl("trace", lambda x: x.sum() + 100, "CUDA")
    try:
        assert torch.eye(2).trace().item() == 2
        assert torch.eye(2, device="cuda").trace().item() == 102
    finally:
        replaced._destroy()
    assert torch.eye(2).trace().item() == 2


def test_memory_that_a_kernel_uses_is_counted(gpu: VirtualGPU) -> None:
    @torch.library.custom_op(f"{NAMESPACE}::squared", mutates_args=())
    def squared(x: torch.Tensor) -> torch.Tensor:
        return (x + x).sum() * x

    x = torch.ones(1 << 20, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result: Any = squared(x)
    assert str(result.device) == "cuda:0"
    assert torch.cuda.memory_allocated() - before == 4 << 20
    assert torch.cuda.max_memory_allocated() - before >= 4 << 20


def test_an_operator_defined_before_the_virtual_gpu_sees_its_devices() -> None:
    seen = []

    @torch.library.custom_op(f"{NAMESPACE}::earlier", mutates_args=(), device_types="cuda")
    def earlier(x: torch.Tensor) -> torch.Tensor:
        seen.append(str(x.device))
        return x.clone()

    earlier.register_autograd(
        lambda ctx, gradient: gradient * 2, setup_context=lambda ctx, inputs, output: None
    )
    with VirtualGPU("1GiB"):
        x = torch.ones(2, device="cuda", requires_grad=True)
        earlier(x).sum().backward()
        assert x.grad is not None
        assert (seen, str(x.grad.device), x.grad[0].item()) == (["cuda:0"], "cuda:0", 2.0)
