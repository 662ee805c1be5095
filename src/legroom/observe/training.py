"""Counts the steps of a training loop with torch's hooks on optimizers and loaders.

A training step ends with `optimizer.step()`. With several optimizers (a GAN), only the steps of the optimizer that
stepped first are counted. If another optimizer steps twice before the first optimizer steps again (as in layer-wise
training), the steps of the other optimizer are counted instead. Some programs run backward passes but have no
optimizer (manual updates). In these programs, a step ends when the model is called again, or at the end of the
program. In a program that never trains (inference), each batch that is followed by a call to a model counts as a step.
Batches alone are not counted, because some are prefetched. For example, accelerate prefetches one batch, and the
Transformers Trainer prefetches all batches of an accumulated step.
"""

import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import dataloader as _dataloader

from legroom.memory.event_base import Frame
from legroom.observe.compiled import not_compiled
from legroom.observe.creation_lines import follow_constructors, lines_of_loader, unfollow_constructors
from legroom.observe.dispatch.backward_engine import current_node
from legroom.observe.forward_passes import ForwardPasses
from legroom.observe.instances import find_instances
from legroom.observe.training_threads import register_training_thread

if TYPE_CHECKING:
    from legroom.memory.annotations import EvaluatedWithGradients


class _ThreadState(threading.local):
    in_optimizer = False
    in_loader = False


MAX_MODELS = MAX_STEPS = 1000


