"""Where to look next among what fits: by what ran, what was too large and what runs now."""

import numpy

from legroom.tuning.improvement import Places, most_promising

LINE = numpy.linspace(0.0, 1.0, 41).reshape(-1, 1)
NONE = numpy.empty((0, 1))


def places(*shares: float) -> Places:
    rows: Places = numpy.array(shares).reshape(-1, 1)
    return rows


def chosen(ran: Places, losses: list[float], *, too_large: Places = NONE, running: Places = NONE) -> float:
    dice = numpy.random.RandomState(0)
    return float(LINE[most_promising(LINE, ran, losses, too_large, running, dice), 0])


def test_the_valley_between_what_ran_is_tried() -> None:
    ran = places(0.0, 0.2, 0.4, 0.8, 1.0)
    assert 0.4 < chosen(ran, [(share - 0.55) ** 2 for share in ran[:, 0]]) < 0.8


def test_a_loss_that_diverged_does_not_hide_the_differences_between_good_ones() -> None:
    ran = places(0.0, 0.2, 0.4, 0.8, 1.0)
    losses = [(share - 0.55) ** 2 for share in ran[:, 0]]
    losses[-1] = 1e6
    assert 0.4 < chosen(ran, losses) < 0.8


def test_where_things_were_too_large_nothing_is_proposed_however_losses_fall_towards_it() -> None:
    ran, too_large = places(0.0, 0.1, 0.2, 0.3, 0.4), places(0.6, 0.7, 0.8, 0.9, 1.0)
    assert chosen(ran, [1.0 - share for share in ran[:, 0]], too_large=too_large) < 0.6


def test_what_runs_is_not_proposed_again() -> None:
    ran = places(0.0, 0.2, 0.4, 0.8, 1.0)
    losses = [(share - 0.55) ** 2 for share in ran[:, 0]]
    first = chosen(ran, losses)
    assert chosen(ran, losses, running=places(first)) != first


def test_before_anything_has_ended_the_way_leads_from_what_was_too_large() -> None:
    assert chosen(places(), [], too_large=places(0.5, 0.7, 0.9)) < 0.3
