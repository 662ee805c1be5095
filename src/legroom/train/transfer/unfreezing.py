"""Gradually unfreezes a model. The head is trained first. Then one block after the other is unfrozen, starting at the
end of the model.

All blocks get their parameter groups at the start, so that schedulers and checkpoints include them. A frozen parameter
has no gradient, so the optimizer creates its state only in the first step that trains it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from legroom.errors import UsageError
from legroom.log import log
from legroom.train.transfer.freezing import ADAM_MOMENTS, unfreeze
from legroom.train.transfer.patterns import Patterns, selected
from legroom.units import format_size

MIN_STAGE_FRACTION = 0.01
"""The minimum number of parameters in a block, as a fraction of all frozen parameters. A smaller block is merged with
a neighboring block."""
MIN_STACK_FRACTION = 0.2
"""A module is split if at least this fraction of its parameters is in stacks of layers. The value is low, because a
large embedding may have most of the parameters.
"""


class GradualUnfreezing:
    """Unfreezes one more stage every `every_n_epochs` epochs. Call `unfreezing.at(epoch)` at the start of each epoch.

    `stages` contains names or patterns in the order of unfreezing. The default stages are the blocks of the model, the
    last block first. `options` contains options for the new parameter groups, such as `lr=1e-5`.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        stages: Sequence[Patterns] | None = None,
        *,
        every_n_epochs: int = 1,
        **options: Any,
    ) -> None:
        if every_n_epochs < 1:
            raise UsageError(f"every_n_epochs={every_n_epochs} is not valid. Pass 1 or more.")
        self.model = model
        self.stages: list[Patterns] = list(blocks(model) if stages is None else stages)
        self.stage = 0
        """The number of unfrozen stages."""
        self._every_n_epochs = every_n_epochs
        known = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for stage in self.stages:
            new = [parameter for parameter in selected(model, stage).values() if id(parameter) not in known]
            known |= {id(parameter) for parameter in new}
            if new:
                optimizer.add_param_group({"params": new, **options})

    def at(self, epoch: int) -> list[str]:
        """Unfreeze the stages that are scheduled for this epoch. The first epoch unfreezes no stage. Return the names
        of the newly trainable parameters."""
        return self._unfreeze_to(min(len(self.stages), epoch // self._every_n_epochs))

    def advance(self) -> list[str]:
        """Unfreeze the next stage now, and return the names of the newly trainable parameters."""
        return self._unfreeze_to(min(len(self.stages), self.stage + 1))

    def state_dict(self) -> dict[str, Any]:
        return {"stage": self.stage}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._unfreeze_to(min(len(self.stages), int(state["stage"])))

    def _unfreeze_to(self, stage: int) -> list[str]:
        new: list[str] = []
        while self.stage < stage:
            new += unfreeze(self.model, self.stages[self.stage])
            self.stage += 1
        if new:
            size = sum(self.model.get_parameter(name).nbytes for name in new)
            log.info(
                "Unfroze %d %s. This adds %s of gradients and Adam state, plus activations.",
                len(new), "parameter" if len(new) == 1 else "parameters", format_size((1 + ADAM_MOMENTS) * size),
            )  # fmt: skip
        return new


def blocks(model: nn.Module) -> list[tuple[str, ...]]:
    """Return the frozen blocks of the model, the last block first. A block is a layer in a stack of layers, or a module
    outside a stack. Small blocks are merged.
    """
    frozen = {id(parameter) for parameter in model.parameters() if not parameter.requires_grad}
    counted = frozen or {id(parameter) for parameter in model.parameters()}
    found: list[tuple[str, ...]] = []
    pending: tuple[str, ...] = ()
    for name in reversed(list(_parts(model, "", counted))):
        pending += (name,)
        if sum(_size(model.get_submodule(each), counted) for each in pending) >= MIN_STAGE_FRACTION * _size(
            model, counted
        ):
            found.append(pending)
            pending = ()
    if pending and found:
        found[-1] += pending
    return found


def _parts(module: nn.Module, prefix: str, counted: set[int]) -> Iterator[str]:
    for name, child in module.named_children():
        if _size(child, counted) == 0:
            continue
        if _is_stack(child):
            yield from (
                f"{prefix}{name}.{index}" for index, layer in child.named_children() if _size(layer, counted)
            )
        elif sum(_size(stack, counted) for stack in _stacks(child)) >= MIN_STACK_FRACTION * _size(
            child, counted
        ):
            yield from _parts(child, f"{prefix}{name}.", counted)
        else:
            yield prefix + name


def _stacks(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if _is_stack(child):
            yield child
        else:
            yield from _stacks(child)


def _is_stack(module: nn.Module) -> bool:
    return isinstance(module, nn.ModuleList | nn.Sequential) and len(module) > 1


def _size(module: nn.Module, counted: set[int]) -> int:
    return sum(parameter.numel() for parameter in module.parameters() if id(parameter) in counted)
