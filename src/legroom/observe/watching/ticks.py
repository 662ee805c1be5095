"""When a turn of the loop ends, for the leak detector.

An optimizer's step ends one. Batches of a loader end one where no optimizer steps: in evaluation, before or after
training; not within the batches whose gradients are accumulated, however many those are. A program that steps by
hand and has no loader is followed by its backward passes. Where there is none of the three, the calls of a model in evaluation
mode are the turns; of one in training mode they are not, for they may be the many parts of one step (an unrolled network, the
steps of an episode) whose backward pass is yet to come.
"""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from legroom.observe.watching.model_calls import ModelCalls


class Ticks:
    """Calls `on_tick` at the end of every turn, from `attach` to `detach`."""

    BACKWARDS_ALONE = 8
    """So many backward passes with neither optimizer nor loader: then they are the turns."""

    def __init__(
        self, on_tick: Callable[[], None], on_backward: Callable[[Any], None] = lambda what: None
    ) -> None:
        """`on_backward(what)` is called with what a backward pass starts from, unless it is `muted`."""
        self._on_backward = on_backward
        self.muted = False
        self.trains = False
        """Whether the turn that just ended trained: an optimizer or a backward pass ended it."""
        self.has_stepped = False
        self.by_calls = False
        """Whether calls of a model are the turns."""
        self.optimizers: list[weakref.ref[torch.optim.Optimizer]] = []
        self._on_tick = on_tick
        self._batches = 0
        self._batches_since_step = 0
        self._most_between_steps = 0
        self._backwards_since_step = 0
        self._handle: Any = None
        self._undo: Callable[[], None] | None = None
        self._calls = ModelCalls(self._model_called)

    def attach(self) -> None:
        if not self._knows_better():
            self._calls.attach()
        self._handle = register_optimizer_step_post_hook(self._stepped)
        self._follow_backward()

    def detach(self) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        if self._undo is not None:
            self._undo()
            self._undo = None
        self._calls.detach()

    def batch(self) -> None:
        """A loader is asked for its next batch: the turn with the one before is over."""
        self._batches += 1
        self._batches_since_step += 1
        if not self.has_stepped:
            due = self._batches > 1 and self._backwards_since_step == 0
        else:
            due = self._batches_since_step > 2 * self._most_between_steps + 2
        if due:
            self.trains = self.by_calls = False
            self._on_tick()

    def _stepped(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        first = self.optimizers[0]() if self.optimizers else None
        if all(known() is not optimizer for known in self.optimizers):
            self.optimizers = [known for known in self.optimizers if known() is not None]
            self.optimizers.append(weakref.ref(optimizer))
        if first is None or first is optimizer:
            self._most_between_steps = max(self._most_between_steps, min(self._batches_since_step, 64))
            self.trains = self.has_stepped = True
            self.by_calls = False
            self._batches_since_step = self._backwards_since_step = 0
            self._on_tick()

    def _backward_begins(self) -> None:
        self._backwards_since_step += 1
        if not self.has_stepped and self._backwards_since_step > self.BACKWARDS_ALONE:
            self.trains = True
            self.by_calls = False
            self._on_tick()

    def _model_called(self, model: nn.Module) -> None:
        if self._knows_better():
            self._calls.detach()
        elif not model.training:
            self.trains, self.by_calls = False, True
            self._on_tick()

    def _knows_better(self) -> bool:
        return self.has_stepped or self._batches > 1 or self._backwards_since_step > 0

    def _follow_backward(self) -> None:
        """Stands in front of `torch.autograd.backward`, which every `loss.backward()` calls by that name."""
        original = torch.autograd.backward

        def backward(*args: Any, **kwargs: Any) -> Any:
            self._backward_begins()
            if args and not self.muted:
                self._on_backward(args[0])
            return original(*args, **kwargs)

        def undo() -> None:
            if torch.autograd.backward is backward:
                torch.autograd.backward = original

        backward.__wrapped__ = original  # type: ignore[attr-defined]
        torch.autograd.backward = backward
        self._undo = undo
