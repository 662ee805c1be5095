"""GPU memory that other programs use is not assigned to trials."""

from collections.abc import Sequence

import pytest

from legroom.gpus.machine import GpuProcess, VisibleGpu
from legroom.gpus.nvml import NA
from legroom.tuning.memory.admission import Admission, AdmissionVerdict, Fit, TrialGpu
from legroom.tuning.memory.other_processes import OtherProcessUsage
from legroom.tuning.memory.packing import Packer
from legroom.units import GiB

GPU = TrialGpu(index=0, memory=100 * GiB, context=1 * GiB, used_by_others=10 * GiB)
OURS, THEIRS = 17, 99


class FakeDriver:
    """A fake driver."""

    def __init__(self, used: float, **by_process: float) -> None:
        self.used, self.processes = used, by_process

    def __call__(self) -> Sequence[VisibleGpu]:
        named = tuple(
            GpuProcess(pid=int(pid[1:]), bytes=round(size * GiB)) for pid, size in self.processes.items()
        )
        return [
            VisibleGpu(
                index=0, name="a GPU", total=100 * GiB, used=round(self.used * GiB), processes=named or NA
            )
        ]


def used_by_others(reader: FakeDriver, given: float) -> float:
    pids: set[int] = set()
    other_processes = OtherProcessUsage([GPU], reader, lambda: set(pids))
    pids.add(OURS)
    other_processes.query({0: round(given * GiB)} if given else {})
    return other_processes.used(GPU) / GiB


def test_before_the_first_query_the_use_at_the_start_applies() -> None:
    assert OtherProcessUsage([GPU], FakeDriver(0)).used(GPU) == 10 * GiB


def test_without_trials_all_used_memory_belongs_to_others() -> None:
    assert used_by_others(FakeDriver(60), given=0) == 60


def test_memory_of_trials_is_subtracted() -> None:
    assert used_by_others(FakeDriver(70, p17=8, p99=62), given=40) == 62


@pytest.mark.parametrize(("used", "given", "theirs"), [(70, 40, 30), (30, 40, 10), (5, 40, 5)])
def test_without_process_names_the_use_of_others_is_estimated_from_reservations(
    used: float, given: float, theirs: float
) -> None:
    assert used_by_others(FakeDriver(used), given) == theirs


def test_a_slow_query_is_not_repeated_at_once() -> None:
    times, reader = iter([0.0, 1.0, 5.0, 12.0, 13.0]), FakeDriver(30)
    other_processes = OtherProcessUsage([GPU], reader, clock=lambda: next(times))
    other_processes.query({})
    reader.used = 50
    other_processes.query({})
    assert other_processes.used(GPU) == 30 * GiB
    other_processes.query({})
    assert other_processes.used(GPU) == 50 * GiB


def test_the_use_of_others_is_exact_once_no_trial_runs() -> None:
    reader = FakeDriver(30)
    other_processes = OtherProcessUsage([GPU], reader, set)
    other_processes.query({0: 40 * GiB})
    assert other_processes.used(GPU) == 10 * GiB
    other_processes.query({})
    assert other_processes.used(GPU) == 30 * GiB


def test_a_considerable_change_is_reported_once() -> None:
    reader = FakeDriver(60)
    other_processes = OtherProcessUsage([GPU], reader, set)
    other_processes.query({})
    assert other_processes.messages() == [
        "Other programs use 60.00 GiB on cuda:0. Trials can use 40.00 GiB on this GPU."
    ]
    assert other_processes.messages() == []
    reader.used = 61
    other_processes.query({})
    assert other_processes.messages() == [], "a change of 1% is not reported"
    reader.used = 0
    other_processes.query({})
    assert other_processes.messages() == [
        "Other programs no longer use much memory on cuda:0. Trials can use 100.00 GiB on this GPU."
    ]


@pytest.mark.parametrize(
    "gpu", [TrialGpu(index=0, memory=GiB, virtual=True), TrialGpu(index=0, memory=GiB, machine="10.0.0.7")]
)
def test_only_real_gpus_of_this_machine_are_queried(gpu: TrialGpu) -> None:
    other_processes = OtherProcessUsage([gpu], lambda: pytest.fail("this GPU must not be queried"))
    other_processes.query({})
    assert other_processes.used(gpu) == 0


def test_trials_share_the_memory_that_others_leave() -> None:
    packer = Packer([GPU], slots=4, used_by_others=lambda gpu: 60 * GiB)
    fit = Fit(predicted=30 * GiB, safe=30 * GiB)
    waiting = {number: Admission(verdict=AdmissionVerdict.FITS, fits={0: fit}) for number in range(2)}
    first = packer.place(waiting)
    assert first is not None
    assert not first.is_alone
    del waiting[first.number]
    assert packer.place(waiting) is None


def test_a_trial_of_unknown_size_gets_all_remaining_memory() -> None:
    packer = Packer([GPU], slots=4, used_by_others=lambda gpu: 60 * GiB)
    unknown = Admission(verdict=AdmissionVerdict.UNKNOWN, fits={0: Fit(predicted=0, safe=100 * GiB)})
    placement = packer.place({0: unknown})
    assert placement is not None
    assert placement.fit is not None
    assert placement.fit.safe == 40 * GiB
    assert placement.is_alone


def test_before_a_trial_starts_even_a_slow_query_is_repeated() -> None:
    now = 0.0

    def slow() -> Sequence[VisibleGpu]:
        nonlocal now
        now += 1.0
        return FakeDriver(now)()

    other_processes = OtherProcessUsage([GPU], slow, set, clock=lambda: now)
    other_processes.query({}, before_start=True)
    assert other_processes.used(GPU) == 1 * GiB
    now += 1.0
    other_processes.query({}, before_start=True)
    assert other_processes.used(GPU) == 1 * GiB, "one second old is recent enough"
    now += 1.5
    other_processes.query({})
    assert other_processes.used(GPU) == 1 * GiB, "slow queries are limited"
    other_processes.query({}, before_start=True)
    assert other_processes.used(GPU) == round(4.5 * GiB)


def test_earlier_child_processes_are_not_trials() -> None:
    started = {THEIRS}
    other_processes = OtherProcessUsage([GPU], FakeDriver(70, p17=8, p99=62), lambda: set(started))
    started.add(OURS)
    other_processes.query({0: 40 * GiB})
    assert other_processes.used(GPU) == 62 * GiB
