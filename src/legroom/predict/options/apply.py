"""Applies memory-saving options to a traced run without changing its code."""

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.checkpoint import checkpoint

from legroom.predict.options.names import MemoryOption
from legroom.predict.tracing.pause_gc import instances_of


class OptionHasNoEffect(Exception):  # noqa: N818
    """Raised during a run if an option has no effect on the run."""


def _raise_no_effect() -> NoReturn:
    raise OptionHasNoEffect


@contextlib.contextmanager
def applied(*options: MemoryOption, no_effect: Callable[[], NoReturn] = _raise_no_effect) -> Iterator[None]:
    """Apply `options` to all code that runs inside the `with` block. `no_effect` is called if an option has no effect."""
    with _Undo() as undo:
        undo.no_effect = no_effect
        for option in options:
            _APPLY[option](undo)
        yield


class _Undo(contextlib.ExitStack):
    no_effect: Callable[[], NoReturn]


def _at_first_forward(act: Callable[[nn.Module], None], undo: _Undo) -> None:
    """Call `act` with the model when its first forward pass starts."""
    done: list[bool] = []

    def first(module: nn.Module, args: Any) -> None:
        if not done and any(True for _ in module.parameters()):
            done.append(True)
            act(module)

    undo.callback(nn.modules.module.register_module_forward_pre_hook(first).remove)


def _at_first_step(act: Callable[[list[dict[str, Any]]], None], undo: _Undo) -> None:
    """Call `act` with the parameter groups of each optimizer, just before its first step."""
    done: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()

    def before(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if optimizer not in done:
            done.add(optimizer)
            act(optimizer.param_groups)

    undo.callback(register_optimizer_step_pre_hook(before).remove)


def _fused(undo: _Undo) -> None:
    """Make optimizers use their fused implementation, if they have one, because it allocates no temporary tensors."""

    def fuse(groups: list[dict[str, Any]]) -> None:
        if all(group.get("fused", True) or group.get("foreach") is False for group in groups):
            undo.no_effect()
        for group in groups:
            group["fused"], group["foreach"] = True, False

    _at_first_step(fuse, undo)


def _for_loop(undo: _Undo) -> None:
    """Make optimizers without a fused implementation update one parameter at a time. The temporary tensors are then as
    large as one parameter, not as large as all parameters together.
    """

    def use_for_loop(groups: list[dict[str, Any]]) -> None:
        if all("fused" in group or group.get("foreach", False) is False for group in groups):
            undo.no_effect()
        for group in groups:
            group["foreach"] = False

    _at_first_step(use_for_loop, undo)


def _autocast(undo: _Undo) -> None:
    contexts: list[Any] = []
    depth = [0]

    def enter(module: nn.Module, args: Any) -> None:
        if depth[0] == 0:
            if torch.is_autocast_enabled("cuda"):
                undo.no_effect()
            contexts.append(torch.autocast("cuda", torch.bfloat16))
            contexts[-1].__enter__()
        depth[0] += 1

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        depth[0] -= 1
        if depth[0] == 0 and contexts:
            contexts.pop().__exit__(None, None, None)

    undo.callback(nn.modules.module.register_module_forward_pre_hook(enter).remove)
    undo.callback(nn.modules.module.register_module_forward_hook(leave, always_call=True).remove)


def _checkpoint(undo: _Undo) -> None:
    """Make each repeated block of the model save only its input, and recompute its other activations in the backward
    pass.
    """

    def wrap(model: nn.Module) -> None:
        blocks = repeated_blocks(model)
        if not blocks:
            undo.no_effect()
        for block in blocks:
            forward = block.forward

            def checkpointed(*args: Any, _forward: Any = forward, **kwargs: Any) -> Any:
                if not torch.is_grad_enabled():
                    return _forward(*args, **kwargs)
                return checkpoint(_forward, *args, use_reentrant=False, **kwargs)

            block.forward = checkpointed

    _at_first_forward(wrap, undo)


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """Return those items of the model's outermost module lists that have parameters."""
    if isinstance(model, nn.ModuleList | nn.Sequential):
        blocks = [block for block in model if any(True for _ in block.parameters())]
        if len(blocks) > 1:
            return blocks
    return [block for child in model.children() for block in repeated_blocks(child)]


def _eight_bit_optimizer(undo: _Undo) -> None:
    """Replace the step of every optimizer. Like 8-bit Adam, the new step has two state tensors with one byte per
    parameter and no temporary tensors.
    """

    def step(optimizer: Any, closure: Any = None) -> None:
        with torch.no_grad():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    state = optimizer.state[parameter]
                    if parameter.grad is not None and not state:
                        for name in ("first", "second"):
                            state[name] = torch.zeros_like(parameter, dtype=torch.uint8)

    eight_bit_step = torch.optim.Optimizer.profile_hook_step(step)

    def replace_steps(model: nn.Module) -> None:
        kinds = {type(optimizer) for optimizer in instances_of(torch.optim.Optimizer)}
        for kind in kinds:
            undo.callback(setattr, kind, "step", kind.step)
            setattr(kind, "step", eight_bit_step)  # noqa: B010

    _at_first_forward(replace_steps, undo)


def _spill(undo: _Undo) -> None:
    """Move the tensors that autograd saves for the backward pass to host memory, and copy them back when they are used."""

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


def _freeze(undo: _Undo) -> None:
    """Freeze all parameters except those of the last child module that has parameters."""

    def freeze(model: nn.Module) -> None:
        children = [child for child in model.children() if any(True for _ in child.parameters())]
        if len(children) < 2:
            undo.no_effect()
        head = {id(parameter) for parameter in children[-1].parameters()}
        for parameter in model.parameters():
            if id(parameter) not in head:
                parameter.requires_grad_(False)

    _at_first_forward(freeze, undo)


_APPLY: dict[MemoryOption, Callable[[_Undo], None]] = {
    MemoryOption.FUSED: _fused,
    MemoryOption.FOR_LOOP: _for_loop,
    MemoryOption.AUTOCAST: _autocast,
    MemoryOption.CHECKPOINT: _checkpoint,
    MemoryOption.EIGHT_BIT_OPTIMIZER: _eight_bit_optimizer,
    MemoryOption.SPILL: _spill,
    MemoryOption.FREEZE: _freeze,
}
