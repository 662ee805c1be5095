"""Checks files and applies fixes."""

import ast
import difflib
import multiprocessing
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import libcst as cst

from legroom.diagnose.lint.discovery import find_files
from legroom.diagnose.lint.document import (
    Document,
    PythonFile,
    Unreadable,
    looks_like_python_2,
    parse_document,
    read_document,
)
from legroom.diagnose.lint.edits import Edit, edits_overlap
from legroom.diagnose.lint.finding import FileError, LintFinding, LintReport, TextEdit
from legroom.diagnose.lint.flow.analysis import analyze_program
from legroom.diagnose.lint.flow.program import NEWLINE, Program
from legroom.diagnose.lint.flow.steps import is_evaluation_hook
from legroom.diagnose.lint.project.calls import entry_functions, own_call, passes_graph
from legroom.diagnose.lint.project.imported import Imported
from legroom.diagnose.lint.project.other_files import OtherFiles, forget_other_files
from legroom.diagnose.lint.relevance import may_have_findings
from legroom.diagnose.lint.report_cache import load_report, remove_old_reports, save_report
from legroom.diagnose.lint.rule import Problem
from legroom.diagnose.lint.rules import RULES
from legroom.diagnose.lint.settings import Settings, settings_for
from legroom.gpus.machine import processors
from legroom.memory.garbage_collection import no_garbage_collection
from legroom.processes import can_fork

CONTEXT_LINES = 2
_RELEVANT = re.compile(r"torch|\.backward\(|lightning|accelerat|compute_metrics", re.IGNORECASE)
"""A file that contains none of these words cannot violate a rule."""
_OTHER_FRAMEWORKS = re.compile(
    r"^\s*(?:import|from) +(?:mxnet|tensorflow|keras|jax|flax|paddle|mindspore)\b", re.M
)
_MAX_PASSES = 12
_MIN_PARALLEL_BYTES = 400_000
"""The minimum total size of the files, in bytes, for which several processes are used, because starting processes takes
time.
"""
_CHUNK = 4


def lint_paths(
    paths: Sequence[str],
    *,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    fix: bool = False,
    unsafe: bool = False,
    diff: bool = False,
    on_report: Callable[[LintReport, int, int], None] | None = None,
) -> LintReport:
    """Check all files below the paths.

    With `fix`, the fixes are applied. With `diff`, the fixes are only shown. `on_report` is called for each file in
    order, with its report, the number of checked files and the total number of files.
    """
    Settings().with_options(select, ignore)  # rejects unknown codes before any work
    forget_other_files()
    _own_findings.cache_clear()
    file_errors: list[FileError] = []
    files = list(find_files(paths, file_errors))
    work = partial(_lint_file, select=tuple(select), ignore=tuple(ignore), fix=fix, unsafe=unsafe, diff=diff)
    known = partial(_known_report, select=tuple(select), ignore=tuple(ignore), fix=fix or diff, unsafe=unsafe)
    reports = []
    seen: set[tuple[object, ...]] = set()
    for report in _map_files(work, files, {file: found for file in files if (found := known(file))}):
        report = _without_repeated(report, seen)
        reports.append(report)
        if on_report is not None:
            on_report(report, len(reports), len(files))
    return LintReport(
        findings=[finding for report in reports for finding in report.findings],
        file_errors=[*file_errors, *(file_error for report in reports for file_error in report.file_errors)],
        files=len(files),
        unchecked=sum(report.unchecked for report in reports),
        fixed=sum(report.fixed for report in reports),
        diff="".join(report.diff for report in reports),
    )


def _without_repeated(report: LintReport, seen: set[tuple[object, ...]]) -> LintReport:
    """Remove the findings in imported functions that another file also caused."""
    findings = []
    for each in report.findings:
        key = (each.code, each.file, each.cell, each.line, each.column)
        if key not in seen:
            findings.append(each)
        seen.add(key)
    return replace(report, findings=findings) if len(findings) < len(report.findings) else report


def _known_report(
    file: Path, *, select: tuple[str, ...], ignore: tuple[str, ...], fix: bool, unsafe: bool
) -> LintReport | None:
    """Return the report of an earlier run for the same content.

    Return None if fixes are requested and the report contains a fix.
    """
    report = load_report(file, settings_for(file).with_options(select, ignore).codes_for(file))
    if report is not None and fix and any(each.edits and (each.safe or unsafe) for each in report.findings):
        return None
    return report


