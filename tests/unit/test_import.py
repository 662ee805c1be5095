"""`import legroom` is light, and its public names are what it says."""

import subprocess
import sys

import legroom

ALLOWED = {"legroom"}
"""Top-level packages, beside the standard library, that `import legroom` may load."""


def loaded_by(statement: str) -> set[str]:
    """Top-level packages outside the standard library that a fresh interpreter has loaded after `statement`."""
    program = (
        f"import sys\nbefore = set(sys.modules)\n{statement}\n"
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return {name for name in done.stdout.split() if name not in sys.stdlib_module_names}


def test_importing_legroom_loads_only_legroom() -> None:
    assert loaded_by("import legroom") <= ALLOWED


def test_that_check_can_fail() -> None:
    assert not loaded_by("import legroom, rich") <= ALLOWED


def test_the_command_line_answers_without_torch() -> None:
    loaded = loaded_by("import legroom.cli")
    assert "typer" in loaded
    assert not {"torch", "ray", "textual", "plotly", "libcst"} & loaded


def test_an_estimate_is_judged_and_shown_without_torch() -> None:
    """The process that traces the script has it; a second one would take as long as the judging itself, many times."""
    assert "torch" not in loaded_by("import legroom.predict.script_estimate, legroom.show.estimate.estimate")


def test_public_names_are_real_and_listed() -> None:
    for name in legroom.__all__:
        assert getattr(legroom, name) is not None
    assert dir(legroom) == sorted(legroom.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(legroom, "no_such_thing")
