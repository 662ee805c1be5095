"""`LEGROOM=1 python train.py`: runs a script under `legroom run` without any change to the command.

The file `legroom.pth` in site-packages checks the environment variable LEGROOM whenever Python starts. If LEGROOM is
set, this module restarts the interpreter with `-m legroom run` before the script. `LEGROOM=8GiB` adds `--gpu 8GiB`.
Commands without a Python script or module (`pip`, `torchrun`, `python -c`, the interactive prompt) run unchanged. If a
command such as `torchrun` starts Python processes, these processes check the variable themselves.

`pip install` creates `legroom.pth` (see setup.py), and `pip uninstall` removes it.
"""

import os
import subprocess
import sys

VARIABLE = "LEGROOM"
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
"""The interpreter options that take a value, from `python --help-all`. Python has no API that lists them."""
_OFF = ("", "0", "no", "off", "false")


def begin() -> None:
    """Restart the interpreter under `legroom run` if LEGROOM is set and there is a script."""
    command = legroom_command(sys.orig_argv, os.environ.get(VARIABLE, ""))
    if command is None:
        return
    del os.environ[VARIABLE]
    sys.stdout.flush()
    if os.name == "nt":  # on Windows, `execv` does not wait for the new process
        os._exit(subprocess.call(command))
    os.execv(sys.executable, command)


def legroom_command(arguments: list[str], value: str) -> list[str] | None:
    """Insert `-m legroom run` before the script in `arguments`. Return None if the command should run unchanged.
    `value` is the value of LEGROOM.
    """
    if value.strip().lower() in _OFF:
        return None
    position = _script_position(arguments)
    if position is None:
        return None
    gpu = [] if value.strip().lower() in ("1", "yes", "on", "true") else ["--gpu", value]
    return [sys.executable, *arguments[1:position], "-m", "legroom", "run", *gpu, *arguments[position:]]


def _script_position(arguments: list[str]) -> int | None:
    position = 1
    while position < len(arguments):
        word = arguments[position]
        if word in _WITH_VALUE:
            position += 2
        elif word == "-m":
            return (
                position if arguments[position + 1 : position + 2] not in ([], ["legroom"], ["pip"]) else None
            )
        elif word in ("-c", "-") or word.startswith(("-c", "-m", "-h", "-?", "-V", "--version", "--help")):
            return None
        elif word.startswith("-"):
            position += 1
        else:
            return position if word.endswith((".py", ".pyw")) else None
    return None
