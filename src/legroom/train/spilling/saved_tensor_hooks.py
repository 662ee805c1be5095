"""Hooks that a script did not ask for must not break it where torch allows none.

The transforms of `torch.func` switch hooks on saved tensors off, and raise if there are any. Inside the block below, ours
are taken away for that long and put back afterwards: what such a transform saves stays on the device.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch


@contextlib.contextmanager
def stepping_aside(current: Callable[[], Any]) -> Iterator[None]:
    """`current()` is the context manager of this thread's hooks, or None. Without torch's private functions that switch hooks
    off and on, nothing is done, and a script with `torch.func` gets torch's own refusal."""
    functions: Any = torch._C._autograd
    disable = getattr(functions, "_saved_tensors_hooks_disable", None)
    enable = getattr(functions, "_saved_tensors_hooks_enable", None)
    if disable is None or enable is None:
        yield
        return
    aside = threading.local()

    def switch_off(*args: Any, **kwargs: Any) -> None:
        hooks = current()
        if hooks is not None and getattr(aside, "hooks", None) is None:
            hooks.__exit__()
            aside.hooks = hooks
        disable(*args, **kwargs)

    def switch_on() -> None:
        enable()
        hooks, aside.hooks = getattr(aside, "hooks", None), None
        if hooks is not None:
            hooks.__enter__()

    functions._saved_tensors_hooks_disable = switch_off
    functions._saved_tensors_hooks_enable = switch_on
    try:
        yield
    finally:
        functions._saved_tensors_hooks_disable = disable
        functions._saved_tensors_hooks_enable = enable
