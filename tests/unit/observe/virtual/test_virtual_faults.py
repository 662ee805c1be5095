"""Injected allocation failures."""

import pytest
import torch

from legroom import VirtualGPU
from legroom.errors import UsageError


def test_the_numbered_allocation_fails_with_torchs_error_and_the_others_do_not():
    with VirtualGPU("1GiB") as gpu:
        faults = gpu.fail_allocation(3)
        kept = [torch.ones(4, device="cuda") for _ in range(2)]
        assert not faults.happened
        with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory. Tried to allocate"):
            torch.ones(4, device="cuda")
        assert faults.happened
        kept.append(torch.ones(4, device="cuda"))
        assert gpu.allocations == 3


def test_several_allocations_in_a_row_can_fail():
    with VirtualGPU("1GiB") as gpu:
        gpu.fail_allocation(1, times=2)
        for _ in range(2):
            with pytest.raises(torch.OutOfMemoryError):
                torch.ones(4, device="cuda")
        torch.ones(4, device="cuda")


def test_faults_on_one_device_do_not_affect_the_other():
    with VirtualGPU("1GiB", "1GiB") as gpu:
        gpu.fail_allocation(1, device=1)
        torch.ones(4, device="cuda:0")
        with pytest.raises(torch.OutOfMemoryError):
            torch.ones(4, device="cuda:1")


def test_new_faults_replace_old_ones_and_disarmed_faults_do_nothing():
    with VirtualGPU("1GiB") as gpu:
        gpu.fail_allocation(1)
        gpu.fail_allocation(2).disarm()
        torch.ones(4, device="cuda")
        torch.ones(4, device="cuda")


def test_allocation_zero_is_rejected():
    with VirtualGPU("1GiB") as gpu, pytest.raises(UsageError, match="must be at least 1"):
        gpu.fail_allocation(0)


def test_a_storage_that_cannot_grow_keeps_its_size():
    with VirtualGPU("1GiB") as gpu:
        tensor = torch.ones(4, device="cuda")
        before = torch.cuda.memory_allocated()
        gpu.fail_allocation(1)
        with pytest.raises(torch.OutOfMemoryError):
            tensor.untyped_storage().resize_(4096)
        assert tensor.untyped_storage().nbytes() == 16
        assert tensor.device.type == "cuda"
        assert torch.cuda.memory_allocated() == before
