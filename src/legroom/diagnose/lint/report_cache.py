"""Stores the report of each file by its content, so that a second run checks only files that changed.

The key of a report is a hash of everything that affects the report: the file, the enabled rules, the linter, and the
versions of Python and libcst. The report also records what it depends on in other files of the project.
"""

import hashlib
import os
import sys
from collections.abc import Iterable
from dataclasses import asdict, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from legroom.diagnose.lint.finding import FileError, LintFinding, LintReport, TextEdit
from legroom.diagnose.lint.project.other_files import OtherFiles, are_unchanged
from legroom.user_cache import cache_folder, read_json, write_json

_MAX_BYTES = 4 * 1024 * 1024
_MAX_REPORTS = 20_000
"""The maximum number of reports in the cache. If the cache contains more reports, the older half is removed."""


def load_report(file: Path, codes: Iterable[str]) -> LintReport | None:
    stored = _stored(file, codes)
    content = read_json(stored, max_bytes=_MAX_BYTES) if stored is not None else None
    try:
        if not isinstance(content, dict) or not are_unchanged(Path(os.path.abspath(file)), content["others"]):
            return None
        return _report(content, str(file))
    except (KeyError, TypeError, ValueError):
        return None


def save_report(file: Path, codes: Iterable[str], report: LintReport, others: OtherFiles) -> None:
    stored = _stored(file, codes)
    if stored is not None:
        write_json(
            stored,
            {
                "findings": [
                    asdict(replace(each, file=_relative(each.file, file))) for each in report.findings
                ],
                "errors": [each.message for each in report.file_errors],
                "unchecked": report.unchecked,
                "others": others.as_json(),
            },
        )


def remove_old_reports() -> None:
    folder = cache_folder("lint")
    try:
        files = sorted(folder.glob("*/*.json"), key=lambda file: file.stat().st_mtime) if folder else []
        for file in files[: len(files) // 2] if len(files) > _MAX_REPORTS else []:
            file.unlink()
    except OSError:
        return  # another process removes them


def _stored(file: Path, codes: Iterable[str]) -> Path | None:
    folder = cache_folder("lint")
    if folder is None:
        return None
    try:
        data = file.read_bytes()
    except OSError:
        return None
    parts = (_linter(), " ".join(sorted(codes)), str(file.suffix == ".ipynb"))
    key = hashlib.sha256("\n".join(parts).encode() + b"\n" + data).hexdigest()
    return folder / key[:2] / f"{key[2:34]}.json"


@cache
def _linter() -> str:
    found = hashlib.sha256(f"{sys.version} {version('libcst')}".encode())
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        found.update(file.read_bytes())
    return found.hexdigest()


def _report(content: dict[str, Any], name: str) -> LintReport:
    return LintReport(
        findings=[_finding(each, name) for each in content["findings"]],
        file_errors=[FileError(file=name, message=each) for each in content["errors"]],
        files=1,
        unchecked=int(content["unchecked"]),
    )


def _relative(found: str | None, file: Path) -> str | None:
    """Return None for a finding in the checked file, and otherwise the path from its folder to the imported file."""
    return None if found in (None, str(file)) else os.path.relpath(found or "", file.parent)


def _finding(stored: dict[str, Any], name: str) -> LintFinding:
    edits = tuple(TextEdit(**each) for each in stored["edits"])
    source = tuple((number, text) for number, text in stored["source"])
    other = stored["file"]
    file = name if other is None else os.path.normpath(os.path.join(os.path.dirname(name), other))
    return LintFinding(**{**stored, "file": file, "edits": edits, "source": source})
