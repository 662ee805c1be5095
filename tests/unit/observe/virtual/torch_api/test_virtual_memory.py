"""Memory statistics of virtual GPUs."""

import os
import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.cuda import memory_allocated as memory_allocated_imported_before
from virtual_host import virtual_gpus

from legroom.observe.virtual.torch_api.memory import call_oom_observers
from legroom.units import GiB, MiB

SMALL = 2 * MiB
"""The segment size of small allocations."""


@pytest.fixture
def host() -> Iterator[Any]:
    with virtual_gpus(8 * GiB, GiB) as host:
        yield host


def mebibytes(count: int) -> torch.Tensor:
    return torch.empty(count * MiB, dtype=torch.uint8)


def test_statistics_come_from_the_allocator(host: Any) -> None:
    kept = host.put(mebibytes(30))
    assert torch.cuda.memory_allocated() == 30 * MiB
    assert torch.cuda.memory_reserved() == host.devices[0].allocator.reserved == 30 * MiB
    assert torch.cuda.memory_allocated(1) == 0
    del kept
    assert torch.cuda.memory_allocated() == 0
    assert torch.cuda.max_memory_allocated() == torch.cuda.max_memory_reserved() == 30 * MiB


@pytest.mark.parametrize("device", [1, "cuda:1", torch.device("cuda", 1)])
def test_statistics_accept_a_device_in_every_form(host: Any, device: Any) -> None:
    kept = host.put(torch.zeros(3), 1)
    assert torch.cuda.memory_allocated(device) == 512
    assert torch.cuda.memory.memory_reserved(device) == SMALL
    assert kept is not None


def test_statistics_default_to_the_current_device(host: Any) -> None:
    kept = host.put(torch.zeros(3), 1)
    with torch.cuda.device(1):
        assert torch.cuda.memory_allocated() == torch.cuda.memory_allocated("cuda") == 512
    assert kept is not None


def test_functions_imported_earlier_return_the_same_statistics(host: Any) -> None:
    kept = host.put(torch.zeros(3))
    assert memory_allocated_imported_before() == 512
    assert kept is not None


def test_statistics_of_a_missing_device_are_an_error(host: Any) -> None:
    with pytest.raises(RuntimeError, match="Invalid device argument 2"):
        torch.cuda.memory_allocated(2)
    with pytest.raises(RuntimeError, match="Invalid device argument 2"):
        torch.cuda.reset_peak_memory_stats(2)


def test_deprecated_names_still_work(host: Any) -> None:
    kept = host.put(torch.zeros(3))
    with pytest.warns(FutureWarning, match="renamed"):
        assert torch.cuda.memory_cached() == SMALL
    with pytest.warns(FutureWarning, match="renamed"):
        assert torch.cuda.max_memory_cached() == SMALL
    assert kept is not None


def test_peaks_are_reset_to_the_current_values(host: Any) -> None:
    host.put(mebibytes(40))
    kept = host.put(mebibytes(12))
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated()
    assert kept is not None


@pytest.mark.parametrize("reset", ["reset_max_memory_allocated", "reset_max_memory_cached"])
def test_deprecated_resets_still_work(host: Any, reset: str) -> None:
    host.put(mebibytes(40))
    with pytest.warns(FutureWarning, match="reset_peak_memory_stats"):
        getattr(torch.cuda, reset)()
    assert torch.cuda.max_memory_allocated() == 0


def test_accumulated_statistics_are_reset(host: Any) -> None:
    host.put(mebibytes(40))
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == 1
    torch.cuda.reset_accumulated_memory_stats()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == 0


def test_statistics_are_flat_and_nested(host: Any) -> None:
    kept = host.put(torch.zeros(3))
    flat, nested = torch.cuda.memory_stats(), torch.cuda.memory_stats_as_nested_dict()
    assert flat["allocated_bytes.small_pool.current"] == 512
    assert nested["allocated_bytes"]["small_pool"]["current"] == 512
    assert flat["num_ooms"] == nested["num_ooms"] == 0
    assert list(flat) == sorted(flat)
    assert kept is not None


def test_torch_formats_the_summary(host: Any) -> None:
    kept = host.put(mebibytes(30))
    text = torch.cuda.memory_summary()
    assert "PyTorch CUDA memory summary, device ID 0" in text
    assert "| Allocated memory      |  30720 KiB |  30720 KiB |" in text
    assert "device ID 1" in torch.cuda.memory_summary(1, abbreviated=True)
    assert kept is not None


def test_empty_cache_frees_segments(host: Any) -> None:
    host.put(mebibytes(30))
    assert torch.cuda.memory_reserved() == 30 * MiB
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0


