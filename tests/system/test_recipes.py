"""The recipes: each pair of programs shows the difference that its page describes, and the page shows their real code and output."""

import re

import pytest

from recipe_runs import (
    PAGES,
    RECIPES,
    ROOT,
    RecipeRunner,
    blocks_of,
    command_of,
    missing_line,
    path_of,
    shown_outputs,
)

BOTH = ("original", "improved")
WITHOUT_PICTURE = (
    "distributed_data_parallel",
    "several_machines",
    "logging",
)  # recipes that are not about memory


@pytest.fixture
def programs(tmp_path, monkeypatch, capfd, caplog):
    return RecipeRunner(tmp_path, monkeypatch, capfd, caplog)


# --- every recipe


@pytest.mark.parametrize("recipe", RECIPES)
def test_programs_are_short_and_their_docstring_has_the_command_that_runs_them(recipe):
    for program in BOTH:
        path = path_of(recipe, program)
        assert path in [word.removesuffix(":train") for word in command_of(recipe, program)]
        assert len((ROOT / path).read_text().splitlines()) <= 60


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_page_links_to_both_programs_and_to_a_picture_and_is_in_the_index(recipe):
    page = (PAGES / f"{recipe}.md").read_text(encoding="utf-8")
    for program in BOTH:
        assert f"](../../{path_of(recipe, program)})" in page
        assert shown_outputs(recipe, program)
    if command_of(recipe, "original")[1] == "run" and recipe not in WITHOUT_PICTURE:
        assert f"](../images/recipes/{recipe}.svg)" in page
        assert (ROOT / f"docs/images/recipes/{recipe}.svg").exists()
    assert f"]({recipe}.md)" in (PAGES / "index.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_code_on_a_page_is_a_part_of_its_programs(recipe):
    files = [(ROOT / path_of(recipe, program)).read_text() for program in BOTH]
    blocks = blocks_of(recipe, "python")
    assert blocks
    assert [block for block in blocks if not any(block in file for file in files)] == []
    space = ROOT / f"examples/recipes/{recipe}/space.toml"
    assert all(block in space.read_text() for block in blocks_of(recipe, "toml"))


def test_every_recipe_has_a_test():
    tests = "".join(file.read_text() for file in (ROOT / "tests/system").glob("test_recipes*.py"))
    assert [recipe for recipe in RECIPES if not re.search(rf'programs[.\w]*\("{recipe}"', tests)] == []


def test_a_line_that_the_program_does_not_print_is_found():
    assert missing_line(["a", "...", "c"], "a\nb\nc\n") is None
    assert missing_line(["c", "a"], "a\nb\nc\n") == "a"
    assert missing_line(["1 in ... s"], "1 in 2.5 s") is None
    assert missing_line(["1 in ... s"], "1 in 2.5 h") == "1 in ... s"


# --- memory


def test_summed_loss_tensors_keep_activations_alive_and_numbers_do_not(programs):
    original, improved = programs("accumulated_losses")
    assert original.report.oom is not None
    assert {leak.name for leak in original.report.leaks} == {"total_loss", "total_valid_loss"}
    assert improved.exit_code == 0
    assert not improved.report.leaks
    assert improved.peak < original.peak / 4


def test_gputil_does_not_show_the_leak_that_watch_stops(programs):
    original, improved = programs("memory_per_iteration")
    assert original.report.oom is not None
    assert improved.exit_code == 0
    assert improved.report.steps == 5
    assert "`hidden_states` grows by 4 MiB per step" in improved.output
    assert improved.peak < original.peak


def test_an_empty_cache_in_every_step_costs_device_allocations_and_does_not_lower_the_peak(programs):
    original, improved = programs("empty_cache")
    assert original.number(r"device allocations: (\d+)") > improved.number(r"device allocations: (\d+)")
    assert original.peak == improved.peak
    assert "10.0 MiB  first (Tensor)" in improved.output


def test_a_variable_that_stays_after_a_loop_runs_out_of_memory_and_a_function_does_not(programs):
    original, improved = programs("variables_after_a_loop")
    assert original.report.oom is not None
    assert next(each.code for each in original.report.oom.advice) == "LG102"
    assert original.number(r"after the loop: (\d+) MiB") - improved.number(r"after the loop: (\d+) MiB") == 40
    assert improved.exit_code == 0


def test_single_samples_update_the_weights_64_times_and_guard_once(programs):
    original, improved = programs("batch_size_fallback")
    assert "65 forward passes, 64 updates" in original.output
    assert improved.number(r"largest batch size: (\d+)") < 64
    assert improved.number(r"differ by at most ([\d.e-]+)") < 1e-6
    assert original.number(r"differ by at most ([\d.e-]+)") > 1e-3


def test_an_evaluation_with_gradients_runs_out_of_memory_and_evaluate_does_not(programs):
    original, improved = programs("evaluation_no_grad")
    assert original.report.oom is not None
    assert next(each.code for each in original.report.oom.advice) == "LG201"
    assert improved.exit_code == 0
    assert "Evaluating the batch of 1797 in micro-batches" in improved.output


# --- errors and sizes


def test_smaller_batches_do_not_fix_a_label_that_is_out_of_range(programs):
    original, improved = programs("cuda_errors")
    assert (original.exit_code, original.report.oom) == (1, None)
    assert "batch size 1: Target 10 is out of bounds." in original.output
    assert improved.exit_code == 0


def test_the_summary_suggests_the_size_that_makes_the_model_run(programs):
    original, improved = programs("size_mismatch")
    assert original.exit_code == 1
    assert "Fix: in_features=800" in improved.output
    assert improved.exit_code == 0


# --- precision, checkpoints, transfer learning


def test_mixed_precision_halves_the_peak_and_bfloat16_needs_no_scaler(programs):
    original, improved = programs("mixed_precision")
    peaks = [original.number(rf"torch.{name}: .* peak (\d+) MiB") for name in ("float32", "float16")]
    assert peaks == [20, 10]
    assert improved.number(r"torch.bfloat16: .* peak (\d+) MiB") == peaks[1]


def test_a_saved_model_cannot_be_loaded_and_a_checkpoint_needs_no_second_copy(programs):
    original, improved = programs("save_and_load")
    assert "Weights only load failed" in original.output
    assert improved.exit_code == 0
    assert original.peak - improved.peak == 2048 * 2049 * 4


def test_the_state_dict_of_the_best_epoch_changes_and_the_checkpoint_does_not(programs):
    runs = programs("best_model")
    best, loaded = ([run.number(rf"{word} ([\d.]+)") for run in runs] for word in ("best epoch", "loaded"))
    assert best[0] == best[1] == loaded[1] > loaded[0]


def test_frozen_statistics_change_with_requires_grad_only_and_not_with_transfer(programs):
    original, improved = programs("transfer_learning")
    assert "frozen statistics unchanged: False" in original.output
    assert "frozen statistics unchanged: True" in improved.output
    assert "Predicted peak memory of a step" in improved.output
