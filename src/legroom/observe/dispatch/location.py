"""Where a program stands at the moment of an operation: the user's line, the module, the phase of training.

A backward operation stands where the forward one stood that it undoes, so forward places are left with the graph's nodes.
"""

import sys
from collections.abc import Sequence
from typing import Any

import torch

from legroom.memory.events import Category, Phase
from legroom.observe.dispatch.attribution import ModuleStack, Origins, Place, user_frame
from legroom.observe.dispatch.backward_engine import current_node
from legroom.observe.dispatch.categories import Roles
from legroom.observe.dispatch.operations import overloads
from legroom.observe.dispatch.storages import tensors_in
from legroom.observe.training import TrainingClock


class Whereabouts:
    """Follows one run."""

    def __init__(self, modules: ModuleStack, clock: TrainingClock, roles: Roles) -> None:
        self.in_backward = False
        """Whether the last operation was one of a backward pass."""
        self._modules = modules
        self._clock = clock
        self._roles = roles
        self._origins = Origins()

    def locate(self, args: Sequence[Any], depth: int) -> Place:
        """Where the operation in progress stands. `depth`: how many frames above this one are ours."""
        node = current_node()
        frame, engine = user_frame(sys._getframe(depth))
        modules = self._modules
        if node is not None:
            if not self.in_backward:
                self.in_backward = True
                self._clock.went_backward()
                self._roles.find_activations([node])
            if engine and not modules.stack:
                origin = self._origins.find(node)
                if origin is not None:
                    return Place(origin.frame, origin.module, Phase.BACKWARD)
            place = Place(frame, modules.path, Phase.BACKWARD)
            if torch.is_grad_enabled():  # recomputed for a checkpoint: its own backward follows
                self._origins.leave(place)
            return place
        self.in_backward = False
        if modules.stack:
            place = Place(frame, modules.path, Phase.FORWARD)
        elif self._clock.in_optimizer:
            return Place(frame, "", Phase.OPTIMIZER)
        elif torch.is_grad_enabled() and any(item.requires_grad for item in tensors_in(args)):
            place = Place(frame, "", Phase.FORWARD)
        else:
            return Place(frame, "", Phase.OTHER)
        if torch.is_grad_enabled():
            self._origins.leave(place)
        return place

    def nothing_was_made(self) -> None:
        """An operation without a result of its own: is the backward pass over?"""
        if self.in_backward and current_node() is None:
            self.in_backward = False

    @staticmethod
    def category_at_birth(func: Any, phase: Phase) -> Category:
        """The first guess; identity corrects it when it becomes known."""
        if phase is Phase.BACKWARD:
            node = current_node()
            if node is not None and "AccumulateGrad" in node.name():
                return Category.GRADIENT
        elif phase is Phase.OTHER and id(func) in _FACTORIES:
            return Category.INPUT
        return Category.TEMPORARY


_FACTORIES = overloads(
    "empty", "empty_strided", "zeros", "ones", "full", "rand", "randn", "randint", "randperm", "arange", "linspace",
    "logspace", "eye", "normal", "scalar_tensor", "tril_indices", "triu_indices", "_to_copy", "clone", "lift_fresh",
)  # fmt: skip
