"""A step at another size, foretold from two that were logged."""

import pytest
import torch

import legroom
from legroom.memory.allocator.settings import AllocatorSettings
from legroom.predict.tracing.trace import Request
from legroom.train.sizes.extrapolation import Extrapolation, Logged
from legroom.train.sizes.request_log import Held, _requests, recorded
from legroom.units import MiB

SETTINGS = AllocatorSettings()


def logged(size: int, asked: list[tuple[str, int]], peak: int = 0) -> Logged:
    """`asked`: a name and its bytes, or a name and -1 to give it back."""
    numbers: dict[str, int] = {}
    requests = [Request(numbers.setdefault(name, len(numbers)), bytes, 0) for name, bytes in asked]
    return Logged(size, [], requests, peak, peak)


def extrapolated(step: object, small: int = 4, large: int = 32) -> Extrapolation:
    return Extrapolation(logged(small, step(small)), logged(large, step(large)), SETTINGS)  # type: ignore[operator]


def test_what_is_fixed_stays_and_what_grows_grows() -> None:
    line = extrapolated(lambda rows: [("weights", 40 * MiB), ("activations", rows * 2 * MiB)])
    assert line.matched
    assert line.peak_reserved(100) == 240 * MiB


def test_rows_times_rows_are_foretold_as_such() -> None:
    line = extrapolated(lambda rows: [("similarities", rows * rows * 4096)])
    assert line.peak_reserved(640) == 640 * 640 * 4096


def test_the_largest_size_is_where_the_replayed_allocator_fails() -> None:
    line = extrapolated(lambda rows: [("weights", 40 * MiB), ("activations", rows * 2 * MiB)])
    assert line.largest(500 * MiB, least=32, most=10_000) == 230
    assert line.largest(500 * MiB, least=32, most=100) == 100
    assert line.largest(500 * MiB, least=32, most=10_000, slack=20 * MiB) == 220


def test_memory_given_back_is_used_again() -> None:
    line = extrapolated(lambda rows: [("a", rows * 4 * MiB), ("a", -1), ("b", rows * 4 * MiB), ("b", -1)])
    assert line.peak_reserved(50) == 200 * MiB


def test_a_workspace_that_only_one_size_takes_is_guessed_and_the_rest_still_matches() -> None:
    def step(rows: int) -> list[tuple[str, int]]:
        workspace = [("workspace", 1 * MiB), ("workspace", -1)] if rows > 10 else []
        layers = [(f"layer {n}", rows * MiB + 1 * MiB) for n in range(8)]
        return [("weights", 40 * MiB), *layers[:3], *workspace, *layers[3:]]

    line = Extrapolation(logged(4, step(4)), logged(32, step(32), peak=320 * MiB), SETTINGS)
    assert line.matched
    assert (40 + 8 * 101) * MiB <= line.peak_reserved(100) <= (40 + 8 * 101 + 32) * MiB


def test_requests_of_another_kernel_are_guessed_by_their_sizes() -> None:
    def step(rows: int) -> list[tuple[str, int]]:
        more = [("sorted", rows * 20 * MiB), ("more", rows * MiB), ("sorted", -1)] if rows > 10 else []
        return [("weights", 40 * MiB), ("activations", rows * 2 * MiB), *more, ("rest", 4 * rows * MiB)]

    line = Extrapolation(logged(4, step(4)), logged(32, step(32), peak=32 * 23 * MiB), SETTINGS)
    assert not line.matched
    assert line.peak_reserved(64) == 40 * MiB + 64 * 23 * MiB


def test_gaps_between_what_was_there_before_are_used() -> None:
    held = [Held(60 * MiB, 0, [(1000, 10 * MiB), (None, 30 * MiB), (1001, 20 * MiB)])]
    logs = [Logged(rows, held, [Request(0, rows * 10 * MiB, 0)], 0, 60 * MiB) for rows in (1, 2)]
    line = Extrapolation(*logs, SETTINGS)
    assert line.is_exact(500 * MiB)
    assert line.peak_reserved(3) == 60 * MiB
    assert line.peak_reserved(4) == 100 * MiB
    assert line.largest(180 * MiB, least=2, most=50) == 12


def test_memory_beyond_the_replay_is_kept_free() -> None:
    step = [("activations", 40 * MiB)]
    line = Extrapolation(logged(1, [("activations", 20 * MiB)]), logged(2, step, peak=60 * MiB), SETTINGS)
    assert not line.is_exact(200 * MiB)
    assert line.largest(200 * MiB, least=2, most=50) == 9  # 20 of the 200 MiB were unexplained


class TestLogs:
    def test_a_log_on_a_virtual_gpu_replays_to_its_peak(self) -> None:
        with legroom.VirtualGPU("1GiB"):
            device = torch.device("cuda", 0)
            weights = torch.zeros(3 * MiB, device="cuda")
            with recorded(device) as log:
                for _ in range(3):
                    x = weights * 2
                    y = x + x
                    del x
                    torch.cat([y, y])
            assert log.requests is not None
            peak = torch.cuda.max_memory_reserved()
        assert [held.bytes for held in log.held] == [12 * MiB]
        trial = Logged(1, log.held, log.requests, 0, peak)
        assert Extrapolation(trial, trial, SETTINGS).is_exact(1 << 30)

    def test_addresses_that_are_used_again_are_told_apart(self) -> None:
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

    def test_a_sink_of_ones_own_is_put_back(self) -> None:
        with legroom.VirtualGPU("1GiB") as gpu:
            before = gpu.recorder.allocations.sink
            with pytest.raises(ZeroDivisionError), recorded(torch.device("cuda", 0)):
                raise ZeroDivisionError
            assert gpu.recorder.allocations.sink is before