def lint_text(text: str, *, file: str = "-", settings: Settings | None = None) -> list[LintFinding]:
    codes = (settings or Settings()).codes_for(Path(file))
    return [finding for finding, _ in _check(PythonFile(text), file, codes, None)]


def fix_text(text: str, *, unsafe: bool = False, settings: Settings | None = None) -> str:
    codes = (settings or Settings()).codes_for(Path("-"))
    return _lint_document(PythonFile(text), "-", codes, fix=True, unsafe=unsafe)[1].text


def lint_standard_input(
    data: bytes, *, select: Sequence[str], ignore: Sequence[str], fix: bool, unsafe: bool, diff: bool
) -> tuple[LintReport, bytes]:
    settings = settings_for(Path("stdin.py")).with_options(select, ignore)
    try:
        document = parse_document(data, is_notebook=data.lstrip()[:1] == b"{" and b'"cells"' in data)
    except Unreadable as reason:
        return LintReport(
            findings=[], file_errors=[FileError(file="-", message=str(reason))], files=1, unchecked=1
        ), data
    report, changed = _lint_document(
        document, "-", settings.codes_for(Path("stdin.py")), fix=fix or diff, unsafe=unsafe
    )
    if diff:
        return _as_diff(report, document, changed, "-"), data
    return report, changed.encoded()


def _lint_file(
    file: Path, *, select: tuple[str, ...], ignore: tuple[str, ...], fix: bool, unsafe: bool, diff: bool
) -> LintReport:
    name = str(file)
    try:
        document = read_document(file)
    except Unreadable as reason:
        return LintReport(
            findings=[], file_errors=[FileError(file=name, message=str(reason))], files=1, unchecked=1
        )
    codes = settings_for(file).with_options(select, ignore).codes_for(file)
    others = OtherFiles(Path(os.path.abspath(file)))
    try:
        report, changed = _lint_document(document, name, codes, fix=fix or diff, unsafe=unsafe, others=others)
    except Exception as error:  # a fault in one rule must not hide the findings in other files
        message = f"not checked because of an internal error ({type(error).__name__}: {error})"
        return LintReport(
            findings=[], file_errors=[FileError(file=name, message=message)], files=1, unchecked=1
        )
    if changed is document:
        save_report(file, codes, report, others)
    if diff:
        return _as_diff(report, document, changed, name)
    if changed is not document:
        try:
            file.write_bytes(changed.encoded())
        except OSError as error:
            message = f"cannot be written: {(error.strerror or str(error)).lower()}"
            return LintReport(
                findings=report.findings, file_errors=[FileError(file=name, message=message)], files=1
            )
    return report


def _lint_document(
    document: Document,
    name: str,
    codes: frozenset[str],
    *,
    fix: bool,
    unsafe: bool,
    others: OtherFiles | None = None,
) -> tuple[LintReport, Document]:
    fixed = 0
    for number in range(_MAX_PASSES):
        try:
            found = _check(document, name, codes, others)
        except Unreadable as reason:
            return LintReport(
                findings=[], file_errors=[FileError(file=name, message=str(reason))], files=1, unchecked=1
            ), document
        chosen: list[Edit] = []
        applied = 0
        if fix and number < _MAX_PASSES - 1:
            for finding, edits in found:
                if edits and (finding.safe or unsafe) and not edits_overlap(edits, chosen):
                    chosen.extend(edits)
                    applied += 1
        changed = document.edited(chosen) if chosen else document
        if not chosen or not _still_parses(changed):
            findings = [finding for finding, _ in found]
            return LintReport(findings=findings, files=1, fixed=fixed), document
        document, fixed = changed, fixed + applied
    raise AssertionError("unreachable: the last pass applies no fixes and returns")


def _still_parses(document: Document) -> bool:
    try:
        cst.parse_module(document.text)
    except cst.ParserSyntaxError:
        return False
    return True


