"""What other programs hold of a GPU is not given to trials."""

from collections.abc import Sequence

import pytest

from legroom.gpus.machine import NA, GpuProcess, VisibleGpu
from legroom.tuning.memory.admission import Admission, Fit, Place, Verdict
from legroom.tuning.memory.other_processes import Neighbours
from legroom.tuning.memory.packing import Packer
from legroom.units import GiB

PLACE = Place(index=0, memory=100 * GiB, context=1 * GiB, held=10 * GiB)
OURS, THEIRS = 17, 99


class Reader:
    """Stands for the driver: says what it is told to say."""

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


def looked(reader: Reader, given: float) -> float:
    pids: set[int] = set()
    neighbours = Neighbours([PLACE], reader, lambda: set(pids))
    pids.add(OURS)
    neighbours.look({0: round(given * GiB)} if given else {})
    return neighbours.held(PLACE) / GiB


def test_before_the_first_look_it_is_what_they_had_at_the_beginning() -> None:
    assert Neighbours([PLACE], Reader(0)).held(PLACE) == 10 * GiB


def test_where_no_trial_runs_all_that_is_used_is_theirs() -> None:
    assert looked(Reader(60), given=0) == 60


def test_what_our_trials_use_is_not_theirs() -> None:
    assert looked(Reader(70, p17=8, p99=62), given=40) == 62


@pytest.mark.parametrize(("used", "given", "theirs"), [(70, 40, 30), (30, 40, 10), (5, 40, 5)])
def test_where_the_driver_names_no_process_they_have_what_is_beyond_our_share_and_what_they_had_before(
    used: float, given: float, theirs: float
) -> None:
    assert looked(Reader(used), given) == theirs


def test_a_look_that_takes_long_is_not_repeated_at_once() -> None:
    times, reader = iter([0.0, 1.0, 5.0, 12.0, 13.0]), Reader(30)
    neighbours = Neighbours([PLACE], reader, clock=lambda: next(times))
    neighbours.look({})
    reader.used = 50
    neighbours.look({})
    assert neighbours.held(PLACE) == 30 * GiB
    neighbours.look({})
    assert neighbours.held(PLACE) == 50 * GiB


def test_what_came_while_trials_ran_is_known_when_none_runs_any_more() -> None:
    reader = Reader(30)
    neighbours = Neighbours([PLACE], reader, set)
    neighbours.look({0: 40 * GiB})
    assert neighbours.held(PLACE) == 10 * GiB
    neighbours.look({})
    assert neighbours.held(PLACE) == 30 * GiB


def test_a_good_part_that_is_taken_or_given_back_is_told_once() -> None:
    reader = Reader(60)
    neighbours = Neighbours([PLACE], reader, set)
    neighbours.look({})
    assert neighbours.news() == [
        "other programs hold 60.00 GiB of cuda:0: trials share the remaining 40.00 GiB"
    ]
    assert neighbours.news() == []
    reader.used = 61
    neighbours.look({})
    assert neighbours.news() == [], "a hundredth is no news"
    reader.used = 0
    neighbours.look({})
    assert neighbours.news() == ["other programs have left cuda:0: trials share the remaining 100.00 GiB"]


@pytest.mark.parametrize(
    "place", [Place(index=0, memory=GiB, virtual=True), Place(index=0, memory=GiB, machine="10.0.0.7")]
)
def test_only_gpus_of_this_machine_are_read_again(place: Place) -> None:
    neighbours = Neighbours([place], lambda: pytest.fail("nothing is to be read"))
    neighbours.look({})
    assert neighbours.held(place) == 0


def test_trials_are_packed_into_what_others_leave() -> None:
    packer = Packer([PLACE], slots=4, held=lambda place: 60 * GiB)
    fit = Fit(predicted=30 * GiB, safe=30 * GiB)
    asked = {number: Admission(verdict=Verdict.FITS, fits={0: fit}) for number in range(2)}
    first = packer.place(asked)
    assert first is not None
    assert not first.is_alone
    del asked[first.number]
    assert packer.place(asked) is None


def test_a_trial_of_unknown_size_gets_all_that_others_leave() -> None:
    packer = Packer([PLACE], slots=4, held=lambda place: 60 * GiB)
    unknown = Admission(verdict=Verdict.UNKNOWN, fits={0: Fit(predicted=0, safe=100 * GiB)})
    placement = packer.place({0: unknown})
    assert placement is not None
    assert placement.fit is not None
    assert placement.fit.safe == 40 * GiB
    assert placement.is_alone


def test_before_a_trial_starts_there_is_a_look_though_looking_takes_long() -> None:
    now = 0.0

    def slow() -> Sequence[VisibleGpu]:
        nonlocal now
        now += 1.0
        return Reader(now)()

    neighbours = Neighbours([PLACE], slow, set, clock=lambda: now)
    neighbours.look({}, before_start=True)
    assert neighbours.held(PLACE) == 1 * GiB
    now += 1.0
    neighbours.look({}, before_start=True)
    assert neighbours.held(PLACE) == 1 * GiB, "a second old is fresh"
    now += 1.5
    neighbours.look({})
    assert neighbours.held(PLACE) == 1 * GiB, "it rests"
    neighbours.look({}, before_start=True)
    assert neighbours.held(PLACE) == round(4.5 * GiB)


def test_a_process_that_this_program_had_started_before_is_no_trial() -> None:
    started = {THEIRS}
    neighbours = Neighbours([PLACE], Reader(70, p17=8, p99=62), lambda: set(started))
    started.add(OURS)
    neighbours.look({0: 40 * GiB})
    assert neighbours.held(PLACE) == 62 * GiB
