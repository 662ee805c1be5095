"""Commands as text that can be pasted into a shell: a POSIX shell, or PowerShell on Windows."""

import os
import shlex
from collections.abc import Iterable, Mapping


def quote(word: str) -> str:
    return join([word])


def join(words: Iterable[str]) -> str:
    if os.name != "nt":
        return shlex.join(words)
    from subprocess import list2cmdline  # imported late, because it takes longer than the rest

    return list2cmdline(list(words))


def with_variables(variables: Mapping[str, str], command: str) -> str:
    if os.name == "nt":
        return "".join(f'$env:{name}="{value}"; ' for name, value in variables.items()) + command
    return "".join(f"{name}={shlex.quote(value)} " for name, value in variables.items()) + command
