"""The location of the running operation: the user's line, the module and the training phase.

A backward operation gets the location of the forward operation that it differentiates.
"""

import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from legroom.memory.events import Category, Phase
from legroom.observe.dispatch.attribution import (
    ForwardLocations,
    ModuleStack,
    OpLocation,
    located,
    user_frame,
)
from legroom.observe.dispatch.backward_engine import current_node
from legroom.observe.dispatch.categories import CategoryTracker
from legroom.observe.dispatch.operations import overloads
from legroom.observe.training import TrainingClock


class OpLocator(threading.local):
    """Locates the operations of one run. Each thread has its own state, because torch numbers the nodes of each thread
    separately."""

    def __init__(self, modules: ModuleStack, clock: TrainingClock, categories: CategoryTracker) -> None:
        self.in_backward = False
        """Whether the last operation was part of a backward pass."""
        self._modules = modules
        self._clock = clock
        self._categories = categories
        self._forward_locations = ForwardLocations()

    def locate(self, args: Sequence[Any], depth: int) -> OpLocation:
        """The location of the running operation. `depth` is the number of Legroom frames above this one."""
        node = current_node()
        frame, engine = user_frame(sys._getframe(depth))
        modules = self._modules
        if node is not None:
            if not self.in_backward:
                self.in_backward = True
                self._clock.went_backward()
                self._categories.find_activations([node])
            if engine and not modules.stack:
                forward = self._forward_locations.find(node)
                if forward is not None:
                    return located(forward.frame, forward.module, Phase.BACKWARD)
            location = located(frame, modules.path, Phase.BACKWARD)
            if torch.is_grad_enabled():  # recomputed for a checkpoint, so its own backward follows
                self._forward_locations.record(location)
            return location
        self.in_backward = False
        if modules.stack:
            location = located(frame, modules.path, Phase.FORWARD)
        elif self._clock.in_optimizer:
            return located(frame, "", Phase.OPTIMIZER)
        elif torch.is_grad_enabled() and _requires_grad(args):
            location = located(frame, "", Phase.FORWARD)
        else:
            return located(frame, "", Phase.OTHER)
        if torch.is_grad_enabled():
            self._forward_locations.record(location)
        return location

    def no_allocation(self) -> None:
        """Check whether the backward pass has ended. Call this method after an operation that allocated nothing."""
        if self.in_backward and current_node() is None:
            self.in_backward = False

    @staticmethod
    def initial_category(func: Any, phase: Phase) -> Category:
        """The initial category of a tensor. `CategoryTracker` corrects it when the tensor's purpose becomes known."""
        if phase is Phase.BACKWARD:
            node = current_node()
            if node is not None and "AccumulateGrad" in node.name():
                return Category.GRADIENT
        elif phase is Phase.OTHER and id(func) in _FACTORIES:
            return Category.INPUT
        return Category.TEMPORARY


def _requires_grad(args: Iterable[Any]) -> bool:
    """Whether a tensor among the arguments requires a gradient."""
    for item in args:
        if isinstance(item, torch.Tensor):
            if item.requires_grad:
                return True
        elif isinstance(item, (list, tuple)):
            if _requires_grad(item):
                return True
        elif isinstance(item, Mapping) and _requires_grad(item.values()):
            return True
    return False


_FACTORIES = overloads(
    "empty", "empty_strided", "zeros", "ones", "full", "rand", "randn", "randint", "randperm", "arange", "linspace",
    "logspace", "eye", "normal", "scalar_tensor", "tril_indices", "triu_indices", "_to_copy", "clone", "lift_fresh",
)  # fmt: skip
