"""`legroom lint`: the memory bugs that can be read off the code."""

import sys
from enum import StrEnum
from importlib.util import find_spec
from typing import Annotated

import typer

from legroom.errors import MissingExtra, UsageError
from legroom.log import say


class LintFormat(StrEnum):
    FULL = "full"
    CONCISE = "concise"
    JSON = "json"
    GITHUB = "github"
    SARIF = "sarif"


def lint(
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATHS", help="Files, folders and notebooks; - is standard input.", show_default=False
        ),
    ] = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Mend what can be mended without changing results.")
    ] = False,
    unsafe_fixes: Annotated[
        bool, typer.Option("--unsafe-fixes", help="With --fix or --diff: also changes that you should read.")
    ] = False,
    diff: Annotated[
        bool, typer.Option("--diff", help="Show what --fix would change, and change nothing.")
    ] = False,
    select: Annotated[
        list[str] | None,
        typer.Option(
            "--select", metavar="CODES", help="Only these rules: LG101, LG1, ALL.", show_default=False
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option("--ignore", metavar="CODES", help="All but these rules.", show_default=False),
    ] = None,
    format: Annotated[
        LintFormat, typer.Option("--format", help="How to tell what was found.")
    ] = LintFormat.FULL,
    rules: Annotated[bool, typer.Option("--rules", help="List the rules and stop.")] = False,
) -> int:
    """Find memory bugs in code: kept graphs, evaluation with gradients, slow copies. Exit code 0 clean, 1 findings, 2 not all checked."""
    from legroom.show.common.terminal import print_to
    from legroom.show.lint.formats import render_lint_report, render_rules

    if rules:
        print_to(sys.stdout, render_rules())
        return 0
    if not paths:
        raise UsageError("nothing to lint: name files or folders, such as `legroom lint .`")
    if find_spec("libcst") is None:
        raise MissingExtra("libcst, which legroom lint reads code with,", "lint")
    from legroom.diagnose.lint.engine import lint_paths, lint_standard_input

    chosen = {"select": select or [], "ignore": ignore or []}
    stream = sys.stdout
    if "-" in paths:
        if len(paths) > 1:
            raise UsageError("- stands for standard input and must be given alone")
        report, text = lint_standard_input(
            sys.stdin.buffer.read(), **chosen, fix=fix, unsafe=unsafe_fixes, diff=diff
        )
        if fix and not diff:
            stream = sys.stderr
            sys.stdout.buffer.write(text)
            sys.stdout.buffer.flush()
    else:
        report = lint_paths(paths, **chosen, fix=fix, unsafe=unsafe_fixes, diff=diff)
    for trouble in report.troubles:
        say(f"{trouble.file}: {trouble.sentence}")
    if diff:
        stream.write(report.diff)
        return 1 if report.diff else 0
    print_to(stream, render_lint_report(report, str(format), fixing=fix))
    if report.findings:
        return 1
    return 2 if any(trouble.sentence.startswith(("not", "cannot")) for trouble in report.troubles) else 0