@no_garbage_collection()  # the nodes of a file form no cycles, and scanning them takes an eighth of the time
def _check(
    document: Document, name: str, codes: Iterable[str], others: OtherFiles | None
) -> list[tuple[LintFinding, tuple[Edit, ...]]]:
    if not _RELEVANT.search(document.text) or (
        "torch" not in document.text and _OTHER_FRAMEWORKS.search(document.text)
    ):
        _parse_python(document)
        return []
    imported = Imported()
    try:
        tree = _parse_python(document)
        if not may_have_findings(tree, document.text):
            return []
        if others is not None:
            imported = others.imported(document.text, tree)
    except Unreadable:
        pass  # libcst also accepts the syntax of newer versions of Python
    try:
        program = _program(document.text, imported)
        problems = list(_problems(program, codes, imported))
        disabled = _called_without_gradients(program, problems, others) if others is not None else frozenset()
        if disabled:
            program = _program(document.text, imported, disabled)
            problems = list(_problems(program, codes, imported))
        found = [
            _finding(program, document, name, code, problem)
            if program.is_own(problem.node)
            else (_foreign_finding(program, imported, name, code, problem), ())
            for code, problem in problems
            if not _is_ignored(program, code, problem)
        ]
    except cst.ParserSyntaxError as error:
        _parse_python(document)  # Python's own parser reports the location better
        raise Unreadable(_syntax_message(document, error.raw_line)) from None
    except RecursionError:
        raise Unreadable("not checked because the code is nested too deeply") from None
    return sorted(
        found, key=lambda pair: (pair[0].cell or 0, pair[0].line or 0, pair[0].column, pair[0].code)
    )


def _problems(program: Program, codes: Iterable[str], imported: Imported) -> Iterator[tuple[str, Problem]]:
    """Yield the problems in the file, and the problems that the file causes in imported functions.

    If a call in the file passes the retained value, the problem is at this call. Problems that the other file has
    without this file are omitted.
    """
    analyze_program(program)
    for code in sorted(codes):
        for problem in RULES[code](program):
            if program.is_own(problem.node):
                yield code, problem
            elif code.startswith(_FOLLOWED):
                place = imported.place(program.span(problem.node)[0][0] - program.own_lines)
                site = own_call(program, problem.node)
                if place is None or site is None or is_evaluation_hook(site.caller):
                    continue
                if (code, place[1]) in _own_findings(place[0]):
                    continue
                if passes_graph(site):
                    opened = problem.message.endswith(")")
                    start = f"{problem.message[:-1]}; " if opened else f"{problem.message} ("
                    message = f"{start}{place[0].name}:{place[1]})"
                    yield code, Problem(node=site.call, message=message, help=problem.help)
                else:
                    yield code, problem


_FOLLOWED = ("LG1", "LG201", "LG301")
"""The rules whose problems may be in an imported function."""


@cache
def _own_findings(file: Path) -> frozenset[tuple[str, int]]:
    """Return the codes and lines of the findings that a file has without its callers."""
    try:
        found = _check(read_document(file), file.name, RULES, None)
    except Unreadable:
        return frozenset()
    return frozenset((finding.code, finding.line or 0) for finding, _ in found)


def _called_without_gradients(
    program: Program, problems: Iterable[tuple[str, Problem]], others: OtherFiles
) -> frozenset[str]:
    """Return the functions with problems that other files call only with gradients disabled."""
    functions = {
        function.qualified_name
        for code, problem in problems
        if code.startswith(_FOLLOWED)
        for function in entry_functions(program, problem.node)
    }
    return frozenset(each for each in functions if others.call_without_gradients(each))


def _program(text: str, imported: Imported, without_gradients: frozenset[str] = frozenset()) -> Program:
    if imported.parts:
        own = text if text.endswith(("\n", "\r")) else f"{text}\n"
        with suppress(cst.ParserSyntaxError):  # the syntax of the file, or of another file, is not supported
            module = cst.parse_module(own + imported.text)
            return Program(own, module, foreign=imported.as_foreign(), without_gradients=without_gradients)
    return Program(text, cst.parse_module(text), without_gradients=without_gradients)


def _parse_python(document: Document) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(document.text)
        except SyntaxError as error:
            raise Unreadable(_syntax_message(document, error.lineno or 1)) from None
        except (ValueError, RecursionError, MemoryError):
            raise Unreadable("not checked because the code is nested too deeply") from None


def _syntax_message(document: Document, line: int) -> str:
    lines = NEWLINE.split(document.text)
    text = lines[line - 1] if line <= len(lines) else ""
    cell, number = document.locate(line)
    where = f"line {number}" if cell is None else f"cell {cell}, line {number}"
    if any(map(looks_like_python_2, lines[max(line - 3, 0) : line + 1])):
        return f"not checked because {where} is Python 2 code"
    return f"not checked because of a syntax error at {where}" + (
        f": {text.strip()[:60]}" if text.strip() else ""
    )


def _is_ignored(program: Program, code: str, problem: Problem) -> bool:
    (first, _), (last, _) = program.span(problem.node)
    statement = program.statement_line(problem.node)
    if statement is not None:
        last = max(last, program.span(statement)[1][0])
    return any(_ignores(line, code) for line in program.lines[first - 1 : last])


