"""Means of saving memory, put to a traced run from outside so that each can be re-traced."""

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.checkpoint import checkpoint

from legroom.predict.options.names import Means
from legroom.predict.tracing.pause_gc import living


class DoesNotApply(Exception):  # noqa: N818
    """Raised inside a run that a means would not change: there is nothing to trace."""


def _say_so() -> NoReturn:
    raise DoesNotApply


@contextlib.contextmanager
def in_force(*means: Means, refuse: Callable[[], NoReturn] = _say_so) -> Iterator[None]:
    """All of `means` hold for everything that runs inside. Where one would change nothing, `refuse` is called."""
    with _Undo() as undo:
        undo.refuse = refuse
        for one in means:
            _ACTIONS[one](undo)
        yield


class _Undo(contextlib.ExitStack):
    """What takes a means back, and what to call if it does not apply."""

    refuse: Callable[[], NoReturn]


def _at_first_root(act: Callable[[nn.Module], None], undo: _Undo) -> None:
    """Do something to the model when its first forward pass begins."""
    done: list[bool] = []

    def first(module: nn.Module, args: Any) -> None:
        if not done and any(True for _ in module.parameters()):
            done.append(True)
            act(module)

    undo.callback(nn.modules.module.register_module_forward_pre_hook(first).remove)


def _at_first_step(act: Callable[[list[dict[str, Any]]], None], undo: _Undo) -> None:
    """Do something to the parameter groups of every optimizer before it steps for the first time."""
    done: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()

    def before(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if optimizer not in done:
            done.add(optimizer)
            act(optimizer.param_groups)

    undo.callback(register_optimizer_step_pre_hook(before).remove)


def _fused(undo: _Undo) -> None:
    """Optimizers that have a fused form use it: no temporaries beside the parameters."""

    def fuse(groups: list[dict[str, Any]]) -> None:
        if all(group.get("fused", True) or group.get("foreach") is False for group in groups):
            undo.refuse()
        for group in groups:
            group["fused"], group["foreach"] = True, False

    _at_first_step(fuse, undo)


def _loop(undo: _Undo) -> None:
    """Optimizers without a fused form take one parameter at a time: temporaries of one, not of all."""

    def unroll(groups: list[dict[str, Any]]) -> None:
        if all("fused" in group or group.get("foreach", False) is False for group in groups):
            undo.refuse()
        for group in groups:
            group["foreach"] = False

    _at_first_step(unroll, undo)


def _autocast(undo: _Undo) -> None:
    """The forward pass of whichever model is called runs under bf16 autocast."""
    contexts: list[Any] = []
    depth = [0]

    def enter(module: nn.Module, args: Any) -> None:
        if depth[0] == 0:
            if torch.is_autocast_enabled("cuda"):
                undo.refuse()
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
    """Each repeated block of the model keeps only its input and is run again in the backward pass."""

    def wrap(model: nn.Module) -> None:
        blocks = repeated_blocks(model)
        if not blocks:
            undo.refuse()
        for block in blocks:
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


def _lighter(undo: _Undo) -> None:
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
        kinds = {type(optimizer) for optimizer in living(torch.optim.Optimizer)}
        for kind in kinds:
            undo.callback(setattr, kind, "step", kind.step)
            setattr(kind, "step", light_step)  # noqa: B010

    _at_first_root(lighten, undo)


def _spill(undo: _Undo) -> None:
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


def _freeze(undo: _Undo) -> None:
    """Only the last part of the model that has parameters is trained."""

    def freeze(model: nn.Module) -> None:
        parts = [child for child in model.children() if any(True for _ in child.parameters())]
        if len(parts) < 2:
            undo.refuse()
        head = {id(parameter) for part in parts[-1:] for parameter in part.parameters()}
        for parameter in model.parameters():
            if id(parameter) not in head:
                parameter.requires_grad_(False)

    _at_first_root(freeze, undo)


_ACTIONS: dict[Means, Callable[[_Undo], None]] = {
    Means.FUSED: _fused,
    Means.LOOP: _loop,
    Means.AUTOCAST: _autocast,
    Means.CHECKPOINT: _checkpoint,
    Means.LIGHTER_OPTIMIZER: _lighter,
    Means.SPILL: _spill,
    Means.FREEZE: _freeze,
}
