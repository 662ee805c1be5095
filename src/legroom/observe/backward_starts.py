"""Observes the calls of `torch.autograd.backward`, which every `loss.backward()` looks up by name, and of
`torch.autograd.grad`.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

Arguments = tuple[Any, ...]
Observer = Callable[[Arguments, Mapping[str, Any]], None]


def observe_backward(before_backward: Observer, before_grad: Observer) -> Callable[[], None]:
    """Call the observers with the arguments of every call, before it runs. Return a function that ends this."""
    backward, grad = torch.autograd.backward, torch.autograd.grad
    is_active = True

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if is_active:
            before_backward(args, kwargs)
        return backward(*args, **kwargs)

    def wrapped_grad(*args: Any, **kwargs: Any) -> Any:
        if is_active:
            before_grad(args, kwargs)
        return grad(*args, **kwargs)

    def undo() -> None:
        nonlocal is_active
        is_active = False  # another library may have wrapped the functions since
        if torch.autograd.backward is wrapped:
            torch.autograd.backward = backward
        if torch.autograd.grad is wrapped_grad:
            torch.autograd.grad = grad

    wrapped.__wrapped__, wrapped_grad.__wrapped__ = backward, grad  # type: ignore[attr-defined]
    torch.autograd.backward, torch.autograd.grad = wrapped, wrapped_grad
    return undo
