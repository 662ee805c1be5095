"""`LEGROOM=1 python train.py`: a script under watch without another word on the command line.

A file `legroom.pth` beside the installed packages makes every Python ask one question as it starts: is LEGROOM set? If not,
that is all. If it is, this module starts the interpreter once more with `-m legroom run` in front of the script, so
that everything is as under `legroom run`; `LEGROOM=8GiB` gives the script a virtual GPU of that size. Programs that are
no Python file or module (`pip`, `torchrun`, `-c`, a prompt) are left alone, and the processes they start are asked anew.

`pip install` puts the file in place (see setup.py), and `pip uninstall` takes it away.
"""

import os
import sys

VARIABLE = "LEGROOM"
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
_OFF = ("", "0", "no", "off", "false")


def begin() -> None:
    """Start over under `legroom run`, where LEGROOM asks for it and there is a script to run."""
    wish = os.environ.get(VARIABLE, "")
    command = rewritten(sys.orig_argv, wish)
    if command is None:
        return
    del os.environ[VARIABLE]
    sys.stdout.flush()
    os.execv(sys.executable, command)


def rewritten(words: list[str], wish: str) -> list[str] | None:
    """The command line with `-m legroom run` in it; None where there is nothing to watch."""
    if wish.strip().lower() in _OFF:
        return None
    position = _script_position(words)
    if position is None:
        return None
    gpu = [] if wish.strip().lower() in ("1", "yes", "on", "true") else ["--gpu", wish]
    return [sys.executable, *words[1:position], "-m", "legroom", "run", *gpu, *words[position:]]


def _script_position(words: list[str]) -> int | None:
    """Where the script (or `-m module`) stands among the interpreter's own options."""
    position = 1
    while position < len(words):
        word = words[position]
        if word in _WITH_VALUE:
            position += 2
        elif word == "-m":
            return position if words[position + 1 : position + 2] not in ([], ["legroom"], ["pip"]) else None
        elif word in ("-c", "-") or word.startswith(("-c", "-m", "-h", "-?", "-V", "--version", "--help")):
            return None
        elif word.startswith("-"):
            position += 1
        else:
            return position if word.endswith((".py", ".pyw")) else None
    return None
