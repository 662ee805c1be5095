"""The corpus as data: which programs there are, which lines leak, who holds what, and what a linter can see.

A program is a script that runs in a second or so on a CPU, a virtual GPU or a real one. Its marks stand in comments
at the end of the lines they speak of:

    losses.append(loss)  # leak: holder=losses kind=graph lint=accumulate

`leak:` marks the line that must be named; `holder` is the variable, attribute or function that keeps the memory (one of
several, where `|` parts them); `kind` is `graph` (an autograd graph grows), `tensor` (plain tensors) or `larger` (one
tensor, born anew and larger with each step). `also:` marks a second line that is right as well. `lint` (in a mark of
either kind, or alone as `# lint: no-grad`) names what a linter should say of that line: a word of `LINT_WORDS`.

Programs were written in rounds, told apart by their numbers (`ROUNDS`). From the second on, a round was written when linter and detector had been committed, in
styles that the rounds before have not, and scored once before anything was mended by it: docs/figures.md has those first scores.
"""

import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
LINT_WORDS = {
    "accumulate": "a loss or output with its graph is added up, or put into a container or attribute",
    "no-grad": "evaluation with gradients on",
    "hidden-state": "a recurrent state is carried on without detach",
    "retain-graph": "retain_graph=True in a loop",
    "create-graph": "create_graph=True in a loop, with backward()",
    "hook-append": "a hook stores what it is given",
    "lru-cache": "lru_cache or cache around a method or function that takes or gives tensors",
    "stored-exception": "an exception is kept",
    "retry-in-except": "a retry inside an except block",
    "data": "the .data attribute",
}
ROUNDS = {"first": 1, "second": 61, "third": 101, "fourth": 201, "fifth": 301, "sixth": 401, "seventh": 501}
"""Each round, and the number of its first program."""
_MARK = re.compile(r"#\s*(leak|also|lint):\s*(.*?)\s*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One script of the corpus."""

    path: Path
    leaks: bool
    lines: frozenset[int]
    """Naming one of these is right."""
    holders: tuple[str, ...]
    kind: str
    lint: frozenset[tuple[int, str]]
    """(line, word) that a linter should tell."""

    @property
    def number(self) -> int:
        return int(self.path.name.partition("_")[0])

    @property
    def round(self) -> str:
        """In which it was written."""
        return [name for name, first in ROUNDS.items() if self.number >= first][-1]


def programs(folder: Path = FOLDER) -> list[Program]:
    """All programs below a folder, the corpus if none is given: the leaking ones first, each kind by number."""
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
