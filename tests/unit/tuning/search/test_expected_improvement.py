"""Scores of candidates, based on losses, runtimes, configurations that did not fit, and running trials."""

import numpy
import pytest

from legroom.tuning.search.expected_improvement import RUNTIME_EXPONENT, Numbers, Observations, Points, score

LINE = numpy.linspace(0.0, 1.0, 41).reshape(-1, 1)
NONE = numpy.empty((0, 1))
RAN = (0.0, 0.2, 0.4, 0.8, 1.0)


def points(*shares: float) -> Points:
    rows: Points = numpy.array(shares).reshape(-1, 1)
    return rows


def scores(
    ran: Points,
    losses: list[float],
    *,
    seconds: list[float] | None = None,
    too_large: Points = NONE,
    running: Points = NONE,
    all_fit: bool = False,
) -> Numbers:
    observed = Observations(ran, losses, seconds or [1.0] * len(losses), too_large)
    return score(LINE, observed, running, numpy.random.RandomState(0), all_fit=all_fit)


def quadratic_losses() -> list[float]:
    return [(share - 0.55) ** 2 for share in RAN]


def best_candidate(scores: Numbers) -> float:
    return float(LINE[int(numpy.argmax(scores)), 0])


def test_a_minimum_between_completed_trials_is_tried() -> None:
    assert 0.4 < best_candidate(scores(points(*RAN), quadratic_losses())) < 0.8


def test_a_diverged_loss_does_not_hide_differences_between_good_ones() -> None:
    assert 0.4 < best_candidate(scores(points(*RAN), [*quadratic_losses()[:-1], 1e6])) < 0.8


def test_nothing_is_proposed_where_configurations_did_not_fit() -> None:
    ran, too_large = points(0.0, 0.1, 0.2, 0.3, 0.4), points(0.6, 0.7, 0.8, 0.9, 1.0)
    assert best_candidate(scores(ran, [1.0 - share for share in ran[:, 0]], too_large=too_large)) < 0.6


def test_candidates_that_fit_are_scored_by_improvement_alone() -> None:
    ran, too_large = points(0.0, 0.1, 0.2, 0.3, 0.4), points(0.6, 0.7, 0.8, 0.9, 1.0)
    falling = [1.0 - share for share in ran[:, 0]]
    at = 28  # 0.7
    known = scores(ran, falling, too_large=too_large, all_fit=True)
    assert known[at] == pytest.approx(scores(ran, falling)[at], rel=0.5)
    assert known[at] > 1000 * scores(ran, falling, too_large=too_large)[at]


def test_a_running_point_is_not_proposed_again() -> None:
    first = best_candidate(scores(points(*RAN), quadratic_losses()))
    assert best_candidate(scores(points(*RAN), quadratic_losses(), running=points(first))) != first


def test_without_results_candidates_far_from_misfits_are_preferred() -> None:
    assert best_candidate(scores(points(), [], too_large=points(0.5, 0.7, 0.9))) < 0.3


def test_of_two_equal_improvements_the_faster_has_the_higher_score() -> None:
    ran = points(0.1, 0.3, 0.7, 0.9)
    result = scores(ran, [1.0, 0.5, 0.5, 1.0], seconds=[1.0, 2.0, 8.0, 16.0])
    even = scores(ran, [1.0, 0.5, 0.5, 1.0])
    left, right = 16, 24  # 0.4 and 0.6
    assert result[left] / result[right] > 1.2 * even[left] / even[right]


def test_predicted_runtimes_stay_in_the_observed_range() -> None:
    ran = points(0.2, 0.4, 0.6, 0.8)
    result = scores(ran, [1.0, 0.9, 0.8, 0.7], seconds=[1.0, 1e3, 1e6, 1e9])
    ratio = scores(ran, [1.0, 0.9, 0.8, 0.7]) / result
    assert ratio[0] == pytest.approx(1.0)
    assert ratio[-1] == pytest.approx(1e9**RUNTIME_EXPONENT)
