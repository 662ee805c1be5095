"""The exceptions that Legroom raises.

    LegroomError                 base class; its message is one line that says how to fix the problem
    ├── UsageError               an invalid argument, size, path or option
    ├── CaptureError             a capture file that cannot be read or written
    │   ├── CaptureVersionError  a capture file from a different version of Legroom
    │   └── DiskFullError        a capture file that cannot be written because the disk is full
    ├── OutputError              standard output that is closed, or on a full disk
    ├── InputError               standard input that is closed
    ├── CheckpointError          a checkpoint that cannot be read or written, or belongs to a different model
    ├── MissingExtra             an optional dependency is not installed
    └── Unsupported              an operation that a virtual GPU does not support

The command line prints the message of these exceptions without a traceback and exits with code 2.
`torch.OutOfMemoryError` is never wrapped, so handlers written for a real GPU also catch the errors that a virtual GPU
raises.
"""

import difflib
import errno
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlparse
from urllib.request import url2pathname

from legroom import shell


class LegroomError(Exception):
    """The base class of all exceptions that Legroom raises.

    The message is one line that says how to fix the problem.
    """


class UsageError(LegroomError, ValueError):
    """An invalid argument, size, path or option."""


class CaptureError(LegroomError):
    """A capture file that cannot be read or written."""


class CaptureVersionError(CaptureError):
    """A capture file that a different version of Legroom wrote."""


class DiskFullError(CaptureError):
    """A capture file that cannot be written because the disk is full or fails."""


class OutputError(LegroomError):
    """Standard output is closed, or its disk is full."""

    @classmethod
    def from_error(cls, error: BaseException | None = None) -> "OutputError":
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
            return cls(
                "Cannot write to standard output: the disk is full. Free some space, or use another disk."
            )
        return cls("Cannot write to standard output: it is closed. Redirect the output to a file.")


class InputError(LegroomError):
    """Standard input is closed."""

    def __init__(self) -> None:
        super().__init__("Standard input is closed. Pass the path to a file instead of `-`.")


class CheckpointError(LegroomError):
    """A checkpoint that cannot be read or written, or that belongs to a different model."""


class MissingExtra(LegroomError, ImportError):  # noqa: N818
    """Raised if an optional dependency is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} is not installed: {install_command(extra)}")
        self.extra = extra


class Unsupported(LegroomError, NotImplementedError):  # noqa: N818
    """An operation that a virtual GPU does not support."""


# --- installing optional dependencies

SOURCES = Path(__file__).resolve().parents[2]
"""The root of the Git checkout that contains this file, if there is one."""


def install_command(extra: str) -> str:
    if (SOURCES / "pyproject.toml").is_file():
        return f"pip install -e {_quoted(SOURCES, extra)}"
    origin = _origin()
    url = origin.get("url", "")
    if "dir_info" in origin:
        folder = Path(url2pathname(urlparse(url).path))
        if folder.is_dir():
            return f"pip install {_quoted(folder, extra)}"
    elif "vcs_info" in origin:
        system, commit = origin["vcs_info"]["vcs"], origin["vcs_info"]["commit_id"]
        return f"pip install {shell.quote(f'legroom[{extra}] @ {system}+{url}@{commit}')}"
    elif url:
        return f"pip install {shell.quote(f'legroom[{extra}] @ {url}')}"
    return f"pip install 'legroom[{extra}]'"


def _quoted(folder: Path, extra: str) -> str:
    here = "." if folder == Path.cwd() else str(folder)
    return shell.quote(f"{here}[{extra}]")


def _origin() -> dict[str, Any]:
    """Return pip's record of the path or URL from which Legroom was installed, or {} if it was installed from a
    package index.
    """
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        return dict(json.loads(distribution("legroom").read_text("direct_url.json") or "{}"))
    except (PackageNotFoundError, ValueError):
        return {}


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ` Did you mean ...?` with the most similar known name, or "" if no name is similar.

    >>> did_you_mean("los", ["loss", "accuracy"])
    ' Did you mean `loss`?'
    """
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean `{close[0]}`?" if close else ""
