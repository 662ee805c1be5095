"""The HTML report of a study: complete, self-contained and safe to open."""

import ast
import html
import json
import math
import re
import tomllib
from pathlib import Path

import pytest

from example_studies import study, trial
from legroom.errors import UsageError
from legroom.show.tune.html_report.page_writer import page, write_page
from legroom.tuning.report.figures import MAX_CURVE_POINTS, thinned


def embedded(text: str) -> dict[str, object]:
    found = re.search(r'<script type="application/json" id="study">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found.group(1))  # type: ignore[no-any-return]


def test_the_first_sentence_states_the_result() -> None:
    text = page(study(trial(0), trial(1)))
    assert "The best of 2 trials reached loss 0.5; none ran out of memory." in text


def test_with_mode_max_the_largest_is_the_best() -> None:
    assert "reached loss 1.5;" in page(study(trial(0), trial(1), mode="max"))


def test_out_of_memory_trials_are_in_the_first_sentence() -> None:
    lost = trial(1, outcome="lost", state="out of memory", reason="Out of memory.", value=None, curve=[])
    assert "; 1 ran out of memory." in page(study(trial(0), lost))


def test_a_study_without_a_value_is_described_as_such() -> None:
    failed = trial(0, outcome="failed", state="failed", reason="ValueError: x", value=None, curve=[])
    assert "1 trial ran, with no result for loss" in page(study(failed))


def test_the_page_loads_nothing_from_the_network() -> None:
    text = page(study(trial(0), trial(1)))
    addresses = set(re.findall(r"https?://[^\s\"'<)]+", text))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a namespace, not a link
    assert not re.search(r"<(link|img|iframe)|@import|url\(|\bfetch\(|XMLHttpRequest", text)


def test_trial_output_cannot_inject_html() -> None:
    evil = "</script><script>alert(1)</script>"
    bad = trial(
        0,
        outcome="failed",
        state="failed",
        reason=evil,
        value=None,
        curve=[],
        config={"lr": evil, "batch_size": 2},
    )
    text = page(study(bad))
    assert "<script>alert" not in text
    assert embedded(text)["trials"][0]["reason"] == evil  # type: ignore[index]


def test_an_object_is_shown_by_its_class() -> None:
    class Loss:
        def __repr__(self) -> str:
            raise AssertionError("repr of a user's object was called")

    text = page(study(trial(0, config={"lr": 0.1, "batch_size": Loss()})))
    assert embedded(text)["trials"][0]["config"]["batch_size"] == "Loss"  # type: ignore[index]


def test_infinite_values_stay_readable() -> None:
    text = page(study(trial(0, config={"lr": math.inf, "batch_size": 2})))
    assert embedded(text)["trials"][0]["config"]["lr"] == "inf"  # type: ignore[index]


def test_reasons_that_differ_only_in_numbers_are_one_row() -> None:
    rejected = [
        trial(
            number,
            outcome="rejected",
            state="cannot fit",
            value=None,
            curve=[],
            peak=None,
            reason=f"Needs {number}.5 GiB",
        )
        for number in range(3)
    ]
    text = page(study(*rejected))
    assert "<td class=number>3</td><td class=reason>Needs 0.5 GiB</td><td class=which>0, 1, 2</td>" in text


def test_a_study_without_failures_is_described_as_such() -> None:
    assert "No trial failed: every trial finished or was stopped by the scheduler." in page(study(trial(0)))


def test_the_best_configuration_mentions_its_micro_batches() -> None:
    text = page(study(trial(0, outcome="split", batch=256, micro_batch=32)))
    assert "The trial ran in micro-batches of 32, with the same gradients as the full batch." in text


@pytest.mark.slow
def test_a_thousand_trials_with_long_curves_stay_below_ten_megabytes() -> None:
    curve = thinned([(step, 1.0 / step) for step in range(1, 5000)])
    text = page(study(*(trial(number, curve=curve) for number in range(1000))))
    assert len(text) < 10_000_000


def test_a_long_curve_keeps_its_ends() -> None:
    curve = thinned([(step, float(step)) for step in range(1, 1001)])
    assert (len(curve), curve[0], curve[-1]) == (MAX_CURVE_POINTS, (1, 1.0), (1000, 1000.0))


def test_points_that_are_not_finite_are_omitted_from_a_curve() -> None:
    assert thinned([(1, 2.0), (2, math.nan), (3, math.inf), (4, 1.0)]) == [(1, 2.0), (4, 1.0)]


def test_a_path_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        UsageError, match="The report could not be written to .*: (Not a directory|File exists)"
    ):
        write_page(study(trial(0)), tmp_path / "file" / "report.html")


def test_a_full_disk_is_an_error() -> None:
    with pytest.raises(UsageError, match="No space left on device. The results are saved"):
        write_page(study(trial(0)), Path("/dev/full"))


def legend(text: str) -> list[str]:
    found = re.search(r'<p class="legend">(.*?)</p>', text)
    assert found is not None
    return re.findall(r"<span[^>]*>(.*?)</span>", found.group(1))


def test_the_memory_legend_lists_only_what_the_chart_shows() -> None:
    without = trial(1, outcome="failed", state="failed", value=None, curve=[], predicted=None, peak=None)
    rejected = trial(2, outcome="rejected", state="cannot fit", value=None, curve=[], peak=None)
    assert legend(page(study(trial(0), without))) == ["○ predicted", "• measured", "finished"]
    assert legend(page(study(rejected))) == ["○ predicted", "cannot fit (not started)"]


def test_without_a_gpu_there_is_no_memory_legend() -> None:
    text = page(study(trial(0, predicted=None, peak=None), capacities=[]))
    assert legend(text) == []
    assert "the search ran without a real or virtual GPU" in text
    assert "reached loss 0.5." in text


def test_a_configuration_that_never_fits_does_not_count_as_a_trial() -> None:
    rejected = trial(1, outcome="rejected", state="cannot fit", value=None, curve=[], peak=None)
    assert "The only trial reached" in page(study(trial(0), rejected))


def test_the_best_configuration_can_be_copied_with_all_digits() -> None:
    best = trial(
        0,
        config={"lr": 0.008144886973076106, "name": 'a "b"', "last layer": True, "decay": None},
        value=1 / 3,
    )
    text = page(study(best))
    assert "Trial 0 reached loss 0.3333333333333333." in text
    blocks = [html.unescape(each) for each in re.findall(r"<pre>(.*?)</pre>", text, re.DOTALL)]
    assert tomllib.loads(blocks[0]) == {
        name: value for name, value in best.config.items() if value is not None
    }
    assert ast.literal_eval(blocks[1]) == best.config


def test_importance_mentions_trials_that_are_too_few_or_were_stopped_early() -> None:
    assert "Not available: 2 trials reported loss. At least 6 trials are needed." in page(
        study(trial(0), trial(1))
    )
    stopped = trial(2, outcome="stopped", state="stopped early")
    text = page(study(trial(0), trial(1), stopped, importance={"lr": 0.5}))
    assert "Stopped early: 1 of 3 trials. The value of a stopped trial is from fewer reports." in text


def test_importance_at_chance_level_is_described_as_such() -> None:
    text = page(study(trial(0), trial(1), importance={"lr": 0.0, "batch_size": 0.0}))
    assert (
        "With 2 trials, no parameter on its own explains more of the variation in loss than expected by chance"
        in text
    )
    assert 'class="bars"' not in text
