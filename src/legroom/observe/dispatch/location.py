"""The location of the running operation: the user's line, the module and the training phase.

A backward operation has the location of its forward operation.
"""

import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from legroom.memory.event_base import Category, Phase
from legroom.observe.dispatch.attribution import (
    ENGINE,
    ForwardLocations,
    ModuleStack,
    OpLocation,
    located,
    user_frame,
)
from legroom.observe.dispatch.backward_engine import ACCUMULATE_GRAD, current_node
from legroom.observe.dispatch.categories import CategoryTracker
from legroom.observe.dispatch.operations import overloads
from legroom.observe.training import TrainingClock


class ThreadState:
    """The state of the operations that run on one thread. PyTorch numbers the autograd nodes of each thread separately."""

    __slots__ = ("forward_locations", "in_backward")

    def __init__(self) -> None:
        self.in_backward = False
        self.forward_locations = ForwardLocations()


class _Threads(threading.local):
    # Reading an attribute of a `threading.local` takes several times as long as reading one of a plain object.
    def __init__(self) -> None:
        self.state = ThreadState()


class OpLocator:
    def __init__(self, modules: ModuleStack, clock: TrainingClock, categories: CategoryTracker) -> None:
        self.threads = _Threads()
        self._modules = modules
        self._clock = clock
        self._categories = categories

    @property
    def in_backward(self) -> bool:
        return self.threads.state.in_backward

    def locate(self, args: Sequence[Any], depth: int) -> OpLocation:
        """Return the location of the running operation. `depth` is the number of stack frames from this method up to
        the caller of Legroom.
        """
        node = current_node()
        caller = sys._getframe(depth)
        state = self.threads.state
        modules = self._modules
        if node is not None:
            if not state.in_backward:
                state.in_backward = True
                self._clock.went_backward()
                self._categories.find_activations([node])
            # Most backward operations are written in C++: the engine is their innermost Python frame.
            frame, engine = (None, True) if caller.f_code is ENGINE else user_frame(caller)
            if engine and not modules.stack:
                forward = state.forward_locations.find(node)
                if forward is not None:
                    return located(forward.frame, forward.module, Phase.BACKWARD)
            if frame is None:
                frame, _ = user_frame(caller)
            location = located(frame, modules.path, Phase.BACKWARD)
            if torch.is_grad_enabled():  # recomputed for a checkpoint, so its own backward pass follows
                state.forward_locations.record(location)
            return location
        state.in_backward = False
        frame, _ = user_frame(caller)
        if modules.stack:
            location = located(frame, modules.path, Phase.FORWARD)
        elif self._clock.in_optimizer:
            return located(frame, "", Phase.OPTIMIZER)
        elif torch.is_grad_enabled() and _requires_grad(args):
            location = located(frame, "", Phase.FORWARD)
        else:
            return located(frame, "", Phase.OTHER)
        if torch.is_grad_enabled():
            state.forward_locations.record(location)
        return location

    def interrupted(self) -> None:
        """Reset the backward state after an exception, which may have ended a backward pass."""
        self.threads.state.in_backward = False

    @staticmethod
    def initial_category(func: Any, phase: Phase) -> Category:
        # `CategoryTracker` corrects this category when the tensor's purpose becomes known.
        if phase is Phase.BACKWARD:
            node = current_node()
            if node is not None and node._sequence_nr() >= ACCUMULATE_GRAD:
                return Category.GRADIENT
        elif phase is Phase.OTHER and id(func) in _FACTORIES:
            return Category.INPUT
        return Category.TEMPORARY


def _requires_grad(args: Iterable[Any]) -> bool:
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
