"""Growth over most of the run: a leak grows until the end and frees nothing."""

from collections import deque
from collections.abc import Callable

import pytest
import torch

from legroom.observe.leaks.live_objects import StorageTracker
from legroom.observe.leaks.survivors import DeviceTrend, SurvivorHistory

_SCANS = (5, 7, 10, 15, 22, 27, 33, 41, 51, 63, 78, 97, 121, 150)

Kept = list[torch.Tensor]
Step = Callable[[int, Kept], None]


def _history(step: Step, scans: tuple[int, ...] = _SCANS) -> SurvivorHistory:
    """Return the history of a loop that calls `step(iteration, kept)`, where `kept` is the list of retained
    tensors."""
    history, tracker, kept = SurvivorHistory(), StorageTracker(), Kept()
    for iteration in range(scans[-1] + 1):
        step(iteration, kept)
        if iteration in scans:
            number = scans.index(iteration) + 1
            history.record(iteration, tracker.update(kept, set(), number))
    return history


def _leak(iteration: int, kept: Kept) -> None:
    kept.append(torch.empty(3))


def _leak_of_varying_sizes(iteration: int, kept: Kept) -> None:
    kept.append(torch.empty(1 + iteration * 37 % 101))


def _leak_with_resets_of_another_size(iteration: int, kept: Kept) -> None:
    kept.append(torch.empty(3))
    if iteration % 25 == 24:
        kept[:] = [each for each in kept if each.numel() == 3]
    kept.append(torch.empty(8))


def _full_after_a_third(iteration: int, kept: Kept) -> None:
    if len(kept) < 50:
        kept.append(torch.empty(3))


def _emptied(iteration: int, kept: Kept) -> None:
    if iteration % 25 == 0:
        kept.clear()
    kept.append(torch.empty(3))


def _oldest_replaced(iteration: int, kept: Kept) -> None:
    kept[:] = deque([*kept, torch.empty(3)], maxlen=40)


def _any_replaced(iteration: int, kept: Kept) -> None:
    if len(kept) < 25:
        kept.append(torch.empty(3))
    elif iteration * 7 % 3 == 0:
        kept[iteration * 7 % 25] = torch.empty(3)


@pytest.mark.parametrize("step", [_leak, _leak_of_varying_sizes, _leak_with_resets_of_another_size])
def test_a_leak_grows_steadily(step: Step) -> None:
    assert _history(step).steady_sizes()


def test_scans_that_follow_each_other_closely_do_not_hide_a_leak_in_every_third_iteration() -> None:
    def leak(iteration: int, kept: Kept) -> None:
        if iteration % 3 == 0:
            kept.append(torch.empty(3))

    assert _history(leak, (*_SCANS[:-1], 122, 123, 150)).steady_sizes()


@pytest.mark.parametrize("step", [_full_after_a_third, _emptied, _oldest_replaced, _any_replaced])
def test_bounded_growth_is_not_steady(step: Step) -> None:
    assert _history(step).steady_sizes() == []


def test_the_growth_is_measured_per_iteration() -> None:
    assert _history(_leak).growth_per_iteration(12) == pytest.approx(1.0)


def test_device_memory_that_stops_growing_has_no_growth_at_the_end() -> None:
    stopped, grows = DeviceTrend(), DeviceTrend()
    for iteration in range(1000):
        stopped.add(iteration, 1 + min(iteration, 300) * 10)
        grows.add(iteration, 1 + iteration * 10)
    assert stopped.growth_at_end() == 0
    assert (grows.growth_at_end() or 0) > 2000


def test_a_device_without_memory_has_no_known_growth() -> None:
    trend = DeviceTrend()
    for iteration in range(100):
        trend.add(iteration, 0)
    assert trend.growth_at_end() is None
