"""Detects when an iteration of the user's loop ends, for the leak detector.

In training, an iteration ends with a step of the optimizer that stepped first. If this optimizer no longer steps, an
iteration ends with a step of another optimizer.

In evaluation, an iteration ends when the next batch of a loader is requested, but not between the batches of one
accumulated step.

If the program updates its parameters without an optimizer and has no loader, an iteration ends with a backward pass. If
no optimizer exists at all, the first backward pass already ends an iteration. A call to `torch.autograd.grad` ends an
iteration only if no optimizer exists and the program runs no backward pass. Otherwise, the call is part of a step that
ends later (the inner loop of MAML).

In all other programs, an iteration ends with a call to a model in evaluation mode. Calls in training mode end an
iteration only if no optimizer exists, or if gradients are disabled after training. If an optimizer exists, several
calls may belong to one step whose backward pass comes later (an unrolled network, an episode).

Only the loop of the first thread that trains is watched. While this thread is alive, optimizer steps, loader batches
and model calls on other threads are ignored. If no thread trains, the calls to a model on all threads are iterations,
for example in the workers of a server.
"""

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from legroom.observe.backward_starts import observe_backward
from legroom.observe.compiled import not_compiled
from legroom.observe.tensor_reference import TensorReference
from legroom.observe.training import has_optimizer
from legroom.observe.training_threads import inference_threads, register_training_thread, thread_serial

if TYPE_CHECKING:
    from legroom.memory.event_base import Frame