_IGNORE_COMMENT = re.compile(r"#\s*legroom:\s*ignore(?:\[([^\]]*)\])?", re.IGNORECASE)


def _ignores(line: str, code: str) -> bool:
    """Return True if a comment on the line ignores the code. `# legroom: ignore` ignores all codes, and
    `# legroom: ignore[LG101, LG201]` ignores the listed codes.
    """
    found = _IGNORE_COMMENT.search(line)
    if found is None:
        return False
    return found[1] is None or code in {part.strip().upper() for part in found[1].split(",")}


def _finding(
    program: Program, document: Document, name: str, code: str, problem: Problem
) -> tuple[LintFinding, tuple[Edit, ...]]:
    (line, column), (end_line, end_column) = program.span(problem.node)
    cell, number = document.locate(line)
    shift = line - number
    finding = LintFinding(
        code=code,
        message=problem.message,
        fix=problem.help,
        file=name,
        line=number,
        column=column + 1,
        end_line=end_line - shift,
        end_column=end_column + 1,
        cell=cell,
        edits=tuple(_text_edit(document, edit) for edit in problem.edits),
        safe=problem.safe,
        source=_source_around(program, document, line),
    )
    return finding, problem.edits


def _foreign_finding(
    program: Program, imported: Imported, name: str, code: str, problem: Problem
) -> LintFinding:
    """Return the finding for a problem in an imported function."""
    (line, column), (end_line, end_column) = program.span(problem.node)
    numbers = range(line - CONTEXT_LINES, line + CONTEXT_LINES + 1)
    places = {number: imported.place(number - program.own_lines) for number in numbers}
    file, first = places[line] or (Path(name), line)
    folder = os.path.dirname(name)
    return LintFinding(
        code=code,
        message=problem.message,
        fix=problem.help,
        file=os.path.normpath(os.path.join(folder, os.path.relpath(file, os.path.abspath(folder)))),
        line=first,
        column=column + 1,
        end_line=first + end_line - line,
        end_column=end_column + 1,
        source=tuple(
            (place[1], program.lines[number - 1])
            for number, place in places.items()
            if place is not None and place[0] == file
        ),
    )


def _text_edit(document: Document, edit: Edit) -> TextEdit:
    cell, line = document.locate(edit.start[0])
    shift = edit.start[0] - line
    return TextEdit(
        line=line,
        column=edit.start[1] + 1,
        end_line=edit.end[0] - shift,
        end_column=edit.end[1] + 1,
        text=edit.text,
        cell=cell,
    )


def _source_around(program: Program, document: Document, line: int) -> tuple[tuple[int, str], ...]:
    cell, _ = document.locate(line)
    numbers = range(max(line - CONTEXT_LINES, 1), min(line + CONTEXT_LINES, program.own_lines) + 1)
    located = [(document.locate(number), program.lines[number - 1]) for number in numbers]
    lines = [(number, text) for (line_cell, number), text in located if line_cell == cell]
    while lines and not lines[-1][1].strip():
        lines.pop()
    return tuple(lines)


def _as_diff(report: LintReport, before: Document, after: Document, name: str) -> LintReport:
    old, new = before.encoded().decode("utf-8", "replace"), after.encoded().decode("utf-8", "replace")
    lines = difflib.unified_diff(
        old.splitlines(keepends=True), new.splitlines(keepends=True), f"a/{name}", f"b/{name}"
    )
    text = "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )
    return LintReport(
        findings=report.findings, file_errors=report.file_errors, files=1, fixed=report.fixed, diff=text
    )


def _map_files(
    work: Callable[[Path], LintReport], files: Sequence[Path], known: Mapping[Path, LintReport]
) -> Iterator[LintReport]:
    """Yield the report of each file in order."""
    unknown = [file for file in files if file not in known]
    processes = min(processors(), 8)
    if processes < 2 or len(unknown) < 2 * processes or sum(map(_size, unknown)) < _MIN_PARALLEL_BYTES:
        yield from (known.get(file) or work(file) for file in files)
    else:
        # The report of a run imports this module when Python exits, which is too late to import the executor.
        from concurrent.futures import ProcessPoolExecutor

        with ProcessPoolExecutor(
            processes, multiprocessing.get_context(None if can_fork() else "spawn")
        ) as pool:
            reports = pool.map(work, unknown, chunksize=_CHUNK)
            yield from (known.get(file) or next(reports) for file in files)
    if unknown:
        remove_old_reports()


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0
