"""Controls the other programs that a traced script starts.

With Landlock, other programs cannot change the user's files, so all programs are allowed. Without Landlock, only
programs that are known to change no files are allowed.
"""

import ntpath
import os
import shlex
import sys
from typing import Any

from legroom.errors import LegroomError

_READ_ONLY = frozenset(
    [
        "nvidia-smi",
        "stty",
        "tput",
        "uname",
        "hostname",
        "lscpu",
        "which",
        "whoami",
        "nproc",
        "free",
        "df",
        "id",
        "date",
        "echo",
        "true",
        "false",
        "cat",
        "ls",
    ]
)
_SHELLS = frozenset(["sh", "bash", "cmd"])
_READ_ONLY_GIT = frozenset(
    ["rev-parse", "describe", "log", "show", "status", "diff", "branch", "config", "symbolic-ref", "remote"]
)


class RefusedProgram(LegroomError, PermissionError):  # noqa: N818
    """Raised if a traced script starts a program that is not allowed."""


def refuse_programs() -> None:
    def check(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "os.system":
            command = os.fsdecode(arguments[0])
        elif event == "subprocess.Popen":
            command = (
                shlex.join(map(str, arguments[1])) if not isinstance(arguments[1], str) else arguments[1]
            )
        elif event == "os.startfile":
            command = os.fsdecode(arguments[0])
        elif event in ("os.exec", "os.posix_spawn", "os.spawn"):
            command = shlex.join(map(os.fsdecode, arguments[1] if event != "os.spawn" else arguments[2]))
        else:
            return
        if not _changes_nothing(command):
            raise RefusedProgram(
                f"`legroom estimate` does not start `{command}`, because the program could change files "
                "and this system does not support Landlock, which would prevent the changes"
            )

    sys.addaudithook(check)


def _changes_nothing(command: str) -> bool:
    if any(sign in command for sign in ">|;&`$"):
        return False
    try:  # a backslash separates folders on Windows
        words = [word.strip('"') for word in shlex.split(command, posix=os.sep == "/")]
    except ValueError:
        return False
    if not words:
        return True
    name = ntpath.basename(words[0]).lower().removesuffix(".exe")
    if name in _SHELLS and len(words) > 2 and words[1] in ("-c", "/c"):
        return _changes_nothing(" ".join(words[2:]))
    if name == "git":
        return len(words) > 1 and words[1] in _READ_ONLY_GIT
    return name in _READ_ONLY or (words[0] == sys.executable and "multiprocessing" in command)
