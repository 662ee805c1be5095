"""The recipes: each pair of programs shows the difference that its page describes, and the page shows their real code and output."""

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


@pytest.fixture
def programs(tmp_path, monkeypatch, capfd):
    return RecipeRunner(tmp_path, monkeypatch, capfd)


# --- every recipe


@pytest.mark.parametrize("recipe", RECIPES)
def test_programs_are_short_and_their_docstring_has_the_command_that_runs_them(recipe):
    for program in BOTH:
        path = path_of(recipe, program)
        assert path in command_of(recipe, program)
        assert len((ROOT / path).read_text().splitlines()) <= 60


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_page_links_to_both_programs_and_to_a_picture_and_is_in_the_index(recipe):
    page = (PAGES / f"{recipe}.md").read_text(encoding="utf-8")
    for program in BOTH:
        assert f"](../../{path_of(recipe, program)})" in page
        assert shown_outputs(recipe, program)
    assert f"](../images/recipes/{recipe}.svg)" in page
    assert (ROOT / f"docs/images/recipes/{recipe}.svg").exists()
    assert f"]({recipe}.md)" in (PAGES / "index.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_code_on_a_page_is_a_part_of_its_programs(recipe):
    files = [(ROOT / path_of(recipe, program)).read_text() for program in BOTH]
    blocks = blocks_of(recipe, "python")
    assert blocks
    assert [block for block in blocks if not any(block in file for file in files)] == []


def test_every_recipe_has_a_test():
    tests = "".join(file.read_text() for file in (ROOT / "tests/system").glob("test_recipes*.py"))
    assert [recipe for recipe in RECIPES if f'programs("{recipe}")' not in tests] == []


def test_a_line_that_the_program_does_not_print_is_found():
    assert missing_line(["a", "...", "c"], "a\nb\nc\n") is None
    assert missing_line(["c", "a"], "a\nb\nc\n") == "a"


# --- memory


def test_summed_loss_tensors_keep_activations_alive_and_numbers_do_not(programs):
    original, improved = programs("accumulated_losses")
    assert original.report.oom
    assert improved.exit_code == 0
    assert not improved.report.leaks
