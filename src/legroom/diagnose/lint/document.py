"""A file as it lies on the disk, and as the linter reads it: a script, or the code cells of a notebook as one text.

Whatever a fix does not touch comes back byte for byte: the byte order mark, line ends, the encoding, a notebook's format.
"""

import codecs
import io
import re
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from legroom.diagnose.lint.edits import Edit, apply
from legroom.diagnose.lint.notebook import Cell, NotebookError, code_cells, masked, with_sources
from legroom.errors import UsageError

LARGEST = 8 * 1024 * 1024
"""Files above this are not code that anyone wrote."""


class Unreadable(UsageError):  # noqa: N818  (a reason, told to a person)
    """Why a file cannot be checked, in a few words."""


class Document(Protocol):
    @property
    def text(self) -> str:
        """The Python code."""
        ...

    def place(self, line: int) -> tuple[int | None, int]:
        """The cell and the line in it that a line of the text is; no cell in a script."""
        ...

    def edited(self, edits: Sequence[Edit]) -> "Document": ...

    def encoded(self) -> bytes: ...


@dataclass(frozen=True)
class PythonFile:
    text: str
    encoding: str = "utf-8"
    mark: bytes = b""
    """The byte order mark, where there was one."""

    def place(self, line: int) -> tuple[int | None, int]:
        return None, line

    def edited(self, edits: Sequence[Edit]) -> "PythonFile":
        return replace(self, text=apply(self.text, edits))

    def encoded(self) -> bytes:
        return self.mark + self.text.encode(self.encoding)


@dataclass(frozen=True)
class Notebook:
    """All code cells as one text, so that a name defined in one is known in the next."""

    raw: str
    cells: tuple[Cell, ...]
    mark: bytes = b""
    text: str = field(init=False)
    starts: tuple[int, ...] = field(init=False)
    """The line of the text that each cell begins on."""

    def __post_init__(self) -> None:
        parts = [masked(cell.source) for cell in self.cells]
        starts, line = [], 1
        for part in parts:
            starts.append(line)
            line += part.count("\n") + 1
        object.__setattr__(self, "text", "\n".join(parts) + "\n")
        object.__setattr__(self, "starts", tuple(starts))

    def place(self, line: int) -> tuple[int | None, int]:
        index = self._index(line)
        return self.cells[index].number, line - self.starts[index] + 1

    def _index(self, line: int) -> int:
        return max((i for i, start in enumerate(self.starts) if start <= line), default=0)

    def edited(self, edits: Sequence[Edit]) -> "Notebook":
        sources = [cell.source for cell in self.cells]
        by_cell: dict[int, list[Edit]] = {}
        for edit in edits:
            index = self._index(edit.start[0])
            first = self.starts[index] - 1
            by_cell.setdefault(index, []).append(
                Edit((edit.start[0] - first, edit.start[1]), (edit.end[0] - first, edit.end[1]), edit.text)
            )
        for index, its in by_cell.items():
            sources[index] = apply(sources[index], its)
        raw = with_sources(self.raw, self.cells, sources)
        return Notebook(raw, tuple(code_cells(raw)), self.mark)

    def encoded(self) -> bytes:
        return self.mark + self.raw.encode("utf-8")


def read_document(path: Path) -> Document:
    try:
        if path.stat().st_size > LARGEST:
            raise Unreadable(f"larger than {LARGEST // 1024 // 1024} MiB, not checked")
        data = path.read_bytes()
    except OSError as error:
        raise Unreadable(f"cannot be read: {(error.strerror or str(error)).lower()}") from None
    return document_of(data, is_notebook=path.suffix == ".ipynb")


def document_of(data: bytes, *, is_notebook: bool) -> Document:
    mark = codecs.BOM_UTF8 if data.startswith(codecs.BOM_UTF8) else b""
    body = data[len(mark) :]
    if b"\x00" in body[:8192]:
        raise Unreadable("not text, not checked")
    if is_notebook:
        try:
            raw = body.decode("utf-8")
            return Notebook(raw, tuple(code_cells(raw)), mark)
        except UnicodeDecodeError:
            raise Unreadable("not UTF-8 text, not checked") from None
        except NotebookError as error:
            raise Unreadable(f"not a notebook: {error}") from None
    try:
        encoding = "utf-8" if mark else tokenize.detect_encoding(io.BytesIO(body).readline)[0]
        return PythonFile(body.decode(encoding), encoding, mark)
    except (UnicodeDecodeError, SyntaxError, LookupError):
        raise Unreadable(
            "not text in the encoding it declares (UTF-8 where it declares none), not checked"
        ) from None


_PYTHON_2 = re.compile(r"^\s*(?:print\s+[^(=\s]|exec\s+\w|raise\s+\w+\s*,|except\s+[\w.]+\s*,\s*\w+\s*:)")


def looks_like_python_2(line: str) -> bool:
    return bool(_PYTHON_2.match(line))
