"""Determines whether an error of a virtual GPU would be a device-side assert on a real GPU.

On a GPU, a kernel checks values that are in tensors: the indices of an embedding or `x[index]`, class labels, and
probabilities. Everything else is checked on the host before the kernel starts: shapes, dimensions, and the number in
`x[5]`. These checks raise the same exception on the CPU and on a GPU.
"""

from types import FrameType
from typing import Any

from legroom.observe.dispatch.checks.index_checks import checked_operations
from legroom.observe.dispatch.recorder import RecordingMode

_OTHER_OPERATIONS = {
    "bernoulli", "bernoulli_", "index_reduce", "index_reduce_", "put", "put_", "scatter_reduce_", "take",
}  # fmt: skip
_ONE_HOT = "Class values must be"
"""`one_hot` checks the values in its own code, and only on the CPU."""


def is_assert_on_gpu(error: BaseException) -> bool:
    """Return whether `error` was raised by a kernel that checks the values of device tensors."""
    if _ONE_HOT in str(error):
        return True
    frame = _frame_of_operation(error)
    if frame is None:
        return False  # torch raised the error before it called an operation
    found = frame.f_locals
    name = getattr(found.get("func"), "_opname", "")
    recorder: Any = getattr(found.get("self"), "_recorder", None)
    if recorder is None or name not in checked_operations | _OTHER_OPERATIONS:
        return False
    return bool(recorder.is_on_device((found.get("args"), found.get("kwargs"))))


def _frame_of_operation(error: BaseException) -> FrameType | None:
    """Return the frame of the dispatch mode in which an operation raised the error."""
    frame, traceback = None, error.__traceback__
    while traceback is not None:
        if (
            traceback.tb_frame.f_code.co_filename == _MODE.co_filename
            and "func" in traceback.tb_frame.f_locals
        ):
            frame = traceback.tb_frame
        traceback = traceback.tb_next
    return frame


_MODE = RecordingMode._with_named_device.__code__
