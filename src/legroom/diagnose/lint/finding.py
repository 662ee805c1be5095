"""What the linter tells: a Finding with its exact place and, where there is one, the change that mends it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from legroom.findings import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class TextEdit:
    """A change of the file's text: lines and columns from 1, the end not included."""

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
    """A problem at a place in source code; in a notebook, lines count within the cell."""

    column: int
    end_line: int
    end_column: int
    cell: int | None = None
    edits: tuple[TextEdit, ...] = ()
    safe: bool = True
    """Whether the edits leave what the program computes as it is."""
    source: tuple[tuple[int, str], ...] = ()
    """The lines at and around it, with their numbers."""

    @property
    def applicability(self) -> str | None:
        """`safe`, `unsafe`, or None where no change is offered."""
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
    """A file that could not be checked, and why, in one sentence."""

    file: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LintReport:
    """What came of all files."""

    findings: Sequence[LintFinding]
    troubles: Sequence[FileError] = ()
    files: int = 0
    fixed: int = 0
    """How many problems were mended."""
    diff: str = ""
    """What would change, where only that was asked for."""
