"""Programs that trace a model to TorchScript or ONNX: `torch.jit.trace`, `SummaryWriter.add_graph`, `torch.onnx.export`.

torch cannot trace convolutions while a dispatch mode is active. While the program traces a model with convolutions,
operations are therefore not recorded. On a virtual GPU, the function mode registers their results.
"""

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd
from torch.utils._python_dispatch import _disable_current_modes

from legroom.observe.virtual.patching import Replacement, replaced

_NAMES = ("trace", "trace_module", "_get_trace_graph")


class _Thread(threading.local):
    depth = 0
    """The number of functions in `_NAMES` that are running."""
    unrecorded = 0
    """The number of them that run without dispatch modes."""


_this_thread = _Thread()


def is_tracing_graph() -> bool:
    """Return whether torch traces a model on this thread, or compares the traced model with the original."""
    return _this_thread.depth > 0


def is_unrecorded() -> bool:
    """Return whether torch traces a model without dispatch modes on this thread, so operations are not recorded."""
    return _this_thread.unrecorded > 0


@contextmanager
def graphs_are_traced_without_modes() -> Iterator[None]:
    """Within the block, torch traces models with convolutions without dispatch modes."""
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
        convolves = _may_convolve(next(iter((*args, *options.values())), None))
        _this_thread.depth += 1
        _this_thread.unrecorded += convolves
        try:
            with _disable_current_modes() if convolves else nullcontext():
                return trace(*args, **options)
        finally:
            _this_thread.depth -= 1
            _this_thread.unrecorded -= convolves

    return traced


def _may_convolve(model: Any) -> bool:
    """Return whether a model contains convolutions. Other models are traced with the modes, so that the tensors that
    they create are on the device of their inputs.
    """
    modules = model.modules() if isinstance(model, nn.Module) else ()
    return any(isinstance(each, _ConvNd) for each in modules)


def _around_traces(around: Callable[[Any], Any]) -> list[Replacement]:
    return [
        Replacement(owner, name, around(trace))
        for owner in (torch.jit, torch.jit._trace)
        for name in _NAMES
        if (trace := getattr(owner, name, None)) is not None
    ]
