"""Calls of the user's model, for loops in which nothing else says when a turn ends.

A loop over a plain list that only evaluates has no optimizer, no loader and no backward pass. What it calls over and over
is its model: the first module called from outside any other for the second time. Torch's hooks on all modules make each
call a little slower, so they are there only until something better is met.
"""

import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook


class ModelCalls:
    """Calls `on_call(model)` before each further call of the user's model, from `attach` to `detach`."""

    def __init__(self, on_call: Callable[[nn.Module], None]) -> None:
        self._on_call = on_call
        self._handles: list[Any] = []
        self._called: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._model: weakref.ref[nn.Module] | None = None
        self._depth = 0
        self._thread = 0

    def attach(self) -> None:
        if not self._handles:
            self._depth, self._thread = 0, threading.get_ident()
            self._handles = [
                register_module_forward_pre_hook(self._begins),
                register_module_forward_hook(self._ends, always_call=True),
            ]

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _begins(self, module: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling() or threading.get_ident() != self._thread:
            return
        self._depth += 1
        if self._depth > 1:
            return
        model = self._model() if self._model is not None else None
        if model is None and module in self._called:
            model, self._model = module, weakref.ref(module)
        elif model is None:
            self._called.add(module)
        if model is module:
            self._on_call(module)

    def _ends(self, module: nn.Module, args: Any, result: Any) -> None:
        if not torch.compiler.is_compiling() and threading.get_ident() == self._thread:
            self._depth = max(self._depth - 1, 0)
