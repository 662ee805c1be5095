"""Observes failed allocations on a real GPU, and determines which failures become errors in the script.

The allocator calls an observer at every failed allocation, before an exception is raised. Not every failure becomes an
error. For example, cuDNN tries algorithms until the workspace of one algorithm can be allocated, and hides the other
failures. Therefore the observer records only statistics. A `torch.OutOfMemoryError` that is created later belongs to
the last recorded failure. The temporary tensors of the failed operation are already freed at that time, but their
allocations are still in the history.
"""

import linecache
import re
import sys
import threading
from collections.abc import Callable
from types import FrameType

import torch

from legroom.gpus.usage import other_processes
from legroom.observe.cuda import torch_api
from legroom.observe.cuda.address_owners import AddressOwners
from legroom.observe.cuda.history_events import AllocationFailure
from legroom.observe.cuda.torch_api import CudaApi
from legroom.observe.dispatch.backward_engine import current_node
from legroom.observe.holders.holders import HolderSurvey, survey_holders


class FailureObserver:
    MAX_SURVEYS = 16
    """The maximum number of searches for the variables that retain memory. A script that searches for the largest batch
    size runs out of memory often, and each search would find the same variables.
    """

    def __init__(
        self, api: CudaApi, owners: AddressOwners, on_error: Callable[[AllocationFailure], None]
    ) -> None:
        self._api = api
        self._owners = owners
        self._on_error = on_error
        self._last: AllocationFailure | None = None
        self._surveys = 0
        self._closed = False
        self._restore: Callable[[], None] | None = None
        self._forget: Callable[[], None] | None = None
        self._hidden = 0

    def watch(self) -> None:
        self._forget = self._api.on_failed_allocation(self._failed)
        self._restore = self._api.on_oom_error(self._error_created)

    def close(self) -> None:
        self._closed = True
        if self._forget is not None:
            self._forget()
        if self._restore is not None:
            self._restore()

    def take_hidden_failures(self) -> int:
        """Return the number of failures since the last call to this method that did not raise an error."""
        number, self._hidden = self._hidden + (self._last is not None), 0
        self._last = None
        return number

    def _failed(self, device: int, wanted: int, limit: int, free: int) -> None:
        if self._closed:
            return
        try:
            stats = self._api.stats(device)
            op, module = self._backward_operation()
            self._hidden += self._last is not None
            self._last = AllocationFailure(
                device, wanted, limit, self._api.capacity(device), free, stats.allocated, stats.reserved,
                stats.reserved - stats.active - stats.inactive_split, stats.inactive_split, module, op != "", op,
            )  # fmt: skip
            if self._restore is None:
                self._error_created("")
        except Exception:  # the script must get its own error
            self._last = None

    def _error_created(self, text: str) -> None:
        failure, self._last = self._last, None
        if failure is None or self._closed:
            return
        try:
            op = failure.op or operation_at(_innermost_frame())
            self._on_error(
                failure._replace(
                    message=text,
                    survey=self._survey_holders(),
                    op=op,
                    other_processes=other_processes(failure.device),
                )
            )
        except Exception:  # an exception here would replace the script's error
            return

    def _survey_holders(self) -> HolderSurvey | None:
        if self._surveys >= self.MAX_SURVEYS:
            return None
        self._surveys += 1
        frame = _script_frame()
        try:
            return survey_holders(frame, _measure)
        except Exception:  # the failure is reported without the variables
            return None
        finally:
            del frame

    def _backward_operation(self) -> tuple[str, str]:
        """Return the autograd node that runs on this thread, and the module whose gradient it computes."""
        node = current_node()
        if node is None:
            return "", ""
        nearby = [node, *(following for following, _ in node.next_functions if following is not None)]
        for candidate in nearby:
            for following, _ in candidate.next_functions:
                parameter = getattr(
                    following, "variable", None
                )  # only AccumulateGrad nodes have this attribute
                module = self._owners.module_of(parameter) if parameter is not None else ""
                if module:
                    return node.name(), module
        return node.name(), ""


def _script_frame() -> FrameType | None:
    if threading.current_thread() is threading.main_thread():
        return sys._getframe(1)
    return sys._current_frames().get(threading.main_thread().ident or 0)


def _innermost_frame() -> FrameType | None:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename in (__file__, torch_api.__file__):
        frame = frame.f_back
    return frame


def operation_at(frame: FrameType | None) -> str:
    """Return the name of the function that a frame calls, according to its source code (`relu` for `layer(x).relu()`).

    The allocator does not record operations. The result is "" for an operator such as `+`, or if the source code is not
    available.
    """
    if frame is None:
        return ""
    positions = list(frame.f_code.co_positions())
    line, end_line, column, end_column = positions[frame.f_lasti // 2]
    if line is None or line != end_line or column is None or end_column is None:
        return ""
    source = (
        linecache.getline(frame.f_code.co_filename, line).encode()[column:end_column].decode(errors="replace")
    )
    depth = 0
    for position in reversed(range(len(source))):
        depth += (source[position] == ")") - (source[position] == "(")
        if depth == 0:
            name = re.search(r"(\w+)\s*$", source[:position])
            return name.group(1) if source.endswith(")") and name is not None else ""
    return ""


def _measure(tensor: torch.Tensor) -> tuple[int, int] | None:
    try:
        if not tensor.is_cuda:
            return None
        storage = tensor.untyped_storage()
        return storage.data_ptr(), storage.nbytes()
    except (RuntimeError, NotImplementedError):
        return None
