"""Applies every safe fix of the linter and runs the programs before and after.

    python -m bench.first_contact.safe_fixes [CHECKOUTS] [--only WORD ...] [--python PYTHON] [--gpu 24GiB] [--seconds 120]

The programs are those of tests/corpus and, given a folder with clones, those of `programs.py`. Every program that a
safe fix changes runs three times on the CPU with the same random seeds: twice unmodified and once with the fixes.
Lines that differ between the first two runs, for example because they contain times, are not compared. The output has
changed if another line or the exit code differs. The target is that the output of no program changes. With `--gpu`,
the programs of the clones run on a virtual GPU of this size.
"""

import contextlib
import os
import random
import runpy
import signal
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tests.corpus.programs import programs

from bench.first_contact.programs import PROGRAMS
from bench.first_contact.public_programs import Trial, program_key
from bench.lib.command_line import command_line
from bench.lib.table import print_table
from legroom.diagnose.lint.engine import fix_text, lint_paths, lint_text
from legroom.diagnose.lint.settings import Settings

ALL_RULES = Settings(select=("LG",))
SEEDS = """\
import random

from legroom.startup import begin

begin()

random.seed(0)
try:
    import numpy
    import torch
except ImportError:
    pass
else:
    numpy.random.seed(0)
    torch.manual_seed(0)
"""


@dataclass(frozen=True)
class Run:
    code: int | None
    """The exit code, or None if the run exceeded the time limit."""
    lines: tuple[str, ...]


def changed_lines(first: Run, second: Run, fixed: Run) -> list[str]:
    """Return the differences between the original and the fixed program. Lines that differ between the two original
    runs are ignored."""
    if first.code != fixed.code:
        return [f"exit code {first.code} before, {fixed.code} after"]
    if len(first.lines) != len(second.lines):
        return []
    if len(first.lines) != len(fixed.lines):
        return [f"{len(first.lines)} lines before, {len(fixed.lines)} after"]
    return [
        f"{before!r} -> {after!r}"
        for before, again, after in zip(first.lines, second.lines, fixed.lines, strict=True)
        if before == again != after
    ]


def run_here(file: Path, seconds: int) -> Run:
    """Run a program in a fork of this process, which has already imported torch."""
    with tempfile.NamedTemporaryFile() as output:
        child = os.fork()
        if child == 0:
            _run_child(file, output.name, seconds)
        _, status = os.waitpid(child, 0)
        killed = os.WIFSIGNALED(status)
        text = Path(output.name).read_text(errors="replace")
        return Run(None if killed else os.waitstatus_to_exitcode(status), tuple(text.splitlines()))


def _run_child(file: Path, output: str, seconds: int) -> None:
    code = 1
    with (
        open(output, "w") as stream,
        open(os.devnull, "w") as quiet,
        contextlib.redirect_stdout(stream),
        contextlib.redirect_stderr(quiet),
    ):
        with contextlib.suppress(BaseException):
            signal.alarm(seconds)
            torch.set_num_threads(1)
            random.seed(0)
            np.random.seed(0)
            torch.manual_seed(0)
            sys.argv = [str(file)]
            try:
                runpy.run_path(str(file), run_name="__main__")
                code = 0
            except SystemExit as ended:
                code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        stream.flush()
    os._exit(code)


def try_corpus(seconds: int, only: list[str]) -> list[list[str]]:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for program in programs():
            name = f"{program.path.parent.name}/{program.path.name}"
            if only and not any(word in name for word in only):
                continue
            text = program.path.read_text()
            after = fix_text(text, settings=ALL_RULES)
            if after == text:
                continue
            file = Path(folder) / program.path.name
            file.write_text(after)
            codes = Counter(
                finding.code
                for finding in lint_text(text, settings=ALL_RULES)
                if finding.applicability == "safe"
            )
            first, second = run_here(program.path, seconds), run_here(program.path, seconds)
            rows.append(_row(name, codes, first, second, run_here(file, seconds)))
    return rows


def try_checkouts(checkouts: Path, python: str, seconds: float, only: list[str]) -> list[list[str]]:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sitecustomize.py").write_text(SEEDS)
        paths = [folder, os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        for program in PROGRAMS:
            key = program_key(program)
            if not program.alone or (only and not any(word in key for word in only)):
                continue
            trial = Trial(program, checkouts, python, seconds)
            try:
                findings = lint_paths([str(trial.pristine)], select=["ALL"]).findings
                codes = Counter(each.code for each in findings if each.applicability == "safe")
                if codes:
                    first, second = _python(trial), _python(trial)
                    lint_paths([str(trial.pristine)], select=["ALL"], fix=True)
                    rows.append(_row(key, codes, first, second, _python(trial)))
            finally:
                trial.close()
    return rows


def _python(trial: Trial) -> Run:
    outcome = trial.python()
    return Run(outcome.code, tuple(outcome.out.splitlines()))


def _row(name: str, codes: Counter[str], first: Run, second: Run, fixed: Run) -> list[str]:
    differences = changed_lines(first, second, fixed)
    result = "changed" if differences else "same" if first.code == 0 else f"same (exit code {first.code})"
    row = [name, " ".join(f"{code} {count}" for code, count in sorted(codes.items())), result]
    print(" | ".join((*row, *differences[:2])), flush=True)
    return row


def main(argv: list[str]) -> int:
    parser = command_line(__doc__)
    parser.add_argument("checkouts", type=Path, nargs="?")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--gpu", help="the size of a virtual GPU for the programs of the clones")
    parser.add_argument("--seconds", type=int, default=120)
    options = parser.parse_args(argv)
    rows = try_corpus(options.seconds, options.only)
    if options.gpu is not None:
        os.environ["LEGROOM"] = options.gpu
    if options.checkouts is not None:
        rows += try_checkouts(options.checkouts, options.python, options.seconds, options.only)
    fixes = sum(int(part) for row in rows for part in row[1].split()[1::2])
    changed = sum(row[2] == "changed" for row in rows)
    print_table(
        "Safe fixes: python -m bench.first_contact.safe_fixes CHECKOUTS",
        ["fixed programs", "fixes", "programs that ran to the end", "output changed"],
        [[str(len(rows)), str(fixes), str(sum(row[2] == "same" for row in rows)), str(changed)]],
    )
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
