"""Follows the first advice of out-of-memory reports and counts how often the program then fits.

    python -m bench.first_contact.followed_advice [CHECKOUTS] [--sizes 90 60] [--only WORD ...] [--python PYTHON] [--write FILE.json]

Each program runs once on a virtual GPU of 24 GiB, and then on smaller virtual GPUs, where it runs out of memory.
`--sizes` are percentages of the memory that was allocated at its peak. Then the first command after `Next:` runs. If
this command equals the failed command, the first advice is applied to the code before. The programs are those in
`small_programs` and, with CHECKOUTS (see `public_programs`), the public programs.

- `fits`: The program finishes.
- `does not fit`: The program runs out of memory again.
- `wrong`: The program fails with another error. If only the code was changed, `wrong` also means that the output
  differs from the output on the large GPU, except with another optimizer (LG605).
- `nothing to apply`: The advice is a decision of the user, or a change that this program cannot make.
"""

import argparse
import ast
import datetime
import json
import re
import shlex
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.first_contact.programs import PROGRAMS, Program
from bench.first_contact.public_programs import LARGE, Change, Outcome, Trial, program_key
from bench.lib.command_line import command_line
from bench.lib.table import markdown_table, print_table
from legroom.units import KiB, MiB

MIN_PEAK = 100 * MiB
"""Programs with a smaller peak are skipped. The allocator reserves 20 MiB at once, which would be a large part of such
a small GPU."""
HEADER = ("program", "GPU", "advice", "result", "how")
SMALL = Path(__file__).parent / "small_programs"
TWO_GPUS = {"data_parallel.py"}
ARGUMENTS = {"option_given.py": "-b 64"}
QUIET = {"PYTHONWARNINGS": "ignore"}
RESULTS = ("fits", "does not fit", "wrong", "nothing to apply")


@dataclass(frozen=True, slots=True)
class Row:
    program: str
    gpu: str
    code: str
    """The code of the first advice."""
    result: str
    """The result, which starts with one of `RESULTS`."""
    how: str
    """The `Next:` command, or the applied change."""

    @property
    def kind(self) -> str:
        return next(each for each in RESULTS if self.result.startswith(each))


# --- following the advice


def follow(trial: Trial, failed: dict[str, Any]) -> tuple[list[str], Change, str] | None:
    """Return the options of `legroom run`, the change to the program, and a description. Return None if there is
    nothing to apply."""
    if failed["next"] and failed["next"][0].startswith("legroom estimate"):
        return None
    words = shlex.split(failed["next"][0]) if failed["next"] else []
    environment = {}
    while words and "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        environment[name] = value
    if words[:2] != ["legroom", "run"]:
        return None
    script = trial.program.arguments.split()[0]
    position = words.index(script)
    options, arguments = words[2:position], tuple(words[position + 1 :])
    first = failed["oom"]["advice"][0]
    if failed["next"][0] != failed["command"]:
        also = edit(trial, first) if first["code"] == "LG605" else None
        if first["evidence"].get("optimizers"):
            also = _one_by_one(trial, first)
        edits, how = also or ({}, "")
        if first["code"] == "LG103":
            edits, how = edit(trial, first) or ({}, "")
        change = Change(arguments=arguments, environment={**QUIET, **environment}, edits=edits)
        return options, change, f"{_difference(failed)} {how}".strip()
    edits = edit(trial, first)
    return None if edits is None else (options, Change(edits=edits[0], environment=QUIET), edits[1])


def _difference(failed: dict[str, Any]) -> str:
    """Return the words of the `Next:` command that are not in the failed command."""
    before = shlex.split(failed["command"])
    return "Next: " + " ".join(word for word in shlex.split(failed["next"][0]) if word not in before)


