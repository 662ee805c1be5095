"""Reads the code cells of a notebook, and replaces their source without changing the rest of the file.

The new source has the JSON style of the notebook, so that a diff shows only the changed lines.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_SPACE = re.compile(r"[ \t\r\n]*")
_MAGIC = re.compile(r"^(\s*)(?:[%!?].*|[\w.]+\?{1,2}\s*)$")
_ASSIGNED_MAGIC = re.compile(r"^(\s*[\w., ]+=\s*)[%!].*$")
_OTHER_LANGUAGES = re.compile(r"^\s*%%(?!time\b|timeit\b|capture\b|prun\b)\w+")


class NotebookError(Exception):
    pass


@dataclass(frozen=True, slots=True)
class Cell:
    """A code cell."""

    number: int
    """The position of the cell in the notebook, starting at 1. Markdown cells are counted too."""
    source: str
    start: int
    end: int
    """The start and end of the source in the raw text."""


def code_cells(raw: str) -> Iterator[Cell]:
    try:
        notebook = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise NotebookError(f"{error}" if isinstance(error, ValueError) else "nested too deeply") from None
    if not isinstance(notebook, dict) or not isinstance(notebook.get("cells"), list):
        raise NotebookError("the file contains no list of cells")
    language = notebook.get("metadata", {}).get("kernelspec", {}).get("language", "python")
    if not str(language).lower().startswith("python"):
        return
    for number, (cell, spans) in enumerate(zip(notebook["cells"], _source_spans(raw), strict=True), start=1):
        if isinstance(cell, dict) and cell.get("cell_type") == "code" and spans is not None:
            source = cell.get("source", "")
            text = "".join(map(str, source)) if isinstance(source, list) else str(source)
            yield Cell(number, text, *spans)


def mask_magics(source: str) -> str:
    """Replace magics and shell commands with `pass`, without changing the number of lines."""
    if _OTHER_LANGUAGES.match(source):
        return re.sub(r"[^\n]+", "", source)
    lines = []
    for line in source.split("\n"):
        magic = _MAGIC.match(line)
        assigned = _ASSIGNED_MAGIC.match(line)
        if magic is not None and line.strip():
            lines.append(f"{magic[1]}pass")
        elif assigned is not None:
            lines.append(f"{assigned[1]}None")
        else:
            lines.append(line)
    return "\n".join(lines)


def replace_sources(raw: str, cells: Sequence[Cell], sources: Sequence[str]) -> str:
    for cell, source in sorted(zip(cells, sources, strict=True), key=lambda pair: -pair[0].start):
        if source != cell.source:
            raw = raw[: cell.start] + _encode_source(raw, cell, source) + raw[cell.end :]
    return raw


def _encode_source(raw: str, cell: Cell, source: str) -> str:
    old = raw[cell.start : cell.end]
    ascii_only = raw.isascii()
    if not old.startswith("["):
        return json.dumps(source, ensure_ascii=ascii_only)
    lines = [json.dumps(line, ensure_ascii=ascii_only) for line in source.splitlines(keepends=True)]
    if "\n" not in old:
        return f"[{', '.join(lines)}]"
    opening = re.match(r"\[(\s*)", old)
    closing = re.search(r"(\s*)\]$", old)
    inner, outer = (opening[1] if opening else "\n"), (closing[1] if closing else "\n")
    return f"[{inner}{f',{inner}'.join(lines)}{outer}]"


def _source_spans(raw: str) -> Iterator[tuple[int, int] | None]:
    decoder = json.JSONDecoder()
    for key, at in _members(raw, _skip(raw, 0), decoder):
        if key == "cells":
            for position in _items(raw, at, decoder):
                found = None
                if raw[position] == "{":
                    for name, start in _members(raw, position, decoder):
                        if name == "source":
                            found = (start, decoder.raw_decode(raw, start)[1])
                yield found
            return


def _members(raw: str, at: int, decoder: json.JSONDecoder) -> Iterator[tuple[str, int]]:
    at = _skip(raw, at + 1)
    while raw[at] != "}":
        key, at = decoder.raw_decode(raw, at)
        at = _skip(raw, _skip(raw, at) + 1)  # the colon
        yield key, at
        at = _skip(raw, decoder.raw_decode(raw, at)[1])
        if raw[at] == ",":
            at = _skip(raw, at + 1)


def _items(raw: str, at: int, decoder: json.JSONDecoder) -> Iterator[int]:
    at = _skip(raw, at + 1)
    while raw[at] != "]":
        yield at
        at = _skip(raw, decoder.raw_decode(raw, at)[1])
        if raw[at] == ",":
            at = _skip(raw, at + 1)


def _skip(raw: str, at: int) -> int:
    found = _SPACE.match(raw, at)
    return found.end() if found else at
