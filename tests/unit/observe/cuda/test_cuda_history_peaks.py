"""The peak of each step, and the peaks that the script reads."""

from typing import Any

import pytest

from legroom.observe.cuda.step_peaks import StepPeaks


class Torch:
    """A replacement for torch._C with one device."""

    def __init__(self) -> None:
        self.allocated = self.peak = 0
        self._cuda_memoryStats = self.read
        self._cuda_resetPeakMemoryStats = self.reset

    def use(self, size: int) -> None:
        self.allocated += size
        self.peak = max(self.peak, self.allocated)

    def read(self, device: int) -> dict[str, Any]:
        figures = {"current": self.allocated, "peak": self.peak}
        return {"allocated_bytes": {"all": figures}, "reserved_bytes": {"all": dict(figures)}, "num_ooms": 0}

    def reset(self, device: int) -> None:
        self.peak = self.allocated


@pytest.fixture
def torch() -> Torch:
    return Torch()


@pytest.fixture
def peaks(torch: Torch) -> StepPeaks:
    peaks = StepPeaks(torch)
    peaks.install()
    return peaks


def peak_seen_by_script(torch: Torch) -> int:
    """Return the peak that the script reads."""
    peak: int = torch._cuda_memoryStats(0)["allocated_bytes"]["all"]["peak"]
    return peak


def spike(torch: Torch, size: int) -> None:
    torch.use(size)
    torch.use(-size)


def test_each_step_has_its_own_peak(torch: Torch, peaks: StepPeaks) -> None:
    spike(torch, 100)
    assert peaks.end_step(0)[1:] == (100, 100)
    spike(torch, 30)
    assert peaks.end_step(0)[1:] == (30, 30)


def test_the_script_reads_the_peak_of_the_run(torch: Torch, peaks: StepPeaks) -> None:
    spike(torch, 100)
    peaks.end_step(0)
    spike(torch, 30)
    assert peak_seen_by_script(torch) == 100


def test_a_reset_by_the_script_is_respected(torch: Torch, peaks: StepPeaks) -> None:
    spike(torch, 100)
    peaks.end_step(0)
    torch._cuda_resetPeakMemoryStats(0)
    spike(torch, 30)
    assert peak_seen_by_script(torch) == 30
    peaks.end_step(0)
    assert peak_seen_by_script(torch) == 30


def test_a_reset_by_the_script_does_not_change_the_step_peak(torch: Torch, peaks: StepPeaks) -> None:
    spike(torch, 100)
    torch._cuda_resetPeakMemoryStats(0)
    spike(torch, 30)
    assert peaks.end_step(0)[1:] == (100, 100)


def test_devices_are_separate(torch: Torch, peaks: StepPeaks) -> None:
    spike(torch, 100)
    peaks.end_step(0)
    assert torch._cuda_memoryStats(1)["allocated_bytes"]["all"]["peak"] == 0


def test_torch_functions_are_restored(torch: Torch, peaks: StepPeaks) -> None:
    peaks.stop()
    assert torch._cuda_memoryStats == torch.read
    assert torch._cuda_resetPeakMemoryStats == torch.reset


def test_after_the_recording_the_script_reads_its_own_peak(torch: Torch, peaks: StepPeaks) -> None:
    spike(torch, 100)
    peaks.end_step(0)
    peaks.stop()
    assert peak_seen_by_script(torch) == 100

    torch._cuda_resetPeakMemoryStats(0)
    assert peak_seen_by_script(torch) == 0
    assert torch._cuda_memoryStats == torch.read


def test_later_recordings_keep_the_peak_and_wrap_the_functions_once(torch: Torch, peaks: StepPeaks) -> None:
    spike(torch, 100)
    peaks.end_step(0)
    peaks.stop()
    for _ in range(3):
        later = StepPeaks(torch)
        later.install()
        spike(torch, 30)
        assert later.end_step(0)[1:] == (30, 30)
        later.stop()
    assert peak_seen_by_script(torch) == 100

    torch._cuda_resetPeakMemoryStats(0)
    assert torch._cuda_memoryStats == torch.read