def edit(trial: Trial, finding: dict[str, Any]) -> tuple[dict[str, str], str] | None:
    """Apply a finding to the code. Return the new contents of the changed files, and a description."""
    changes = finding["evidence"].get("edits")
    if changes:
        files: dict[str, list[str]] = {}
        for change in changes:
            path, lines = _read(trial, change["file"])
            lines = files.setdefault(path, lines)
            lines[change["line"] - 1] = lines[change["line"] - 1].replace(change["old"], change["new"])
        done = ", ".join(f"{change['old']} → {change['new']}" for change in changes)
        return {path: "".join(lines) for path, lines in files.items()}, done
    editors = {
        "LG101": _lint_fix, "LG104": _lint_fix, "LG105": _lint_fix, "LG119": _lint_fix, "LG301": _lint_fix,
        "LG201": _under_no_grad, "LG102": _delete, "LG103": _zero_grad_first, "LG605": _plain_sgd,
        "LG606": _one_by_one, "LG615": _same_shape,
    }  # fmt: skip
    editor = editors.get(finding["code"])
    return editor(trial, finding) if editor is not None else None


def _read(trial: Trial, file: str) -> tuple[str, list[str]]:
    path = (trial.root / trial.program.folder / file).resolve()
    return str(path.relative_to(trial.root.resolve())), path.read_text().splitlines(keepends=True)


def _parents(tree: ast.AST) -> dict[ast.AST, ast.AST]:
    return {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}


def _statement_at(lines: Sequence[str], line: int, kinds: tuple[type, ...]) -> Any:
    """Return the innermost statement of these kinds around a line."""
    tree = ast.parse("".join(lines))
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, kinds) and getattr(node, "lineno", 0) <= line <= getattr(node, "end_lineno", 0)
    ]
    return max(around, key=lambda node: node.lineno, default=None)


def _lint_fix(trial: Trial, finding: dict[str, Any]) -> tuple[dict[str, str], str] | None:
    """Apply the linter's fix for the code of the finding."""
    if not finding["file"]:
        return None
    path, lines = _read(trial, finding["file"])
    options = ["--fix", "--unsafe-fixes", "--select", finding["code"], str(trial.root / path)]
    subprocess.run([sys.executable, "-m", "legroom", "lint", *options], capture_output=True)
    changed = (trial.root / path).read_text()
    return ({path: changed}, f"lint --fix, line {finding['line']}") if changed != "".join(lines) else None


def _under_no_grad(trial: Trial, finding: dict[str, Any]) -> tuple[dict[str, str], str] | None:
    if not finding["file"]:
        return None
    path, lines = _read(trial, finding["file"])
    is_call = finding["fix"].startswith("Call this")
    around = _statement_at(lines, finding["line"], (ast.stmt,) if is_call else (ast.For, ast.While))
    if around is None:
        return None
    first, last = around.lineno - 1, around.end_lineno
    indented = textwrap.indent("".join(lines[first:last]), "    ")
    lines[first:last] = [" " * around.col_offset + "with torch.no_grad():\n", indented]
    return {path: "".join(lines)}, f"no_grad around line {around.lineno}"


def _same_shape(trial: Trial, finding: dict[str, Any]) -> tuple[dict[str, str], str] | None:
    column, path = finding["evidence"]["variables"][0], finding["file"]
    path, lines = _read(trial, path)
    line = finding["line"] - 1
    lines[line] = re.sub(rf"\b{column}\b(?!\s*=[^=])", f"{column}.squeeze(1)", lines[line])
    return {path: "".join(lines)}, f"{column}.squeeze(1)"


def _delete(trial: Trial, finding: dict[str, Any]) -> tuple[dict[str, str], str] | None:
    found = re.search(r"`del (\w+)`", finding["fix"])
    if found is None or not finding["file"]:
        return None
    path, lines = _read(trial, finding["file"])
    name = found[1]
    loop = _statement_at(lines, finding["line"], (ast.For, ast.While, ast.FunctionDef))
    if loop is None:
        return None
    uses = [
        index
        for index, statement in enumerate(loop.body)
        if any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(statement))
    ]
    if not uses:
        return None
    after = loop.body[uses[-1]]
    lines.insert(after.end_lineno, " " * after.col_offset + f"del {name}\n")
    return {path: "".join(lines)}, f"del {name} after line {after.end_lineno}"


