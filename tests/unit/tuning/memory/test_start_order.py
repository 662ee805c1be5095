"""The start order that finishes first on average over sampled runtimes."""

from hypothesis import given
from hypothesis import strategies as st

from legroom.tuning.memory.start_order import MAX_PLANNED, Allocation, Capacity, Demand, best_order, makespan

RUNTIMES = st.lists(st.floats(1.0, 100.0), min_size=1, max_size=12)


def demands(runtimes: dict[int, list[float]], size: int = 1) -> dict[int, Demand]:
    return {number: Demand([size], seconds) for number, seconds in runtimes.items()}


def test_the_longest_trial_does_not_start_last() -> None:
    waiting = demands({0: [10.0], 1: [10.0], 2: [20.0]})
    assert best_order(waiting, Capacity([2], [], slots=8))[0] == 2


def test_the_largest_trial_starts_first_if_it_would_not_fit_later() -> None:
    waiting = {0: Demand([1], [10.0]), 1: Demand([1], [10.0]), 2: Demand([3], [5.0]), 3: Demand([4], [5.0])}
    assert best_order(waiting, Capacity([4], [], slots=8))[0] == 3


def test_a_trial_that_may_be_long_starts_first() -> None:
    """All trials have a median of 10 s, but one may take 100 s."""
    waiting = demands({0: [10.0, 10.0, 10.0], 1: [10.0, 10.0, 10.0], 2: [1.0, 10.0, 100.0]})
    assert best_order(waiting, Capacity([2], [], slots=8))[0] == 2


def test_a_running_trial_keeps_its_memory_until_it_ends() -> None:
    waiting = demands({0: [10.0]})
    capacity = Capacity([0], [Allocation([(0, 1)], [7.0])], slots=8)
    assert makespan([0], waiting, {0: 1}, capacity, 0) == 17.0


def test_the_number_of_slots_is_respected() -> None:
    waiting = demands({0: [10.0], 1: [10.0], 2: [10.0]})
    assert makespan([0, 1, 2], waiting, dict.fromkeys(range(3), 1), Capacity([9], [], slots=2), 0) == 20.0


def test_a_trial_with_two_ranks_waits_for_two_gpus() -> None:
    waiting = {0: Demand([2, 2], [10.0])}
    capacity = Capacity([2, 1], [Allocation([(1, 1)], [5.0])], slots=8, ranks=2)
    assert makespan([0], waiting, {0: 2}, capacity, 0) == 15.0


def test_a_trial_that_never_fits_is_omitted() -> None:
    waiting = {0: Demand([4], [10.0]), 1: Demand([None], [10.0]), 2: Demand([1], [3.0])}
    assert makespan([0, 1, 2], waiting, {0: 4, 1: 0, 2: 1}, Capacity([2], [], slots=8), 0) == 3.0


def test_only_the_oldest_of_many_trials_are_planned() -> None:
    waiting = demands({number: [1.0 + number] for number in range(MAX_PLANNED + 5)})
    order = best_order(waiting, Capacity([2], [], slots=2))
    assert sorted(order) == sorted(waiting)
    assert order[0] == MAX_PLANNED - 1


@given(runtimes=RUNTIMES)
def test_a_plan_is_within_the_bound_of_list_scheduling(
    runtimes: list[float],
) -> None:
    """With two slots, any list schedule takes at most 3/2 of the optimal time."""
    waiting = demands({number: [seconds] for number, seconds in enumerate(runtimes)})
    order = best_order(waiting, Capacity([2], [], slots=2))
    assert sorted(order) == sorted(waiting)
    total = makespan(order, waiting, dict.fromkeys(waiting, 1), Capacity([2], [], slots=2), 0)
    assert total <= 1.5 * max(sum(runtimes) / 2, max(runtimes)) + 1e-6
