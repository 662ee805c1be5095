"""Takes off a log what terminals, loggers and notebooks put on it: colours, carriage returns, the escapes of JSON.

What is left reads as the program printed it, so that the tables of errors need not know who wrote it down. A line that JSON holds
in one of its own is broken where the program broke it; `INNER` marks such a break, so that lines are still counted as the file has them.
"""

import json
import re
from collections.abc import Iterable
from itertools import chain
from typing import Any

INNER = "\v\n"
"""The end of a line that is no end of a line in the file."""
_COLOURS = re.compile(r"(?:\x1b|\\u001b|\\x1b|\\033)\[[0-9;]*[A-Za-z]")
_ESCAPES = re.compile(r"\\(?:n|t|r|\")")
_MEANING = {r"\n": INNER, r"\t": "\t", r"\r": "", r"\"": '"'}
_LARGEST_NOTEBOOK = 100_000_000


def strip_log_formatting(text: str) -> str:
    """A piece of a log as the program printed it."""
    if "\x1b" in text or "\\u001b" in text or "\\x1b" in text or "\\033" in text:
        text = _COLOURS.sub("", text)
    if "\\n" in text:
        text = "\n".join(_unescaped(line) if _is_escaped(line) else line for line in text.split("\n"))
    return text.replace("\r\n", "\n") if "\r\n" in text else text


def lines_before(text: str, position: int) -> int:
    """Ends of lines of the file before a place in an undressed text."""
    return text.count("\n", 0, position) - text.count(INNER, 0, position)


def printed_chunks(pieces: Iterable[str]) -> tuple[Iterable[str], bool]:
    """The pieces of a log, or of a notebook's file what its cells put out; and whether it is a notebook."""
    rest = iter(pieces)
    read = [next(rest, "")]
    if not (read[0].lstrip()[:1] == "{" and '"cells"' in read[0]):
        return chain(read, rest), False
    while sum(map(len, read)) < _LARGEST_NOTEBOOK and (piece := next(rest, "")):
        read.append(piece)
    try:
        cells = json.loads("".join(read))["cells"]
        outputs = [_printed(output) for cell in cells for output in cell.get("outputs", ())]
    except (ValueError, TypeError, KeyError, AttributeError):
        return chain(read, rest), False  # cut off, too large, or another thing: read as it stands
    return ["\n".join(outputs)], True


def _printed(output: dict[str, Any]) -> str:
    if output.get("output_type") == "error":
        raised = f"{output.get('ename', '')}: {output.get('evalue', '')}"
        frames = "\n".join(output.get("traceback", ()))
        return frames if raised in _COLOURS.sub("", frames) else f"{frames}\n{raised}"
    text = output.get("text", "")
    return text if isinstance(text, str) else "".join(text)


def _is_escaped(line: str) -> bool:
    """Whether a line is JSON, or the `repr` of a text; in a path of Windows the same signs mean other things."""
    return "\\n" in line and (line.lstrip()[:1] in ("{", "[", '"', "'") or "last):\\n" in line)


def _unescaped(line: str) -> str:
    return _ESCAPES.sub(lambda match: _MEANING[match[0]], line)
