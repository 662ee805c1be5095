"""Activation checkpointing for a model that was not written for it: blocks forget what they computed and compute it again.

    with checkpointed(model):
        loss = model(x).sum()
    loss.backward()

Models that know how (`gradient_checkpointing_enable`, as those of transformers do) are asked to. In others the blocks are
the members of a `ModuleList` or `Sequential`, the outermost ones; without any, the model's own children. Results are the
same, bit for bit where the kernels are deterministic: dropout draws the same numbers again, and batch statistics are
counted once.
"""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint


@contextlib.contextmanager
def checkpointed(model: nn.Module) -> Iterator[None]:
    """What is computed within the block keeps the blocks' inputs alone."""
    known: Any = getattr(model, "module", model)
    if getattr(known, "supports_gradient_checkpointing", False):
        was = bool(getattr(known, "is_gradient_checkpointing", False))
        if not was:
            known.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        try:
            yield
        finally:
            if not was:
                known.gradient_checkpointing_disable()
        return
    with contextlib.ExitStack() as stack:
        for block in blocks(model):
            stack.enter_context(_forgetful(block))
        yield


def blocks(model: nn.Module) -> list[nn.Module]:
    """The parts whose activations are computed again."""
    found = list(_members(model))
    return found or [child for child in model.children() if any(True for _ in child.parameters())]


def _members(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if isinstance(child, nn.ModuleList | nn.Sequential) and len(child) > 1:
            yield from (member for member in child if any(True for _ in member.parameters()))
        else:
            yield from _members(child)


@contextlib.contextmanager
def _forgetful(block: nn.Module) -> Iterator[None]:
    plain = block.forward
    own = vars(block).get("forward")

    @functools.wraps(plain)
    def forward(*arguments: Any, **named: Any) -> Any:
        return checkpoint(
            plain,
            *arguments,
            use_reentrant=False,
            context_fn=lambda: (contextlib.nullcontext(), _statistics_left_alone(block)),
            **named,
        )

    block.forward = forward
    try:
        yield
    finally:
        if own is None:
            del block.forward
        else:
            block.forward = own


@contextlib.contextmanager
def _statistics_left_alone(block: nn.Module) -> Iterator[None]:
    """The second time a block computes, its running statistics have seen the batch already."""
    layers: list[Any] = [
        module for module in block.modules() if isinstance(module, _NormBase) and module.training
    ]
    were = [(layer.momentum, layer._buffers.get("num_batches_tracked")) for layer in layers]
    for layer in layers:
        layer.momentum = 0.0  # what is new counts for nothing
        layer._buffers["num_batches_tracked"] = None
    try:
        yield
    finally:
        for layer, (momentum, counted) in zip(layers, were, strict=True):
            layer.momentum, layer._buffers["num_batches_tracked"] = momentum, counted
