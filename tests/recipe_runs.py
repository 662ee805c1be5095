"""Runs the programs of the recipes in this process, with the command in their docstring, and reads their pages."""

import ast
import gc
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest
import sklearn.datasets  # noqa: F401  # imported here, so that scans of the heap skip the objects of these modules
import torch._dynamo  # noqa: F401

from legroom.cli import main
from legroom.diagnose.report.run_report import RunReport, report_from_capture
from legroom.memory.capture.capture import read_capture
from legroom.show.watch import watch

ROOT = Path(__file__).parents[1]
PROGRAMS = ROOT / "examples/recipes"
PAGES = ROOT / "docs/recipes"
RECIPES = sorted(folder.name for folder in PROGRAMS.iterdir() if (folder / "original.py").exists())
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)


@dataclass(frozen=True)
class RecipeRun:
    """One run of a program."""

    exit_code: int
    output: str
    """The output of the program, the report of `legroom run`, and the log."""
    report: RunReport

    @property
    def peak(self) -> int:
        """The peak of the allocated memory in bytes, on the device with the highest peak."""
        return max(device.peak_allocated for device in self.report.devices)

    def number(self, pattern: str) -> float:
        """Return the number that the program printed at the group of `pattern`."""
        found = re.search(pattern, self.output)
        assert found, f"{pattern!r} is not in the output:\n{self.output}"
        return float(found[1].replace(",", ""))


class RecipeRunner:
    """Runs the programs of a recipe in a folder of the test. A run fails if the page shows other output."""

    def __init__(
        self,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        capfd: pytest.CaptureFixture[str],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        self._folder = folder
        self._monkeypatch = monkeypatch
        self._capfd = capfd
        self._caplog = caplog

    def __call__(self, recipe: str) -> tuple[RecipeRun, RecipeRun]:
        """Return the runs of the original and of the improved program."""
        return self.run(recipe, "original"), self.run(recipe, "improved")

    def run(self, recipe: str, program: str) -> RecipeRun:
        """Run a program whose command is `legroom run`."""
        self._monkeypatch.chdir(ROOT)
        self._monkeypatch.setenv("COLUMNS", "80")
        self._monkeypatch.setenv("TMPDIR", str(self._folder))
        self._monkeypatch.setattr("tempfile.tempdir", None)
        self._monkeypatch.setattr(watch, "_shared", watch._SharedDetector())  # as in a new process
        capture = self._folder / f"{program}.legroom"
        _, verb, *words = command_of(recipe, program)
        assert verb == "run"
        self._capfd.readouterr()
        self._caplog.clear()
        gc.collect()  # the tensors of the program before
        code = main([verb, "--output", str(capture), *words])
        logged = "".join(f"legroom: {record.getMessage()}\n" for record in self._caplog.records)
        output = "".join([*self._capfd.readouterr(), logged])
        for shown in shown_outputs(recipe, program):
            assert missing_line(shown, output) is None, output
        return RecipeRun(code, output, report_from_capture(read_capture(capture)))


def path_of(recipe: str, program: str) -> str:
    return f"examples/recipes/{recipe}/{program}.py"


def docstring_of(recipe: str, program: str) -> str:
    return ast.get_docstring(ast.parse((ROOT / path_of(recipe, program)).read_text())) or ""


def command_of(recipe: str, program: str) -> list[str]:
    """Return the words of the command in the docstring of a program."""
    line = re.search(r"^(legroom \w+ .+)$", docstring_of(recipe, program), re.M)
    assert line, f"The docstring of {path_of(recipe, program)} has no command."
    return shlex.split(line[1])


def blocks_of(recipe: str, language: str) -> list[str]:
    """Return the fenced blocks of a page in `language`."""
    text = (PAGES / f"{recipe}.md").read_text(encoding="utf-8")
    return [content for found, content in _BLOCK.findall(text) if found == language]


def shown_outputs(recipe: str, program: str) -> list[list[str]]:
    """Return the lines of output that the page shows below the command of a program."""
    command = f"$ {shlex.join(command_of(recipe, program))}"
    blocks = [block.splitlines() for block in blocks_of(recipe, "")]
    return [lines for first, *lines in blocks if first == command]


def missing_line(shown: list[str], output: str) -> str | None:
    """Return the first shown line that does not follow the lines before it in the output. `...` stands for any lines."""
    lines = iter([line.rstrip() for line in output.splitlines()])
    return next(
        (line for line in shown if line.strip() not in ("", "...") and line.rstrip() not in lines), None
    )
