"""A script or notebook on disk, and its Python code.

A fix preserves the rest of the file byte for byte, including byte order mark, line endings, encoding and notebook
format.
"""

import codecs
import io
import re
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from legroom.diagnose.lint.edits import Edit, apply_edits
from legroom.diagnose.lint.notebook import Cell, NotebookError, code_cells, mask_magics, replace_sources
from legroom.errors import UsageError

MAX_BYTES = 8 * 1024 * 1024
"""The maximum size of a file in bytes. Larger files are assumed to be generated and are not checked."""


class Unreadable(UsageError):  # noqa: N818  (a reason, shown to the user)
    pass


class Document(Protocol):
    @property
    def text(self) -> str: ...

    def locate(self, line: int) -> tuple[int | None, int]:
        """Return the notebook cell of a line and the line within that cell. In a script, the cell is None."""
        ...

    def edited(self, edits: Sequence[Edit]) -> "Document": ...

    def encoded(self) -> bytes: ...


@dataclass(frozen=True)
class PythonFile:
    """A Python file."""

    text: str
    encoding: str = "utf-8"
    mark: bytes = b""

    def locate(self, line: int) -> tuple[int | None, int]:
        return None, line

    def edited(self, edits: Sequence[Edit]) -> "PythonFile":
        return replace(self, text=apply_edits(self.text, edits))

    def encoded(self) -> bytes:
        return self.mark + self.text.encode(self.encoding)


@dataclass(frozen=True)
class Notebook:
    """A notebook. All code cells form one program, so that names are known across cells."""

    raw: str
    cells: tuple[Cell, ...]
    mark: bytes = b""
    text: str = field(init=False)
    starts: tuple[int, ...] = field(init=False)
    """The line of `text` at which each cell starts."""

    def __post_init__(self) -> None:
        parts = [mask_magics(cell.source) for cell in self.cells]
        starts, line = [], 1
        for part in parts:
            starts.append(line)
            line += part.count("\n") + 1
        object.__setattr__(self, "text", "\n".join(parts) + "\n")
        object.__setattr__(self, "starts", tuple(starts))

    def locate(self, line: int) -> tuple[int | None, int]:
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
        for index, cell_edits in by_cell.items():
            sources[index] = apply_edits(sources[index], cell_edits)
        raw = replace_sources(self.raw, self.cells, sources)
        return Notebook(raw, tuple(code_cells(raw)), self.mark)

    def encoded(self) -> bytes:
        return self.mark + self.raw.encode("utf-8")


def read_document(path: Path) -> Document:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise Unreadable(f"not checked because the file is larger than {MAX_BYTES // 1024 // 1024} MiB")
        data = path.read_bytes()
    except OSError as error:
        raise Unreadable(f"cannot be read: {(error.strerror or str(error)).lower()}") from None
    return parse_document(data, is_notebook=path.suffix == ".ipynb")


def parse_document(data: bytes, *, is_notebook: bool) -> Document:
    mark = codecs.BOM_UTF8 if data.startswith(codecs.BOM_UTF8) else b""
    body = data[len(mark) :]
    if b"\x00" in body[:8192]:
        raise Unreadable("not checked because the file is not a text file")
    if is_notebook:
        try:
            raw = body.decode("utf-8")
            return Notebook(raw, tuple(code_cells(raw)), mark)
        except UnicodeDecodeError:
            raise Unreadable("not checked because the file is not valid UTF-8") from None
        except NotebookError as error:
            raise Unreadable(f"not checked because the file is not a valid notebook: {error}") from None
    try:
        encoding = "utf-8" if mark else tokenize.detect_encoding(io.BytesIO(body).readline)[0]
        return PythonFile(body.decode(encoding), encoding, mark)
    except (UnicodeDecodeError, SyntaxError, LookupError):
        raise Unreadable(
            "not checked because the file is not valid in its declared encoding (default: UTF-8)"
        ) from None


_PYTHON_2 = re.compile(r"^\s*(?:print\s+[^(=\s]|exec\s+\w|raise\s+\w+\s*,|except\s+[\w.]+\s*,\s*\w+\s*:)")


def looks_like_python_2(line: str) -> bool:
    return bool(_PYTHON_2.match(line))
