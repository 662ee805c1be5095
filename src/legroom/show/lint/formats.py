"""The output formats of `legroom lint`: text with code frames, concise, JSON, GitHub annotations and SARIF."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from legroom import __version__
from legroom.diagnose.codes import all_pages, find_page
from legroom.diagnose.lint.finding import LintFinding, LintReport
from legroom.show.common.formatting import clean, format_count
from legroom.show.common.terminal import verbatim

_SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def render_lint_report(report: LintReport, format: str, *, fixing: bool = False) -> RenderableType:
    if format == "json":
        return verbatim(json.dumps([finding.as_json() for finding in report.findings], indent=2))
    if format == "sarif":
        return verbatim(json.dumps(sarif(report), indent=2))
    if format == "github":
        return render_lint_findings(report.findings, format)
    return Group(render_lint_findings(report.findings, format), render_lint_summary(report, fixing=fixing))


STREAMED = ("full", "concise", "github")
"""The formats in which findings can be printed one by one."""


def render_lint_findings(findings: Sequence[LintFinding], format: str) -> RenderableType:
    if format == "github":
        return verbatim("\n".join(map(_github, findings)))
    if format == "concise":
        return Group(
            *(verbatim(f"{_location(each)}: {each.code} {_mark(each)}{each.message}") for each in findings)
        )
    return Group(*(part for each in findings for part in _full(each)))


def render_rules() -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column()
    kind = ""
    for page in all_pages().values():
        if not page.is_lint_rule:
            continue
        if page.kind != kind:
            table.add_row("", Text(("\n" if kind else "") + page.kind.capitalize(), style="bold"))
            kind = page.kind
        table.add_row(
            Text(page.code, style="red"), page.title + (" (off by default)" if page.is_optional else "")
        )
    return table


def _full(finding: LintFinding) -> list[RenderableType]:
    head = Text(f"{finding.code} ", style="bold red")
    head.append(clean(finding.message), style="bold")
    help_text = Text("help: ", style="bold cyan")
    help_text.append(f"{clean(finding.fix)}.", style="not bold default")
    if finding.applicability is not None:
        option = "--fix" if finding.safe else "--fix --unsafe-fixes"
        help_text.append(f"  [{option}]", style="not bold green" if finding.safe else "not bold yellow")
    return [
        head,
        verbatim(f"  --> {_location(finding)}", style="dim"),
        _frame(finding),
        Padding(help_text, (0, 0, 0, 2)),
        Text(""),
    ]


def _frame(finding: LintFinding) -> Text:
    """Return the source line with carets under the problem, and the lines around it."""
    digits = len(str(finding.source[-1][0])) if finding.source else 1
    texts = {number: clean(text.replace("\t", "    ")).rstrip() for number, text in finding.source}
    indent = min((len(text) - len(text.lstrip()) for text in texts.values() if text.strip()), default=0)
    frame = Text(no_wrap=True, overflow="ellipsis")
    for number, original in finding.source:
        marked = number == finding.line
        head = f"  {'❱' if marked else ' '} {number:>{digits}} │ "
        frame.append(f"{head}{texts[number][indent:]}".rstrip() + "\n", style="bold" if marked else "dim")
        if marked:
            frame.append(f"    {'':>{digits}} │ ", style="dim")
            frame.append(_carets(finding, original, indent) + "\n", style="bold red")
    frame.rstrip()
    return frame


def _carets(finding: LintFinding, line: str, indent: int) -> str:
    last = finding.end_column - 1 if finding.end_line == finding.line else len(line.rstrip())
    before = line[: finding.column - 1].replace("\t", "    ")
    under = line[finding.column - 1 : last].replace("\t", "    ")
    return " " * (len(before) - indent) + "^" * max(len(under), 1)


def _location(finding: LintFinding) -> str:
    file = "standard input" if finding.file == "-" else finding.file
    cell = f"cell {finding.cell}:" if finding.cell is not None else ""
    return clean(f"{file}:{cell}{finding.line}:{finding.column}")


def _mark(finding: LintFinding) -> str:
    return {"safe": "[*] ", "unsafe": "[~] "}.get(finding.applicability or "", "")


def render_lint_summary(report: LintReport, *, fixing: bool) -> Text:
    found, files = len(report.findings), len({each.file for each in report.findings})
    fixed = f"Fixed {format_count(report.fixed, 'problem')}. " if fixing else ""
    checked = format_count(report.files - report.unchecked, "file")
    if report.unchecked and report.unchecked == report.files:
        return Text(f"{fixed}{_unchecked(report).lstrip()}")
    if not found:
        return Text(f"{fixed}No problems found in {checked}.{_unchecked(report)}")
    counts = Counter(each.applicability for each in report.findings)
    text = Text(f"{fixed}Found {format_count(found, 'problem')} in {files:,} of {checked}")
    fixable = []
    if counts["safe"] and not fixing:
        fixable.append(f"{counts['safe']:,} fixable with `--fix`")
    if counts["unsafe"]:
        more = f"{counts['unsafe']:,}{' more' if fixable else ' fixable'}"
        fixable.append(f"{more} with `--fix --unsafe-fixes` (review the changes)")
    text.append((f"; {', '.join(fixable)}." if fixable else ".") + _unchecked(report))
    first = report.findings[0].code
    text.append(f"\nExplain a code: legroom explain {first}", style="dim")
    return text


def _unchecked(report: LintReport) -> str:
    if not report.unchecked:
        return ""
    return (
        f" {format_count(report.unchecked, 'file')} {'was' if report.unchecked == 1 else 'were'} not checked."
    )


def _github(finding: LintFinding) -> str:
    """Return a GitHub workflow command, which GitHub shows as an annotation on the line of the finding."""
    message = f"{finding.message}. {finding.fix}."
    for character, escape in (("%", "%25"), ("\r", "%0D"), ("\n", "%0A")):
        message = message.replace(character, escape)
    file = (finding.file or "").replace("%", "%25").replace(":", "%3A").replace(",", "%2C")
    return (
        f"::error title=legroom {finding.code},file={file},line={finding.line},col={finding.column},"
        f"endLine={finding.end_line},endColumn={finding.end_column}::{message}"
    )


def sarif(report: LintReport) -> dict[str, Any]:
    """Return the report as SARIF 2.1.0, with one result per finding."""
    codes = sorted({finding.code for finding in report.findings})
    return {
        "$schema": _SARIF_SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "legroom",
                        "version": __version__,
                        "rules": [_sarif_rule(code) for code in codes],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "results": [_sarif_result(finding, codes) for finding in report.findings],
            }
        ],
    }


def _sarif_rule(code: str) -> dict[str, Any]:
    page = find_page(code)
    return {
        "id": code,
        "shortDescription": {"text": page.title},
        "fullDescription": {"text": page.title},
        "help": {"text": page.body, "markdown": page.markdown},
        "properties": {"tags": [page.kind]},
    }


def _sarif_result(finding: LintFinding, codes: list[str]) -> dict[str, Any]:
    location = {"uri": (finding.file or "").replace("\\", "/").replace(" ", "%20")}
    region = {
        "startLine": finding.line,
        "startColumn": finding.column,
        "endLine": finding.end_line,
        "endColumn": finding.end_column,
    }
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": codes.index(finding.code),
        "level": "warning",
        "message": {"text": f"{finding.message}. {finding.fix}."},
        "locations": [{"physicalLocation": {"artifactLocation": location, "region": region}}],
    }
    if finding.edits:
        replacements = [
            {
                "deletedRegion": {
                    "startLine": edit.line,
                    "startColumn": edit.column,
                    "endLine": edit.end_line,
                    "endColumn": edit.end_column,
                },
                "insertedContent": {"text": edit.text},
            }
            for edit in finding.edits
        ]
        result["fixes"] = [
            {
                "description": {"text": f"{finding.fix}."},
                "artifactChanges": [{"artifactLocation": location, "replacements": replacements}],
            }
        ]
    return result