def _zero_grad_first(trial: Trial, finding: dict[str, Any]) -> tuple[dict[str, str], str] | None:
    path, lines = _read(trial, trial.program.arguments.split()[0])
    tree = ast.parse("".join(lines))
    parents = _parents(tree)
    for node in ast.walk(tree):
        if not (
            isinstance(node, ast.Expr)
            and ast.unparse(node).rstrip(")").partition("(")[0].endswith(".zero_grad")
        ):
            continue
        block: ast.AST | None = parents[node]
        while block is not None and not isinstance(block, ast.For | ast.While):
            block = parents.get(block)
        if block is None:
            continue
        text = "".join(lines[node.lineno - 1 : node.end_lineno]).strip()
        lines[node.lineno - 1 : node.end_lineno] = []
        first = block.body[0]
        lines.insert(first.lineno - 1, " " * first.col_offset + text + "\n")
        return {path: "".join(lines)}, f"`{text}` first in the loop"
    return None


def _plain_sgd(trial: Trial, finding: dict[str, Any]) -> tuple[dict[str, str], str] | None:
    """Replace the optimizers with an optimizer without state."""
    path, lines = _read(trial, trial.program.arguments.split()[0])
    text = "".join(lines)
    pattern = r"\boptim\.[A-Z]\w*\(((?:[^(),]|\([^()]*\))+)(?:[^()]|\([^()]*\))*\)"
    option = ", foreach=False" if "`foreach=False`" in finding["fix"] else ""
    changed = re.sub(pattern, rf"optim.SGD(\1, lr=1e-4{option})", text)
    if "optimizer with less state" not in finding["fix"] or changed == text:
        return None
    return {path: changed}, f"SGD{option}"


def _one_by_one(trial: Trial, finding: dict[str, Any]) -> tuple[dict[str, str], str] | None:
    option = re.search(r"`((?:fused|foreach)=\w+)`", finding["fix"])
    name = (finding["evidence"].get("optimizers") or [""])[0]
    path, lines = _read(trial, trial.program.arguments.split()[0])
    text = "".join(lines)
    if option is None:
        return None
    changed = re.sub(rf"(\boptim\.{name or '[A-Z]'}\w*\((?:[^()]|\([^()]*\))*)\)", rf"\1, {option[1]})", text)
    return ({path: changed}, option[1]) if changed != text else None


# --- the trials


def try_size(trial: Trial, reference: Outcome, name: str, percent: int, peak: int) -> Row:
    gpu = f"{int(peak * percent / 100) // KiB}KiB"
    gpus = ",".join([gpu] * (2 if trial.program.arguments.split()[0] in TWO_GPUS else 1))
    label = f"{percent}%"
    done = trial.legroom("run", "--gpu", gpus)
    failed = done.document
    if done.code == 0 or failed is None or failed.get("oom") is None:
        return Row(
            name, label, "-", f"nothing to apply: {'finished' if done.code == 0 else done.last_line}", "-"
        )
    advice = failed["oom"]["advice"]
    if not advice:
        return Row(name, label, "none", "nothing to apply: no advice", failed["oom"]["phase"])
    code = advice[0]["code"]
    problem = text_differs(trial, failed)
    if problem:
        return Row(name, label, code, f"wrong: {problem}", "")
    plan = follow(trial, failed)
    if plan is None:
        return Row(name, label, code, "nothing to apply", advice[0]["fix"][:100])
    options, change, how = plan
    again = trial.legroom("run", *options, change=change)
    where = f"{how} ({failed['oom']['phase']})"
    if again.code == 0:
        is_same = change.arguments is not None or code == "LG605" or _printed(again) == _printed(reference)
        return Row(name, label, code, "fits" if is_same else "wrong: prints something else", where)
    if "OutOfMemoryError" in again.error or (again.document or {}).get("oom"):
        return Row(name, label, code, "does not fit", where)
    return Row(name, label, code, f"wrong: {again.last_line}", where)


def text_differs(trial: Trial, failed: dict[str, Any]) -> str:
    """Return a description if the text report lacks the first advice or the first `Next:` command of the JSON
    report."""
    command = [sys.executable, "-m", "legroom", "report", str(trial.capture)]
    text = subprocess.run(command, capture_output=True, text=True, env=None).stdout
    words = " ".join(text.split())
    if " ".join(failed["oom"]["advice"][0]["fix"].split()) not in words:
        return "the text lacks the first advice"
    after = re.split(r"\bNext\b.*?: (?=legroom |[A-Z_]+=)", words, maxsplit=1)[-1]
    return (
        ""
        if after.startswith(" ".join(failed["next"][0].split()))
        else "the text has another command after Next:"
    )


