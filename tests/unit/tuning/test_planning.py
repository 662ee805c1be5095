"""Plans: which order of starting has all trials over soonest, in the mean of several futures."""

from hypothesis import given
from hypothesis import strategies as st

from legroom.tuning.memory.start_order import MOST, Demand, Room, Taken, best_order, makespan

LENGTHS = st.lists(st.floats(1.0, 100.0), min_size=1, max_size=12)


def alike(lengths: dict[int, list[float]], size: int = 1) -> dict[int, Demand]:
    return {number: Demand([size], seconds) for number, seconds in lengths.items()}


def test_the_longest_does_not_begin_last() -> None:
    waiting = alike({0: [10.0], 1: [10.0], 2: [20.0]})
    assert best_order(waiting, Room([2], [], slots=8))[0] == 2


def test_the_largest_goes_first_where_it_would_not_find_room_again() -> None:
    waiting = {0: Demand([1], [10.0]), 1: Demand([1], [10.0]), 2: Demand([3], [5.0]), 3: Demand([4], [5.0])}
    assert best_order(waiting, Room([4], [], slots=8))[0] == 3


def test_one_that_is_long_in_some_futures_goes_before_one_that_is_never() -> None:
    """Both take 10 s in the middle; only one may take 100."""
    waiting = alike({0: [10.0, 10.0, 10.0], 1: [10.0, 10.0, 10.0], 2: [1.0, 10.0, 100.0]})
    assert best_order(waiting, Room([2], [], slots=8))[0] == 2


def test_what_runs_keeps_its_room_until_it_ends() -> None:
    waiting = alike({0: [10.0]})
    room = Room([0], [Taken([(0, 1)], [7.0])], slots=8)
    assert makespan([0], waiting, {0: 1}, room, 0) == 17.0


def test_no_more_run_at_once_than_may() -> None:
    waiting = alike({0: [10.0], 1: [10.0], 2: [10.0]})
    assert makespan([0, 1, 2], waiting, dict.fromkeys(range(3), 1), Room([9], [], slots=2), 0) == 20.0


def test_a_trial_of_two_ranks_waits_for_two_gpus() -> None:
    waiting = {0: Demand([2, 2], [10.0])}
    room = Room([2, 1], [Taken([(1, 1)], [5.0])], slots=8, ranks=2)
    assert makespan([0], waiting, {0: 2}, room, 0) == 15.0


def test_what_finds_no_room_at_all_is_left_out() -> None:
    waiting = {0: Demand([4], [10.0]), 1: Demand([None], [10.0]), 2: Demand([1], [3.0])}
    assert makespan([0, 1, 2], waiting, {0: 4, 1: 0, 2: 1}, Room([2], [], slots=8), 0) == 3.0


def test_of_very_many_the_oldest_are_planned() -> None:
    waiting = alike({number: [1.0 + number] for number in range(MOST + 5)})
    order = best_order(waiting, Room([2], [], slots=2))
    assert sorted(order) == sorted(waiting)
    assert order[0] == MOST - 1


@given(lengths=LENGTHS)
def test_a_plan_is_no_worse_than_the_order_of_proposal_by_more_than_any_list_can_be(
    lengths: list[float],
) -> None:
    """Two machines: whatever the order, a list is at most 3/2 of the best."""
    waiting = alike({number: [seconds] for number, seconds in enumerate(lengths)})
    order = best_order(waiting, Room([2], [], slots=2))
    assert sorted(order) == sorted(waiting)
    length = makespan(order, waiting, dict.fromkeys(waiting, 1), Room([2], [], slots=2), 0)
    assert length <= 1.5 * max(sum(lengths) / 2, max(lengths)) + 1e-6