class TrainingClock:
    def __init__(
        self,
        *,
        on_step_end: Callable[[int, float], None] | None = None,
        on_optimizer: Callable[[torch.optim.Optimizer, bool], None] | None = None,
        on_batch: Callable[[Any], None] | None = None,
    ) -> None:
        """`on_step_end(step, seconds)` is called after each step. `on_optimizer(optimizer, done)` is called before and
        after each `optimizer.step()`. `on_batch(batch)` is called before a DataLoader returns a batch.
        """
        self.step = 0
        self._this_thread = _ThreadState()
        self.trains = False
        """Whether a backward pass or an optimizer step has run. From then on, batches are no longer counted as steps."""
        self.without_optimizer: bool | None = None
        """Whether the program trains without an optimizer. The value is None before the end of the first backward pass."""
        self.has_optimizer: Callable[[], bool] = has_optimizer
        """Returns whether an optimizer exists. This function is called only once, because it scans all objects."""
        self.optimizers: list[weakref.ref[torch.optim.Optimizer]] = []
        self.is_settled = True
        """False if an optimizer stepped for the first time in the last counted step. The first step of an optimizer is
        not typical, because it allocates the optimizer state.
        """
        self.batch_size: int | None = None
        self.samples: int | None = None
        self.loader_lines: list[Frame] = []
        """The user's lines that created the loader of the last batch, innermost first."""
        self.is_training: bool | None = None
        self.input_shapes: tuple[torch.Size, torch.Size] | None = None
        """The shapes of the first tensor argument in the first and the latest call of the most recently called
        model."""
        self.passes = ForwardPasses()
        self._first_shapes: dict[int, torch.Size] = {}
        self._optimizer_is_new = False
        self.on_step_end = on_step_end
        self._on_optimizer = on_optimizer
        self._on_batch = on_batch
        self._has_batch = False
        self._model_was_called = False
        self._went_backward = False
        self._counting_optimizer: weakref.ref[torch.optim.Optimizer] | None = None
        self._others: set[int] = set()
        """The `id`s of the optimizers, other than the counted optimizer, that have stepped since the last counted step.
        """
        self._step_started = time.perf_counter()
        self._handles: list[Any] = []
        self._original_next: Callable[[Any], Any] | None = None

    def attach(self, *, batches_only: bool = False) -> None:
        self._step_started = time.perf_counter()
        if not batches_only:
            follow_constructors()
            self._handles = [
                register_optimizer_step_pre_hook(not_compiled(self._before_optimizer)),
                register_optimizer_step_post_hook(not_compiled(self._after_optimizer)),
            ]
        self._wrap_loaders()

    def detach(self) -> None:
        if self._handles:
            unfollow_constructors()
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if self._original_next is not None:
            _loader_iterator().__next__ = self._original_next
            self._original_next = None

    @property
    def in_optimizer(self) -> bool:
        return self._this_thread.in_optimizer

    def went_backward(self) -> None:
        self.trains = self._went_backward = True
        self.passes.went_backward(self.step)

    def model_called(self, model: nn.Module, args: Iterable[Any] = ()) -> None:
        if self._this_thread.in_loader:
            return  # a transform of the dataset, such as `torchvision.transforms.Normalize`
        self._model_was_called = True
        if self.is_training is None or any(True for _ in model.parameters()):
            self.is_training = model.training  # a loss without parameters stays in training mode
        args = tuple(args)
        self.passes.model_called(model, args)
        shape = next((each.shape for each in args if isinstance(each, torch.Tensor)), None)
        if shape is None:
            self.input_shapes = None
        else:
            self.input_shapes = self._first_shapes.get(id(model), shape), shape
            if len(self._first_shapes) < MAX_MODELS:
                self._first_shapes.setdefault(id(model), shape)
        self.end_step_without_optimizer()

    def end_step_without_optimizer(self) -> None:
        """End the step if a backward pass has run in a program that trains without an optimizer. Call this method when
        the next step begins, and at the end of the program.
        """
        if self._went_backward and self._counting_optimizer is None and current_node() is None:
            self._went_backward = False
            if self.without_optimizer is None:
                self.without_optimizer = not self.has_optimizer()
            if self.without_optimizer:
                self._end_step()

    def evaluations_with_gradients(self, seconds: float) -> "Iterator[EvaluatedWithGradients]":
        """Return the evaluations with gradients so far. Call this method at the end of the program."""
        from legroom.memory.annotations import EvaluatedWithGradients  # `legroom.watch` does not need it

        self.passes.find_evaluations(self.step)
        for frame, steps in self.passes.evaluations.items():
            latest = tuple(sorted(steps)[-MAX_STEPS:])
            yield EvaluatedWithGradients(seconds, frame.file, frame.line, frame.function, latest)
        self.passes.evaluations.clear()

    def interrupted(self) -> None:
        """Reset the state after an exception. If the exception interrupted a backward pass or `optimizer.step()`, the
        post hook did not run.
        """
        self._this_thread.in_optimizer = self._went_backward = False

    def _before_optimizer(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        register_training_thread()
        self._this_thread.in_optimizer = self.trains = True
        if all(known() is not optimizer for known in self.optimizers):
            self.optimizers.append(weakref.ref(optimizer))
            self._optimizer_is_new = True
        self.passes.went_backward(
            self.step
        )  # some backward passes are not observed, such as those in compiled code
        if self._on_optimizer is not None:
            self._on_optimizer(optimizer, False)
        return self._with_closure_outside(args, kwargs)

    def _with_closure_outside(self, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """Wrap the closure of `optimizer.step(closure)`, so that its operations do not count as part of the optimizer
        step. Return the new arguments, or None if the step has no closure. A closure runs the forward and backward
        pass, for example in Lightning.
        """
        closure = kwargs.get("closure") if "closure" in kwargs else args[1] if len(args) > 1 else None
        if not callable(closure):
            return None

        def outside(*values: Any, **named: Any) -> Any:
            self._this_thread.in_optimizer = False
            result = closure(*values, **named)
            self._this_thread.in_optimizer = True
            return result

        if "closure" in kwargs:
            return args, {**kwargs, "closure": outside}
        return (args[0], outside, *args[2:]), kwargs

    def _after_optimizer(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._this_thread.in_optimizer = False
        if self._on_optimizer is not None:
            self._on_optimizer(optimizer, True)
        counting = None if self._counting_optimizer is None else self._counting_optimizer()
        if counting is None or id(optimizer) in self._others:
            self._counting_optimizer, self.without_optimizer = weakref.ref(optimizer), False
        elif counting is not optimizer:
            self._others.add(id(optimizer))
            return
        self._others.clear()
        self._end_step()

    def _wrap_loaders(self) -> None:
        """Wrap `__next__` of DataLoader iterators. If this version of torch lacks the private iterator class, inputs
        are recognized only when a model receives them, and a run without an optimizer has no steps.
        """
        iterator = _loader_iterator()
        if iterator is None:
            return
        original = self._original_next = iterator.__next__

        def wrapped(loader_iterator: Any) -> Any:
            outer, self._this_thread.in_loader = self._this_thread.in_loader, True
            try:
                batch = original(loader_iterator)
            except StopIteration:
                self._end_batch()
                raise
            finally:
                self._this_thread.in_loader = outer
            self.batch_size, self.samples = _batch_size(loader_iterator), _count_samples(batch)
            self.loader_lines = lines_of_loader(loader_iterator)
            self._batch(batch)
            return batch

        iterator.__next__ = wrapped

    def _batch(self, batch: Any) -> None:
        if self._on_batch is not None:
            self._on_batch(batch)
        self._end_batch()
        self._has_batch = True

    def _end_batch(self) -> None:
        if self._has_batch and self._model_was_called and not self.trains:
            self._end_step()
        self._model_was_called = False

    def _end_step(self) -> None:
        now = time.perf_counter()
        ended, self.step = self.step, self.step + 1
        self.is_settled, self._optimizer_is_new = not self._optimizer_is_new, False
        if self.on_step_end is not None:
            self.on_step_end(ended, now - self._step_started)
        self._step_started = time.perf_counter()


def has_optimizer() -> bool:
    return bool(live_optimizers())


def live_optimizers() -> list[torch.optim.Optimizer]:
    return find_instances((torch.optim.Optimizer,))


def _batch_size(loader_iterator: Any) -> int | None:
    """Return the batch size of a loader, or None if the loader does not batch the samples. The last batch may contain
    fewer samples.
    """
    size = getattr(getattr(loader_iterator, "_index_sampler", None), "batch_size", None)
    return size if type(size) is int else None


def _count_samples(batch: Any) -> int | None:
    while isinstance(batch, list | tuple | dict) and batch:
        batch = next(iter(batch.values() if isinstance(batch, dict) else batch))
    return batch.shape[0] if isinstance(batch, torch.Tensor) and batch.ndim else None


def _loader_iterator() -> Any:
    return getattr(_dataloader, "_BaseDataLoaderIter", None)
