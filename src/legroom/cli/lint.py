"""`legroom lint`: finds memory bugs in source code."""

import sys
import time
from enum import StrEnum
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from legroom.errors import InputError, MissingExtra, UsageError
from legroom.log import printable, say

if TYPE_CHECKING:
    from legroom.diagnose.lint.finding import LintReport

SECONDS_WITHOUT_OUTPUT = 5
"""The number of seconds without findings after which the number of checked files is printed."""


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
            metavar="PATHS",
            help="Files, directories or notebooks to check. Use `-` for standard input.",
            show_default=False,
        ),
    ] = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Apply safe fixes, which do not change results.")
    ] = False,
    unsafe_fixes: Annotated[
        bool,
        typer.Option(
            "--unsafe-fixes", help="With --fix or --diff, include unsafe fixes, which may change results."
        ),
    ] = False,
    diff: Annotated[
        bool, typer.Option("--diff", help="Show the fixes as a diff without changing files.")
    ] = False,
    select: Annotated[
        list[str] | None,
        typer.Option(
            "--select",
            metavar="CODES",
            help="Rules to enable: a code (LG101), a prefix (LG1), or ALL.",
            show_default=False,
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option("--ignore", metavar="CODES", help="Rules to disable.", show_default=False),
    ] = None,
    format: Annotated[LintFormat, typer.Option("--format", help="Output format.")] = LintFormat.FULL,
    rules: Annotated[bool, typer.Option("--rules", help="List all rules and exit.")] = False,
) -> int:
    """Find memory bugs in code, such as retained graphs, evaluation with gradients and blocking copies.

    Exit code: 0 if nothing is found, 1 if there are findings, 2 if a file cannot be checked.
    """
    from legroom.show.common.terminal import print_to
    from legroom.show.lint.formats import STREAMED, render_lint_report, render_lint_summary, render_rules

    if rules:
        print_to(sys.stdout, render_rules())
        return 0
    if not paths:
        raise UsageError("No files given. Example: `legroom lint .`")
    if find_spec("libcst") is None:
        raise MissingExtra("libcst", "lint")
    from legroom.diagnose.lint.engine import lint_paths, lint_standard_input

    rule_options = {"select": select or [], "ignore": ignore or []}
    stream, streamed = sys.stdout, False
    if "-" in paths:
        if len(paths) > 1:
            raise UsageError("`-` (standard input) cannot be combined with other paths.")
        if sys.stdin is None:
            raise InputError
        report, text = lint_standard_input(
            sys.stdin.buffer.read(), **rule_options, fix=fix, unsafe=unsafe_fixes, diff=diff
        )
        if fix and not diff:
            stream = sys.stderr
            sys.stdout.buffer.write(text)
            sys.stdout.buffer.flush()
    else:
        live = _LiveOutput(stream, str(format), diff=diff)
        report = lint_paths(
            paths, **rule_options, fix=fix, unsafe=unsafe_fixes, diff=diff, on_report=live.add
        )
        streamed = diff or format in STREAMED
    for error in report.file_errors:
        say(f"{error.file}: {error.message}")
    exit_code = 2 if any(error.is_failure for error in report.file_errors) else 0
    if diff:
        stream.write("" if streamed else _shown_diff(report.diff, stream))
        return 1 if report.diff else exit_code
    if not streamed:
        print_to(stream, render_lint_report(report, str(format), fixing=fix))
    elif format is not LintFormat.GITHUB:
        print_to(stream, render_lint_summary(report, fixing=fix))
    return 1 if report.findings else exit_code


def _shown_diff(diff: str, stream: TextIO) -> str:
    """Return the diff for a terminal without control characters. For a file or a pipe to `patch`, return it
    unchanged.
    """
    return printable(diff) if stream.isatty() else diff


class _LiveOutput:
    """Prints the findings of each file as soon as the file is checked, and the progress after a few seconds without
    findings.
    """

    def __init__(self, stream: TextIO, format: str, *, diff: bool) -> None:
        self._stream, self._format, self._diff = stream, format, diff
        self._last_output = time.monotonic()

    def add(self, report: "LintReport", checked: int, files: int) -> None:
        from legroom.show.common.terminal import print_to
        from legroom.show.lint.formats import STREAMED, render_lint_findings

        now = time.monotonic()
        if self._diff and report.diff:
            self._stream.write(_shown_diff(report.diff, self._stream))
            self._stream.flush()
        elif not self._diff and report.findings and self._format in STREAMED:
            print_to(self._stream, render_lint_findings(report.findings, self._format))
        elif now - self._last_output < SECONDS_WITHOUT_OUTPUT or checked == files:
            return
        else:
            say(f"Checked {checked:,} of {files:,} files")
        self._last_output = now