def _printed(outcome: Outcome) -> list[str]:
    """Return the output lines of the program, without Legroom's lines and with times replaced."""
    lines = [line for line in outcome.error.splitlines() if "legroom" not in line]
    return [re.sub(r"\d+(\.\d+)?\s?(s|ms|it/s)\b|\d\d:\d\d(:\d\d)?", "#", line) for line in lines]


def try_program(program: Program, checkouts: Path, name: str, options: argparse.Namespace) -> list[Row]:
    trial = Trial(program, checkouts, options.python, options.seconds)
    large = ",".join([LARGE] * (2 if program.arguments.split()[0] in TWO_GPUS else 1))
    try:
        done = trial.legroom("run", "--gpu", large, change=Change(environment=QUIET))
        document = done.document
        if done.code != 0 or document is None:
            print(f"skipped, {name}: {done.last_line}", flush=True)
            return []
        peak = document["peak_allocated_bytes"]
        if peak < MIN_PEAK:
            print(f"skipped, {name}: peak of {peak / MiB:.1f} MiB", flush=True)
            return []
        rows = []
        for percent in options.sizes:
            rows.append(try_size(trial, done, name, percent, peak))
            print(f"{peak / MiB:6.0f} MiB |", rows[-1], flush=True)
        return rows
    finally:
        trial.close()


def totals(rows: Sequence[Row]) -> list[list[str]]:
    """Return one line per code of the first advice, and one for all codes."""
    lines = []
    for code in [*sorted({row.code for row in rows}), "all"]:
        counts = Counter(row.kind for row in rows if code in (row.code, "all"))
        applied = sum(counts[kind] for kind in RESULTS[:3])
        share = f"{counts['fits'] / applied:.0%}" if applied else "-"
        lines.append([code, *(str(counts[kind]) for kind in RESULTS), share])
    return lines


def _cells(rows: Sequence[Row]) -> list[list[str]]:
    return [[row.program, row.gpu, row.code, row.result, row.how] for row in rows]


def _write(path: Path, rows: Sequence[Row]) -> None:
    """Write the rows as JSON, and as tables in a Markdown file of the same name. Rows of other programs are kept."""
    earlier = [Row(**row) for row in json.loads(path.read_text())] if path.exists() else []
    done = {(row.program, row.gpu) for row in rows}
    merged = sorted([*(row for row in earlier if (row.program, row.gpu) not in done), *rows], key=_order)
    path.write_text(json.dumps([asdict(row) for row in merged], indent=1) + "\n")
    lines = [
        "# Followed advice", "",
        f"{datetime.date.today()}, virtual GPUs. `python -m bench.first_contact.followed_advice --help` explains the results.", "",
        *markdown_table(("advice", *RESULTS, "fits, of those applied"), totals(merged)), "", *markdown_table(HEADER, _cells(merged)),
    ]  # fmt: skip
    path.with_suffix(".md").write_text("\n".join(lines) + "\n")


def _order(row: Row) -> tuple[bool, str, int]:
    return not row.program.startswith(SMALL.name), row.program, -int(row.gpu.rstrip("%"))


def main(argv: list[str]) -> int:
    parser = command_line(__doc__)
    parser.add_argument("checkouts", type=Path, nargs="?")
    parser.add_argument("--sizes", type=int, nargs="+", default=[90, 60])
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--write", type=Path, help="JSON file; rows that it has of other programs are kept")
    options = parser.parse_args(argv)
    small = [
        Program(repository=SMALL.name, folder=".", arguments=f"{path.name} {ARGUMENTS.get(path.name, '')}")
        for path in sorted(SMALL.glob("*.py"))
    ]
    programs = [(SMALL.parent, program, program.name) for program in small]
    if options.checkouts is not None:
        public = [program for program in PROGRAMS if program.alone and program.gpu]
        programs += [
            (options.checkouts, program, program_key(program))
            for program in public
            if (options.checkouts / program.repository).is_dir()
        ]
    rows: list[Row] = []
    for checkouts, program, name in programs:
        if not options.only or any(word in name for word in options.only):
            rows += try_program(program, checkouts, name, options)
            if options.write:
                _write(options.write, rows)
    print_table("Followed advice", HEADER, _cells(rows))
    print_table("By kind of advice", ("advice", *RESULTS, "fits, of those applied"), totals(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
