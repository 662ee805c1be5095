"""Reads the programs of the corpus and their expected results: lines, holders, kinds of leaks, and lint findings.

A program is a script that runs in about a second on a CPU, a virtual GPU or a real one. The expected results are in
comments at the end of a line:

    losses.append(loss)  # leak: holder=losses kind=graph lint=accumulate

`leak:` marks the line to report. `holder` is the variable, attribute or function that retains the memory (alternatives
are separated by `|`). `kind` is `graph` (an autograd graph grows), `tensor` (tensors accumulate) or `larger` (one
tensor grows with each step). `also:` marks another line that is a correct answer. `lint` (in either comment, or alone
as `# lint: no-grad`) is the expected finding of the linter on that line: a key of `LINT_WORDS`.

The programs were written in rounds, identified by their numbers (`ROUNDS`). From the second round on, the programs use
styles that earlier rounds do not have. Each round was written after the linter and the detector were committed, and
was scored once before anything was fixed. These first scores are in bench/results/figures_log.md.
"""

import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
LINT_WORDS = {
    "accumulate": "a loss or output with its graph is summed, or stored in a container or attribute",
    "no-grad": "evaluation with gradients enabled",
    "hidden-state": "a recurrent state is reused without detach",
    "retain-graph": "retain_graph=True in a loop",
    "create-graph": "create_graph=True in a loop, with backward()",
    "hook-append": "a hook stores its arguments",
    "lru-cache": "lru_cache or cache on a method or function that receives or returns tensors",
    "stored-exception": "an exception is stored",
    "retry-in-except": "a retry inside an except block",
    "data": "the .data attribute",
    "micro-batches": "losses of several micro-batches are summed before one backward pass",
}
ROUNDS = {
    "first": 1,
    "second": 61,
    "third": 101,
    "fourth": 201,
    "fifth": 301,
    "sixth": 401,
    "seventh": 501,
    "eighth": 601,
}
"""Each round, and the number of its first program."""
_MARK = re.compile(r"#\s*(leak|also|lint):\s*(.*?)\s*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One script of the corpus."""

    path: Path
    leaks: bool
    lines: frozenset[int]
    """The lines that are correct to report."""
    holders: tuple[str, ...]
    kind: str
    lint: frozenset[tuple[int, str]]
    """(line, key of `LINT_WORDS`) pairs that the linter should report."""

    @property
    def number(self) -> int:
        return int(self.path.name.partition("_")[0])

    @property
    def round(self) -> str:
        """The round in which the program was written."""
        return [name for name, first in ROUNDS.items() if self.number >= first][-1]


def programs(folder: Path = FOLDER) -> list[Program]:
    """Return all programs in a folder (default: the corpus), leaking programs first, sorted by number."""
    found = [
        _read(path, leaks=kind == "leaking")
        for kind in ("leaking", "healthy")
        for path in (folder / kind).glob("[0-9]*.py")
    ]
    return sorted(found, key=lambda program: (not program.leaks, program.number, program.path.name))


def _read(path: Path, *, leaks: bool) -> Program:
    lines: set[int] = set()
    lint: set[tuple[int, str]] = set()
    marked: dict[str, str] = {}
    for number, text in enumerate(path.read_text().splitlines(), start=1):
        mark = _MARK.search(text)
        if mark is None:
            continue
        kind, words = mark.groups()
        fields = dict(word.partition("=")[::2] for word in words.split())
        if kind == "lint":
            lint.update((number, word) for word in words.split())
            continue
        lines.add(number)
        if "lint" in fields:
            lint.update((number, word) for word in fields["lint"].split(","))
        if kind == "leak":
            marked = fields
    return Program(
        path=path,
        leaks=leaks,
        lines=frozenset(lines),
        holders=tuple(filter(None, marked.get("holder", "").split("|"))),
        kind=marked.get("kind", ""),
        lint=frozenset(lint),
    )
