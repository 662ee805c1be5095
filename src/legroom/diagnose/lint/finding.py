from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from legroom.findings import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class TextEdit:
    """A change to the text of a file. Lines and columns start at 1; the end is exclusive."""

    line: int
    column: int
    end_line: int
    end_column: int
    text: str
    cell: int | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            **({"cell": self.cell} if self.cell is not None else {}),
            "line": self.line,
            "column": self.column,
            "end_line": self.end_line,
            "end_column": self.end_column,
            "text": self.text,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LintFinding(Finding):
    """A problem at a location in source code. In a notebook, lines are numbered within the cell."""

    column: int
    end_line: int
    end_column: int
    cell: int | None = None
    edits: tuple[TextEdit, ...] = ()
    safe: bool = True
    """True if the edits leave the results of the program unchanged."""
    source: tuple[tuple[int, str], ...] = ()

    @property
    def applicability(self) -> str | None:
        if not self.edits:
            return None
        return "safe" if self.safe else "unsafe"

    def as_json(self) -> dict[str, Any]:
        fix = None
        if self.edits:
            fix = {"applicability": self.applicability, "edits": [edit.as_json() for edit in self.edits]}
        return {
            "code": self.code,
            "file": self.file,
            **({"cell": self.cell} if self.cell is not None else {}),
            "line": self.line,
            "column": self.column,
            "message": self.message,
            "fix": fix,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class FileError:
    """A file or directory that was not checked, and the reason."""

    file: str
    message: str
    is_failure: bool = True
    """False for an empty directory, which is not an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LintReport:
    """The result for all files."""

    findings: Sequence[LintFinding]
    file_errors: Sequence[FileError] = ()
    files: int = 0
    unchecked: int = 0
    """The number of files that were not checked, such as files with Python 2 code."""
    fixed: int = 0
    diff: str = ""
