"""Blocks changes to the user's files if the changes were not redirected.

Python reports every file change to its audit hooks. The hooks also report calls that bypass the redirected functions,
such as `_io.FileIO`, `posix.remove`, or a function that was imported by name before the redirection. A change outside
the scratch folder is refused. Landlock also refuses most of these changes, but it allows changes to file permissions
and timestamps, and it is not available on every system.
"""

import os
import sys
from typing import Any

from legroom.errors import LegroomError
from legroom.predict.sandbox.overlay import WRITING, Overlay, path_of

_CHANGED_PATHS = {
    "os.remove": (0,), "os.rmdir": (0,), "os.mkdir": (0,), "os.rename": (0, 1), "os.link": (1,), "os.symlink": (1,),
    "os.truncate": (0,), "os.chmod": (0,), "os.chown": (0,), "os.utime": (0,), "os.setxattr": (0,), "os.removexattr": (0,),
}  # fmt: skip
"""The positions of the arguments that are paths of changed files, for each audit event."""

_ACTS_ON_LINK = frozenset(["os.remove", "os.rmdir", "os.mkdir", "os.rename", "os.link", "os.symlink"])
"""The names of audit events that report a change to a directory entry. If the entry is a link, the link itself
changes, not its target."""


class RefusedChange(LegroomError, PermissionError):  # noqa: N818
    """Raised if a file change cannot be redirected to the scratch folder."""


def refuse_changes(overlay: Overlay) -> None:
    def check(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            changed = arguments[:1] if arguments[2] & WRITING else ()
        elif event in _CHANGED_PATHS:
            changed = tuple(arguments[position] for position in _CHANGED_PATHS[event])
        else:
            return
        for path in changed:
            if event == "open" and (isinstance(path, int) or overlay.was_left_to_opener(path)):
                continue
            with overlay.plain():
                where = _physical(path, follow=event not in _ACTS_ON_LINK)
            if not overlay.is_scratch(where):
                raise RefusedChange(
                    f"`legroom estimate` blocked a change to {where}, because this call cannot be redirected to a "
                    "temporary file"
                )

    sys.addaudithook(check)


def _physical(path: Any, *, follow: bool) -> str:
    if isinstance(path, int):
        return os.path.join("/proc/self/fd", path_of(path))  # a pipe has no absolute path
    text = os.fsdecode(path)
    if follow:
        return os.path.realpath(text)
    folder, name = os.path.split(os.path.abspath(text))
    return os.path.join(os.path.realpath(folder), name)
