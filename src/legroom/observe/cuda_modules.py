"""The module at work, stamped into the CUDA history: twice per module and step, so every microsecond counts here."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from legroom.observe.attribution import ModuleStack, current_node
from legroom.observe.cuda_marks import BACKWARD, FORWARD, INFERENCE, Marks

_is_compiling = torch.compiler.is_compiling
_is_grad_enabled = torch.is_grad_enabled


class StampedModules(ModuleStack):
    """A module stack that writes its path into the marks. The compiler looks through it: it leaves nothing there."""

    def __init__(
        self,
        marks: Marks,
        on_root: Callable[[nn.Module, tuple[Any, ...], str, str], None],
        activity_outside: Callable[[], str],
    ) -> None:
        """`on_root(module, args, activity, path)` is called when a module that no other called begins;
        `activity_outside()` says what the program is doing once it has ended."""
        super().__init__()
        self._marks = marks
        self._on_root = on_root
        self._activity_outside = activity_outside
        self._recomputes = False
        """Whether a checkpoint, in the backward pass, computes again what it had not kept."""

    def attach(self) -> None:
        # Torch warns a script that compiles a module of hooks that are not the script's.
        warnings.filterwarnings(
            "ignore", message=r"Using `torch\.compile\(module\)` when there are global hooks"
        )
        super().attach()

    def _enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if _is_compiling():
            return
        stack = self.stack
        if not stack:
            self._begin_root(module, args)
            return
        path = self._names.get(id(module)) or type(module).__name__
        stack.append(path)
        self.path = path
        self._marks.at_work(self._activity(), path)

    def _leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if _is_compiling():
            return
        stack = self.stack
        if stack:
            stack.pop()
        if stack:
            self.path = path = stack[-1]
            self._marks.at_work(self._activity(), path)
        else:
            self.path = ""
            self._marks.at_work(BACKWARD if self._recomputes else self._activity_outside(), "")
            self._recomputes = False

    def _activity(self) -> str:
        if self._recomputes:
            return BACKWARD
        return FORWARD if _is_grad_enabled() else INFERENCE

    def _begin_root(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self._recomputes = current_node() is not None
        if self._recomputes:
            self._names = self._names_around(module)
            self.path = path = self._names.get(id(module)) or type(module).__name__
            self.stack.append(path)
            self._marks.at_work(BACKWARD, path)
        else:
            self._names = self._names_under(module)
            self.path = path = type(module).__name__
            self.stack.append(path)
            self._on_root(module, args, self._activity(), path)

    def _names_around(self, module: nn.Module) -> dict[int, str]:
        """A checkpoint runs part of a model: its names are those in the model that ran forward."""
        for root, names in self._roots.values():
            if id(module) in names and root() is not None:
                return names
        return self._names_under(module)
