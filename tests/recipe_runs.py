"""Runs the recipe programs in this process with the command from their docstring, and reads the recipe pages."""

import ast
import gc
import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest
import sklearn.datasets  # noqa: F401  # imported here, so that scans of the heap skip the objects of these modules
import torch._dynamo  # noqa: F401
import torch.distributed as dist

from legroom.cli import main
from legroom.diagnose.report.run_report import RunReport, report_from_capture
from legroom.memory.capture.capture import read_capture
from legroom.observe.virtual.single_rank import VARIABLE as SINGLE_RANK_VARIABLE
from legroom.show.watch import watch
from legroom.tuning.engines import fork_server
from legroom.tuning.study import Study

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
        """The highest peak of allocated memory of any device, in bytes."""
        return max(device.peak_allocated for device in self.report.devices)

    def number(self, pattern: str) -> float:
        """Return the number that the first group of `pattern` matches in the output."""
        found = re.search(pattern, self.output)
        assert found, f"{pattern!r} is not in the output:\n{self.output}"
        return float(found[1].replace(",", ""))


@dataclass(frozen=True)
class RecipeStudy:
    """One run of a program with `legroom tune`."""

    exit_code: int
    output: str
    study: Study


class RecipeRunner:
    """Runs the programs of a recipe in the folder of the test. A run fails if its output differs from the recipe
    page."""

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

    def run(self, recipe: str, program: str, *arguments: str) -> RecipeRun:
        """Run a program whose command is `legroom run`, with further arguments."""
        verb, *words = self._command(recipe, program)
        assert verb == "run"
        run = self._run(program, [*words, *arguments])
        self._compare(recipe, program, run.output)
        return run

    def in_turn(self, recipe: str, program: str, ranks: int = 2) -> list[RecipeRun]:
        """Run the ranks of a program one after another in this process, each in a process group without the other
        ranks. Each rank has the same memory and samples as with all ranks, but collectives transfer no data."""
        verb, *words = self._command(recipe, program)
        if verb == "launch":
            gpu, path = words[words.index("--gpu") + 1], words[-1]
            words = ["--gpu", ",".join([gpu] * ranks), path]
        runs = []
        for rank in range(ranks):
            world = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks}
            address = {"MASTER_ADDR": "localhost", "MASTER_PORT": 1, SINGLE_RANK_VARIABLE: self._folder}
            with self._monkeypatch.context() as patch:
                for name, value in {**world, **address}.items():
                    patch.setenv(name, str(value))
                patch.setattr(
                    "torch.multiprocessing.spawn",
                    lambda function, args=(), rank=rank, **_: function(rank, *args),
                )
                runs.append(self._run(f"{program}-{rank}", words))
            dist.destroy_process_group()
        self._compare(recipe, program, "".join(run.output for run in runs))
        return runs

    def launch(self, recipe: str, program: str, *arguments: str) -> list[RecipeRun]:
        """Launch a program, and return one run per rank. Each has the output of all ranks. `arguments` override those
        of its command."""
        verb, *words = self._command(recipe, program)
        assert verb == "launch"
        logs = self._folder / f"{program}.launch"
        code, output = self._main([verb, "--logs", str(logs), *words[:-1], *arguments, words[-1]])
        self._compare(recipe, program, output)
        captures = sorted(logs.glob("rank-*.legroom"))
        return [RecipeRun(code, output, report_from_capture(read_capture(each))) for each in captures]

    def tune(self, recipe: str, program: str) -> RecipeStudy:
        """Run a program whose command is `legroom tune`. All studies share one server process, because importing torch
        takes seconds."""
        self._monkeypatch.setattr(fork_server._ForkServer, "is_usable", property(_is_running))
        verb, *words = self._command(recipe, program)
        assert verb == "tune"
        folder = self._folder / f"{program}-study"
        code, output = self._main([verb, *words, "--storage", str(folder)])
        self._compare(recipe, program, output)
        return RecipeStudy(code, output, Study.load(folder))

    def _command(self, recipe: str, program: str) -> list[str]:
        """Change to the test folder, link the examples there, and return the words after `legroom`."""
        examples = self._folder / "examples"
        if not examples.exists():
            examples.symlink_to(ROOT / "examples")
        self._monkeypatch.chdir(self._folder)
        self._monkeypatch.setenv("COLUMNS", "80")
        self._monkeypatch.setenv("TMPDIR", str(self._folder))
        self._monkeypatch.setattr("tempfile.tempdir", None)
        self._monkeypatch.setattr(watch, "_shared", watch._SharedDetector())  # as in a new process
        return command_of(recipe, program)[1:]

    def _run(self, name: str, words: list[str]) -> RecipeRun:
        capture = self._folder / f"{name}.legroom"
        code, output = self._main(["run", "--output", str(capture), *words])
        return RecipeRun(code, output, report_from_capture(read_capture(capture)))

    def _main(self, words: list[str]) -> tuple[int, str]:
        self._capfd.readouterr()
        self._caplog.clear()
        gc.collect()  # frees the tensors of the previous program
        code = main(words)
        logged = "".join(f"legroom: {record.getMessage()}\n" for record in self._caplog.records)
        return code, "".join([*self._capfd.readouterr(), logged])

    def _compare(self, recipe: str, program: str, output: str) -> None:
        """Check that the program printed the output that its page shows. The lines of ranks that run one after another
        have no prefix such as `[0]`. In `output`, stderr and the log come after stdout. A page may show stdout
        last."""
        lines = map(_comparable, (output + output).splitlines())
        printed = "\n".join(lines)
        for shown in shown_outputs(recipe, program):
            assert missing_line([_comparable(line) for line in shown], printed) is None, output


def _comparable(line: str) -> str:
    """Return a line without its rank and its number of suggestions, which depends on other tests in this process."""
    return re.sub(r"\(1 of \d+\)", "(1 of N)", line.removeprefix("[0] ").removeprefix("[1] "))


def _is_running(server: fork_server._ForkServer) -> bool:
    return server._owner == os.getpid() and server._process.poll() is None


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
    """Return the first shown line that is missing in the output, or that is out of order. `...` stands for any lines,
    or for any part of a line."""
    lines = iter([line.rstrip() for line in output.splitlines()])
    for line in shown:
        pattern = ".*".join(map(re.escape, line.rstrip().split("...")))
        if line.strip() not in ("", "...") and not any(re.fullmatch(pattern, other) for other in lines):
            return line
    return None
