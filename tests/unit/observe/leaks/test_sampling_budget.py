"""Sampling stays within its budget, repeats a sample at once if memory may grow, and predicts the next sample."""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from legroom.observe.leaks.sampling_budget import (
    FREE_SCANS,
    UNTIMED_FACTOR,
    RareGrowthScans,
    SamplingBudget,
)


def sampled(budget: SamplingBudget, *, seconds: float, cost: float, iterations: int) -> list[int]:
    """Return the numbers of the sampled iterations. Each iteration takes `seconds`, and each sample costs `cost`
    seconds."""
    now, found = 100.0, []
    for number in range(iterations):
        now += seconds
        if budget.is_due(now):
            budget.spend(now + cost, cost, again=False)
            found.append(number)
    return found


def test_long_iterations_are_all_sampled() -> None:
    assert sampled(SamplingBudget(0.003), seconds=0.1, cost=50e-6, iterations=20) == list(range(20))


def test_short_iterations_are_sampled_within_the_budget() -> None:
    found = sampled(SamplingBudget(0.003, free=0), seconds=0.002, cost=30e-6, iterations=2000)
    assert 0.002 < len(found) * UNTIMED_FACTOR * 30e-6 / (2000 * 0.002) <= 0.003


def test_an_extra_sample_delays_later_samples() -> None:
    budget = SamplingBudget(0.01, free=0)
    budget.spend(1.001, 0.001, again=True)
    assert budget.is_due(1.002)
    budget.spend(1.003, 0.001, again=False)
    assert not budget.is_due(1.003 + UNTIMED_FACTOR * 0.0019 / 0.01)
    assert budget.is_due(1.003 + UNTIMED_FACTOR * 0.0021 / 0.01)


def test_a_sample_is_predicted_before_its_iteration() -> None:
    budget = SamplingBudget(0.003, free=0)
    now, predicted, due = 100.0, [], []
    for _ in range(60):
        predicted.append(budget.expects_sample)
        now += 0.005
        due.append(budget.is_due(now))
        if due[-1]:
            budget.spend(now + 30e-6, 30e-6, again=False)
    assert 0 < sum(due) < 60
    assert all(expected for expected, happened in zip(predicted, due, strict=True) if happened)


def test_the_first_iterations_are_always_sampled_at_no_cost() -> None:
    assert sampled(SamplingBudget(0.003, free=50), seconds=0.001, cost=1e-3, iterations=50) == list(range(50))
    budget = SamplingBudget(0.003, free=2)
    assert budget.is_due(1.0)
    budget.spend(1.0, 0.5, again=False)
    assert budget.is_due(1.1)


def test_the_number_of_iterations_between_two_samples_is_limited_at_any_speed() -> None:
    found = sampled(SamplingBudget(0.003), seconds=1e-9, cost=1.0, iterations=2000)
    assert all(after - before <= max(after / 60, 17) for before, after in pairwise([*found, 2000]))
    assert len(found) < 256 + 4 * 64


def test_a_scheduled_scan_runs_at_any_speed_while_memory_grows() -> None:
    window: Any = SimpleNamespace(scans=FREE_SCANS, steady=None)
    scans = RareGrowthScans(window, fraction=0.0)
    assert scans.is_due(100, new_maximum=False, in_use=lambda: 1000)
    assert not scans.is_due(101, new_maximum=True, in_use=lambda: 1000)
    assert scans.is_due(102, new_maximum=False, in_use=lambda: 1001)
