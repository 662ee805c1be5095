"""The module at work, stamped into the CUDA history: twice per module and step, so every microsecond counts here.

Torch's global module hooks would do, but with any hook at all a module's call takes a slower path through torch, which
costs several times what is done here. So the call itself is stood in for, while attached.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from legroom.observe.cuda.markers import BACKWARD, FORWARD, INFERENCE, Markers
from legroom.observe.dispatch.backward_engine import current_node
from legroom.observe.dispatch.module_names import ModuleNames, fraction_entered

_is_compiling = torch.compiler.is_compiling
_is_grad_enabled = torch.is_grad_enabled

OnRoot = Callable[[nn.Module, tuple[Any, ...], dict[str, Any], str, str], None]
"""Given the module, what it is called with, the activity and its path."""


class ModuleMarkers:
    """Writes the path of the innermost module at work into the markers. The compiler sees nothing of it."""

    def __init__(self, markers: Markers, on_root: OnRoot, activity_outside: Callable[[], str]) -> None:
        """`on_root` is called when a module that no other called begins; `activity_outside()` says what the program
        is doing once it has ended."""
        self._markers = markers
        self._on_root = on_root
        self._activity_outside = activity_outside
        self._path = ""
        """Of the module at work; "" outside of any."""
        self._names: dict[int, str] = {}
        """`id` of each module under the root at work → its path."""
        self._entered = 0
        """Calls of modules since the root started."""
        self._known = ModuleNames()
        self._recomputes = False
        """Whether a checkpoint, in the backward pass, computes again what it had not kept."""
        self._is_attached = False
        self._original: Callable[..., Any] | None = None
        self._replacement: Callable[..., Any] | None = None

    def attach(self) -> None:
        """Without torch's private method, modules, forward passes and inputs cannot be told."""
        original = getattr(nn.Module, "_call_impl", None)
        if original is not None:
            self._is_attached = True
            self._original, self._replacement = original, self._replacement_for(original)
            nn.Module._call_impl = self._replacement  # type: ignore[method-assign]

    def detach(self) -> None:
        self._is_attached = False
        if self._original is not None and getattr(nn.Module, "_call_impl", None) is self._replacement:
            nn.Module._call_impl = self._original  # type: ignore[method-assign]

    def _replacement_for(self, original: Callable[..., Any]) -> Callable[..., Any]:
        enter_module = self._markers.enter_module

        def _call_impl(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if _is_compiling() or not self._is_attached:
                return original(module, *args, **kwargs)
            outer = self._path
            if outer:
                self._entered += 1
                self._path = path = self._names.get(id(module)) or type(module).__name__
                enter_module(self._activity(), path)
            else:
                self._begin_root(module, args, kwargs)
            try:
                return original(module, *args, **kwargs)
            finally:
                self._path = outer
                if outer:
                    enter_module(self._activity(), outer)
                else:
                    enter_module(BACKWARD if self._recomputes else self._activity_outside(), "")

        return _call_impl

    @property
    def progress(self) -> float | None:
        """About which part of the root's modules have begun; None outside of a forward pass, and where modules are called over and over."""
        return fraction_entered(self._entered, self._names) if self._path and not self._recomputes else None

    def _activity(self) -> str:
        if self._recomputes:
            return BACKWARD
        return FORWARD if _is_grad_enabled() else INFERENCE

    def _begin_root(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._recomputes = current_node() is not None
        # A checkpoint runs part of a model: its names are those in the model that ran forward.
        self._names = self._known.containing(module) if self._recomputes else self._known.below(module)
        self._path = path = self._names.get(id(module)) or type(module).__name__
        self._entered = 1
        if self._recomputes:
            self._markers.enter_module(BACKWARD, path)
        else:
            self._on_root(module, args, kwargs, self._activity(), path)
