"""Corrects the device of gradients for a custom `autograd.Function` whose outputs are on several devices
(`nn.DataParallel`).

If the loss does not depend on an output, autograd passes zeros to `backward` as the gradient of that output. The C++
code that creates these zeros treats every output as a CPU tensor, so the zeros would be on the device of the loss. This
module moves the zeros to the device of the output. If this version of torch lacks the private class for the backward
node, the zeros are not moved.
"""

import functools
from collections.abc import Iterable
from typing import Any

import torch

from legroom.observe.virtual.host import VirtualHost
from legroom.observe.virtual.patching import Replacement, optional_module, table


def replacements(host: VirtualHost) -> Iterable[Replacement]:
    node = getattr(optional_module("torch.autograd.function"), "BackwardCFunction", None)
    original_apply: Any = torch.autograd.Function.__dict__.get("apply")
    if node is None or not isinstance(original_apply, classmethod):
        return

    @functools.wraps(original_apply.__func__)
    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        out = original_apply.__func__(cls, *args, **kwargs)
        if isinstance(out, tuple) and len(out) > 1:
            _note_devices(host, out)
        return out

    yield from table(torch.autograd.Function, {"apply": classmethod(apply)})
    for name in ("apply", "apply_boxed"):
        run = getattr(node, name, None)
        if run is not None:
            yield from table(node, {name: _with_zeros_on_device(host, run)})


def _note_devices(host: VirtualHost, out: tuple[Any, ...]) -> None:
    devices = [host.device_of(value) if isinstance(value, torch.Tensor) else None for value in out]
    if len({*devices}) == 1:
        return
    with torch._C.DisableTorchFunction():
        node = next(
            (value.grad_fn for value in out if isinstance(value, torch.Tensor) and value.grad_fn), None
        )
    if node is not None:
        node._legroom_devices = devices  # type: ignore[attr-defined]


def _with_zeros_on_device(host: VirtualHost, run: Any) -> Any:
    @functools.wraps(run)
    def call(node: Any, *gradients: Any) -> Any:
        devices = getattr(node, "_legroom_devices", None)
        if devices is None:
            return run(node, *gradients)
        if len(gradients) == 1 and isinstance(gradients[0], list):  # `backward` may empty this list
            gradients[0][:] = _on_devices(host, gradients[0], devices)
            return run(node, *gradients)
        return run(node, *_on_devices(host, gradients, devices))

    return call


def _on_devices(host: VirtualHost, gradients: Iterable[Any], devices: list[int | None]) -> list[Any]:
    return [
        gradient.to("cpu" if index is None else f"cuda:{index}")
        if isinstance(gradient, torch.Tensor) and host.device_of(gradient) != index
        else gradient
        for gradient, index in zip(gradients, devices, strict=True)
    ]
