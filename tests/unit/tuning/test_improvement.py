"""Where to look next among what fits: by what ran, how long that took, what was too large and what runs now."""

import numpy
import pytest

from legroom.tuning.search.expected_improvement import SECONDS_COUNT, Known, Numbers, Places, worth

LINE = numpy.linspace(0.0, 1.0, 41).reshape(-1, 1)
NONE = numpy.empty((0, 1))
RAN = (0.0, 0.2, 0.4, 0.8, 1.0)


def places(*shares: float) -> Places:
    rows: Places = numpy.array(shares).reshape(-1, 1)
    return rows


def worths(
    ran: Places,
    losses: list[float],
    *,
    seconds: list[float] | None = None,
    too_large: Places = NONE,
    running: Places = NONE,
    surely_fit: bool = False,
) -> Numbers:
    known = Known(ran, losses, seconds or [1.0] * len(losses), too_large)
    return worth(LINE, known, running, numpy.random.RandomState(0), surely_fit=surely_fit)


def valley() -> list[float]:
    return [(share - 0.55) ** 2 for share in RAN]


def chosen(told: Numbers) -> float:
    return float(LINE[int(numpy.argmax(told)), 0])


def test_the_valley_between_what_ran_is_tried() -> None:
    assert 0.4 < chosen(worths(places(*RAN), valley())) < 0.8


def test_a_loss_that_diverged_does_not_hide_the_differences_between_good_ones() -> None:
    assert 0.4 < chosen(worths(places(*RAN), [*valley()[:-1], 1e6])) < 0.8


def test_where_things_were_too_large_nothing_is_proposed_however_losses_fall_towards_it() -> None:
    ran, too_large = places(0.0, 0.1, 0.2, 0.3, 0.4), places(0.6, 0.7, 0.8, 0.9, 1.0)
    assert chosen(worths(ran, [1.0 - share for share in ran[:, 0]], too_large=too_large)) < 0.6


def test_what_is_known_to_fit_is_judged_by_its_improvement_alone() -> None:
    ran, too_large = places(0.0, 0.1, 0.2, 0.3, 0.4), places(0.6, 0.7, 0.8, 0.9, 1.0)
    falling = [1.0 - share for share in ran[:, 0]]
    at = 28  # 0.7
    surely = worths(ran, falling, too_large=too_large, surely_fit=True)
    assert surely[at] == pytest.approx(worths(ran, falling)[at], rel=0.5)
    assert surely[at] > 1000 * worths(ran, falling, too_large=too_large)[at]


def test_what_runs_is_not_proposed_again() -> None:
    first = chosen(worths(places(*RAN), valley()))
    assert chosen(worths(places(*RAN), valley(), running=places(first))) != first


def test_before_anything_has_ended_the_way_leads_from_what_was_too_large() -> None:
    assert chosen(worths(places(), [], too_large=places(0.5, 0.7, 0.9))) < 0.3


def test_of_two_that_promise_the_same_the_quicker_is_worth_more() -> None:
    ran = places(0.1, 0.3, 0.7, 0.9)
    told = worths(ran, [1.0, 0.5, 0.5, 1.0], seconds=[1.0, 2.0, 8.0, 16.0])
    even = worths(ran, [1.0, 0.5, 0.5, 1.0])
    left, right = 16, 24  # 0.4 and 0.6
    assert told[left] / told[right] > 1.2 * even[left] / even[right]


def test_seconds_foretold_stay_within_those_that_were_seen() -> None:
    ran = places(0.2, 0.4, 0.6, 0.8)
    told = worths(ran, [1.0, 0.9, 0.8, 0.7], seconds=[1.0, 1e3, 1e6, 1e9])
    ratio = worths(ran, [1.0, 0.9, 0.8, 0.7]) / told
    assert ratio[0] == pytest.approx(1.0)
    assert ratio[-1] == pytest.approx(1e9**SECONDS_COUNT)
