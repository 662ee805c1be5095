"""How well the linter sees: precision and recall on the corpus of leaking and healthy programs, and its speed.

    python -m bench.leaks.linter [--all-lines] [--fixes] [--corpus FOLDER] [FOLDER ...]

A finding is right where the corpus marks that line with a word of the rule, or as one that leaks; a mark is found where a finding of its kind
stands on its line. Rules that the corpus has no word for (deprecated names, loading, distribution) are listed apart, not counted. Given folders are linted for speed. `--corpus` judges the programs of another folder (with `leaking/` and `healthy/` in it) instead of `tests/corpus`. `--fixes` mends every leaking
program by the rules that the corpus has words for and runs what comes out under the leak detector: does it still run, and does anything still grow?
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
}
JUDGED = set().union(*WORDS.values())
RETENTION = "LG1"


@dataclass
class Score:
    right: int = 0
    """Findings on lines that are marked for them."""
    unmarked: int = 0
    """Findings on lines that leak, of which no one expected a linter to see it."""
    wrong: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    healthy_retention: list[str] = field(default_factory=list)
    programs: int = 0
    seen: int = 0
    """Leaking programs in which a leaking line is named."""
    leaking: int = 0
    others: Counter[str] = field(default_factory=Counter)

    @property
    def precision(self) -> float:
        return (self.right + self.unmarked) / self.told if self.told else 1.0

    @property
    def told(self) -> int:
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
        if not program.leaks and code.startswith(RETENTION):
            score.healthy_retention.append(f"{name}:{line} {code}")
    score.missed.extend(f"{name}:{line} {word}" for line, word in sorted(program.lint - found))
    score.programs += 1
    score.leaking += program.leaks
    score.seen += program.leaks and any(line in program.lines for line, _ in places)


def main() -> None:
    arguments = sys.argv[1:]
    folder = None
    if "--corpus" in arguments:
        at = arguments.index("--corpus")
        folder = Path(arguments[at + 1])
        del arguments[at : at + 2]
    judged = programs(folder) if folder is not None else programs()
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
            "leaking programs named",
            "retention findings on healthy ones",
        ],
        [
            [
                name,
                str(score.programs),
                f"{score.precision:.3f} ({score.right + score.unmarked} of {score.told})",
                f"{score.recall:.3f} ({score.right} of {score.right + len(score.missed)})",
                f"{score.seen} of {score.leaking}",
                str(len(score.healthy_retention)),
            ]
            for name, score in rounds.items()
            if score.programs
        ],
    )
    for name, score in rounds.items():
        shown = score if "--all-lines" in arguments else Score()
        for title, rows in (
            ("wrong", shown.wrong),
            ("missed", shown.missed),
            ("not judged", sorted(shown.others)),
        ):
            for row in rows:
                print(f"{name}: {title}: {row}")
    if "--fixes" in arguments:
        fixes(judged)
    if folders := [argument for argument in arguments if not argument.startswith("-")]:
        speed(folders)


def fixes(judged: list[Program]) -> None:
    """Leaking programs with a fix, mended and run, one at a time."""
    from bench.leaks.detector import _warm_up, run_all

    _warm_up()
    rows = []
    seen: dict[str, dict[str, Any]] = {}
    """What came of a mended text: most are the same with and without unsafe fixes."""
    with tempfile.TemporaryDirectory() as folder:
        for name in dict.fromkeys(program.round for program in judged):
            for words, unsafe in (("--fix", False), ("--fix --unsafe-fixes", True)):
                mended = {}
                for program in (each for each in judged if each.leaks and each.round == name):
                    text = program.path.read_text()
                    after = fix_text(text, unsafe=unsafe, settings=Settings(select=tuple(sorted(JUDGED))))
                    if after != text:
                        file = Path(folder) / f"{program.path.stem}_{unsafe}.py"
                        file.write_text(after)
                        mended[after] = replace(program, path=file)
                new = {program.path: text for text, program in mended.items() if text not in seen}
                for program, result in run_all([mended[text] for text in new.values()], 1):
                    seen[new[program.path]] = result
                results = [(program, seen[text]) for text, program in mended.items()]
                failed = [(program, result) for program, result in results if result["error"]]
                growing = [(program, result) for program, result in results if result["leaks"]]
                graphs = sum(
                    any(leak["kind"] == "graph" for leak in result["leaks"]) for _, result in growing
                )
                counts = (len(mended), len(failed), graphs, len(growing) - graphs)
                rows.append([f"{name} round, `{words}`", *map(str, counts)])
                for title, which in (("fails", failed), ("still grows", growing)):
                    for program, result in which:
                        if "--all-lines" in sys.argv:
                            told = result["error"] or result["leaks"][:1]
                            print(f"{words}: {title}: {program.path.name}: {told}", flush=True)
    print_table(
        "Leaking programs, mended and run: python -m bench.leaks.linter --fixes",
        ["with", "mended", "fail", "a graph still grows", "only tensors still grow"],
        rows,
    )


def speed(folders: list[str]) -> None:
    """Lines a second of processor time, beside what parsing alone takes and what ruff's pyflakes rules take on the same files."""
    files = [file for folder in folders for file in Path(folder).rglob("*.py") if file.is_file()]
    texts = [file.read_text(encoding="utf-8", errors="replace") for file in files]
    lines = sum(text.count("\n") for text in texts)
    began = time.perf_counter()
    lint_paths(folders)
    print(
        f"\n{lines:,} lines in {len(files)} files of {' '.join(folders)}: {time.perf_counter() - began:.1f} s"
    )
    ways: dict[str, Callable[[], object]] = {
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
    for name, way in ways.items():
        seconds = _processor_seconds(way)
        print(
            f"  {name}: {lines / seconds:,.0f} lines, {len(files) / seconds:.0f} files a second of processor time"
        )


def _processor_seconds(way: Callable[[], object]) -> float:
    before = os.times()
    way()
    after = os.times()
    return sum(after[:4]) - sum(before[:4])


if __name__ == "__main__":
    main()