class IterationTracker:
    """Calls `on_iteration` at the end of every iteration, from `attach` to `detach`."""

    BACKWARDS_ALONE = 8
    """After this many backward passes with no optimizer step and no loader, each backward pass ends an iteration."""
    BACKWARDS_BEFORE_CHECK = 3
    """The number of backward passes after which the tracker checks whether an optimizer exists."""
    STEPS_OF_OTHERS = 3
    """After this many steps of other optimizers without a step of the main optimizer, another optimizer becomes the
    main optimizer.
    """
    MAX_PREVIOUS_STEPS = 8
    """When an optimizer becomes the main optimizer, its steps end iterations only after it has made more steps than
    the previous main optimizer, or more than this many steps. If the program often creates a new optimizer (one per
    task), each optimizer therefore ends only one iteration.
    """
    TRAINED_AFTER = 3
    """After this many steps, the parameters of an optimizer are treated as a trained model."""
    MAX_GROUPS = 16
    """A program that adds parameters to an optimizer, up to this many parameter groups, lets its model grow on purpose."""
    CALLS_ALONE = 8
    """After this many calls to a model in training mode without a backward pass, the tracker checks whether an
    optimizer exists.
    """

    def __init__(
        self,
        on_iteration: Callable[[], None],
        on_backward: Callable[[Any], None] = lambda root: None,
        on_thread_change: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_backward(root)` is called with the tensor from which a backward pass starts, unless `ignores_backward` is
        set. `on_thread_change()` is called when the tracker switches to another thread's loop.
        """
        self._on_backward = on_backward
        self._on_thread_change = on_thread_change
        self._loop_serial = 0
        """The serial number of the thread whose loop is watched, or 0 before the first step, batch or call."""
        self._loop_thread: weakref.ref[threading.Thread] | None = None
        self._loop_trains = False
        self.ignores_backward = False
        self.trains = False
        """True if the last iteration ended with an optimizer step or a backward pass."""
        self.has_stepped = False
        self.corrections = 0
        """How often the tracker found that the iterations so far were only parts of a step."""
        self.by_model_calls = False
        self.by_lines = False
        """True if repeated lines mark the iterations, because the program has no model, optimizer or loader."""
        self.calls_on_several_threads = False
        """True if several threads have called the model or run the repeated lines."""
        self.without_optimizer = False
        """True if no optimizer exists, because the program updates the parameters itself after each backward pass."""
        self.optimizers: list[weakref.ref[torch.optim.Optimizer]] = []
        self._trained: dict[int, weakref.ref[torch.Tensor]] = {}
        """The parameters of all main optimizers that had made `TRAINED_AFTER` steps, by `id`."""
        self._one_per_model: list[weakref.ref[torch.Tensor]] = []
        self.create_graph_line: Frame | None = None
        self._main_optimizer: weakref.ref[torch.optim.Optimizer] | None = None
        self._steps_of_others = 0
        self._main_steps = self._previous_main_steps = 0
        self._grads_with_graph = self._grads = 0
        self._are_grads_parts = False
        """True if calls to `torch.autograd.grad` are only parts of a step."""
        self._on_iteration = on_iteration
        self._batches = 0
        self._batches_since_step = 0
        self._most_batches_per_step = 0
        self._backwards_since_step = 0
        self._training_calls = 0
        self._is_untrained = False
        self._handle: Any = None
        self._undo: list[Callable[[], None]] = []
        self._calls = _ModelCalls(self._model_called)
        self._evaluates = False
        """True while the program runs an evaluation. An evaluation starts with `model.eval()`, or when gradients are
        disabled more than twice as often as in a training step. An evaluation ends with the next backward pass,
        optimizer step or batch.
        """
        self._without_grad = self._max_without_grad = 0
        """`_without_grad` counts how often gradients were disabled between the last step and the next backward pass.
        `_max_without_grad` is the highest count so far.
        """

    def attach(self) -> None:
        if not self._has_better_signal():
            self._calls.attach()
        self._handle = register_optimizer_step_post_hook(not_compiled(self._stepped))
        self._undo.append(observe_backward(self._before_backward, self._before_grad))
        self._wrap_train()
        self._wrap_no_grad(torch.no_grad)
        self._wrap_no_grad(torch.inference_mode)
        self._wrap_compile()

    def detach(self) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        for undo in self._undo:
            undo()
        self._undo.clear()
        self._calls.detach()

    def next_batch(self) -> None:
        """Record that the program requests the next batch from a loader, which may end the iteration of the previous
        batch.
        """
        is_in_loop = self._is_in_loop(trains=False)
        self._batches += 1
        self._batches_since_step += 1
        self._evaluates = False
        if not is_in_loop:  # a thread that only loads data
            return
        if not self.has_stepped:
            due = self._batches > 1 and self._backwards_since_step == 0
        else:
            due = self._batches_since_step > 2 * self._most_batches_per_step + 2
        if due:
            self.trains = self.by_model_calls = False
            self._on_iteration()

    def line_repeated(self) -> bool:
        """Record that a loop without a model starts its next iteration. Return False if a model, an optimizer or a
        loader marks the iterations more reliably.
        """
        if self._has_better_signal() or self._calls.has_model:
            return False
        if self._is_call_in_loop():
            self.trains, self.by_model_calls, self.by_lines = False, True, True
            self._on_iteration()
            self.by_model_calls = self.by_lines = False
        return True

    @property
    def has_only_batches(self) -> bool:
        """True if only the items of a loader or of `legroom.watch` mark the iterations, because the program has called
        no model and no optimizer.
        """
        has_others = self.has_stepped or self._backwards_since_step > 0 or self._calls.has_model
        return self._batches > 1 and not (has_others or self._calls.is_disabled)

    @property
    def numbers_nodes(self) -> bool:
        """True if the sequence number of an autograd node shows in which iteration the node was created. PyTorch
        numbers the nodes of each thread separately, so this is False if several threads create nodes.
        """
        return not (self.by_lines or (self.by_model_calls and self.calls_on_several_threads))

    @property
    def has_better_signal(self) -> bool:
        """True if repeated lines are ignored, because a model, an optimizer or a loader marks the end of an iteration,
        or because the program uses `torch.compile`.
        """
        return self._has_better_signal() or self._calls.has_model or self._calls.is_disabled

    def _stepped(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        # Runs after every step of every loop, so it does as little as possible.
        if not self._is_in_loop(trains=True):
            return
        if self._main_optimizer is None or self._main_optimizer() is not optimizer:
            self._add_optimizer(optimizer)
        if self._ends_iteration(optimizer):
            if self._batches_since_step > self._most_batches_per_step:
                self._most_batches_per_step = min(self._batches_since_step, 64)
            self.corrections += not self.has_stepped
            self.trains = self.has_stepped = True
            self.by_model_calls = False
            self._batches_since_step = self._backwards_since_step = 0
            self._evaluates = False
            self._max_without_grad = max(self._without_grad, self._max_without_grad)
            self._without_grad = 0
            self._on_iteration()

    def _is_in_loop(self, *, trains: bool) -> bool:
        """Return whether a step, batch or call on the calling thread belongs to the watched loop. `trains` is set for a
        backward pass or an optimizer step.
        """
        if trains:
            register_training_thread()
        serial = thread_serial()
        if serial != self._loop_serial:
            loop = self._loop_thread() if self._loop_thread is not None else None
            if loop is not None and loop.is_alive() and (self._loop_trains or not trains):
                return False
            is_first = not self._loop_serial
            self._loop_serial, self._loop_thread = serial, weakref.ref(threading.current_thread())
            self._loop_trains = False
            if not is_first:
                self._on_thread_change()
        self._loop_trains = self._loop_trains or trains
        return True

    def _is_call_in_loop(self) -> bool:
        serial = thread_serial()
        if self._loop_trains or self._batches or serial == self._loop_serial or not self._loop_serial:
            return self._is_in_loop(trains=False)
        self.calls_on_several_threads = True
        return True

    def _add_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        if all(known() is not optimizer for known in self.optimizers):
            self.optimizers = [known for known in self.optimizers if known() is not None]
            self.optimizers.append(weakref.ref(optimizer))

    def _ends_iteration(self, optimizer: torch.optim.Optimizer) -> bool:
        """Return whether a step of this optimizer ends an iteration. Only the steps of the main optimizer end
        iterations. This call may choose a new main optimizer.
        """
        main = self._main_optimizer() if self._main_optimizer is not None else None
        if main is optimizer:
            self._steps_of_others = 0
            self._main_steps += 1
            if self._main_steps == self.TRAINED_AFTER:
                self._note_trained(optimizer)
            return self._main_steps > self._previous_main_steps
        self._steps_of_others += 1
        if main is not None and self._steps_of_others < self.STEPS_OF_OTHERS:
            return False
        self._main_optimizer, self._steps_of_others = weakref.ref(optimizer), 0
        self._main_steps, self._previous_main_steps = 1, min(self._main_steps, self.MAX_PREVIOUS_STEPS)
        return True

    def _note_trained(self, optimizer: torch.optim.Optimizer) -> None:
        alive = {key: reference for key, reference in self._trained.items() if reference() is not None}
        trained = (each for group in optimizer.param_groups for each in group["params"])
        newest = {id(each): TensorReference(each) for each in trained}
        self._trained = alive | newest
        self._one_per_model += list(newest.values())[:1]

    @property
    def trained(self) -> dict[int, weakref.ref[torch.Tensor]]:
        """The parameters of all main optimizers that have made `TRAINED_AFTER` steps, by `id`. Parameters that the
        program added to such an optimizer later are included, as in progressive growing.
        """
        found = dict(self._trained)
        for optimizer in filter(None, (reference() for reference in self.optimizers)):
            first, *added = optimizer.param_groups
            if len(added) < self.MAX_GROUPS and any(id(each) in self._trained for each in first["params"]):
                found |= {id(each): TensorReference(each) for group in added for each in group["params"]}
        return found

    @property
    def live_trained_models(self) -> int:
        """The number of live models that each have been trained by a separate optimizer."""
        self._one_per_model = [reference for reference in self._one_per_model if reference() is not None]
        return len(self._one_per_model)

    def _backward_starts(self) -> None:
        self._backwards_since_step += 1
        self._grads_with_graph = 0
        self._evaluates = False
        if self.has_stepped:
            return
        if (
            self._backwards_since_step == self.BACKWARDS_BEFORE_CHECK
            and self._batches < self.BACKWARDS_BEFORE_CHECK
        ):
            self.without_optimizer = not has_optimizer()
        if self.without_optimizer or self._backwards_since_step > self.BACKWARDS_ALONE:
            self.trains = True
            self.by_model_calls = False
            self._on_iteration()

    def _grad_with_graph(self) -> None:
        """Handle `torch.autograd.grad` with `create_graph`. A call with `create_graph` is usually part of a step whose
        backward pass comes later (a penalty, an inner loop). If no backward pass follows, each call is treated as a
        separate step.
        """
        self._grads_with_graph += 1
        if self._grads_with_graph == self.BACKWARDS_ALONE:
            self.without_optimizer = self._batches < self.BACKWARDS_BEFORE_CHECK and not has_optimizer()
        if self.without_optimizer and self._grads_with_graph >= self.BACKWARDS_ALONE:
            self.trains, self.by_model_calls = True, False
            self._on_iteration()

    def _model_called(self, model: nn.Module) -> None:
        if not self._is_call_in_loop():
            return
        is_inference = not model.training or (self.has_stepped and not torch.is_grad_enabled())
        if self._has_better_signal() and not (self._evaluates and is_inference):
            self._calls.detach()
        elif is_inference or self._nothing_trains():
            self.trains, self.by_model_calls = False, True
            self._on_iteration()

    def _nothing_trains(self) -> bool:
        self._training_calls += 1
        if self._training_calls == self.CALLS_ALONE:
            self._is_untrained = not has_optimizer()
        return self._is_untrained

    def _has_better_signal(self) -> bool:
        return self.has_stepped or self._batches > 1 or self._backwards_since_step > 0

    def _before_backward(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if not self._is_in_loop(trains=True):
            return
        if not self._are_grads_parts:
            self._are_grads_parts = True
            self.corrections += self._grads > 0
        self._backward_starts()
        if args and not self.ignores_backward:
            self._on_backward(args[0])
        if kwargs.get("create_graph") or (len(args) > 3 and args[3]):
            from legroom.observe.dispatch.attribution import user_frame  # few programs need it

            self.create_graph_line = user_frame(sys._getframe(2))[0]

    def _before_grad(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if not self._is_in_loop(trains=True) or self.has_stepped or not args:
            return
        if kwargs.get("create_graph"):
            self._grad_with_graph()
            return
        self._grads += 1
        if self._grads == self.BACKWARDS_BEFORE_CHECK:
            self._are_grads_parts = self._are_grads_parts or has_optimizer()
        if not self._are_grads_parts:
            self._backward_starts()
            self._on_backward(args[0])

    def _wrap_train(self) -> None:
        # `model.eval()` calls `train(False)`. An evaluation without a loader may follow.
        train = nn.Module.train

        def wrapped(module: nn.Module, mode: bool = True) -> nn.Module:
            if not mode and not self._evaluates:
                self._evaluates = True
                self._calls.attach()
            return train(module, mode)

        def undo() -> None:
            if nn.Module.train is wrapped:
                nn.Module.train = train  # type: ignore[method-assign]

        wrapped.__wrapped__ = train  # type: ignore[attr-defined]
        nn.Module.train = wrapped  # type: ignore[method-assign,assignment]
        self._undo.append(undo)

    def _wrap_no_grad(self, context: Any) -> None:
        """Wrap `__enter__` of `torch.no_grad` or `torch.inference_mode`. After training, a program may call its model
        without gradients but in training mode. A training loop may also disable gradients before each backward pass (a
        teacher model, averaged weights).
        """
        enter = context.__enter__

        def wrapped(manager: Any) -> None:
            if self.has_stepped and not self._backwards_since_step:
                self._without_grad += 1
                if not self._evaluates and self._without_grad > 2 * self._max_without_grad:
                    self._evaluates = True
                    self._calls.attach()
            enter(manager)

        def undo() -> None:
            if context.__enter__ is wrapped:
                context.__enter__ = enter

        wrapped.__wrapped__ = enter  # type: ignore[attr-defined]
        context.__enter__ = wrapped
        self._undo.append(undo)

    def _wrap_compile(self) -> None:
        """Wrap `torch.compile`, so that the tracker stops tracking calls to models when the program compiles code.
        Compiled code checks torch's global module hooks, and torch compiles the code again when a hook is added or
        removed.
        """
        compile = torch.compile

        @functools.wraps(compile)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self._calls.disable()
            return compile(*args, **kwargs)

        def undo() -> None:
            if torch.compile is wrapped:
                torch.compile = compile

        torch.compile = wrapped
        self._undo.append(undo)


class _ModelCalls:
    """Between `attach` and `detach`, calls `on_call(model)` before each repeated call to the user's model.

    The model is the first module that is called a second time from outside any other module. PyTorch's global module
    hooks slow down every call slightly. The hooks are therefore removed as soon as an optimizer step, a backward pass
    or a loader can mark the end of an iteration.
    """

    def __init__(self, on_call: Callable[[nn.Module], None]) -> None:
        self._on_call = on_call
        self._handles: list[Any] = []
        self._called: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._model: weakref.ref[nn.Module] | None = None
        self._this_thread = _CallDepth()
        self.is_disabled = False

    @property
    def has_model(self) -> bool:
        return self._model is not None

    def disable(self) -> None:
        self.is_disabled = True
        self.detach()

    def attach(self) -> None:
        if not self._handles and not self.is_disabled:
            self._this_thread = _CallDepth()
            self._handles = [
                register_module_forward_pre_hook(self._before_forward),
                register_module_forward_hook(self._after_forward, always_call=True),
            ]

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        inference_threads.clear()

    def _before_forward(self, module: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling():
            return
        this_thread = self._this_thread
        this_thread.depth += 1
        if this_thread.depth > 1:
            return
        if not torch.is_grad_enabled():
            inference_threads.add(threading.get_ident())
        model = self._model() if self._model is not None else None
        if model is None and module in self._called:
            model, self._model = module, weakref.ref(module)
        elif model is None:
            self._called.add(module)
        if model is module:
            self._on_call(module)

    def _after_forward(self, module: nn.Module, args: Any, result: Any) -> None:
        if not torch.compiler.is_compiling():
            this_thread = self._this_thread
            this_thread.depth = max(this_thread.depth - 1, 0)
            if not this_thread.depth:
                inference_threads.discard(threading.get_ident())


class _CallDepth(threading.local):
    depth = 0
