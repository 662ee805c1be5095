"""Removes formatting that terminals, loggers and notebooks add to a log: colors, carriage returns, JSON escapes.

The result is the text as the program printed it. A JSON string with escaped newlines becomes several lines. `INNER`
marks the line breaks inside such a string, so that line numbers still refer to the file.
"""

import json
import re
from collections.abc import Iterable
from itertools import chain
from typing import Any

INNER = "\v\n"
"""Marks a line break that is escaped in the file."""
_COLORS = re.compile(r"(?:\x1b|\\u001b|\\x1b|\\033)\[[0-9;]*[A-Za-z]")
_ESCAPES = re.compile(r"\\(?:n|t|r|\")")
_UNESCAPED = {r"\n": INNER, r"\t": "\t", r"\r": "", r"\"": '"'}
_MAX_NOTEBOOK = 100_000_000


def strip_log_formatting(text: str) -> str:
    if "\x1b" in text or "\\u001b" in text or "\\x1b" in text or "\\033" in text:
        text = _COLORS.sub("", text)
    if "\\n" in text or '\\"' in text:
        text = "\n".join(_unescaped(line) if _is_escaped(line) else line for line in text.split("\n"))
    return text.replace("\r\n", "\n") if "\r\n" in text else text


def inner_breaks(text: str, position: int) -> int:
    """Return the number of line breaks before a position that are escaped in the file."""
    return text.count(INNER, 0, position)


def printed_chunks(chunks: Iterable[str]) -> tuple[Iterable[str], bool]:
    """Return the chunks of a log and False, or the cell outputs of a notebook and True."""
    rest = iter(chunks)
    read = [next(rest, "")]
    if not (read[0].lstrip()[:1] == "{" and '"cells"' in read[0]):
        return chain(read, rest), False
    while sum(map(len, read)) < _MAX_NOTEBOOK and (chunk := next(rest, "")):
        read.append(chunk)
    try:
        cells = json.loads("".join(read))["cells"]
        outputs = [_printed(output) for cell in cells for output in cell.get("outputs", ())]
    except (ValueError, TypeError, KeyError, AttributeError):
        return chain(read, rest), False  # truncated, too large, or not a notebook: read it as text
    return ["\n".join(outputs)], True


def _printed(output: dict[str, Any]) -> str:
    if output.get("output_type") == "error":
        raised = f"{output.get('ename', '')}: {output.get('evalue', '')}"
        frames = "\n".join(output.get("traceback", ()))
        return frames if raised in _COLORS.sub("", frames) else f"{frames}\n{raised}"
    text = output.get("text", "")
    return text if isinstance(text, str) else "".join(text)


def _is_escaped(line: str) -> bool:
    """Return True if a line is JSON or the `repr` of a string.

    In other text, such as a Windows path, a backslash followed by `n` is not an escape.
    """
    is_quoted = line.lstrip()[:1] in ("{", "[", '"', "'")
    return ("\\n" in line and (is_quoted or "last):\\n" in line)) or ('\\"' in line and is_quoted)


def _unescaped(line: str) -> str:
    return _ESCAPES.sub(lambda match: _UNESCAPED[match[0]], line)
