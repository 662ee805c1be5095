"""Programs that trace a model to TorchScript or ONNX: `torch.jit.trace`, `SummaryWriter.add_graph`, `torch.onnx.export`.

torch cannot trace convolutions, fused layers and in-place operations correctly while a dispatch mode is active. While
the program traces a model, operations are therefore not recorded. On a virtual GPU, the function mode registers their
results.
"""

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from legroom.observe.virtual.patching import Replacement, replaced

_NAMES = ("trace", "trace_module", "_get_trace_graph")


class _Thread(threading.local):
    depth = 0
    """The number of functions in `_NAMES` that are running."""


_this_thread = _Thread()


def is_tracing_graph() -> bool:
    """Return whether torch traces a model on this thread, or compares the traced model with the original."""
    return _this_thread.depth > 0


@contextmanager
def graphs_are_traced_without_modes() -> Iterator[None]:
    """Within the block, torch traces models without dispatch modes."""
    with replaced(_around_traces(_without_modes)):
        yield


def before_graph_traces(call: Callable[[], object]) -> None:
    """Run `call` before each trace of a model until the process exits."""

    def around(trace: Any) -> Any:
        @functools.wraps(trace)
        def called(*args: Any, **options: Any) -> Any:
            call()
            return trace(*args, **options)

        return called

    for each in _around_traces(around):
        setattr(each.owner, each.name, each.value)


def _without_modes(trace: Any) -> Any:
    @functools.wraps(trace)
    def traced(*args: Any, **options: Any) -> Any:
        _this_thread.depth += 1
        try:
            with _disable_current_modes():
                return trace(*args, **options)
        finally:
            _this_thread.depth -= 1

    return traced


def _around_traces(around: Callable[[Any], Any]) -> list[Replacement]:
    return [
        Replacement(owner, name, around(trace))
        for owner in (torch.jit, torch.jit._trace)
        for name in _NAMES
        if (trace := getattr(owner, name, None)) is not None
    ]
