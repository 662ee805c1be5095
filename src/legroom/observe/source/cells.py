"""Gives notebook cells names such as `cell [3]`. IPython compiles each cell under a generated file name, for example
`/tmp/ipykernel_123/456.py` or `<ipython-input-3-0a1b2c>`.

The number in `cell [3]` is the execution count that the notebook shows next to the cell. If a cell ran several times,
the execution count of its last run is used. This module never imports IPython. If the program has not imported IPython,
no file is a cell.
"""

import linecache
import os
import re
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from legroom.memory.event_base import Frame

_NAMED = r"cell \[\d+\]|notebook cell"
_NUMBERED = r"<ipython-input-(\d+)-"
_CELL_FILE = r"/(?:ipykernel_\d+/[^/]+|ipython-input-[^/]+)\.py$"
UNKNOWN = "notebook cell"


_SHELL_VARIABLES = ("get_ipython ", "exit ", "quit ", "_oh ")
"""The names of IPython variables that keep all of the user's variables, or the outputs in `Out`, alive. Each name has
the form in which it appears at the start of `Holder.path`.
"""


def is_shell_variable(path: str) -> bool:
    return path.startswith(_SHELL_VARIABLES)


def shell() -> Any:
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()


def is_notebook() -> bool:
    """Return whether this process is the kernel of a notebook (Jupyter, Colab, VS Code). The result is False in a
    terminal."""
    return getattr(shell(), "kernel", None) is not None


def is_cell_name(file: str) -> bool:
    """Return whether `file` looks like a result of `cell_name`, possibly from another process."""
    return re.fullmatch(_NAMED, file) is not None


def cell_name(file: str) -> str | None:
    """Return the name of the cell that was compiled as `file`, or None if `file` is not a cell. After this call, the
    source of the cell can also be read from `linecache` under the name of the cell.
    """
    active = shell()
    if active is None:
        return None
    number = _number(active, file)
    if number is None:
        return UNKNOWN if re.search(_CELL_FILE, file) else None
    name = f"cell [{number}]"
    # The body of a `%%legroom` cell has the same number as the cell, which IPython compiles as one call of the magic.
    if len(linecache.getlines(file)) > len(linecache.getlines(name)):
        linecache.cache[name] = linecache.cache[file]
    return name


def named_frame(frame: "Frame") -> "Frame":
    name = cell_name(frame.file)
    return frame if name is None else frame._replace(file=name)


def short_location(file: str, line: int | None) -> str:
    """Return the location as text: `train.py:31` or `cell [3], line 2`."""
    name = cell_name(file) or file
    if is_cell_name(name):
        return f"{name}, line {line}" if line else name
    return f"{os.path.basename(name)}:{line}" if line else os.path.basename(name)


def _number(active: Any, file: str) -> int | None:
    """Return the execution count of a cell, or None if `file` is not a cell. If IPython's private table of cells is
    missing, the source is compared with all executed cells, which takes longer.
    """
    known = getattr(getattr(active, "compile", None), "_filename_map", None)
    if isinstance(known, dict):
        number = known.get(file)
        return number if isinstance(number, int) and number > 0 else None
    numbered = re.match(_NUMBERED, file)
    if numbered is not None:
        return int(numbered[1])
    source = "".join(linecache.getlines(file)).strip() if re.search(_CELL_FILE, file) else ""
    executed = active.user_ns.get("In", [])
    return next(
        (at for at in range(len(executed) - 1, 0, -1) if source and executed[at].strip() == source), None
    )
