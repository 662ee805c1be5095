"""How micro-batches are chosen: properties under any device, and the single rules."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legroom.errors import UsageError
from legroom.train.sizes.micro_batch_size import FIRST_WAIT, Sizer, chunk_sizes
from legroom.units import GiB, MiB

BEFORE = 1 * GiB


@dataclass
class Device:
    """Memory that grows with the rows, on a device that may be told to shrink or grow."""

    capacity: int
    per_row: int
    seconds_per_chunk: float = 0.0
    tells: bool = True

    def peak(self, rows: int) -> int:
        return BEFORE + rows * self.per_row

    @property
    def truly(self) -> int:
        """The largest size that fits."""
        return (self.capacity - BEFORE) // self.per_row


@dataclass
class Failure:
    requested: int | None = None
    free: int | None = None
    allocated: int | None = None
    reserved: int | None = None
    capacity: int | None = None


def step(sizer: Sizer, device: Device, batch: int) -> list[int]:
    """One step with recovery; the sizes that failed in it. 0 at the end: not even one row fits."""
    failures: list[int] = []
    micro = sizer.micro_batch(batch)
    while device.peak(micro) > device.capacity:
        failures.append(micro)
        failure = Failure(
            requested=device.per_row * micro // 4,
            allocated=device.capacity - device.per_row * micro // 8,
            free=device.per_row * micro // 8,
        )
        micro = sizer.failed(batch, micro, failure if device.tells else None, before=BEFORE)
        if micro == 0:
            return [*failures, 0]
    sizer.succeeded(
        batch,
        micro,
        peak=device.peak(micro) if device.tells else None,
        before=BEFORE,
        capacity=device.capacity if device.tells else None,
        seconds=device.seconds_per_chunk * -(-batch // micro) or None,
    )
    return failures


devices = st.builds(
    Device,
    capacity=st.integers(BEFORE + 64 * MiB, 20 * GiB),
    per_row=st.integers(1 * MiB, 64 * MiB),
    tells=st.booleans(),
    seconds_per_chunk=st.sampled_from([0.0, 0.1]),
)


class TestUnderAnyDevice:
    @given(device=devices, batch=st.integers(1, 4096))
    def test_every_next_size_is_smaller_until_one_runs(self, device: Device, batch: int) -> None:
        failures = step(Sizer(), device, batch)
        assert failures == sorted(set(failures), reverse=True)
        assert (failures[-1:] == [0]) == (device.truly < 1)

    @given(device=devices, batch=st.integers(1, 4096))
    def test_failures_grow_rare(self, device: Device, batch: int) -> None:
        sizer = Sizer()
        step(sizer, device, batch)
        later = [len(step(sizer, device, batch)) for _ in range(300)] if device.truly else []
        assert sum(later) <= 8
        assert sum(later[150:]) <= 2

    @settings(max_examples=50)
    @given(device=devices, batch=st.integers(2, 4096))
    def test_settles_at_as_few_chunks_as_fit_or_one_more(self, device: Device, batch: int) -> None:
        sizer = Sizer()
        if device.truly < 1:
            return
        for _ in range(300):
            step(sizer, device, batch)
        best = -(-batch // min(batch, device.truly * 97 // 100 or 1))
        assert -(-batch // sizer.micro_batch(batch)) <= max(best + 1, best * 1.35)

    @given(
        batch=st.integers(1, 500),
        told=st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.floats(0.001, 10)), max_size=60),
    )
    def test_sizes_stay_within_the_batch_and_the_bound(
        self, batch: int, told: list[tuple[bool, int, float]]
    ) -> None:
        sizer = Sizer(most=64)
        for fails, retries, seconds in told:
            micro = sizer.micro_batch(batch)
            assert 1 <= micro <= min(batch, 64)
            if fails:
                assert sizer.failed(batch, micro) < micro
            else:
                sizer.succeeded(batch, micro, retries=retries, seconds=seconds)

    @given(st.integers(1, 5000), st.integers(1, 5000))
    def test_chunks_are_even_and_as_few_as_can_be(self, batch: int, micro: int) -> None:
        sizes = chunk_sizes(batch, micro)
        assert sum(sizes) == batch
        assert max(sizes) <= micro
        assert max(sizes) - min(sizes) <= 1
        assert len(sizes) == -(-batch // micro)


class TestAfterAFailure:
    def test_the_backward_pass_says_what_fits(self) -> None:
        sizer = Sizer()
        failure = Failure(requested=1 * GiB, allocated=10 * GiB, reserved=10 * GiB, free=512 * MiB)
        sizer.failed(64, 64, failure, phase="backward", before=2 * GiB)
        assert 55 < sizer.choice.micro < 64  # 8.5 of 9 GiB that scale: half would be too little
        assert sizer.choice.reason == ("64 rows had asked for 9.00 GiB by then; a step can have 8.50 GiB")

    def test_progress_of_the_forward_pass_is_counted(self) -> None:
        failure = Failure(requested=1 * GiB, allocated=9 * GiB, free=0)
        little, most = Sizer(), Sizer()
        little.failed(1000, 1000, failure, before=1 * GiB, done=0.1)
        most.failed(1000, 1000, failure, before=1 * GiB, done=0.9)
        assert little.choice.micro < 110
        assert 700 < most.choice.micro < 900

    def test_a_cap_below_the_device_counts(self) -> None:
        failure = Failure(
            requested=1 * GiB, allocated=7 * GiB, reserved=7 * GiB, free=100 * GiB, capacity=8 * GiB
        )
        assert Sizer().failed(64, 64, failure, phase="backward", before=0) < 64

    def test_without_figures_it_halves_and_says_so(self) -> None:
        sizer = Sizer()
        assert sizer.failed(64, 64) == 32
        assert "nothing of how much" in sizer.choice.reason

    def test_one_row_that_fails_is_the_end(self) -> None:
        assert Sizer().failed(64, 1) == 0

    def test_figures_of_peaks_that_ran_come_first(self) -> None:
        sizer = Sizer()
        sizer.succeeded(16, 16, peak=3 * GiB, before=1 * GiB, capacity=9 * GiB)
        sizer.failed(128, 128, None, before=1 * GiB)
        assert 60 <= sizer.choice.micro <= 64  # 8 GiB at an eighth of a GiB a row, less the margin: 61 or so


class TestGrowing:
    def sizer_after_failure(self) -> Sizer:
        sizer = Sizer()
        sizer.failed(64, 64)
        return sizer

    def test_waits_for_clean_steps(self) -> None:
        sizer = self.sizer_after_failure()
        for _ in range(FIRST_WAIT):
            assert sizer.micro_batch(64) == 32
            sizer.succeeded(64, 32)
        assert sizer.micro_batch(64) == 64
        assert "may be gone" in sizer.choice.reason

    def test_a_growth_that_fails_returns_to_what_ran_and_waits_longer(self) -> None:
        sizer = self.sizer_after_failure()
        for _ in range(FIRST_WAIT):
            sizer.succeeded(64, sizer.micro_batch(64))
        assert sizer.failed(64, sizer.micro_batch(64)) == 32
        for _ in range(4 * FIRST_WAIT):
            assert sizer.micro_batch(64) == 32
            sizer.succeeded(64, 32)
        assert sizer.micro_batch(64) == 64

    def test_grows_back_at_once_as_far_as_peaks_allow(self) -> None:
        sizer = Sizer()
        sizer.agree(10, "told")
        for _ in range(FIRST_WAIT):
            sizer.succeeded(100, 10, peak=2 * GiB, before=1 * GiB, capacity=9 * GiB)
        assert sizer.micro_batch(100) == 50  # 77 rows would fit: two chunks of 50 are the most that is even

    def test_a_smaller_batch_says_nothing_of_larger_chunks(self) -> None:
        sizer = self.sizer_after_failure()
        for _ in range(10):
            sizer.succeeded(8, sizer.micro_batch(8))
        assert sizer.remember()["failed"] == 64


class TestSpeed:
    def run(
        self, sizer: Sizer, steps: int, seconds: dict[int, float], retries: dict[int, int] | None = None
    ) -> None:
        for _ in range(steps):
            micro = sizer.micro_batch(64)
            sizer.succeeded(64, micro, seconds=seconds[micro], retries=(retries or {}).get(micro, 0))

    def test_a_larger_size_that_is_slower_is_given_up(self) -> None:
        sizer = Sizer()
        sizer.agree(32, "told")
        self.run(sizer, 60, {32: 1.0, 64: 1.2})
        assert sizer.micro_batch(64) == 32
        assert [choice.micro for choice in sizer.choices] == [32, 64, 32]
        assert "rows a second" in sizer.choice.reason

    def test_a_larger_size_that_is_faster_is_kept(self) -> None:
        sizer = Sizer()
        sizer.agree(32, "told")
        self.run(sizer, 60, {32: 1.0, 64: 0.8})
        assert [choice.micro for choice in sizer.choices] == [32, 64]

    def test_thrashing_makes_it_try_one_size_lower(self) -> None:
        sizer = Sizer(most=32)
        self.run(sizer, 60, {32: 1.0, 22: 0.7}, {32: 2})
        assert sizer.micro_batch(64) == 22
        assert "gave back its cache" in sizer.choice.reason

    def test_thrashing_that_costs_nothing_is_left_alone(self) -> None:
        sizer = Sizer(most=32)
        self.run(sizer, 60, {32: 1.0, 22: 1.3}, {32: 2})
        assert sizer.micro_batch(64) == 32
        assert len(sizer.choices) == 3


class TestAcrossRuns:
    def test_starts_where_the_last_run_ended(self) -> None:
        sizer = Sizer()
        sizer.failed(64, 64)
        assert Sizer(remembered=sizer.remember()).micro_batch(64) == 32

    def test_a_size_on_trial_is_not_remembered(self) -> None:
        sizer = Sizer()
        sizer.agree(32, "told")
        while sizer.micro_batch(64) == 32:
            sizer.succeeded(64, 32)
        assert sizer.remember()["rows"] == 32

    @pytest.mark.parametrize(
        "nonsense", [{}, {"version": 2, "rows": 4}, {"version": 1, "rows": "4"}, {"version": 1, "rows": -1}]
    )
    def test_nonsense_is_ignored(self, nonsense: dict[str, object]) -> None:
        assert Sizer(remembered=nonsense).micro_batch(64) == 64

    def test_a_bound_of_ones_own_is_kept(self) -> None:
        assert Sizer(most=8, remembered={"version": 1, "rows": 32, "failed": 64}).micro_batch(64) == 8


@pytest.mark.parametrize(("batch", "micro"), [(0, 4), (4, 0)])
def test_no_rows_are_refused(batch: int, micro: int) -> None:
    with pytest.raises(UsageError, match="above zero"):
        chunk_sizes(batch, micro)


def test_a_bound_below_one_is_refused() -> None:
    with pytest.raises(UsageError, match="1 or more"):
        Sizer(most=0)
