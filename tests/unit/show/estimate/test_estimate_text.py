"""The text of an estimate."""

from dataclasses import replace

import pytest
import torch
from rich.console import Group
from torch import nn

import legroom
from legroom.observe.source.batch_setting import SIZE, BatchSetting
from legroom.predict.api import _Target
from legroom.predict.estimate import Estimate, StepGrowth, estimate_from_trace
from legroom.predict.largest_batch import BatchSearch
from legroom.predict.options.plan import PlannedOption
from legroom.predict.script_estimate import NO_VALIDATION_NOTE, ScriptEstimate
from legroom.predict.uncertainty import version_note
from legroom.show.common.terminal import render_to_string
from legroom.show.estimate.estimate import (
    _short_detail_parts,
    render_details,
    render_short_details,
    render_short_verdict,
    render_verdict,
    snapshot_of,
)
from legroom.units import MiB, format_size


def estimated(gpu: str) -> Estimate:
    model = nn.Sequential(nn.Linear(1024, 8192), nn.ReLU(), nn.Linear(8192, 10))
    batch = (torch.zeros(64, 1024), torch.zeros(64, dtype=torch.long))
    return estimate_from_trace(_Target(model, (batch,), gpu, None, 2).trace())


def text_of(
    gpu: str,
    *,
    options: tuple[PlannedOption, ...] = (),
    largest: int | None = 512,
    options_tried: bool = True,
) -> str:
    search = BatchSearch(tried={64: True, 512: largest is not None})
    result = ScriptEstimate(
        script="train.py",
        estimate=replace(estimated(gpu), max_batch_size=largest),
        search=search,
        options=options,
        options_tried=options_tried,
        recommended=largest,
    )
    return render_to_string(Group(render_verdict(result.estimate), render_details(result)), width=80)


@pytest.mark.slow
def test_the_first_line_is_the_verdict() -> None:
    assert text_of("rtx4090").startswith("Fits: needs ")
    assert text_of("100MiB").startswith("Does not fit: needs ")


@pytest.mark.slow
def test_the_largest_batch_is_shown_with_the_current_one() -> None:
    assert "Largest batch size that fits: 512 (current: 64). Confirmed by a trace." in text_of("rtx4090")
    assert "Not even batch size 64 fits (current: 64)." in text_of("100MiB", largest=None)


def test_used_and_free_memory_add_up_to_the_gpu_if_the_cache_grows_after_the_peak() -> None:
    now = estimated("8GiB")
    later = replace(now, peak_reserved=now.peak_reserved + 512 * MiB, peak_device=now.peak_device + 512 * MiB)
    free = format_size(now.gpu.total - later.peak_device)
    assert f"  free                  {free:>9}" in render_to_string(render_verdict(later), width=80)


def test_the_batch_size_argument_of_the_script_is_named() -> None:
    result = ScriptEstimate(
        script="train.py",
        estimate=replace(estimated("8GiB"), max_batch_size=512),
        search=BatchSearch(tried={512: True}),
        options=(),
        batch_setting=BatchSetting(
            name="--batch_size", value=128, rank=0, text=f"--batch_size {SIZE}", is_given=False
        ),
        recommended=512,
    )
    text = render_to_string(render_details(result), width=120)
    assert (
        "Largest batch size that fits: 512 (current: 64). Confirmed by a trace. Add `--batch_size 1024`.\n"
        in text
    )


def test_the_next_command_has_the_batch_size_that_fits() -> None:
    def next_command(gpu: str, script: str, *, is_given: bool, virtual: int = 16) -> str:
        setting = BatchSetting(
            name="-b", value=64, rank=0, text=f"-b {SIZE}", arguments=("-b", SIZE), is_given=is_given
        )
        estimate = replace(estimated(gpu), max_batch_size=16)
        result = ScriptEstimate(
            script=script, estimate=estimate, search=BatchSearch(tried={16: True}), options=(),
            batch_setting=setting, virtual_batch_size=virtual, recommended=16,
        )  # fmt: skip
        text = render_to_string(render_short_details(result), width=120)
        return next(line for line in text.splitlines() if "legroom run" in line)

    assert "legroom run --gpu 100MiB train.py -b 16 --lr 0.1 " in next_command(
        "100MiB", "train.py -b 64 --lr 0.1", is_given=True
    )
    assert "legroom run --gpu 100MiB train.py --lr 0.1 -b 16 " in next_command(
        "100MiB", "train.py --lr 0.1", is_given=False
    )
    assert "legroom run --gpu 8GiB train.py -b 64 " in next_command("8GiB", "train.py -b 64", is_given=True)
    command = next_command("100MiB", "train.py", is_given=False, virtual=8)
    assert " ".join(command.split()) == (
        "legroom run --gpu 100MiB train.py -b 8 # a virtual GPU may need more memory, so run a smaller batch"
    )


