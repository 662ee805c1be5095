"""When a turn of the loop ends, for the leak detector.

An optimizer's step ends one: the first optimizer's, or, where that one has stepped for the last time, another's. Batches of a loader end one where no optimizer steps: in evaluation, before or after
training; not within the batches whose gradients are accumulated, however many those are. A program that steps by
hand and has no loader is followed by its backward passes (`torch.autograd.grad` as well), at once where no optimizer exists. Where there is none of the three, the calls of a model in evaluation
mode are the turns; of one in training mode only where no optimizer exists, for they may be the many parts of one step (an unrolled
network, the steps of an episode) whose backward pass is yet to come.
"""

import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from legroom.memory.events import Frame
from legroom.observe.dispatch.attribution import user_frame
from legroom.observe.leaks.model_calls import ModelCalls
from legroom.observe.training import has_optimizer


class Ticks:
    """Calls `on_tick` at the end of every turn, from `attach` to `detach`."""

    BACKWARDS_ALONE = 8
    """So many backward passes with neither optimizer nor loader: then they are the turns."""
    BY_HAND = 3
    """After so many it is looked whether there is an optimizer at all."""
    STEPS_OF_OTHERS = 3
    """So many steps of other optimizers with none of the one that ends the turns: then another ends them."""
    TENURE = 8
    """Where optimizers come and go (one for each task), each ends one turn; one that steps more often than that is here to stay."""
    TRAINS_AFTER = 3
    """After so many steps, what an optimizer has is a model that is being trained."""
    CALLS_ALONE = 8
    """So are many calls of a model in training mode, with no backward pass."""

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
        self.by_hand = False
        """Whether there is no optimizer: each backward pass is then followed by a step of the program's own."""
        self.optimizers: list[weakref.ref[torch.optim.Optimizer]] = []
        self.trained: dict[int, weakref.ref[torch.Tensor]] = {}
        """`id` → each parameter of an optimizer that ended turns and stepped some times."""
        self._one_of_each: list[weakref.ref[torch.Tensor]] = []
        """... and one for each such optimizer."""
        self.graph_of_gradients: Frame | None = None
        """Where a backward pass was last asked to make gradients that have a graph themselves."""
        self._pacemaker: weakref.ref[torch.optim.Optimizer] | None = None
        self._steps_of_others = 0
        self._tenure = self._tenure_before = 0
        self._grads_with_graph = 0
        self._on_tick = on_tick
        self._batches = 0
        self._batches_since_step = 0
        self._most_between_steps = 0
        self._backwards_since_step = 0
        self._training_calls = 0
        self._is_untrained = False
        self._handle: Any = None
        self._undo: list[Callable[[], None]] = []
        self._calls = ModelCalls(self._model_called)
        self._evaluates = False
        """Whether the user has switched a model to evaluation, and nothing has trained or loaded anything since."""

    def attach(self) -> None:
        if not self._knows_better():
            self._calls.attach()
        self._handle = register_optimizer_step_post_hook(self._stepped)
        self._follow_backward()
        self._follow_evaluation()

    def detach(self) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        for undo in self._undo:
            undo()
        self._undo.clear()
        self._calls.detach()

    def batch(self) -> None:
        """A loader is asked for its next batch: the turn with the one before is over."""
        self._batches += 1
        self._batches_since_step += 1
        self._evaluates = False
        if not self.has_stepped:
            due = self._batches > 1 and self._backwards_since_step == 0
        else:
            due = self._batches_since_step > 2 * self._most_between_steps + 2
        if due:
            self.trains = self.by_calls = False
            self._on_tick()

    def _stepped(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        # After every step of every loop: what need not be done each time is not.
        if self._pacemaker is None or self._pacemaker() is not optimizer:
            self._meet(optimizer)
        if self._sets_the_pace(optimizer):
            if self._batches_since_step > self._most_between_steps:
                self._most_between_steps = min(self._batches_since_step, 64)
            self.trains = self.has_stepped = True
            self.by_calls = False
            self._batches_since_step = self._backwards_since_step = 0
            self._evaluates = False
            self._on_tick()

    def _meet(self, optimizer: torch.optim.Optimizer) -> None:
        if all(known() is not optimizer for known in self.optimizers):
            self.optimizers = [known for known in self.optimizers if known() is not None]
            self.optimizers.append(weakref.ref(optimizer))

    def _sets_the_pace(self, optimizer: torch.optim.Optimizer) -> bool:
        """Of several optimizers one ends the turns."""
        pacemaker = self._pacemaker() if self._pacemaker is not None else None
        if pacemaker is optimizer:
            self._steps_of_others = 0
            self._tenure += 1
            if self._tenure == self.TRAINS_AFTER:
                self._note_trained(optimizer)
            return self._tenure > self._tenure_before
        self._steps_of_others += 1
        if pacemaker is not None and self._steps_of_others < self.STEPS_OF_OTHERS:
            return False
        self._pacemaker, self._steps_of_others = weakref.ref(optimizer), 0
        self._tenure, self._tenure_before = 1, min(self._tenure, self.TENURE)
        return True

    def _note_trained(self, optimizer: torch.optim.Optimizer) -> None:
        alive = {key: reference for key, reference in self.trained.items() if reference() is not None}
        trained = (each for group in optimizer.param_groups for each in group["params"])
        newest = {id(each): weakref.ref(each) for each in trained}
        self.trained = alive | newest
        self._one_of_each += list(newest.values())[:1]

    @property
    def models_kept(self) -> int:
        """How many of the models that an optimizer of their own has trained are still there."""
        self._one_of_each = [reference for reference in self._one_of_each if reference() is not None]
        return len(self._one_of_each)

    def _backward_begins(self) -> None:
        self._backwards_since_step += 1
        self._grads_with_graph = 0
        self._evaluates = False
        if self.has_stepped:
            return
        if self._backwards_since_step == self.BY_HAND and self._batches < self.BY_HAND:
            self.by_hand = not has_optimizer()
        if self.by_hand or self._backwards_since_step > self.BACKWARDS_ALONE:
            self.trains = True
            self.by_calls = False
            self._on_tick()

    def _gradient_with_graph(self) -> None:
        """Mostly a part of a step whose backward pass is yet to come (a penalty, an inner loop); the step itself where nothing comes."""
        self._grads_with_graph += 1
        if self._grads_with_graph == self.BACKWARDS_ALONE:
            self.by_hand = self._batches < self.BY_HAND and not has_optimizer()
        if self.by_hand and self._grads_with_graph >= self.BACKWARDS_ALONE:
            self.trains, self.by_calls = True, False
            self._on_tick()

    def _model_called(self, model: nn.Module) -> None:
        if self._knows_better() and not (self._evaluates and not model.training):
            self._calls.detach()
        elif not model.training or self._trains_nothing():
            self.trains, self.by_calls = False, True
            self._on_tick()

    def _trains_nothing(self) -> bool:
        """Whether a model in training mode is called and called, and nothing could ever train it."""
        self._training_calls += 1
        if self._training_calls == self.CALLS_ALONE:
            self._is_untrained = not has_optimizer()
        return self._is_untrained

    def _knows_better(self) -> bool:
        return self.has_stepped or self._batches > 1 or self._backwards_since_step > 0

    def _follow_backward(self) -> None:
        """Stands in front of `torch.autograd.backward`, which every `loss.backward()` calls by that name, and of `grad`."""
        backward, grad = torch.autograd.backward, torch.autograd.grad

        def followed(*args: Any, **kwargs: Any) -> Any:
            self._backward_begins()
            if args and not self.muted:
                self._on_backward(args[0])
            if kwargs.get("create_graph") or (len(args) > 3 and args[3]):
                self.graph_of_gradients = user_frame(sys._getframe(1))[0]
            return backward(*args, **kwargs)

        def followed_grad(*args: Any, **kwargs: Any) -> Any:
            if not self.has_stepped and args:
                if not kwargs.get("create_graph"):
                    self._backward_begins()
                    self._on_backward(args[0])
                else:
                    self._gradient_with_graph()
            return grad(*args, **kwargs)

        def undo() -> None:
            if torch.autograd.backward is followed:
                torch.autograd.backward = backward
            if torch.autograd.grad is followed_grad:
                torch.autograd.grad = grad

        followed.__wrapped__, followed_grad.__wrapped__ = backward, grad  # type: ignore[attr-defined]
        torch.autograd.backward, torch.autograd.grad = followed, followed_grad
        self._undo.append(undo)

    def _follow_evaluation(self) -> None:
        """`model.eval()` calls `train(False)`: a loop that evaluates may follow, over no loader at all."""
        train = nn.Module.train

        def followed(module: nn.Module, mode: bool = True) -> nn.Module:
            if not mode and not self._evaluates:
                self._evaluates = True
                self._calls.attach()
            return train(module, mode)

        def undo() -> None:
            if nn.Module.train is followed:
                nn.Module.train = train  # type: ignore[method-assign]

        followed.__wrapped__ = train  # type: ignore[attr-defined]
        nn.Module.train = followed  # type: ignore[method-assign,assignment]
        self._undo.append(undo)
