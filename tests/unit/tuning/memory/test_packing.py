"""Packing: which trials share a GPU, and which starts first."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legroom.tuning.memory.admission import Admission, AdmissionVerdict, Fit, TrialGpu
from legroom.tuning.memory.packing import MAX_OVERTAKEN, Packer
from legroom.tuning.memory.runtime_model import RuntimeSamples

GiB = 1 << 30


def gpu(index: int, size: int) -> TrialGpu:
    return TrialGpu(index=index, memory=size * GiB, virtual=True)


def needs(gpus: list[TrialGpu], size: int, micro: dict[int, int] | None = None) -> Admission:
    """Return an admission that fits on every GPU with at least `size` GiB."""
    fits = {
        gpu.index: Fit(predicted=size * GiB, safe=size * GiB, micro_batch=(micro or {}).get(gpu.index))
        for gpu in gpus
        if gpu.memory >= size * GiB
    }
    return Admission(verdict=AdmissionVerdict.FITS, fits=fits)


def test_trials_share_a_gpu_while_their_bounds_fit_together() -> None:
    gpus = [gpu(0, 8)]
    packer = Packer(gpus, slots=8)
    waiting = {number: needs(gpus, 3) for number in range(3)}
    started = []
    while (placement := packer.place(waiting)) is not None:
        started.append(placement.number)
        del waiting[placement.number]
    assert started == [0, 1]
    packer.release(0)
    assert packer.place(waiting) is not None


def test_a_trial_is_placed_where_it_leaves_the_least_memory_free() -> None:
    gpus = [gpu(0, 8), gpu(1, 4)]
    placement = Packer(gpus, slots=2).place({0: needs(gpus, 3)})
    assert placement is not None
    assert placement.gpus[0].index == 1


def test_a_gpu_where_the_batch_is_not_split_is_preferred() -> None:
    gpus = [gpu(0, 8), gpu(1, 4)]
    placement = Packer(gpus, slots=2).place({0: needs(gpus, 3, micro={1: 16})})
    assert placement is not None
    assert placement.gpus[0].index == 0
    assert placement.fit is not None
    assert placement.fit.micro_batch is None


def test_the_largest_trial_that_fits_starts_first() -> None:
    gpus = [gpu(0, 8)]
    placement = Packer(gpus, slots=2).place({0: needs(gpus, 1), 1: needs(gpus, 6)})
    assert placement is not None
    assert placement.number == 1


def test_with_predicted_runtimes_the_planned_order_is_used() -> None:
    gpus = [gpu(0, 8)]
    packer = Packer(gpus, slots=2)
    waiting = {number: needs(gpus, 4) for number in range(4)}
    runtimes = RuntimeSamples(waiting={0: [10.0], 1: [10.0], 2: [60.0], 3: [10.0]}, running={})
    placement = packer.place(waiting, predict_runtimes=lambda: runtimes)
    assert placement is not None
    assert placement.number == 2


def test_runtimes_are_not_predicted_without_a_choice() -> None:
    gpus = [gpu(0, 8)]

    def predict_runtimes() -> RuntimeSamples:
        raise AssertionError

    packer = Packer(gpus, slots=2)
    assert packer.place({0: needs(gpus, 4)}, predict_runtimes=predict_runtimes) is not None
    assert packer.place({1: needs(gpus, 6), 2: needs(gpus, 5)}, predict_runtimes=predict_runtimes) is None


def test_a_large_trial_is_not_overtaken_forever() -> None:
    gpus = [gpu(0, 8)]
    packer = Packer(gpus, slots=9)
    first = packer.place({0: needs(gpus, 3)})
    assert first is not None
    large = needs(gpus, 8)
    for number in range(2, 2 + MAX_OVERTAKEN * 9):
        placement = packer.place({1: large, number: needs(gpus, 3)})
        assert placement is not None
        assert placement.number == number
        packer.release(number)
    assert packer.place({1: large, 999: needs(gpus, 3)}) is None
    packer.release(0)
    last = packer.place({1: large, 999: needs(gpus, 3)})
    assert last is not None
    assert last.number == 1


def test_a_trial_without_an_estimate_has_a_gpu_to_itself() -> None:
    gpus = [gpu(0, 8)]
    packer = Packer(gpus, slots=4)
    unknown = Admission(verdict=AdmissionVerdict.UNKNOWN, fits={0: Fit(predicted=0, safe=8 * GiB)})
    placement = packer.place({0: unknown})
    assert placement is not None
    assert packer.place({1: needs(gpus, 1)}) is None


def test_a_trial_with_two_ranks_gets_two_gpus_and_one_micro_batch() -> None:
    gpus = [gpu(0, 8), gpu(1, 4)]
    packer = Packer(gpus, slots=4, ranks=2)
    placement = packer.place({0: needs(gpus, 3, micro={1: 16})})
    assert placement is not None
    assert {gpu.index for gpu in placement.gpus} == {0, 1}
    assert placement.fit is not None
    assert placement.fit.micro_batch == 16


def test_on_a_real_gpu_a_trial_gets_a_margin_if_memory_is_free() -> None:
    gpu = TrialGpu(index=0, memory=100 * GiB, context=GiB)
    packer = Packer([gpu], slots=4)
    first, second, third = (
        packer.place({number: needs([gpu], size)}) for number, size in enumerate((10, 86, 2))
    )
    assert first is not None
    assert first.fit is not None
    assert first.fit.safe == 12 * GiB
    assert second is not None
    assert second.fit is not None
    assert second.fit.safe == 88 * GiB
    assert packer.free(gpu) == 0
    assert third is None


def test_without_gpus_the_slots_limit_the_number_of_trials() -> None:
    packer = Packer([], slots=2)
    waiting = {number: Admission(verdict=AdmissionVerdict.FITS, fits={}) for number in range(3)}
    assert [packer.place({n: waiting[n] for n in (number,)}) is not None for number in range(3)] == [
        True,
        True,
        False,
    ]


@pytest.mark.slow
@given(sizes=st.lists(st.integers(1, 9), max_size=30), ends=st.lists(st.integers(0, 50), max_size=60))
def test_no_gpu_is_overcommitted(sizes: list[int], ends: list[int]) -> None:
    gpus = [gpu(0, 8), gpu(1, 5)]
    packer = Packer(gpus, slots=100)
    waiting = {number: needs(gpus, size) for number, size in enumerate(sizes) if size <= 8}
    running: list[int] = []
    for end in [*ends, *range(100)]:
        while (placement := packer.place(waiting)) is not None:
            del waiting[placement.number]
            running.append(placement.number)
        assert all(packer.free(gpu) >= 0 for gpu in gpus)
        if running:
            packer.release(running.pop(end % len(running)))
    assert not waiting


def test_ranks_are_on_one_machine_if_one_has_enough_gpus() -> None:
    gpus = [
        TrialGpu(index=index, memory=8 * GiB, machine=machine)
        for index, machine in enumerate(("small", "large", "large"))
    ]
    packer = Packer(gpus, slots=4, ranks=2)
    waiting = {0: needs(gpus, 3), 1: needs(gpus, 3)}
    placement = packer.place(waiting)
    assert placement is not None
    assert [gpu.machine for gpu in placement.gpus] == ["large", "large"]
    assert packer.place({1: needs(gpus, 3)}) is None, "on a cluster, a rank has its GPU to itself"


def test_ranks_are_on_several_machines_if_none_has_enough_gpus() -> None:
    gpus = [
        TrialGpu(index=index, memory=8 * GiB, machine=machine)
        for index, machine in enumerate(("one", "other"))
    ]
    placement = Packer(gpus, slots=4, ranks=2).place({0: needs(gpus, 3)})
    assert placement is not None
    assert {gpu.machine for gpu in placement.gpus} == {"one", "other"}
