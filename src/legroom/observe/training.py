"""Where the training loop is: optimizer steps and loader batches, from torch's own hooks.

A step ends when the optimizer has stepped. With several optimizers (a GAN), the one that stepped first is the
clock. A program that goes backward and has none (it changes its parameters by hand) has done a step when its model is called again. A
program that never trains (inference) counts the batches after which a model was called: some are fetched ahead, one by
accelerate, a whole accumulation's by the Trainer of transformers.
"""

import gc
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import dataloader as _dataloader

from legroom.observe.dispatch.backward_engine import current_node


class TrainingClock:
    """Counts steps and says whether an optimizer is at work; calls back at the moments that matter."""

    def __init__(
        self,
        *,
        on_step_end: Callable[[int, float], None] | None = None,
        on_optimizer: Callable[[torch.optim.Optimizer, bool], None] | None = None,
        on_batch: Callable[[Any], None] | None = None,
    ) -> None:
        """`on_step_end(step, seconds)` after each step; `on_optimizer(optimizer, done)` before and after each
        `optimizer.step()`; `on_batch(batch)` with what a DataLoader is about to hand out."""
        self.step = 0
        self.in_optimizer = False
        self.trains = False
        """Set once a backward pass or an optimizer step was seen: from then on, batches are no steps."""
        self.by_hand: bool | None = None
        """Whether the program trains without an optimizer; None before its first backward pass is over."""
        self.has_optimizer: Callable[[], bool] = has_optimizer
        """Asked once: it looks at all objects."""
        self.optimizers: list[weakref.ref[torch.optim.Optimizer]] = []
        self.on_step_end = on_step_end
        self._on_optimizer = on_optimizer
        self._on_batch = on_batch
        self._has_batch = False
        self._model_was_called = False
        self._went_backward = False
        self._clock: weakref.ref[torch.optim.Optimizer] | None = None
        self._began = time.perf_counter()
        self._handles: list[Any] = []
        self._original_next: Callable[[Any], Any] | None = None

    def attach(self) -> None:
        self._began = time.perf_counter()
        self._handles = [
            register_optimizer_step_pre_hook(self._before_optimizer),
            register_optimizer_step_post_hook(self._after_optimizer),
        ]
        self._follow_loaders()

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if self._original_next is not None:
            _loader_iterator().__next__ = self._original_next
            self._original_next = None

    def went_backward(self) -> None:
        """To be told when a backward pass begins."""
        self.trains = self._went_backward = True

    def model_called(self) -> None:
        """To be told when a model begins."""
        self._model_was_called = True
        if self._went_backward and self._clock is None and current_node() is None:
            self._went_backward = False
            if self.by_hand is None:
                self.by_hand = not self.has_optimizer()
            if self.by_hand:
                self._end_step()

    def interrupted(self) -> None:
        """An exception left `optimizer.step()` without its closing hook."""
        self.in_optimizer = False

    def _before_optimizer(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self.in_optimizer = self.trains = True
        if all(known() is not optimizer for known in self.optimizers):
            self.optimizers.append(weakref.ref(optimizer))
        if self._on_optimizer is not None:
            self._on_optimizer(optimizer, False)

    def _after_optimizer(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self.in_optimizer = False
        if self._on_optimizer is not None:
            self._on_optimizer(optimizer, True)
        if self._clock is None or self._clock() is None:
            self._clock, self.by_hand = weakref.ref(optimizer), False
        if self._clock() is optimizer:
            self._end_step()

    def _follow_loaders(self) -> None:
        """Stands in front of what every DataLoader iterator gives. Without torch's private iterator class,
        inputs are told by where they go, and a run without optimizer has no steps."""
        iterator = _loader_iterator()
        if iterator is None:
            return
        original = self._original_next = iterator.__next__

        def following(loader_iterator: Any) -> Any:
            try:
                batch = original(loader_iterator)
            except StopIteration:
                self._end_batch()
                raise
            self._batch(batch)
            return batch

        iterator.__next__ = following

    def _batch(self, batch: Any) -> None:
        if self._on_batch is not None:
            self._on_batch(batch)
        self._end_batch()
        self._has_batch = True

    def _end_batch(self) -> None:
        """The batch before, if any, is done with: a step, where a model saw it and nothing trains."""
        if self._has_batch and self._model_was_called and not self.trains:
            self._end_step()
        self._model_was_called = False

    def _end_step(self) -> None:
        now = time.perf_counter()
        ended, self.step = self.step, self.step + 1
        if self.on_step_end is not None:
            self.on_step_end(ended, now - self._began)
        self._began = time.perf_counter()


def has_optimizer() -> bool:
    """Whether one exists in this process."""
    return bool(optimizers_alive())


def optimizers_alive() -> list[torch.optim.Optimizer]:
    """All that this process has. Not one by one: a generator is among the objects that it goes through, so one that is left half-way would
    keep all of them until Python's next collection."""
    return [each for each in gc.get_objects() if issubclass(type(each), torch.optim.Optimizer)]


def _loader_iterator() -> Any:
    return getattr(_dataloader, "_BaseDataLoaderIter", None)
