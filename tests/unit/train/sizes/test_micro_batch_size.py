"""The choice of micro-batch sizes: properties on any device, and individual rules."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legroom.diagnose.oom.sizes import ReportedSizes
from legroom.errors import UsageError
from legroom.train.sizes.micro_batch_size import MIN_WAIT, MicroBatchSizer, micro_batch_sizes
from legroom.units import GiB, MiB

BEFORE = 1 * GiB


@dataclass
class Device:
    """A device on which memory grows linearly with the micro-batch size."""

    capacity: int
    per_sample: int
    seconds_per_pass: float = 0.0
    reports_memory: bool = True

    def peak(self, samples: int) -> int:
        return BEFORE + samples * self.per_sample

    @property
    def max_size(self) -> int:
        """The largest micro-batch size that fits."""
        return (self.capacity - BEFORE) // self.per_sample


def step(sizer: MicroBatchSizer, device: Device, batch: int) -> list[int]:
    """Simulate one step with recovery. Returns the sizes that failed, with 0 last if a single sample does not fit."""
    failures: list[int] = []
    micro = sizer.micro_batch(batch)
    while device.peak(micro) > device.capacity:
        failures.append(micro)
        failure = ReportedSizes(
            requested=device.per_sample * micro // 4,
            allocated=device.capacity - device.per_sample * micro // 8,
            free=device.per_sample * micro // 8,
        )
        micro = sizer.failed(
            batch, micro, failure if device.reports_memory else None, allocated_before=BEFORE
        )
        if micro == 0:
            return [*failures, 0]
    sizer.succeeded(
        batch,
        micro,
        peak=device.peak(micro) if device.reports_memory else None,
        allocated_before=BEFORE,
        capacity=device.capacity if device.reports_memory else None,
        seconds=device.seconds_per_pass * -(-batch // micro) or None,
    )
    return failures


devices = st.builds(
    Device,
    capacity=st.integers(BEFORE + 64 * MiB, 20 * GiB),
    per_sample=st.integers(1 * MiB, 64 * MiB),
    reports_memory=st.booleans(),
    seconds_per_pass=st.sampled_from([0.0, 0.1]),
)


class TestOnAnyDevice:
    @given(device=devices, batch=st.integers(1, 4096))
    def test_sizes_decrease_until_one_fits(self, device: Device, batch: int) -> None:
        failures = step(MicroBatchSizer(), device, batch)
        assert failures == sorted(set(failures), reverse=True)
        assert (failures[-1:] == [0]) == (device.max_size < 1)

    @pytest.mark.slow
    @given(device=devices, batch=st.integers(1, 4096))
    def test_failures_become_rare(self, device: Device, batch: int) -> None:
        sizer = MicroBatchSizer()
        step(sizer, device, batch)
        later = [len(step(sizer, device, batch)) for _ in range(300)] if device.max_size else []
        assert sum(later) <= 8
        assert sum(later[150:]) <= 2

    @settings(max_examples=50)
    @given(device=devices, batch=st.integers(2, 4096))
    def test_the_number_of_micro_batches_settles_at_the_minimum_or_one_more(
        self, device: Device, batch: int
    ) -> None:
        sizer = MicroBatchSizer()
        if device.max_size < 1:
            return
        for _ in range(300):
            step(sizer, device, batch)
        best = -(-batch // min(batch, device.max_size * 97 // 100 or 1))
        assert -(-batch // sizer.micro_batch(batch)) <= max(best + 1, best * 1.35)

    @given(
        batch=st.integers(1, 500),
        events=st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.floats(0.001, 10)), max_size=60),
    )
    def test_sizes_stay_within_the_batch_and_the_maximum(
        self, batch: int, events: list[tuple[bool, int, float]]
    ) -> None:
        sizer = MicroBatchSizer(max_size=64)
        for fails, retries, seconds in events:
            micro = sizer.micro_batch(batch)
            assert 1 <= micro <= min(batch, 64)
            if fails:
                assert sizer.failed(batch, micro) < micro
            else:
                sizer.succeeded(batch, micro, retries=retries, seconds=seconds)

    @given(st.integers(1, 5000), st.integers(1, 5000))
    def test_micro_batches_are_even_and_as_few_as_possible(self, batch: int, micro: int) -> None:
        sizes = micro_batch_sizes(batch, micro)
        assert sum(sizes) == batch
        assert max(sizes) <= micro
        assert max(sizes) - min(sizes) <= 1
        assert len(sizes) == -(-batch // micro)


class TestAfterAFailure:
    def test_a_failure_in_backward_determines_the_size(self) -> None:
        sizer = MicroBatchSizer()
        failure = ReportedSizes(requested=1 * GiB, allocated=10 * GiB, reserved=10 * GiB, free=512 * MiB)
        sizer.failed(64, 64, failure, phase="backward", allocated_before=2 * GiB)
        assert 55 < sizer.choice.size < 64  # 8.5 of 9 GiB are available, so half would be too small
        assert sizer.choice.reason == "needed more than 9.00 GiB; 8.50 GiB available"

    def test_the_progress_of_the_forward_pass_is_used(self) -> None:
        failure = ReportedSizes(requested=1 * GiB, allocated=9 * GiB, free=0)
        early, late = MicroBatchSizer(), MicroBatchSizer()
        early.failed(1000, 1000, failure, allocated_before=1 * GiB, progress=0.1)
        late.failed(1000, 1000, failure, allocated_before=1 * GiB, progress=0.9)
        assert early.choice.size < 110
        assert 700 < late.choice.size < 900

    def test_a_limit_below_the_device_memory_is_respected(self) -> None:
        failure = ReportedSizes(
            requested=1 * GiB, allocated=7 * GiB, reserved=7 * GiB, free=100 * GiB, capacity=8 * GiB
        )
        assert MicroBatchSizer().failed(64, 64, failure, phase="backward", allocated_before=0) < 64

    def test_the_size_is_halved_without_memory_figures(self) -> None:
        sizer = MicroBatchSizer()
        assert sizer.failed(64, 64) == 32
        assert "does not show how much" in sizer.choice.reason

    def test_fragmented_memory_is_retried_once_and_then_halved(self) -> None:
        sizer = MicroBatchSizer()
        failure = ReportedSizes(requested=1 * GiB, allocated=2 * GiB, reserved=7 * GiB, free=0)
        assert sizer.may_retry(64, failure)
        assert not sizer.may_retry(64, failure)
        assert sizer.failed(64, 64, failure) == 32
        assert sizer.choice.reason == "half the size, because memory is fragmented"
        sizer.succeeded(64, 32)
        assert not sizer.may_retry(64, failure)
        assert sizer.may_retry(32, failure)

    def test_the_second_failure_of_a_step_halves_the_size(self) -> None:
        sizer = MicroBatchSizer()
        failure = ReportedSizes(requested=1 * GiB, allocated=10 * GiB, reserved=10 * GiB, free=512 * MiB)
        first = sizer.failed(1024, 1024, failure, phase="backward", allocated_before=2 * GiB)
        assert first == 512  # 963 samples fit, and two equal micro-batches have 512
        assert sizer.failed(1024, 512, failure, phase="backward", allocated_before=2 * GiB) == 256

    def test_the_size_is_zero_if_a_single_sample_fails(self) -> None:
        assert MicroBatchSizer().failed(64, 1) == 0

    def test_measured_peaks_take_precedence(self) -> None:
        sizer = MicroBatchSizer()
        sizer.succeeded(16, 16, peak=3 * GiB, allocated_before=1 * GiB, capacity=9 * GiB)
        sizer.failed(128, 128, None, allocated_before=1 * GiB)
        assert 60 <= sizer.choice.size <= 64  # 8 GiB at 1/8 GiB per sample, minus the margin: about 61


class TestGrowing:
    def sizer_after_failure(self) -> MicroBatchSizer:
        sizer = MicroBatchSizer()
        sizer.failed(64, 64)
        return sizer

    def test_the_size_grows_only_after_successful_steps(self) -> None:
        sizer = self.sizer_after_failure()
        for _ in range(MIN_WAIT):
            assert sizer.micro_batch(64) == 32
            sizer.succeeded(64, 32)
        assert sizer.micro_batch(64) == 64
        assert "memory may be free again" in sizer.choice.reason

    def test_a_failed_larger_size_returns_to_the_old_one_and_waits_longer(self) -> None:
        sizer = self.sizer_after_failure()
        for _ in range(MIN_WAIT):
            sizer.succeeded(64, sizer.micro_batch(64))
        assert sizer.failed(64, sizer.micro_batch(64)) == 32
        for _ in range(4 * MIN_WAIT):
            assert sizer.micro_batch(64) == 32
            sizer.succeeded(64, 32)
        assert sizer.micro_batch(64) == 64

    def test_the_size_grows_at_once_as_far_as_measured_peaks_allow(self) -> None:
        sizer = MicroBatchSizer()
        sizer.set_size(10, "test")
        for _ in range(MIN_WAIT):
            sizer.succeeded(100, 10, peak=2 * GiB, allocated_before=1 * GiB, capacity=9 * GiB)
        assert sizer.micro_batch(100) == 50  # 77 would fit; two even micro-batches have 50

    def test_a_smaller_batch_does_not_affect_larger_sizes(self) -> None:
        sizer = self.sizer_after_failure()
        for _ in range(10):
            sizer.succeeded(8, sizer.micro_batch(8))
        assert sizer.state_dict()["failed"] == 64


class TestSpeed:
    def run(
        self,
        sizer: MicroBatchSizer,
        steps: int,
        seconds: dict[int, float],
        retries: dict[int, int] | None = None,
    ) -> None:
        for _ in range(steps):
            micro = sizer.micro_batch(64)
            sizer.succeeded(64, micro, seconds=seconds[micro], retries=(retries or {}).get(micro, 0))

    def test_a_larger_size_that_is_slower_is_dropped(self) -> None:
        sizer = MicroBatchSizer()
        sizer.set_size(32, "test")
        self.run(sizer, 60, {32: 1.0, 64: 1.2})
        assert sizer.micro_batch(64) == 32
        assert [choice.size for choice in sizer.choices] == [32, 64, 32]
        assert "samples/s" in sizer.choice.reason

    def test_a_larger_size_that_is_faster_is_kept(self) -> None:
        sizer = MicroBatchSizer()
        sizer.set_size(32, "test")
        self.run(sizer, 60, {32: 1.0, 64: 0.8})
        assert [choice.size for choice in sizer.choices] == [32, 64]

    def test_a_smaller_size_is_tried_if_the_cache_is_freed_often(self) -> None:
        sizer = MicroBatchSizer(max_size=32)
        self.run(sizer, 60, {32: 1.0, 22: 0.7}, {32: 2})
        assert sizer.micro_batch(64) == 22
        assert "frees its cache" in sizer.choice.reason

    def test_the_size_is_kept_if_the_smaller_one_is_slower(self) -> None:
        sizer = MicroBatchSizer(max_size=32)
        self.run(sizer, 60, {32: 1.0, 22: 1.3}, {32: 2})
        assert sizer.micro_batch(64) == 32
        assert len(sizer.choices) == 3


class TestAcrossRuns:
    def test_a_run_starts_with_the_size_of_the_last_run(self) -> None:
        sizer = MicroBatchSizer()
        sizer.failed(64, 64)
        assert MicroBatchSizer(state=sizer.state_dict()).micro_batch(64) == 32

    def test_a_size_on_trial_is_not_stored(self) -> None:
        sizer = MicroBatchSizer()
        sizer.set_size(32, "test")
        while sizer.micro_batch(64) == 32:
            sizer.succeeded(64, 32)
        assert sizer.state_dict()["micro_batch_size"] == 32

    @pytest.mark.parametrize(
        "invalid",
        [
            {},
            {"version": 2, "micro_batch_size": 4},
            {"version": 1, "micro_batch_size": "4"},
            {"version": 1, "micro_batch_size": -1},
        ],
    )
    def test_an_invalid_state_is_ignored(self, invalid: dict[str, object]) -> None:
        assert MicroBatchSizer(state=invalid).micro_batch(64) == 64

    def test_max_size_takes_precedence(self) -> None:
        assert (
            MicroBatchSizer(
                max_size=8, state={"version": 1, "micro_batch_size": 32, "failed": 64}
            ).micro_batch(64)
            == 8
        )


@pytest.mark.parametrize(("batch", "micro"), [(0, 4), (4, 0)])
def test_sizes_of_zero_are_rejected(batch: int, micro: int) -> None:
    with pytest.raises(UsageError, match="Both sizes must be greater than 0"):
        micro_batch_sizes(batch, micro)


def test_a_maximum_below_one_is_rejected() -> None:
    with pytest.raises(UsageError, match="1 or more"):
        MicroBatchSizer(max_size=0)
