"""Gradual unfreezing: the head learns first, then one block after the other from the end, each with its own share of
memory when its turn comes.

All blocks get their parameter groups at once, so that schedulers and checkpoints know them from the start. A frozen
parameter costs an optimizer nothing: it has no gradient, so it is passed over, and its state is made in the first step
that trains it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from legroom.errors import UsageError
from legroom.log import log
from legroom.train.transfer.freezing import MOMENTS, unfreeze
from legroom.train.transfer.patterns import Patterns, selected
from legroom.units import format_size

SMALL = 0.01
"""Of what is frozen: a smaller part is no stage of its own."""
STACKED = 0.2
"""Of a part: one with that much in stacks of layers is taken apart. The rest may be a large embedding."""


class GradualUnfreezing:
    """One stage more every `every` epochs: `unfreezing.at(epoch)` at the beginning of each.

    `stages`: names or patterns, what is unfrozen first comes first; by default the model's blocks, the last one first.
    `options`: of the new parameter groups, `lr=1e-5` for example.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        stages: Sequence[Patterns] | None = None,
        *,
        every: int = 1,
        **options: Any,
    ) -> None:
        if every < 1:
            raise UsageError(f"every={every} epochs is never: give 1 or more")
        self.model = model
        self.stages: list[Patterns] = list(blocks(model) if stages is None else stages)
        self.stage = 0
        """How many stages are unfrozen."""
        self._every = every
        known = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for stage in self.stages:
            new = [parameter for parameter in selected(model, stage).values() if id(parameter) not in known]
            known |= {id(parameter) for parameter in new}
            if new:
                optimizer.add_param_group({"params": new, **options})

    def at(self, epoch: int) -> list[str]:
        """Unfreeze what is due at this epoch: none in the first. The names of the parameters that are new."""
        return self._to(min(len(self.stages), epoch // self._every))

    def advance(self) -> list[str]:
        """Unfreeze the next stage now."""
        return self._to(min(len(self.stages), self.stage + 1))

    def state_dict(self) -> dict[str, Any]:
        return {"stage": self.stage}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._to(min(len(self.stages), int(state["stage"])))

    def _to(self, stage: int) -> list[str]:
        new: list[str] = []
        while self.stage < stage:
            new += unfreeze(self.model, self.stages[self.stage])
            self.stage += 1
        if new:
            size = sum(self.model.get_parameter(name).nbytes for name in new)
            log.info(
                "%d parameters are trained from now on: %s more for gradients and Adam's state, and their activations.",
                len(new), format_size((1 + MOMENTS) * size),
            )  # fmt: skip
        return new


def blocks(model: nn.Module) -> list[tuple[str, ...]]:
    """The model's frozen blocks, the last ones first: layers of stacks, and other parts. Small ones go with a neighbour."""
    frozen = {id(parameter) for parameter in model.parameters() if not parameter.requires_grad}
    wanted = frozen or {id(parameter) for parameter in model.parameters()}
    found: list[tuple[str, ...]] = []
    waiting: tuple[str, ...] = ()
    for name in reversed(list(_parts(model, "", wanted))):
        waiting += (name,)
        if sum(_size(model.get_submodule(one), wanted) for one in waiting) >= SMALL * _size(model, wanted):
            found.append(waiting)
            waiting = ()
    if waiting and found:
        found[-1] += waiting
    return found


def _parts(module: nn.Module, prefix: str, wanted: set[int]) -> Iterator[str]:
    """Names of blocks, in the order in which they were made. What has stacks of layers in it is taken apart."""
    for name, child in module.named_children():
        if _size(child, wanted) == 0:
            continue
        if _is_stack(child):
            yield from (
                f"{prefix}{name}.{one}" for one, layer in child.named_children() if _size(layer, wanted)
            )
        elif sum(_size(stack, wanted) for stack in _stacks(child)) >= STACKED * _size(child, wanted):
            yield from _parts(child, f"{prefix}{name}.", wanted)
        else:
            yield prefix + name


def _stacks(module: nn.Module) -> Iterator[nn.Module]:
    """The outermost stacks below a module."""
    for child in module.children():
        if _is_stack(child):
            yield child
        else:
            yield from _stacks(child)


def _is_stack(module: nn.Module) -> bool:
    return isinstance(module, nn.ModuleList | nn.Sequential) and len(module) > 1


def _size(module: nn.Module, wanted: set[int]) -> int:
    return sum(parameter.numel() for parameter in module.parameters() if id(parameter) in wanted)
