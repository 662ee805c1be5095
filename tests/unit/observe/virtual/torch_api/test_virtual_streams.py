"""Streams and events of virtual GPUs."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.cuda import Event as EventImportedBefore
from torch.cuda import Stream as StreamImportedBefore
from virtual_host import virtual_gpus

from legroom.errors import Unsupported
from legroom.observe.virtual.torch_api.streams import POOL_SIZE, current_stream_id
from legroom.units import GiB

PLAIN = {kind: getattr(torch, kind) for kind in ("Stream", "Event")}


@pytest.fixture
def host() -> Iterator[Any]:
    with virtual_gpus(GiB, GiB) as host:
        yield host


def test_the_default_stream_is_current_at_first(host: Any) -> None:
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert torch.cuda.current_stream("cuda:1").device == torch.device("cuda", 1)
    assert current_stream_id(0) == 0


def test_without_a_virtual_gpu_allocations_use_the_default_stream() -> None:
    assert current_stream_id(0) == 0


def test_a_stream_is_current_within_its_context(host: Any) -> None:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        assert torch.cuda.current_stream() == side
        assert current_stream_id(0) == side.stream_id != 0
        assert current_stream_id(1) == 0
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


def test_a_stream_of_another_device_selects_that_device(host: Any) -> None:
    side = torch.cuda.Stream(device=1)
    with torch.cuda.stream(side):
        assert torch.cuda.current_device() == 1
        assert current_stream_id(1) == side.stream_id
    assert torch.cuda.current_device() == 0
    assert current_stream_id(1) == 0


def test_stream_none_changes_nothing(host: Any) -> None:
    with torch.cuda.stream(None):
        assert current_stream_id(0) == 0
    torch.cuda.set_stream(None)  # type: ignore[arg-type]


def test_a_stream_is_a_context_manager(host: Any) -> None:
    outer, inner = torch.cuda.Stream(), torch.cuda.Stream(device=1)
    with outer, inner:
        assert (torch.cuda.current_device(), current_stream_id(1)) == (1, inner.stream_id)
    assert (torch.cuda.current_device(), current_stream_id(0), current_stream_id(1)) == (0, 0, 0)


def test_each_thread_has_its_own_current_stream(host: Any) -> None:
    torch.cuda.set_stream(torch.cuda.Stream())
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(current_stream_id(0)))
    thread.start()
    thread.join()
    assert seen == [0]


def test_the_33rd_stream_is_the_first_again(host: Any) -> None:
    streams = [torch.cuda.Stream() for _ in range(POOL_SIZE + 1)]
    assert len(set(streams)) == POOL_SIZE
    assert streams[POOL_SIZE] == streams[0]


def test_high_priority_streams_have_their_own_pool(host: Any) -> None:
    low, high = torch.cuda.Stream(), torch.cuda.Stream(priority=-1)
    assert low != high
    assert (low.priority, high.priority) == (0, -1)


def test_streams_of_different_devices_differ(host: Any) -> None:
    assert torch.cuda.Stream(device=0) != torch.cuda.Stream(device=1)


def test_classes_imported_earlier_create_virtual_streams_and_events(host: Any) -> None:
    assert isinstance(StreamImportedBefore(), torch.cuda.Stream)
    assert isinstance(EventImportedBefore(enable_timing=True), torch.cuda.Event)


def test_a_missing_device_has_no_streams(host: Any) -> None:
    with pytest.raises(RuntimeError, match="out of index range"):
        torch.cuda.current_stream(2)
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.cuda.Stream(device=2)


def test_waiting_returns_at_once(host: Any) -> None:
    stream, other = torch.cuda.Stream(), torch.cuda.Stream()
    stream.wait_stream(other)
    stream.wait_event(other.record_event())
    stream.synchronize()
    assert stream.query()


def test_elapsed_time_is_host_time(host: Any) -> None:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    began = time.perf_counter()
    start.record()
    time.sleep(0.002)
    end.record()
    passed = (time.perf_counter() - began) * 1000
    torch.cuda.synchronize()
    end.synchronize()
    assert end.query()
    assert 2 <= start.elapsed_time(end) <= passed


def test_elapsed_time_needs_timing_and_recording(host: Any) -> None:
    with pytest.raises(ValueError, match="enable_timing=True"):
        torch.cuda.Event().elapsed_time(torch.cuda.Event(enable_timing=True))
    with pytest.raises(ValueError, match="must be recorded"):
        torch.cuda.Event(enable_timing=True).elapsed_time(torch.cuda.Event(enable_timing=True))


def test_an_event_is_recorded_on_the_device_of_its_stream(host: Any) -> None:
    event = torch.cuda.Stream(device=1).record_event()
    assert event.device == torch.device("cuda", 1)
    event.wait()


def test_sharing_with_another_process_or_library_is_rejected(host: Any) -> None:
    with pytest.raises(Unsupported, match="other processes"):
        torch.cuda.Event(interprocess=True).ipc_handle()
    with pytest.raises(Unsupported, match="another library"):
        torch.cuda.ExternalStream(1234)
    if hasattr(torch.cuda, "get_stream_from_external"):
        with pytest.raises(Unsupported, match="another library"):
            torch.cuda.get_stream_from_external(1234)


def test_a_stream_that_outlives_its_gpu_raises_a_clear_error() -> None:
    with virtual_gpus(GiB):
        stream = torch.cuda.Stream()
    with pytest.raises(Unsupported, match="This stream's virtual GPU is no longer active"), stream:
        pass


def test_a_class_imported_in_the_block_creates_torchs_objects_afterwards() -> None:
    with virtual_gpus(GiB):
        kept = torch.Event
        assert isinstance(kept(), kept)
    made = kept("cpu")
    assert type(made) is torch.Event
    assert isinstance(made, kept)


def test_the_accelerator_shares_the_current_stream(host: Any) -> None:
    side = torch.Stream(device="cuda:1")
    torch.accelerator.set_stream(side)
    assert isinstance(torch.accelerator.current_stream(1), torch.Stream)
    assert torch.accelerator.current_stream() == torch.cuda.current_stream() == side
    assert torch.cuda.current_device() == 1


def test_generic_events_measure_time(host: Any) -> None:
    start, end = torch.Event(enable_timing=True), torch.Event("cuda:1", enable_timing=True)
    start.record()
    end.record(torch.accelerator.current_stream(1))
    assert start.elapsed_time(end) >= 0
    assert end.device == torch.device("cuda", 1)


@pytest.mark.parametrize("kind", ["Stream", "Event"])
def test_all_attributes_of_torchs_class_exist(host: Any, kind: str) -> None:
    for made, plain in (
        (getattr(torch, kind)(), PLAIN[kind]),
        (getattr(torch.cuda, kind)(), {"Stream": StreamImportedBefore, "Event": EventImportedBefore}[kind]),
    ):
        assert {name for name in dir(plain) if not name.startswith("__")} <= set(dir(made))


def test_a_cuda_stream_is_a_stream(host: Any) -> None:
    assert isinstance(torch.cuda.Stream(), torch.Stream)


def test_record_stream_calls_the_host(host: Any) -> None:
    tensor, stream = torch.zeros(3), torch.cuda.Stream()
    tensor.record_stream(stream)
    ((recorded, stream_id),) = host.recorded
    assert recorded is tensor
    assert stream_id == stream.stream_id