def test_the_next_command_is_not_one_that_runs_out_of_memory_on_a_virtual_gpu() -> None:
    result = ScriptEstimate(
        script="train.py", estimate=estimated("8GiB"), search=None, options=(), fits_virtual_gpu=False
    )
    short = " ".join(render_to_string(render_short_details(result), width=120).split())
    assert " legroom run train.py # run it on a real GPU; a virtual GPU may need more memory " in short
    assert "run --gpu" not in short
    complete = " ".join(render_to_string(render_details(result), width=80).split())
    assert "so the script may not fit on a virtual GPU of the same size." in complete


def test_a_search_that_stopped_early_reports_its_bounds() -> None:
    result = ScriptEstimate(
        script="train.py",
        estimate=replace(estimated("8GiB"), max_batch_size=512),
        search=BatchSearch(tried={512: True, 1024: False, 2048: False}, is_complete=False),
        options=(),
    )
    text = " ".join(render_to_string(render_details(result), width=80).split())
    assert "Batch size 512 fits (current: 64). Batch size 1024 does not fit. Other sizes" in text


@pytest.mark.parametrize(
    ("tried", "sentence"),
    [
        (
            {},
            "Only batch size 64 was traced, because the script needs real values, and one trace takes 80 seconds.",
        ),
        (
            {64: False},
            "No smaller batch size than 64 was traced, because the search stopped after 60 seconds.",
        ),
        (
            {64: False, 32: False},
            "Batch size 32 does not fit either (current: 64). Smaller sizes were not traced, because the search",
        ),
    ],
)
def test_a_script_that_does_not_fit_gets_the_command_for_a_smaller_batch(
    tried: dict[int, bool], sentence: str
) -> None:
    now = estimated("100MiB")
    now.trace.batch_size = 64
    result = ScriptEstimate(
        script="train.py",
        estimate=replace(now, batch_size=64, max_batch_size=None),
        search=BatchSearch(tried=tried, is_complete=False) if tried else None,
        options=(),
        only_size_reason="the script needs real values, and one trace takes 80 seconds",
    )
    text = " ".join(render_to_string(render_details(result), width=80).split())
    smaller = min([64, *tried]) // 2
    assert sentence in text
    assert f"To estimate a smaller batch, set it with `legroom estimate --batch-size {smaller}`." in text


def test_an_option_has_its_peak_its_cost_and_the_change_to_make() -> None:
    option = PlannedOption(
        name="fused optimizer",
        peak_device=1 << 30,
        saves=1 << 28,
        verdict="fits",
        cost="nothing",
        how="pass `fused=True`",
    )
    text = text_of("rtx4090", options=(option,))
    assert "fused optimizer   1.00 GiB  fits" in text
    assert "Pass `fused=True`." in text
    assert "Cost: nothing." in text


SMALLER_BATCH = PlannedOption(
    name="batch size 32",
    peak_device=1 << 29,
    saves=1 << 28,
    verdict="uncertain",
    cost="smaller steps",
    how="pass `batch_size=32` to the DataLoader",
)


def test_the_largest_batch_as_an_option_may_fit() -> None:
    text = text_of("150MiB", options=(replace(SMALLER_BATCH, peak_device=140 << 20),))
    assert "Options that make the script fit" in text
    assert "batch size 32  140.0 MiB  may fit\n" in text


@pytest.mark.slow
def test_a_run_that_fits_by_freeing_its_cache_does_not_exceed_the_gpu() -> None:
    option = replace(SMALLER_BATCH, peak_device=3 << 29, verdict="fits")
    assert "batch size 32   1.00 GiB  fits, because PyTorch frees its cache" in text_of(
        "1GiB", options=(option,)
    )

    now = replace(estimated("8GiB"), peak_device=9 << 30)
    assert render_to_string(render_verdict(now), width=200).startswith(
        "Fits in 8.00 GiB, because PyTorch frees its cache before memory runs out. On a GPU with more memory, the script would use 9.00 GiB."
    )


