"""Decides whether a script that failed while it was traced would also fail without Legroom."""

from types import TracebackType

_ALWAYS = (SyntaxError, ImportError, FileNotFoundError, NotADirectoryError, IsADirectoryError)


def fails_without_legroom(error: BaseException | None, *, device_used: bool) -> bool:
    """Return whether `error` is certainly an error in the script itself.

    Before a script uses the device, all its values are real. An error at this stage is the script's own error, unless
    Legroom's code raised it. After the first use of the device, placeholders and shape inference may cause errors.
    `error` is None if the script exited with an error code.
    """
    if isinstance(error, _ALWAYS):
        return True
    return not device_used and (error is None or not _raised_by_legroom(error.__traceback__))


def _raised_by_legroom(traceback: TracebackType | None) -> bool:
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback is not None and str(traceback.tb_frame.f_globals.get("__name__", "")).startswith(
        "legroom."
    )
