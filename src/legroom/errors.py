"""The exceptions that Legroom raises.

    LegroomError                 base class; its message is one line that says how to fix the problem
    ├── UsageError               an invalid argument, size, path or option
    ├── CaptureError             a capture file that cannot be read or written
    │   └── CaptureVersionError  a capture file of another version of Legroom
    ├── CheckpointError          a checkpoint that cannot be read or written, or belongs to another model
    ├── MissingExtra             an optional dependency is not installed
    └── Unsupported              an operation that a virtual GPU does not support

The command line prints the message without a traceback and exits with 2. `torch.OutOfMemoryError` is never wrapped,
so handlers written for a real GPU also catch the errors of a virtual GPU.
"""

from legroom.installation import install_command


class LegroomError(Exception):
    """Base class. The message is one line that says how to fix the problem."""


class UsageError(LegroomError, ValueError):
    """An invalid argument, size, path or option."""


class CaptureError(LegroomError):
    """A capture file that cannot be read or written."""


class CaptureVersionError(CaptureError):
    """A capture file of another version of Legroom."""


class CheckpointError(LegroomError):
    """A checkpoint that cannot be read or written, or belongs to another model."""


class MissingExtra(LegroomError, ImportError):  # noqa: N818
    """An optional dependency is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} is not installed: {install_command(extra)}")
        self.extra = extra


class Unsupported(LegroomError, NotImplementedError):  # noqa: N818
    """An operation that a virtual GPU does not support."""