def test_the_next_command_has_the_gpu_as_it_was_typed() -> None:
    text = text_of("8GiB", options_tried=False)
    assert "  legroom run --gpu 8GiB train.py" in text
    assert "  legroom estimate --plan --gpu 8GiB train.py" in text


def test_no_line_is_wider_than_the_terminal() -> None:
    assert max(map(len, text_of("a100-80gb").splitlines())) <= 80


def test_the_public_estimate_has_a_text_and_an_html_representation() -> None:
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    estimate = legroom.estimate(model, torch.zeros(8, 256), gpu="1GiB", search=False)
    assert isinstance(estimate, Estimate)
    assert str(estimate).startswith("Fits: needs ")
    assert "Memory at the peak" in str(estimate)
    assert repr(estimate).startswith("<Estimate: fits, ")
    html = estimate._repr_html_()
    assert html.count("<svg") == 1
    assert "Fits: needs " in html
    assert "<script" not in html


@pytest.mark.parametrize("options", [0, 1, 6])
def test_a_short_estimate_fits_on_a_screen(options: int) -> None:
    now = estimated("100MiB")
    result = ScriptEstimate(
        script=f"train.py {'--option value ' * 12}",
        estimate=replace(
            now, max_batch_size=None, notes=(f"The trace {'is incomplete ' * 20}", "Second note")
        ),
        search=BatchSearch(tried={64: False}),
        options=tuple(replace(SMALLER_BATCH, how="change this " * 30) for _ in range(options)),
        options_tried=True,
    )
    text = render_to_string(render_short_verdict(result.estimate), render_short_details(result), width=80)
    assert sum(max(1, -(-len(line) // 80)) for line in text.splitlines()) <= 23
    assert text.startswith("Does not fit: needs ")
    assert "Not even batch size 64 fits (current: 64)." in text
    assert ("batch size 32" in text) == (options > 0)
    assert "\n  legroom run --gpu 100MiB train.py --option value" in text


def test_the_merged_row_of_a_short_estimate_hides_little_memory() -> None:
    now = estimated("rtx4090")
    text = render_to_string(render_short_verdict(now), width=80)
    assert len(text.splitlines()) <= 14
    rows = text.partition("Memory at the peak")[2].partition("\n\n")[0].splitlines()[1:]
    merged = [each.bytes for each in snapshot_of(now).shares if not any(each.label in row for row in rows)]
    assert 4 <= sum("smaller part" not in row and "free" not in row for row in rows) <= 5
    assert sum(merged) < 0.1 * now.peak_device
    assert "\n\nMemory by line\n" in text


def test_a_short_estimate_names_the_change_of_the_batch_size_once() -> None:
    setting = BatchSetting(name="-b", value=64, rank=0, text=f"-b {SIZE}", arguments=("-b", SIZE))
    result = ScriptEstimate(
        script="train.py",
        estimate=replace(estimated("100MiB"), max_batch_size=32),
        search=BatchSearch(tried={64: False, 32: True}),
        options=(replace(SMALLER_BATCH, how="use `-b 32`"),),
        batch_setting=setting,
        recommended=32,
    )
    text = " ".join(render_to_string(render_short_details(result), width=80).split())
    assert text.count("Use `-b 32`.") == 1


def test_a_short_estimate_shows_the_first_option_and_the_next_command() -> None:
    now = replace(estimated("100MiB"), max_batch_size=None)
    result = ScriptEstimate(
        script="train.py",
        estimate=now,
        search=BatchSearch(tried={64: False}),
        options=(SMALLER_BATCH,),
        options_tried=True,
    )
    text = render_to_string(render_short_details(result), width=80)
    assert "Options that make the script fit\n  batch size 32  512.0 MiB  may fit\n" in text.replace(
        ", because PyTorch frees its cache", ""
    ).replace("100.0 MiB", "512.0 MiB")
    assert "      Pass `batch_size=32` to the DataLoader.\n" in text
    assert "  legroom estimate --verbose --gpu 100MiB train.py   # the complete estimate\n" in text


@pytest.mark.parametrize(
    ("shown", "remark"), [(1, "the cheapest of 3"), (2, "the cheapest 2 of 3"), (3, "cheapest first")]
)
def test_the_heading_of_the_options_counts_the_ones_that_are_shown(shown: int, remark: str) -> None:
    result = ScriptEstimate(
        script="train.py",
        estimate=replace(estimated("100MiB"), max_batch_size=None),
        search=BatchSearch(tried={64: False}),
        options=tuple(replace(SMALLER_BATCH, name=f"option {number}") for number in range(3)),
        options_tried=True,
    )
    text = render_to_string(Group(*_short_detail_parts(result, shown, 0, 1, 4)), width=80)
    assert f"Options that make the script fit  {remark}\n" in text
    assert text.count("option ") == shown


def test_an_evaluation_that_was_not_traced_is_reported_below_the_verdict() -> None:
    now = estimated("8GiB")
    now.trace.untraced_evaluation = "train.py:89"
    now = estimate_from_trace(now.trace)
    sentence = "The evaluation at train.py:89 was not traced and may need more memory."
    for render in (render_short_verdict, render_verdict):
        verdict, note, *_ = render_to_string(render(now), width=200).splitlines()
        assert verdict.startswith("Training fits: ")
        assert note == sentence
    result = ScriptEstimate(script="train.py", estimate=now, search=None, options=())
    for details in (render_short_details, render_details):
        assert "was not traced and" not in render_to_string(details(result), width=120), "shown once"


def test_memory_that_grows_is_reported_below_the_verdict() -> None:
    growth = StepGrowth(bytes=3 * MiB, file="/project/train.py", line=31, steps_left=1200)
    now = estimated("8GiB")
    now = replace(now, growth=growth, notes=(growth.note, *now.notes), max_batch_size=512)
    for render in (render_short_verdict, render_verdict):
        verdict, note, *_ = render_to_string(render(now), width=200).splitlines()
        assert verdict.startswith("Fits at first: needs ")
        assert note == (
            "Memory grows by 3.00 MiB per step, allocated at train.py:31. If it continues to grow, memory runs out "
            "after about 1,200 steps."
        ).replace("3.00", "3.0")
    search = BatchSearch(tried={64: True, 512: True})
    result = ScriptEstimate(script="train.py", estimate=now, search=search, options=(), recommended=512)
    text = " ".join(render_to_string(render_short_details(result), width=120).split())
    assert "Largest batch size whose first steps fit: 512 (current: 64)." in text
    assert "legroom run --gpu 8GiB train.py # names the variable that retains memory" in text
    assert "Memory grows" not in text, "shown once"


def test_a_short_estimate_shows_the_note_about_versions_only_if_there_is_no_other_note() -> None:
    now = estimated("8GiB")
    now.trace.differing_versions = {"torch": "2.0"}
    version = version_note(now.trace.differing_versions)

    def shown(*notes: str) -> str:
        estimate = replace(now, notes=notes)
        result = ScriptEstimate(script="train.py", estimate=estimate, search=None, options=())
        return render_to_string(render_short_details(result), width=200)

    assert version in shown(version, NO_VALIDATION_NOTE)
    assert version not in shown(version, "Batches differ in shape")
    assert "Batches differ in shape." in shown(version, "Batches differ in shape")
    assert NO_VALIDATION_NOTE not in shown(NO_VALIDATION_NOTE)


@pytest.mark.parametrize(("number", "remark"), [(1, ""), (2, "  the cheapest of 2")])
def test_a_short_estimate_shows_an_option_that_fits_before_cheaper_ones_that_do_not(
    number: int, remark: str
) -> None:
    cheap = replace(SMALLER_BATCH, name="bf16 autocast", verdict="does-not-fit")
    enough = replace(SMALLER_BATCH, name="frozen backbone", verdict="fits", peak_device=90 << 20)
    result = ScriptEstimate(
        script="train.py",
        estimate=replace(estimated("100MiB"), max_batch_size=None),
        search=BatchSearch(tried={64: False}),
        options=(cheap, *[enough] * number),
        options_tried=True,
    )
    text = render_to_string(Group(*_short_detail_parts(result, 1, 2, 1, 4)), width=80)
    assert f"Options that make the script fit{remark}\n  frozen backbone   90.0 MiB  fits\n" in text
    assert "bf16 autocast" not in text
    alone = render_to_string(render_short_details(replace(result, options=(cheap,))), width=80)
    assert "Options that save memory\n  bf16 autocast" in alone


@pytest.mark.parametrize("size", [7, 123_456])
def test_the_change_of_the_batch_size_is_complete_on_a_narrow_terminal(size: int) -> None:
    setting = BatchSetting(
        name="--train-batch-size", value=64, rank=0, text=f"--train-batch-size {SIZE}", is_given=True
    )
    search = BatchSearch(tried={size: True, size + 1: False}, is_complete=False)
    result = ScriptEstimate(
        script="train.py",
        estimate=replace(estimated("100MiB"), max_batch_size=size),
        search=search,
        options=(SMALLER_BATCH,) * 4,
        batch_setting=setting,
        recommended=size,
    )
    text = " ".join(render_to_string(render_short_details(result), width=80).split())
    assert f"Use `--train-batch-size {size}`." in text


def test_the_reason_why_only_one_batch_size_was_traced_is_reported() -> None:
    result = ScriptEstimate(
        script="train.py", estimate=replace(estimated("8GiB"), batch_size=None), search=None, options=()
    )

    def text_for(result: ScriptEstimate) -> str:
        return render_to_string(render_short_details(result), width=120)

    assert "because Legroom found no DataLoader and no argument for the batch size." in text_for(result)
    slow = replace(result, only_size_reason="a trace with another value of `-b` exceeded the time limit")
    assert "Only this batch size was traced, because a trace with another value of `-b` exceeded" in text_for(
        slow
    )


def changed(*, recommended: int | None, setting: BatchSetting | None = None, gpu: str = "100MiB") -> str:
    """Return the short details of a script with batch size 64, whose largest batch size is 48."""
    options = () if recommended is None else (replace(SMALLER_BATCH, verdict="fits"),)
    result = ScriptEstimate(
        script="train.py",
        estimate=replace(estimated(gpu), max_batch_size=48),
        search=BatchSearch(tried={48: True, 49: False}),
        options=options,
        batch_setting=setting,
        recommended=recommended,
        virtual_batch_size=recommended,
    )
    return " ".join(render_to_string(render_short_details(result), width=200).split())


IN_SOURCE = BatchSetting(
    name="batch_size", value=64, rank=1, text=f"batch_size={SIZE}", file="/code/train.py", line=101
)
IN_ENVIRONMENT = BatchSetting(name="BS", value=64, rank=0, text=f"BS={SIZE}", variable="BS")


def test_the_next_command_names_the_change_that_it_needs() -> None:
    text = changed(recommended=40, setting=IN_SOURCE)
    assert "Set `batch_size=40` in train.py, line 101." in text
    assert "legroom run --gpu 100MiB train.py # after the change in train.py:101" in text
    text = changed(recommended=40, setting=IN_ENVIRONMENT)
    assert "legroom run --gpu 100MiB train.py # after setting BS=40" in text
    assert "legroom run --gpu 100MiB train.py # after a change that makes the script fit" in changed(
        recommended=40
    )
    assert "legroom run --gpu 100MiB train.py # see on a virtual GPU where it runs out of memory" in changed(
        recommended=None
    )


def test_the_recommended_batch_size_has_a_safety_margin() -> None:
    assert "Largest batch size that fits: 48, or 40 with a safety margin (current: 64)." in changed(
        recommended=40
    )
    assert "no batch size that was traced fits with a safety margin." in changed(recommended=None)


def test_the_current_batch_size_is_not_recommended() -> None:
    assert "Set `batch_size=" not in changed(recommended=64, setting=IN_SOURCE, gpu="8GiB")


def test_the_setting_of_a_loader_with_a_partial_first_batch_is_scaled_to_a_full_batch() -> None:
    setting = replace(IN_SOURCE, value=100)
    result = ScriptEstimate(
        script="train.py",
        estimate=replace(estimated("100MiB"), max_batch_size=40),
        search=BatchSearch(tried={40: True}),
        options=(),
        batch_setting=setting,
        full_batch_size=100,
        recommended=40,
    )
    assert result.batch_change == "Set `batch_size=40` in train.py, line 101"


def test_the_only_traced_batch_size_has_its_reason() -> None:
    result = ScriptEstimate(
        script="train.py", estimate=estimated("8GiB"), search=None, options=(), only_size_reason="it is slow"
    )
    text = render_to_string(render_short_details(result), width=120)
    assert "Only batch size 64 was traced, because it is slow." in text
