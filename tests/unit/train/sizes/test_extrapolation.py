"""Predicting a step at other batch sizes from two logged trials."""

import pytest
import torch

import legroom
from legroom.memory.allocator.settings import AllocatorSettings
from legroom.predict.requests import MemoryRequest
from legroom.train.sizes.extrapolation import Extrapolation, LoggedTrial
from legroom.train.sizes.request_log import SegmentLayout, _requests, log_requests
from legroom.units import MiB

SETTINGS = AllocatorSettings()


def logged(size: int, named_requests: list[tuple[str, int]], peak: int = 0) -> LoggedTrial:
    """Return a logged trial. Each request is a name and its bytes, or a name and -1 to free it."""
    ids: dict[str, int] = {}
    requests = [MemoryRequest(ids.setdefault(name, len(ids)), bytes, 0) for name, bytes in named_requests]
    return LoggedTrial(size, [], requests, peak, peak)


def extrapolated(step: object, small: int = 4, large: int = 32) -> Extrapolation:
    return Extrapolation(logged(small, step(small)), logged(large, step(large)), SETTINGS)  # type: ignore[operator]


def test_fixed_requests_stay_and_growing_requests_grow() -> None:
    prediction = extrapolated(lambda size: [("weights", 40 * MiB), ("activations", size * 2 * MiB)])
    assert prediction.matched
    assert prediction.peak_reserved(100) == 240 * MiB


def test_quadratic_growth_is_predicted() -> None:
    prediction = extrapolated(lambda size: [("similarities", size * size * 4096)])
    assert prediction.peak_reserved(640) == 640 * 640 * 4096


def test_the_largest_size_is_the_last_that_the_replayed_allocator_serves() -> None:
    prediction = extrapolated(lambda size: [("weights", 40 * MiB), ("activations", size * 2 * MiB)])
    assert prediction.largest(500 * MiB, known_to_fit=32, max_size=10_000) == 230
    assert prediction.largest(500 * MiB, known_to_fit=32, max_size=100) == 100
    assert prediction.largest(500 * MiB, known_to_fit=32, max_size=10_000, slack=20 * MiB) == 220


def test_freed_memory_is_reused() -> None:
    prediction = extrapolated(
        lambda size: [("a", size * 4 * MiB), ("a", -1), ("b", size * 4 * MiB), ("b", -1)]
    )
    assert prediction.peak_reserved(50) == 200 * MiB


def test_a_workspace_in_only_one_log_does_not_break_the_alignment() -> None:
    def step(size: int) -> list[tuple[str, int]]:
        workspace = [("workspace", 1 * MiB), ("workspace", -1)] if size > 10 else []
        layers = [(f"layer {n}", size * MiB + 1 * MiB) for n in range(8)]
        return [("weights", 40 * MiB), *layers[:3], *workspace, *layers[3:]]

    prediction = Extrapolation(logged(4, step(4)), logged(32, step(32), peak=320 * MiB), SETTINGS)
    assert prediction.matched
    assert (40 + 8 * 101) * MiB <= prediction.peak_reserved(100) <= (40 + 8 * 101 + 32) * MiB


def test_requests_without_a_match_grow_with_the_batch_size() -> None:
    def step(size: int) -> list[tuple[str, int]]:
        more = [("sorted", size * 20 * MiB), ("more", size * MiB), ("sorted", -1)] if size > 10 else []
        return [("weights", 40 * MiB), ("activations", size * 2 * MiB), *more, ("rest", 4 * size * MiB)]

    prediction = Extrapolation(logged(4, step(4)), logged(32, step(32), peak=32 * 23 * MiB), SETTINGS)
    assert not prediction.matched
    assert prediction.peak_reserved(64) == 40 * MiB + 64 * 23 * MiB


