"""Measures precision and recall of the linter on the corpus of leaking and healthy programs, and its speed.

    python -m bench.leaks.linter [--all-lines] [--fixes] [--corpus FOLDER] [FOLDER ...]

A finding is right if the corpus marks its line for that rule or as leaking. A mark is found if a finding of its kind
is on its line. Rules that the corpus has no marks for (deprecated names, loading, distributed training) are listed
separately. The speed is measured on the given folders. `--corpus` uses another folder that contains `leaking/` and
`healthy/` instead of tests/corpus. `--fixes` applies the fixes to every leaking program and runs the result under the
leak detector.
"""

import ast
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import libcst as cst
from tests.corpus.programs import ROUNDS, Program, programs

from bench.lib.command_line import command_line
from bench.lib.table import print_table
from legroom.diagnose.lint.engine import fix_text, lint_paths, lint_text
from legroom.diagnose.lint.settings import Settings

WORDS = {
    "accumulate": {"LG101", "LG116"},
    "no-grad": {"LG201"},
    "hidden-state": {"LG104"},
    "retain-graph": {"LG108"},
    "create-graph": {"LG109"},
    "hook-append": {"LG110"},
    "lru-cache": {"LG111"},
    "stored-exception": {"LG107"},
    "retry-in-except": {"LG106"},
    "data": {"LG406"},
    "micro-batches": {"LG119"},
}
JUDGED = set().union(*WORDS.values())
RETENTION = "LG1"


@dataclass
class Score:
    right: int = 0
    """The number of findings on lines that are marked for their rule."""
    unmarked: int = 0
    """The number of findings on leaking lines that are not marked for the linter."""
    wrong: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    healthy_retention: list[str] = field(default_factory=list)
    programs: int = 0
    seen: int = 0
    """The number of leaking programs in which a leaking line is reported."""
    leaking: int = 0
    others: Counter[str] = field(default_factory=Counter)

    @property
    def precision(self) -> float:
        return (self.right + self.unmarked) / self.reported if self.reported else 1.0

    @property
    def reported(self) -> int:
        return self.right + self.unmarked + len(self.wrong)

    @property
    def recall(self) -> float:
        marked = self.right + len(self.missed)
        return self.right / marked if marked else 1.0


def judge(program: Program, score: Score) -> None:
    findings = lint_text(program.path.read_text(), file=str(program.path))
    places = {(finding.line, finding.code) for finding in findings}
    name = f"{program.path.parent.name}/{program.path.name}"
    found = set()
    for line, code in sorted(places):
        words = {word for word, codes in WORDS.items() if code in codes and (line, word) in program.lint}
        found.update((line, word) for word in words)
        if words:
            score.right += 1
        elif code.startswith(RETENTION) and line in program.lines:
            score.unmarked += 1
        elif code in JUDGED:
            score.wrong.append(f"{name}:{line} {code}")
        else:
            score.others[f"{code} {name}:{line}"] += 1
        if not program.leaks and not words and code.startswith(RETENTION):
            score.healthy_retention.append(f"{name}:{line} {code}")
    score.missed.extend(f"{name}:{line} {word}" for line, word in sorted(program.lint - found))
    score.programs += 1
    score.leaking += program.leaks
    score.seen += program.leaks and any(line in program.lines for line, _ in places)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("folders", nargs="*", metavar="FOLDER", help="folders to lint for speed")
    parser.add_argument("--all-lines", action="store_true", help="list wrong and missed findings")
    parser.add_argument("--fixes", action="store_true")
    parser.add_argument("--corpus", type=Path)
    options = parser.parse_args()
    judged = programs(options.corpus) if options.corpus is not None else programs()
    rounds = {f"{name} round": Score() for name in ROUNDS}
    for program in judged:
        judge(program, rounds[f"{program.round} round"])
    print_table(
        "Linter on the corpus: python -m bench.leaks.linter",
        [
            "round",
            "programs",
            "precision",
            "recall",
            "leaking programs reported",
            "retention findings in healthy programs",
        ],
        [
            [
                name,
                str(score.programs),
                f"{score.precision:.3f} ({score.right + score.unmarked} of {score.reported})",
                f"{score.recall:.3f} ({score.right} of {score.right + len(score.missed)})",
                f"{score.seen} of {score.leaking}",
                str(len(score.healthy_retention)),
            ]
            for name, score in rounds.items()
            if score.programs
        ],
    )
    for name, score in rounds.items():
        shown = score if options.all_lines else Score()
        for title, rows in (
            ("wrong", shown.wrong),
            ("missed", shown.missed),
            ("not judged", sorted(shown.others)),
        ):
            for row in rows:
                print(f"{name}: {title}: {row}")
    if options.fixes:
        fixes(judged)
    if options.folders:
        speed(options.folders)


