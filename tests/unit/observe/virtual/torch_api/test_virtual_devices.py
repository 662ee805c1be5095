"""The number, the properties and the selection of virtual GPUs."""

import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.cuda import current_device as current_device_imported_before
from torch.cuda import is_available as is_available_imported_before
from virtual_host import virtual_gpus

from legroom import VirtualGPU
from legroom.units import GiB, MiB


@pytest.fixture
def host() -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with virtual_gpus(8 * GiB, 4 * GiB, context_bytes=256 * MiB) as host:
            yield host


def test_devices_are_available(host: Any) -> None:
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 2
    torch.cuda.init()
    assert torch.cuda.is_initialized()


@pytest.mark.parametrize(
    "use",
    [
        lambda: torch.ones(1, device="cuda"),
        lambda: torch.cuda.set_device(1),
        torch.cuda.current_device,
        lambda: torch.accelerator.set_device_index(1),
    ],
)
def test_cuda_is_initialized_when_the_program_uses_a_device(use: Any) -> None:
    with VirtualGPU("64MiB,64MiB"):
        assert torch.cuda.is_available()
        torch.cuda.manual_seed_all(0)
        torch.cuda.empty_cache()
        assert torch.cuda.memory_allocated() == 0
        assert not torch.cuda.is_initialized()
        use()
        assert torch.cuda.is_initialized()


def test_functions_imported_earlier_see_the_devices(host: Any) -> None:
    torch.cuda.set_device(1)
    assert is_available_imported_before()
    assert current_device_imported_before() == 1


@pytest.mark.parametrize("device", [1, "cuda:1", torch.device("cuda", 1)])
def test_a_device_can_be_selected_in_every_form(host: Any, device: Any) -> None:
    torch.cuda.set_device(device)
    assert torch.cuda.current_device() == 1
    assert host.current == 1


def test_a_negative_index_changes_nothing(host: Any) -> None:
    torch.cuda.set_device(1)
    torch.cuda.set_device(-1)
    assert torch.cuda.current_device() == 1


def test_a_missing_device_is_an_invalid_ordinal(host: Any) -> None:
    with pytest.raises(RuntimeError, match="CUDA error: invalid device ordinal") as caught:
        torch.cuda.set_device(7)
    assert type(caught.value) is getattr(torch, "AcceleratorError", RuntimeError)
    with pytest.raises(RuntimeError, match="invalid device ordinal"), torch.cuda.device(2):
        pass


def test_a_device_of_another_type_is_rejected(host: Any) -> None:
    with pytest.raises(ValueError, match="Expected a cuda device"):
        torch.cuda.set_device("cpu")


def test_the_device_context_restores_the_device(host: Any) -> None:
    with torch.cuda.device(1):
        assert torch.cuda.current_device() == 1
        with torch.cuda.device(None):
            assert torch.cuda.current_device() == 1
    assert torch.cuda.current_device() == 0


def test_each_thread_selects_its_own_device(host: Any) -> None:
    torch.cuda.set_device(1)
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(torch.cuda.current_device()))
    thread.start()
    thread.join()
    assert seen == [0]


def test_properties_include_name_and_memory(host: Any) -> None:
    properties = torch.cuda.get_device_properties("cuda:1")
    assert (properties.name, properties.total_memory) == ("Legroom virtual GPU 1", 4 * GiB)
    assert (properties.major, properties.minor) == torch.cuda.get_device_capability(1) == (8, 0)
    assert properties.multi_processor_count > 0
    assert properties.warp_size == 32
    assert "name='Legroom virtual GPU 1'" in repr(properties)
    assert torch.cuda.get_device_name() == "Legroom virtual GPU 0"


def test_properties_of_a_missing_device_are_an_error(host: Any) -> None:
    with pytest.raises(AssertionError, match="Invalid device id"):
        torch.cuda.get_device_properties(2)


def test_each_device_has_its_own_uuid(host: Any) -> None:
    assert torch.cuda.get_device_properties(0).uuid != torch.cuda.get_device_properties(1).uuid


def test_the_architecture_agrees_with_the_capability(host: Any) -> None:
    assert torch.cuda.get_arch_list() == ["sm_80"]
    assert torch.cuda.is_bf16_supported()


def test_devices_can_access_their_peers(host: Any) -> None:
    assert torch.cuda.can_device_access_peer(0, 1)
    assert not torch.cuda.can_device_access_peer(1, 1)


def test_free_memory_excludes_the_context_and_reserved_memory(host: Any) -> None:
    host.put(torch.zeros(3), 1)
    assert torch.cuda.mem_get_info("cuda:1") == (4 * GiB - 256 * MiB - 2 * MiB, 4 * GiB)
    assert torch.cuda.mem_get_info() == (8 * GiB - 256 * MiB, 8 * GiB)
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.cuda.mem_get_info(2)


def test_the_runtime_reports_success(host: Any) -> None:
    runtime = torch.cuda.cudart()
    torch.cuda.check_error(runtime.cudaProfilerStart())
    torch.cuda.profiler.stop()
    with pytest.raises(AttributeError, match="virtual GPU does not support `cudaMallocManaged`"):
        runtime.cudaMallocManaged  # noqa: B018


def test_sensors_report_an_idle_device(host: Any) -> None:
    assert torch.cuda.utilization(1) == 0
    assert torch.cuda.temperature() == 25
    assert torch.cuda.power_draw("cuda") == 0
    assert torch.cuda.clock_rate() == 0
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.cuda.temperature(2)


def test_synchronize_returns_at_once(host: Any) -> None:
    torch.cuda.synchronize()
    torch.cuda.synchronize("cuda:1")
    torch.cuda.ipc_collect()
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.cuda.synchronize(2)


def test_no_stream_is_capturing(host: Any) -> None:
    assert not torch.cuda.is_current_stream_capturing()


def test_the_build_reports_cuda(host: Any) -> None:
    assert torch.backends.cuda.is_built()
    assert int(torch.version.cuda.split(".")[0]) >= 12


def test_the_accelerator_is_cuda(host: Any) -> None:
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("cuda")
    assert torch.accelerator.device_count() == 2
    assert torch.get_device_module("cuda") is torch.cuda
    assert torch.get_device_module() is torch.cuda


def test_the_accelerator_selects_the_same_device(host: Any) -> None:
    torch.accelerator.set_device_index("cuda:1")
    assert torch.accelerator.current_device_index() == torch.cuda.current_device() == 1
    with pytest.warns(FutureWarning):
        torch.accelerator.set_device_idx(0)
    assert torch.cuda.current_device() == 0
    torch.accelerator.synchronize()


def test_the_accelerator_rejects_a_missing_device(host: Any) -> None:
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.accelerator.set_device_index(2)


@pytest.mark.skipif(not hasattr(torch.accelerator, "device_index"), reason="this torch has no device_index")
def test_the_accelerator_context_restores_the_device(host: Any) -> None:
    with torch.accelerator.device_index(1):
        assert torch.cuda.current_device() == 1
    assert torch.cuda.current_device() == 0


@pytest.mark.skipif(not hasattr(torch.accelerator, "get_device_capability"), reason="not in this torch")
def test_the_accelerator_lists_its_data_types(host: Any) -> None:
    assert torch.bfloat16 in torch.accelerator.get_device_capability("cuda:1")["supported_dtypes"]
