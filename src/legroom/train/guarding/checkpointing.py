"""Activation checkpointing for any model. The blocks of the model recompute their activations in the backward pass
instead of keeping them.

    with checkpoint_blocks(model):
        loss = model(x).sum()
    loss.backward()

Models with `gradient_checkpointing_enable` (such as Transformers models) use their own implementation. In other models,
the blocks are the members of the outermost `ModuleList`s and `Sequential`s. In a model without these containers, the
direct children of the model are the blocks. The gradients are the same as without checkpointing, and bit-for-bit equal
if the kernels are deterministic. During recomputation, dropout draws the same numbers again, and running statistics are
not updated again.
"""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint


@contextlib.contextmanager
def checkpoint_blocks(model: nn.Module) -> Iterator[None]:
    """Inside the `with` statement, a forward pass saves only the inputs of the model's blocks."""
    inner: Any = getattr(model, "module", model)
    if getattr(inner, "supports_gradient_checkpointing", False):
        was_enabled = bool(getattr(inner, "is_gradient_checkpointing", False))
        if not was_enabled:
            inner.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        try:
            yield
        finally:
            if not was_enabled:
                inner.gradient_checkpointing_disable()
        return
    with contextlib.ExitStack() as stack:
        for block in blocks(model):
            stack.enter_context(_checkpointed_forward(block))
        yield


def blocks(model: nn.Module) -> list[nn.Module]:
    members = list(_members(model))
    return members or [child for child in model.children() if any(True for _ in child.parameters())]


def _members(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if isinstance(child, nn.ModuleList | nn.Sequential) and len(child) > 1:
            yield from (member for member in child if any(True for _ in member.parameters()))
        else:
            yield from _members(child)


@contextlib.contextmanager
def _checkpointed_forward(block: nn.Module) -> Iterator[None]:
    original = block.forward
    instance_forward = vars(block).get("forward")

    @functools.wraps(original)
    def forward(*arguments: Any, **named: Any) -> Any:
        return checkpoint(
            original,
            *arguments,
            use_reentrant=False,
            context_fn=lambda: (contextlib.nullcontext(), _frozen_statistics(block)),
            **named,
        )

    block.forward = forward
    try:
        yield
    finally:
        if instance_forward is None:
            del block.forward
        else:
            block.forward = instance_forward


@contextlib.contextmanager
def _frozen_statistics(block: nn.Module) -> Iterator[None]:
    """Inside the block, running statistics are not updated, because the first forward pass has already updated them
    with this batch.
    """
    layers: list[Any] = [
        module for module in block.modules() if isinstance(module, _NormBase) and module.training
    ]
    saved = [(layer.momentum, layer._buffers.get("num_batches_tracked")) for layer in layers]
    for layer in layers:
        layer.momentum = 0.0  # new values have weight 0
        layer._buffers["num_batches_tracked"] = None
    try:
        yield
    finally:
        for layer, (momentum, batches) in zip(layers, saved, strict=True):
            layer.momentum, layer._buffers["num_batches_tracked"] = momentum, batches