def fixes(judged: list[Program]) -> None:
    """Fix the leaking programs and run them, one at a time."""
    from bench.leaks.detector import _warm_up, run_all

    _warm_up()
    rows = []
    seen: dict[str, dict[str, Any]] = {}
    """Maps fixed source code to results. Most programs are the same with and without unsafe fixes."""
    with tempfile.TemporaryDirectory() as folder:
        for name in dict.fromkeys(program.round for program in judged):
            for words, unsafe in (("--fix", False), ("--fix --unsafe-fixes", True)):
                fixed = {}
                for program in (each for each in judged if each.leaks and each.round == name):
                    text = program.path.read_text()
                    after = fix_text(text, unsafe=unsafe, settings=Settings(select=tuple(sorted(JUDGED))))
                    if after != text:
                        file = Path(folder) / f"{program.path.stem}_{unsafe}.py"
                        file.write_text(after)
                        fixed[after] = replace(program, path=file)
                new = {program.path: text for text, program in fixed.items() if text not in seen}
                for program, result in run_all([fixed[text] for text in new.values()], 1):
                    seen[new[program.path]] = result
                results = [(program, seen[text]) for text, program in fixed.items()]
                failed = [(program, result) for program, result in results if result["error"]]
                growing = [(program, result) for program, result in results if result["leaks"]]
                graphs = sum(
                    any(leak["kind"] == "graph" for leak in result["leaks"]) for _, result in growing
                )
                counts = (len(fixed), len(failed), graphs, len(growing) - graphs)
                rows.append([f"{name} round, `{words}`", *map(str, counts)])
                for title, which in (("fails", failed), ("still grows", growing)):
                    for program, result in which:
                        if "--all-lines" in sys.argv:
                            reported = result["error"] or result["leaks"][:1]
                            print(f"{words}: {title}: {program.path.name}: {reported}", flush=True)
    print_table(
        "Leaking programs after fixes: python -m bench.leaks.linter --fixes",
        ["with", "fixed", "fail", "a graph still grows", "only tensors still grow"],
        rows,
    )


def speed(folders: list[str]) -> None:
    """Measure lines per second of CPU time, compared with parsing alone and with ruff's pyflakes rules on the same
    files."""
    files = [file for folder in folders for file in Path(folder).rglob("*.py") if file.is_file()]
    texts = [file.read_text(encoding="utf-8", errors="replace") for file in files]
    lines = sum(text.count("\n") for text in texts)
    began = time.perf_counter()
    lint_paths(folders)
    print(
        f"\n{lines:,} lines in {len(files)} files of {' '.join(folders)}: {time.perf_counter() - began:.1f} s"
    )
    tools: dict[str, Callable[[], object]] = {
        "legroom lint, one process": lambda: [lint_text(text) for text in texts],
        "libcst's parser alone": lambda: [cst.parse_module(text) for text in texts],
        "Python's parser alone": lambda: [ast.parse(text) for text in texts],
        "ruff's pyflakes rules, its own process": lambda: subprocess.run(
            [
                shutil.which("ruff") or "ruff",
                "check",
                "--isolated",
                "--no-cache",
                "--select=F",
                "-qe",
                *folders,
            ],
            check=False,
            capture_output=True,
        ),
    }
    for name, work in tools.items():
        seconds = _cpu_seconds(work)
        print(
            f"  {name}: {lines / seconds:,.0f} lines, {len(files) / seconds:.0f} files per second of CPU time"
        )


def _cpu_seconds(work: Callable[[], object]) -> float:
    before = os.times()
    work()
    after = os.times()
    return sum(after[:4]) - sum(before[:4])


if __name__ == "__main__":
    main()
