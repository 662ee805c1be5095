"""Means of saving memory, put to a traced run from outside so that each can be re-traced, and what each costs."""

import contextlib
import gc
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.checkpoint import checkpoint


class Means(StrEnum):
    """What can be done to make a run fit, cheapest first."""

    NONE = "none"
    FUSED = "fused optimizer"
    AUTOCAST = "bf16 autocast"
    CHECKPOINT = "activation checkpointing"
    LIGHTER_OPTIMIZER = "8-bit optimizer state"
    SPILL = "activations in host memory"
    FREEZE = "frozen backbone"


@contextlib.contextmanager
def in_force(means: Means) -> Iterator[None]:
    """`means` holds for everything that runs inside."""
    with contextlib.ExitStack() as undo:
        _ACTIONS[means](undo)
        yield


def _nothing(undo: contextlib.ExitStack) -> None:
    pass


def _at_first_root(act: Callable[[nn.Module], None], undo: contextlib.ExitStack) -> None:
    """Do something to the model when its first forward pass begins."""
    done: list[bool] = []

    def first(module: nn.Module, args: Any) -> None:
        if not done and any(True for _ in module.parameters()):
            done.append(True)
            act(module)

    undo.callback(nn.modules.module.register_module_forward_pre_hook(first).remove)


def _fused(undo: contextlib.ExitStack) -> None:
    """Optimizers that have a fused form use it: no temporaries beside the parameters."""

    def before(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for group in optimizer.param_groups:
            if "fused" in group:
                group["fused"], group["foreach"] = True, False
            elif "foreach" in group:
                group["foreach"] = False

    undo.callback(register_optimizer_step_pre_hook(before).remove)


def _autocast(undo: contextlib.ExitStack) -> None:
    """The forward pass of whichever model is called runs under bf16 autocast."""
    contexts: list[Any] = []
    depth = [0]

    def enter(module: nn.Module, args: Any) -> None:
        if depth[0] == 0 and not torch.is_autocast_enabled("cuda"):
            contexts.append(torch.autocast("cuda", torch.bfloat16))
            contexts[-1].__enter__()
        depth[0] += 1

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        depth[0] -= 1
        if depth[0] == 0 and contexts:
            contexts.pop().__exit__(None, None, None)

    undo.callback(nn.modules.module.register_module_forward_pre_hook(enter).remove)
    undo.callback(nn.modules.module.register_module_forward_hook(leave, always_call=True).remove)


def _checkpoint(undo: contextlib.ExitStack) -> None:
    """Each repeated block of the model keeps only its input and is run again in the backward pass."""

    def wrap(model: nn.Module) -> None:
        for block in repeated_blocks(model):
            forward = block.forward

            def again(*args: Any, _forward: Any = forward, **kwargs: Any) -> Any:
                if not torch.is_grad_enabled():
                    return _forward(*args, **kwargs)
                return checkpoint(_forward, *args, use_reentrant=False, **kwargs)

            block.forward = again

    _at_first_root(wrap, undo)


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks that a model is made of: what the outermost lists of modules with parameters hold."""
    if isinstance(model, nn.ModuleList | nn.Sequential):
        blocks = [block for block in model if any(True for _ in block.parameters())]
        if len(blocks) > 1:
            return blocks
    return [block for child in model.children() for block in repeated_blocks(child)]


def _lighter(undo: contextlib.ExitStack) -> None:
    """Every optimizer keeps two states of one byte per parameter, as 8-bit Adam does, and no temporaries."""

    def step(optimizer: Any, closure: Any = None) -> None:
        with torch.no_grad():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    state = optimizer.state[parameter]
                    if parameter.grad is not None and not state:
                        for name in ("first", "second"):
                            state[name] = torch.zeros_like(parameter, dtype=torch.uint8)

    light_step = torch.optim.Optimizer.profile_hook_step(step)

    def lighten(model: nn.Module) -> None:
        kinds = {type(thing) for thing in gc.get_objects() if issubclass(type(thing), torch.optim.Optimizer)}
        for kind in kinds:
            undo.callback(setattr, kind, "step", kind.step)
            setattr(kind, "step", light_step)  # noqa: B010

    _at_first_root(lighten, undo)


def _spill(undo: contextlib.ExitStack) -> None:
    """What autograd saves is copied to host memory and back: on the device it lives only while it is used."""

    def pack(tensor: torch.Tensor) -> Any:
        if tensor.is_cuda and not isinstance(tensor, nn.Parameter) and tensor.numel() > 1024:
            return tensor.shape, tensor.dtype, tensor.get_device()
        return tensor

    def unpack(packed: Any) -> torch.Tensor:
        if isinstance(packed, torch.Tensor):
            return packed
        shape, dtype, index = packed
        return torch.empty(shape, dtype=dtype, device=f"cuda:{index}")

    undo.enter_context(torch.autograd.graph.saved_tensors_hooks(pack, unpack))


def _freeze(undo: contextlib.ExitStack) -> None:
    """Only the last part of the model that has parameters is trained."""

    def freeze(model: nn.Module) -> None:
        parts = [child for child in model.children() if any(True for _ in child.parameters())]
        head = {id(parameter) for part in parts[-1:] for parameter in part.parameters()}
        for parameter in model.parameters():
            if id(parameter) not in head and len(parts) > 1:
                parameter.requires_grad_(False)

    _at_first_root(freeze, undo)


_ACTIONS: dict[Means, Callable[[contextlib.ExitStack], None]] = {
    Means.NONE: _nothing,
    Means.FUSED: _fused,
    Means.AUTOCAST: _autocast,
    Means.CHECKPOINT: _checkpoint,
    Means.LIGHTER_OPTIMIZER: _lighter,
    Means.SPILL: _spill,
    Means.FREEZE: _freeze,
}
