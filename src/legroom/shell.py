"""Commands as text that can be pasted into a shell: a POSIX shell, or PowerShell on Windows."""

import os
import re
import shlex
from collections.abc import Iterable, Mapping


def quote(word: str) -> str:
    return join([word])


def join(words: Iterable[str]) -> str:
    if os.name != "nt":
        return " ".join(map(_quoted, words))
    from subprocess import list2cmdline  # imported late, because it takes longer than the rest

    return list2cmdline(list(words))


def _quoted(word: str) -> str:
    """Quote a word. Control characters are escaped, because a line break in a file name would split the command."""
    if not _CONTROL.search(word):
        return shlex.quote(word)
    escaped = word.replace("\\", "\\\\").replace("'", "\\'")
    return "$'" + _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", escaped) + "'"


_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def with_variables(variables: Mapping[str, str], command: str) -> str:
    if os.name == "nt":
        return "".join(f'$env:{name}="{value}"; ' for name, value in variables.items()) + command
    return "".join(f"{name}={_quoted(value)} " for name, value in variables.items()) + command
