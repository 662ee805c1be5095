"""Packing: who shares a GPU with whom, and who goes first."""

from hypothesis import given
from hypothesis import strategies as st

from legroom.tuning.memory.admission import Admission, Fit, Place, Verdict
from legroom.tuning.memory.packing import PATIENCE, Packer
from legroom.tuning.memory.runtime_model import Futures

GiB = 1 << 30


def gpu(index: int, size: int) -> Place:
    return Place(index=index, memory=size * GiB, virtual=True)


def needs(places: list[Place], size: int, micro: dict[int, int] | None = None) -> Admission:
    """Fits wherever there is that much."""
    fits = {
        place.index: Fit(predicted=size * GiB, safe=size * GiB, micro_batch=(micro or {}).get(place.index))
        for place in places
        if place.memory >= size * GiB
    }
    return Admission(verdict=Verdict.FITS, fits=fits)


def test_trials_share_a_gpu_while_their_bounds_fit_side_by_side() -> None:
    places = [gpu(0, 8)]
    packer = Packer(places, slots=8)
    waiting = {number: needs(places, 3) for number in range(3)}
    started = []
    while (placement := packer.place(waiting)) is not None:
        started.append(placement.number)
        del waiting[placement.number]
    assert started == [0, 1]
    packer.release(0)
    assert packer.place(waiting) is not None


def test_a_trial_goes_where_it_leaves_least_free() -> None:
    places = [gpu(0, 8), gpu(1, 4)]
    placement = Packer(places, slots=2).place({0: needs(places, 3)})
    assert placement is not None
    assert placement.places[0].index == 1


def test_a_trial_goes_where_its_batch_is_whole_though_another_gpu_is_tighter() -> None:
    places = [gpu(0, 8), gpu(1, 4)]
    placement = Packer(places, slots=2).place({0: needs(places, 3, micro={1: 16})})
    assert placement is not None
    assert placement.places[0].index == 0
    assert placement.fit is not None
    assert placement.fit.micro_batch is None


def test_the_largest_that_has_room_goes_first() -> None:
    places = [gpu(0, 8)]
    placement = Packer(places, slots=2).place({0: needs(places, 1), 1: needs(places, 6)})
    assert placement is not None
    assert placement.number == 1


def test_where_lengths_are_foretold_the_trial_goes_first_that_the_plan_has_first() -> None:
    places = [gpu(0, 8)]
    packer = Packer(places, slots=2)
    waiting = {number: needs(places, 4) for number in range(4)}
    futures = Futures(waiting={0: [10.0], 1: [10.0], 2: [60.0], 3: [10.0]}, running={})
    placement = packer.place(waiting, foretell=lambda: futures)
    assert placement is not None
    assert placement.number == 2


def test_nothing_is_foretold_where_there_is_no_choice() -> None:
    places = [gpu(0, 8)]

    def foretell() -> Futures:
        raise AssertionError

    packer = Packer(places, slots=2)
    assert packer.place({0: needs(places, 4)}, foretell=foretell) is not None
    assert packer.place({1: needs(places, 6), 2: needs(places, 5)}, foretell=foretell) is None


def test_a_large_trial_is_not_passed_over_for_ever() -> None:
    places = [gpu(0, 8)]
    packer = Packer(places, slots=9)
    first = packer.place({0: needs(places, 3)})
    assert first is not None
    large = needs(places, 8)
    for number in range(2, 2 + PATIENCE * 9):
        placement = packer.place({1: large, number: needs(places, 3)})
        assert placement is not None
        assert placement.number == number
        packer.release(number)
    assert packer.place({1: large, 999: needs(places, 3)}) is None
    packer.release(0)
    last = packer.place({1: large, 999: needs(places, 3)})
    assert last is not None
    assert last.number == 1


def test_what_could_not_be_estimated_has_a_gpu_to_itself() -> None:
    places = [gpu(0, 8)]
    packer = Packer(places, slots=4)
    unknown = Admission(verdict=Verdict.UNKNOWN, fits={0: Fit(predicted=0, safe=8 * GiB)})
    placement = packer.place({0: unknown})
    assert placement is not None
    assert packer.place({1: needs(places, 1)}) is None


def test_a_trial_of_two_ranks_gets_two_gpus_and_one_micro_batch() -> None:
    places = [gpu(0, 8), gpu(1, 4)]
    packer = Packer(places, slots=4, ranks=2)
    placement = packer.place({0: needs(places, 3, micro={1: 16})})
    assert placement is not None
    assert {place.index for place in placement.places} == {0, 1}
    assert placement.fit is not None
    assert placement.fit.micro_batch == 16


def test_on_a_real_gpu_a_trial_gets_a_little_more_than_its_bound_where_there_is_room() -> None:
    place = Place(index=0, memory=100 * GiB, context=GiB)
    packer = Packer([place], slots=4)
    first, second, third = (
        packer.place({number: needs([place], size)}) for number, size in enumerate((10, 86, 2))
    )
    assert first is not None
    assert first.fit is not None
    assert first.fit.safe == 12 * GiB
    assert second is not None
    assert second.fit is not None
    assert second.fit.safe == 88 * GiB
    assert packer.free(place) == 0
    assert third is None


def test_without_gpus_there_are_as_many_as_slots() -> None:
    packer = Packer([], slots=2)
    waiting = {number: Admission(verdict=Verdict.FITS, fits={}) for number in range(3)}
    assert [packer.place({n: waiting[n] for n in (number,)}) is not None for number in range(3)] == [
        True,
        True,
        False,
    ]


@given(sizes=st.lists(st.integers(1, 9), max_size=30), ends=st.lists(st.integers(0, 50), max_size=60))
def test_no_gpu_is_ever_given_more_than_it_has(sizes: list[int], ends: list[int]) -> None:
    places = [gpu(0, 8), gpu(1, 5)]
    packer = Packer(places, slots=100)
    waiting = {number: needs(places, size) for number, size in enumerate(sizes) if size <= 8}
    running: list[int] = []
    for end in [*ends, *range(100)]:
        while (placement := packer.place(waiting)) is not None:
            del waiting[placement.number]
            running.append(placement.number)
        assert all(packer.free(place) >= 0 for place in places)
        if running:
            packer.release(running.pop(end % len(running)))
    assert not waiting


def test_ranks_of_a_trial_are_on_one_machine_if_one_has_as_many_gpus() -> None:
    places = [
        Place(index=index, memory=8 * GiB, machine=machine)
        for index, machine in enumerate(("small", "large", "large"))
    ]
    packer = Packer(places, slots=4, ranks=2)
    waiting = {0: needs(places, 3), 1: needs(places, 3)}
    placement = packer.place(waiting)
    assert placement is not None
    assert [place.machine for place in placement.places] == ["large", "large"]
    assert packer.place({1: needs(places, 3)}) is None, "on a cluster a rank has its GPU to itself"


def test_ranks_of_a_trial_are_spread_where_no_machine_has_as_many_gpus() -> None:
    places = [
        Place(index=index, memory=8 * GiB, machine=machine) for index, machine in enumerate(("one", "other"))
    ]
    placement = Packer(places, slots=4, ranks=2).place({0: needs(places, 3)})
    assert placement is not None
    assert {place.machine for place in placement.places} == {"one", "other"}
