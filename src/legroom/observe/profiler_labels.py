"""Disables torch's profiler labels while no profiler is running.

Every optimizer labels each `step` and `zero_grad` with `record_function`. A label is an operation that torch passes to
every dispatch mode. While a recorder is active, a label takes as much time as any other operation.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from legroom.observe.virtual.patching import replaced, table

_is_profiling: Callable[[], bool] | None = getattr(torch._C._autograd, "_profiler_enabled", None)
"""A private torch function that returns whether a profiler is running. If this version of torch lacks the function,
labels are always recorded."""


@contextmanager
def labels_only_while_profiling() -> Iterator[None]:
    """Make `record_function` do nothing unless a profiler is running."""
    if _is_profiling is None:
        yield
        return
    is_profiling = _is_profiling
    label: Any = torch.autograd.profiler.record_function
    enter, leave = label.__enter__, label.__exit__

    # TorchScript compiles the source of these methods, which it finds through `__wrapped__`.
    @functools.wraps(enter)
    def __enter__(self: Any) -> Any:  # noqa: N807
        return enter(self) if is_profiling() else self

    @functools.wraps(leave)
    def __exit__(self: Any, *error: Any) -> None:  # noqa: N807
        if self.record is not None:
            leave(self, *error)

    with replaced(table(label, {"__enter__": __enter__, "__exit__": __exit__})):
        yield