def test_free_memory_in_existing_segments_is_used() -> None:
    segments = [SegmentLayout(60 * MiB, 0, [(1000, 10 * MiB), (None, 30 * MiB), (1001, 20 * MiB)])]
    logs = [
        LoggedTrial(size, segments, [MemoryRequest(0, size * 10 * MiB, 0)], 0, 60 * MiB) for size in (1, 2)
    ]
    prediction = Extrapolation(*logs, SETTINGS)
    assert prediction.is_exact(500 * MiB)
    assert prediction.peak_reserved(3) == 60 * MiB
    assert prediction.peak_reserved(4) == 100 * MiB
    assert prediction.largest(180 * MiB, known_to_fit=2, max_size=50) == 12


def test_memory_that_is_in_no_log_is_left_free() -> None:
    step = [("activations", 40 * MiB)]
    prediction = Extrapolation(
        logged(1, [("activations", 20 * MiB)]), logged(2, step, peak=60 * MiB), SETTINGS
    )
    assert not prediction.is_exact(200 * MiB)
    assert prediction.largest(200 * MiB, known_to_fit=2, max_size=50) == 9  # 20 of the 200 MiB are in no log


class TestLogs:
    def test_the_replay_of_a_virtual_gpu_log_has_its_peak(self) -> None:
        with legroom.VirtualGPU("1GiB"):
            device = torch.device("cuda", 0)
            weights = torch.zeros(3 * MiB, device="cuda")
            with log_requests(device) as log:
                for _ in range(3):
                    x = weights * 2
                    y = x + x
                    del x
                    torch.cat([y, y])
            assert log.requests is not None
            peak = torch.cuda.max_memory_reserved()
        assert [segment.bytes for segment in log.segments] == [12 * MiB]
        trial = LoggedTrial(1, log.segments, log.requests, 0, peak)
        assert Extrapolation(trial, trial, SETTINGS).is_exact(1 << 30)

    def test_reused_addresses_have_different_ids(self) -> None:
        entries = [
            {"action": "alloc", "addr": 512, "size": 100, "stream": 0},
            {"action": "segment_alloc", "addr": 0, "size": 2 * MiB, "stream": 0},
            {"action": "free_requested", "addr": 512, "size": 100, "stream": 0},
            {"action": "free_completed", "addr": 512, "size": 100, "stream": 0},
            {"action": "alloc", "addr": 512, "size": 200, "stream": 0},
            {"action": "free_requested", "addr": 4096, "size": 50, "stream": 0},
            {"action": "free_requested", "addr": 9999, "size": 50, "stream": 0},
            {"action": "oom", "device_free": 10, "size": 50, "stream": 0},
        ]
        requests = _requests(entries, {4096})
        assert [request.bytes for request in requests] == [100, -1, 200, -1]
        assert requests[0].id == requests[1].id != requests[2].id
        assert requests[3].id == 4096

    def test_the_original_sink_is_restored(self) -> None:
        with legroom.VirtualGPU("1GiB") as gpu:
            before = gpu.recorder.allocations.sink
            with pytest.raises(ZeroDivisionError), log_requests(torch.device("cuda", 0)):
                raise ZeroDivisionError
            assert gpu.recorder.allocations.sink is before


def test_workspaces_may_be_optional() -> None:
    def step(size: int) -> list[tuple[str, int]]:
        workspace = [("workspace", size * 3 * MiB), ("workspace", -1)]
        return [("weights", 40 * MiB), *workspace, ("activations", size * 2 * MiB), ("activations", -1)]

    prediction = extrapolated(step)
    assert prediction.largest(500 * MiB, known_to_fit=32, max_size=10_000) == 153
    assert prediction.largest(500 * MiB, known_to_fit=32, max_size=10_000, optional_workspaces=True) == 157


def test_a_tensor_that_lives_until_the_next_request_is_not_optional() -> None:
    def step(size: int) -> list[tuple[str, int]]:
        return [("x", size * 4 * MiB), ("y", 1 * MiB), ("x", -1), ("z", size * MiB)]

    prediction = extrapolated(step)
    for optional in (False, True):
        assert (
            prediction.largest(400 * MiB, known_to_fit=32, max_size=10_000, optional_workspaces=optional)
            < 100
        )
