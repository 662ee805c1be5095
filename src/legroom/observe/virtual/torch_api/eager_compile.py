"""Makes `torch.compile` on a virtual GPU run the function or module in eager mode, with the same results.

A compiled module is wrapped as torch wraps it, because checkpoints contain the name of the wrapper (`_orig_mod.`).
"""

import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from legroom.observe.virtual.patching import Replacement, answer, once_warner, optional_module, table

EAGER = "`torch.compile` has no effect on a virtual GPU. The model runs in eager mode."


def replacements() -> Iterable[Replacement]:
    yield from table(torch, {"compile": _eager_compile()})
    # The original loads the compiler, which imports names that a CPU build does not have.
    yield from table(optional_module("torch.compiler"), {"cudagraph_mark_step_begin": answer()})


def _eager_compile() -> Callable[..., Any]:
    warn = once_warner()

    def compile(model: Any = None, **options: Any) -> Any:
        if model is None:
            return lambda function: compile(function, **options)
        if not options.get("disable"):
            warn(EAGER)
        return OptimizedModule(model) if isinstance(model, nn.Module) else model

    return compile


class OptimizedModule(nn.Module):
    """The result of `torch.compile(module)`, which forwards all attribute accesses and calls to `_orig_mod`. PyTorch's
    own class is part of the compiler, which takes seconds to load. If a program has loaded torch's class, objects of
    the class in this module count as instances of torch's class.
    """

    _own_attributes = frozenset(("_orig_mod", "forward", "_is_initialized"))

    def __init__(self, module: nn.Module) -> None:
        object.__setattr__(self, "_orig_mod", module)
        self._is_initialized = False
        nn.Module.__init__(self)
        self._is_initialized = True
        del self.__dict__["_orig_mod"]
        self._orig_mod = module

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return getattr(sys.modules.get("torch._dynamo.eval_frame"), "OptimizedModule", OptimizedModule)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if any(self.__dict__.get(hooks) for hooks in _HOOKS):
            return nn.Module.__call__(self, *args, **kwargs)
        # Global hooks are called once, for the module itself.
        return self._orig_mod(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._orig_mod(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return OptimizedModule, (self._orig_mod,)

    def __len__(self) -> int:
        return len(self._orig_mod)  # type: ignore[arg-type]

    def __dir__(self) -> list[str]:
        return sorted({*dir(self._orig_mod), *nn.Module.__dir__(self)})  # type: ignore[no-untyped-call]

    @property
    def training(self) -> bool:
        return self._orig_mod.training

    @training.setter
    def training(self, value: bool) -> None:
        if self._is_initialized:
            self._orig_mod.training = value

    def __getattr__(self, name: str) -> Any:
        if name == "_orig_mod":
            return self.__dict__["_modules"]["_orig_mod"]
        return getattr(self._orig_mod, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._own_attributes or hasattr(OptimizedModule, name):
            nn.Module.__setattr__(self, name, value)
        else:
            setattr(self._orig_mod, name, value)

    def __delattr__(self, name: str) -> None:
        if name in self._own_attributes or hasattr(OptimizedModule, name):
            nn.Module.__delattr__(self, name)
        else:
            delattr(self._orig_mod, name)


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
