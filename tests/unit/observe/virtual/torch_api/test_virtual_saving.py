"""Saving, loading and copying tensors of virtual GPUs below the dispatcher."""

import copy
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from virtual_host import virtual_gpus

from legroom.units import GiB, MiB

VALUES = torch.arange(6.0)


@pytest.fixture
def host() -> Iterator[Any]:
    with virtual_gpus(GiB, GiB) as host:
        yield host


def saved(value: Any) -> io.BytesIO:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return buffer


def locations(buffer: io.BytesIO) -> list[str]:
    """Return the devices that a file contains."""
    found: list[str] = []

    def remember(storage: Any, location: str) -> Any:
        found.append(location)
        return storage

    torch.load(buffer, map_location=remember)
    buffer.seek(0)
    return found


def test_the_device_is_written_into_the_file(host: Any) -> None:
    buffer = saved([host.put(VALUES.clone(), 1), VALUES])
    assert locations(buffer) == ["cuda:1", "cpu"]


@pytest.mark.parametrize("weights_only", [True, False])
def test_a_tensor_is_loaded_to_its_device(host: Any, weights_only: bool) -> None:
    original = host.put(VALUES.clone(), 1)
    buffer = saved({"weight": original, "step": VALUES})
    loaded = torch.load(buffer, weights_only=weights_only)
    assert host.device_of(loaded["weight"]) == 1
    assert host.device_of(loaded["step"]) is None
    assert torch.equal(loaded["weight"], original)
    assert torch.cuda.memory_allocated(1) == 2 * 512


@pytest.mark.parametrize(
    ("where", "index"),
    [
        ("cuda", 0),
        ("cuda:1", 1),
        (torch.device("cuda", 1), 1),
        ({"cuda:0": "cuda:1"}, 1),
        (lambda storage, location: storage.cuda(1), 1),
        (lambda storage, location: storage.cuda(), 0),
        (lambda storage, location: None, 0),
        ("cpu", None),
        ({"cuda:0": "cpu"}, None),
        (lambda storage, location: storage, None),
    ],
)
def test_a_tensor_is_loaded_to_map_location(host: Any, where: Any, index: int | None) -> None:
    buffer = saved(host.put(VALUES.clone()))
    loaded = torch.load(buffer, map_location=where)
    assert host.device_of(loaded) == index
    assert torch.equal(loaded, VALUES)


def test_cuda_without_a_number_is_the_current_device(host: Any) -> None:
    buffer = saved(VALUES)
    torch.cuda.set_device(1)
    assert host.device_of(torch.load(buffer, map_location="cuda")) == 1


def test_a_missing_device_raises_torchs_error(host: Any) -> None:
    with pytest.raises(RuntimeError, match=r"device 2 but torch.cuda.device_count\(\) is 2"):
        torch.load(saved(VALUES), map_location="cuda:2")


def test_a_loaded_storage_can_be_resized(host: Any, tmp_path: Path) -> None:
    """Guard and FSDP resize storages that were loaded from a checkpoint."""
    torch.save(torch.ones(4), tmp_path / "tensor.pt")
    storage = torch.load(tmp_path / "tensor.pt", map_location="cuda").untyped_storage()
    storage.resize_(0)
    assert storage.nbytes() == 0


def test_loading_can_run_out_of_memory() -> None:
    with virtual_gpus(10 * MiB):
        buffer = saved(torch.empty(30 * MiB, dtype=torch.uint8))
        with pytest.raises(torch.OutOfMemoryError):
            torch.load(buffer, map_location="cuda")


def test_a_model_and_its_optimizer_are_loaded(host: Any, tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 4)
    for parameter in model.parameters():
        host.put(parameter.data, 1)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=True)
    assert {host.device_of(tensor) for tensor in loaded.values()} == {1}


def test_a_memory_mapped_file_can_be_loaded_to_a_device(host: Any, tmp_path: Path) -> None:
    torch.save(VALUES, tmp_path / "values.pt")
    loaded = torch.load(tmp_path / "values.pt", map_location="cuda:1", mmap=True)
    assert host.device_of(loaded) == 1
    assert torch.equal(loaded, VALUES)


def test_a_file_saved_on_a_virtual_gpu_needs_map_location_without_one() -> None:
    with virtual_gpus(GiB) as host:
        buffer = saved(host.put(VALUES.clone()))
    with pytest.raises(RuntimeError, match="deserialize object on a CUDA device"):
        torch.load(buffer)
    buffer.seek(0)
    assert torch.equal(torch.load(buffer, map_location="cpu"), VALUES)


def test_a_deep_copy_is_on_the_device_of_the_original(host: Any) -> None:
    copied = copy.deepcopy(host.put(VALUES.clone(), 1))
    assert host.device_of(copied) == 1
    assert torch.cuda.memory_allocated(1) == 512
    assert host.device_of(copy.deepcopy(VALUES)) is None


def test_a_storage_is_moved_between_devices(host: Any) -> None:
    storage = VALUES.clone().untyped_storage()
    there = storage.cuda(1)
    assert (host.device_of(storage), host.device_of(there)) == (None, 1)
    assert there.cuda(1) is there
    assert host.device_of(there.to(device=torch.device("cuda", 0))) == 0
    back = there.cpu()
    assert host.device_of(back) is None
    assert bytes(back) == bytes(storage)


def test_packages_registered_in_the_block_stay_registered() -> None:
    mine = (99, lambda storage: None, lambda storage, location: None)
    registry = torch.serialization._package_registry
    with virtual_gpus(GiB):
        torch.serialization.register_package(*mine)
    try:
        assert mine in registry
    finally:
        registry.remove(mine)
