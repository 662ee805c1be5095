"""The page of a study: whole, self-contained, and safe to open whatever the trials said."""

import json
import math
import re
from pathlib import Path

import pytest

from legroom.errors import UsageError
from legroom.show.tune.html_report.page_writer import page, write_page
from legroom.tuning.report.figures import LONGEST_CURVE, thinned
from made_studies import study, trial


def embedded(text: str) -> dict[str, object]:
    found = re.search(r'<script type="application/json" id="study">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found.group(1))  # type: ignore[no-any-return]


def test_the_first_sentence_says_what_came_of_it() -> None:
    text = page(study(trial(0), trial(1)))
    assert "The best of 2 trials reached loss 0.5; none was lost to memory." in text


def test_with_mode_max_the_largest_is_the_best() -> None:
    assert "reached loss 1.5;" in page(study(trial(0), trial(1), mode="max"))


def test_trials_lost_to_memory_are_in_the_first_sentence() -> None:
    lost = trial(1, look="lost", state="lost to memory", why="It met a full GPU.", value=None, curve=[])
    assert "; 1 was lost to memory." in page(study(trial(0), lost))


def test_a_study_without_any_value_says_so() -> None:
    failed = trial(0, look="failed", state="failed", why="ValueError: x", value=None, curve=[])
    assert "none reported loss" in page(study(failed))


def test_nothing_is_fetched() -> None:
    text = page(study(trial(0), trial(1)))
    addresses = set(re.findall(r"https?://[^\s\"'<)]+", text))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, not a place
    assert not re.search(r"<(link|img|iframe)|@import|url\(|\bfetch\(|XMLHttpRequest", text)


def test_what_a_trial_said_cannot_become_part_of_the_page() -> None:
    evil = "</script><script>alert(1)</script>"
    bad = trial(
        0, look="failed", state="failed", why=evil, value=None, curve=[], config={"lr": evil, "batch_size": 2}
    )
    text = page(study(bad))
    assert "<script>alert" not in text
    assert embedded(text)["trials"][0]["why"] == evil  # type: ignore[index]


def test_an_object_among_the_choices_is_told_by_its_class_and_never_shown() -> None:
    class Loss:
        def __repr__(self) -> str:
            raise AssertionError("a user's object was shown")

    text = page(study(trial(0, config={"lr": 0.1, "batch_size": Loss()})))
    assert embedded(text)["trials"][0]["config"]["batch_size"] == "Loss"  # type: ignore[index]


def test_figures_that_are_no_numbers_stay_readable() -> None:
    text = page(study(trial(0, config={"lr": math.inf, "batch_size": 2})))
    assert embedded(text)["trials"][0]["config"]["lr"] == "inf"  # type: ignore[index]


def test_reasons_that_differ_in_their_figures_only_are_one_row() -> None:
    rejected = [
        trial(
            number,
            look="rejected",
            state="cannot fit",
            value=None,
            curve=[],
            peak=None,
            why=f"One row needs {number}.5 GiB",
        )
        for number in range(3)
    ]
    text = page(study(*rejected))
    assert (
        "<td class=number>3</td><td class=why>One row needs 0.5 GiB</td><td class=which>0, 1, 2</td>" in text
    )


def test_a_study_that_lost_nothing_says_so() -> None:
    assert "Nothing: every trial ran to its end or was stopped by the scheduler." in page(study(trial(0)))


def test_the_best_configuration_says_that_it_ran_in_pieces() -> None:
    text = page(study(trial(0, look="split", batch=256, micro_batch=32)))
    assert "It ran in micro-batches of 32, with the gradients of its whole batch." in text


def test_a_thousand_trials_with_long_curves_stay_below_ten_megabytes() -> None:
    curve = thinned([(step, 1.0 / step) for step in range(1, 5000)])
    text = page(study(*(trial(number, curve=curve) for number in range(1000))))
    assert len(text) < 10_000_000


def test_a_long_curve_keeps_its_ends() -> None:
    curve = thinned([(step, float(step)) for step in range(1, 1001)])
    assert (len(curve), curve[0], curve[-1]) == (LONGEST_CURVE, (1, 1.0), (1000, 1000.0))


def test_points_that_are_no_numbers_are_left_out_of_a_curve() -> None:
    assert thinned([(1, 2.0), (2, math.nan), (3, math.inf), (4, 1.0)]) == [(1, 2.0), (4, 1.0)]


def test_a_place_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        UsageError, match="the report could not be written to .*: (Not a directory|File exists)"
    ):
        write_page(study(trial(0)), tmp_path / "file" / "report.html")


def test_a_full_disk_is_a_sentence() -> None:
    with pytest.raises(UsageError, match="No space left on device. The study itself is kept"):
        write_page(study(trial(0)), Path("/dev/full"))


def legend(text: str) -> list[str]:
    found = re.search(r'<p class="legend">(.*?)</p>', text)
    assert found is not None
    return re.findall(r"<span[^>]*>(.*?)</span>", found.group(1))


def test_the_legend_of_memory_names_only_what_the_chart_shows() -> None:
    without = trial(1, look="failed", state="failed", value=None, curve=[], predicted=None, peak=None)
    foretold = trial(2, look="rejected", state="cannot fit", value=None, curve=[], peak=None)
    assert legend(page(study(trial(0), without))) == ["○ foretold", "• seen", "finished"]
    assert legend(page(study(foretold))) == ["○ foretold", "cannot fit: not started"]


def test_without_a_gpu_the_page_says_so_and_has_no_legend_of_memory() -> None:
    text = page(study(trial(0, predicted=None, peak=None), capacities=[]))
    assert legend(text) == []
    assert "the search ran without a GPU, real or virtual" in text
    assert "reached loss 0.5." in text


def test_what_could_never_fit_is_no_trial() -> None:
    rejected = trial(1, look="rejected", state="cannot fit", value=None, curve=[], peak=None)
    assert "The best of 1 trial reached" in page(study(trial(0), rejected))


def test_importance_that_chance_would_have_is_told_as_such() -> None:
    text = page(study(trial(0), trial(1), importance={"lr": 0.0, "batch_size": 0.0}))
    assert "no parameter alone explains more than chance would in 2 trials" in text
    assert 'class="bars"' not in text
