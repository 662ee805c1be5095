"""Reference counts of storages, and memory that outlives the weak reference to its storage."""

import gc
from typing import Any

import torch

from legroom import VirtualGPU
from legroom.observe.dispatch import storage_counts


def test_each_tensor_of_a_storage_is_counted() -> None:
    count = storage_counts.count_references
    assert count is not None, "gradients would be added out of place"
    tensor = torch.ones(4)
    storage = tensor.untyped_storage()
    before = count(storage._cdata)
    view = tensor[:2]
    assert count(storage._cdata) == before + 1
    del view
    assert count(storage._cdata) == before


def test_the_count_is_read_from_memory_in_builds_without_a_function() -> None:
    assert storage_counts._first_correct(None, storage_counts._in_memory) is storage_counts._in_memory
    assert storage_counts._first_correct(None, lambda key: 1) is None


def test_memory_counts_while_a_tensor_uses_it_even_if_the_storage_was_garbage() -> None:
    with VirtualGPU("1GiB"):
        tensor = torch.ones(1 << 20, device="cuda")
        cycle: list[Any] = [tensor.untyped_storage()]
        cycle.append(cycle)
        del cycle
        gc.collect()
        assert torch.cuda.memory_allocated() == 4 << 20
        del tensor
        assert torch.cuda.memory_allocated() == 0


def test_a_storage_in_a_garbage_cycle_is_freed() -> None:
    with VirtualGPU("1GiB"):
        for _ in range(3):
            tensor = torch.ones(1 << 20, device="cuda")
            cycle: list[Any] = [tensor.untyped_storage()]
            cycle.append(cycle)
            del tensor, cycle
            gc.collect()
            assert torch.cuda.memory_allocated() == 0