def test_a_memory_fraction_limits_the_process(host: Any) -> None:
    torch.cuda.set_per_process_memory_fraction(0.25, 1)
    with pytest.raises(torch.OutOfMemoryError):
        host.put(mebibytes(300), 1)
    host.put(mebibytes(200), 1)
    if hasattr(torch.cuda, "get_per_process_memory_fraction"):
        assert torch.cuda.get_per_process_memory_fraction(1) == 0.25
        assert torch.cuda.get_per_process_memory_fraction(0) == 1.0


def test_an_invalid_memory_fraction_raises_torchs_error(host: Any) -> None:
    with pytest.raises(ValueError, match="Invalid fraction value"):
        torch.cuda.set_per_process_memory_fraction(1.5)
    with pytest.raises(TypeError, match="must be `float`"):
        torch.cuda.set_per_process_memory_fraction(1)


def test_a_snapshot_lists_the_segments_of_every_device(host: Any) -> None:
    kept = [host.put(torch.zeros(3)), host.put(mebibytes(30), 1)]
    segments = torch.cuda.memory_snapshot()
    assert [(segment["device"], segment["total_size"]) for segment in segments] == [(0, SMALL), (1, 30 * MiB)]
    assert segments[0]["blocks"][0]["state"] == "active_allocated"
    assert segments[0]["blocks"][0]["requested_size"] == 12
    assert kept


def test_a_dumped_snapshot_can_be_read_by_torchs_viewer(host: Any, tmp_path: Path) -> None:
    kept = host.put(mebibytes(30))
    file = tmp_path / "snapshot.pickle"
    torch.cuda.memory._dump_snapshot(str(file))
    snapshot = pickle.loads(file.read_bytes())
    assert snapshot["device_traces"] == [[], []]
    assert "30.0MiB" in torch.cuda._memory_viz.segsum(snapshot)
    assert kept is not None


def test_recording_history_warns_once_that_there_is_none(host: Any) -> None:
    with pytest.warns(UserWarning, match="does not record the CUDA allocator history"):
        torch.cuda.memory._record_memory_history(max_entries=1000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.cuda.memory._record_memory_history(enabled=None)


def test_only_this_process_is_listed(host: Any) -> None:
    kept = host.put(mebibytes(30), 1)
    text = torch.cuda.list_gpu_processes(1)
    assert text.splitlines()[0] == "GPU:1"
    assert f"{os.getpid()} uses       30.000 MB" in text
    assert kept is not None


def test_memory_for_another_library_is_counted_until_it_is_deleted(host: Any) -> None:
    address = torch.cuda.caching_allocator_alloc(30 * MiB, 1)
    assert torch.cuda.memory_allocated(1) == 30 * MiB
    torch.cuda.caching_allocator_delete(address)
    assert torch.cuda.memory_allocated(1) == 0


def test_allocator_settings_change_a_running_allocator(host: Any) -> None:
    torch._C._cuda_cudaCachingAllocator_set_allocator_settings("expandable_segments:True")
    assert all(device.allocator.settings.expandable_segments for device in host.devices)


def test_an_observer_is_called_on_out_of_memory(host: Any) -> None:
    calls: list[tuple[int, int, int, int]] = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *figures: calls.append(figures))
    call_oom_observers(1, 100, GiB, 50)
    assert calls == [(1, 100, GiB, 50)]


def test_observers_are_removed_with_the_virtual_gpu() -> None:
    calls: list[Any] = []
    with virtual_gpus(GiB):
        torch._C._cuda_attach_out_of_memory_observer(lambda *figures: calls.append(figures))
    call_oom_observers(0, 1, 1, 1)
    assert calls == []


@pytest.mark.skipif(not hasattr(torch.accelerator, "memory_allocated"), reason="not in this torch")
def test_the_accelerator_returns_the_same_statistics(host: Any) -> None:
    kept = host.put(torch.zeros(3), 1)
    torch.accelerator.set_device_index(1)
    assert torch.accelerator.memory_allocated() == torch.accelerator.max_memory_allocated("cuda:1") == 512
    assert torch.accelerator.memory_reserved(1) == torch.accelerator.max_memory_reserved() == SMALL
    assert torch.accelerator.memory_stats(1)["allocated_bytes.all.current"] == 512
    torch.accelerator.reset_peak_memory_stats()
    torch.accelerator.empty_cache()
    if hasattr(torch.accelerator, "get_memory_info"):
        assert torch.accelerator.get_memory_info(1) == (GiB - SMALL, GiB)
    assert kept is not None


def test_pinned_memory_statistics_are_empty(host: Any) -> None:
    if hasattr(torch.cuda, "host_memory_stats"):
        assert torch.cuda.host_memory_stats() == {}


def test_memory_functions_do_not_warn(host: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.cuda.memory_summary()
        torch.cuda.memory_snapshot()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
