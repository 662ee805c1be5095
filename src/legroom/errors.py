"""Every error that Legroom raises on purpose.

    LegroomError                 something a person can mend: one sentence, with the remedy
    ├── UsageError               a bad argument, size, path or option
    ├── CaptureError             a capture file that cannot be read or written
    │   └── CaptureVersionError  ... because another version of Legroom wrote it
    ├── CheckpointError          a checkpoint that cannot be written or read, or is another model's
    ├── MissingExtra             an optional part is not installed; names the extra
    └── Unsupported              asked of a virtual GPU something that it cannot do

The command line prints the sentence and exits with 2; no traceback of ours reaches a person for bad input.
`torch.OutOfMemoryError` is torch's own and is never wrapped: handlers written for a real GPU must catch it.
"""

from legroom.installation import install_command


class LegroomError(Exception):
    """Something a person can mend: one sentence, with the remedy."""


class UsageError(LegroomError, ValueError):
    """A bad argument, size, path or option."""


class CaptureError(LegroomError):
    """A capture file that cannot be read or written."""


class CaptureVersionError(CaptureError):
    """A capture file that another version of Legroom wrote."""


class CheckpointError(LegroomError):
    """A checkpoint that cannot be written or read, or is another model's."""


class MissingExtra(LegroomError, ImportError):  # noqa: N818  (reads as what it is)
    """An optional part is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} is not installed: {install_command(extra)}")
        self.extra = extra


class Unsupported(LegroomError, NotImplementedError):  # noqa: N818
    """Asked of a virtual GPU something that it cannot do."""
