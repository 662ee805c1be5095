"""Recognizes evaluations by comparing the calls of models with the backward passes of the program.

A program does not declare whether it trains or evaluates, and neither the mode of the model nor disabled gradients are
sufficient evidence. A training step may run a teacher model without gradients, or a discriminator in evaluation mode.
This module therefore compares the call stack of every forward pass with the call stacks of backward passes. A forward
pass from a loop that runs backward passes is training. A forward pass from another function is an evaluation if there
is evidence: the trained model is now in evaluation mode, the same line runs the model repeatedly without a backward
pass, or the name of the function suggests an evaluation.
"""

import ast
import re
import sys
import time
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from types import CodeType, FrameType
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import nn

from legroom.memory.event_base import Frame
from legroom.observe.dispatch.backward_engine import current_node
from legroom.observe.source.batch_argument import suggests_evaluation
from legroom.observe.source.user_files import INTERNAL, USER, kind_of

MAX_CHAINS, MAX_MODELS = 1000, 1000
MAX_CALLS, MAX_ARGUMENTS = 64, 100
_TRAINING_NAME = re.compile(r"(?:^|_)(?:train|training|fit|learn|pretrain|finetune)(?:$|_)", re.IGNORECASE)
_BACKWARD_NAMES = {
    "backward",
    "manual_backward",
}  # as in `source.syntax`, which `legroom.watch` does not import


class Line(NamedTuple):
    """A line of a running function."""

    code: CodeType
    number: int


CallChain = tuple[Line, ...]
"""The running lines outside the model and outside torch, outermost first."""


class ForwardEvidence(NamedTuple):
    """Whether the latest forward pass is part of an evaluation."""

    is_evaluation: bool | None
    """True for an evaluation, False for a training step, and None if unknown."""
    calls: int
    """How often the same line has called a model with gradients since the last backward pass."""
    frame: Frame | None
    """The user's line that called the model."""


class RecordedCall(NamedTuple):
    """A forward pass with gradients enabled."""

    model: "weakref.ref[nn.Module]"
    started: float
    """The time according to `time.perf_counter`."""
    input_requires_grad: bool | None
    """Whether an argument requires gradients, or None if no argument is known to be a tensor."""
    chain: CallChain

    @property
    def frame(self) -> Frame | None:
        return _frame_of(self.chain)


@dataclass(slots=True)
class _Calls:
    """The calls of models from one place since the last backward pass."""

    with_gradients: int = 0
    models: dict[int, tuple[Any, bool]] = field(default_factory=dict)
    """Maps the `id` of each model to a weak reference and to the model's mode."""

    def only_evaluates(self, in_training: set[int]) -> bool:
        """Return whether all models were in evaluation mode, and other calls ran the same models in training mode."""
        return bool(self.models) and all(
            not training and key in in_training for key, (_, training) in self.models.items()
        )


class ForwardPasses:
    def __init__(self) -> None:
        self._pending: dict[CallChain, _Calls] = {}
        self._last: CallChain | None = None
        self._trained: dict[CallChain, set[bool]] = {}
        """The modes of the models whose forward passes from this place were followed by a backward pass."""
        self._most: dict[Line, tuple[int, int]] = {}
        """For each line that calls a model: the largest number of calls before a backward pass, and the number of
        backward passes."""
        self._backward: dict[CallChain, None] = {}
        self._modes: dict[int, tuple[Any, set[bool]]] = {}
        """The modes in which each model was trained, by the model's `id`."""
        self.recent: list[RecordedCall] = []
        """The forward passes since the last backward pass, or before it if none has followed."""
        self._backward_began = False
        self.evaluations: dict[Frame, set[int]] = {}
        """The lines that evaluated a model with gradients, with the numbers of completed steps."""

    def model_called(self, model: nn.Module, args: Iterable[Any] = ()) -> None:
        """Record a call of a model. Call this method in a forward pre-hook of torch."""
        if current_node() is not None:
            return  # recomputed for a checkpoint
        chain = _chain(sys._getframe(1))
        calls = self._pending.get(chain)
        if calls is None:
            if len(self._pending) >= MAX_CHAINS:
                return
            calls = self._pending[chain] = _Calls()
        calls.with_gradients += torch.is_grad_enabled()
        if len(calls.models) < MAX_MODELS and _has_parameters(model):
            calls.models[id(model)] = weakref.ref(model), model.training
        self._last = chain
        if self._backward_began:
            self._backward_began = False
            self.recent.clear()
        if torch.is_grad_enabled() and len(self.recent) < MAX_CALLS:
            now = time.perf_counter()
            self.recent.append(RecordedCall(weakref.ref(model), now, _requires_grad(args), chain))

    def find_evaluations(self, step: int) -> None:
        """Record which forward passes since the last backward pass were evaluations with gradients."""
        for chain, calls in list(self._pending.items()):
            if not chain or not calls.with_gradients or not self._is_evaluation(chain, calls.with_gradients):
                continue
            frame = self._evaluating_line(chain)
            if frame is not None and len(self.evaluations) < MAX_CHAINS:
                self.evaluations.setdefault(frame, set()).add(step)

    def went_backward(self, step: int = 0) -> None:
        """Record a backward pass. Call this method on the thread that runs it."""
        self._backward_began = True
        if not self._pending:
            return
        if len(self._pending) > 1:
            self.find_evaluations(step)
        chain = _chain(sys._getframe(1))
        if len(self._backward) < MAX_CHAINS:
            self._backward.setdefault(chain)
        pending, self._pending = list(self._pending.items()), {}
        in_training = {key for _, calls in pending for key, (_, training) in calls.models.items() if training}
        used = [
            (_common(each, chain), each, calls)
            for each, calls in pending
            if calls.with_gradients and not calls.only_evaluates(in_training)
        ]
        nearest = max((depth for depth, _, _ in used), default=0)
        for depth, each, calls in used:
            if depth < nearest or len(self._trained) >= MAX_CHAINS:
                continue  # another function ran the model, such as an evaluation before this training step
            most, passes = self._most.get(each[-1], (0, 0)) if each else (0, 0)
            if each:
                self._most[each[-1]] = max(most, calls.with_gradients), passes + 1
            modes = self._trained.setdefault(each, set())
            for key, (model, training) in calls.models.items():
                modes.add(training)
                known = self._modes.get(key)
                if known is None and len(self._modes) >= MAX_MODELS:
                    continue
                if known is None or known[0]() is None:
                    known = self._modes[key] = model, set()
                known[1].add(training)

    def evidence(self, frame: FrameType | None) -> ForwardEvidence:
        """Return the evidence for the latest forward pass. `frame` is the frame that is running."""
        chain = self._last
        if not chain or not _is_running(chain, _chain(frame)):
            return ForwardEvidence(None, 0, None)
        calls = self._pending.get(chain)
        count = calls.with_gradients if calls is not None else 0
        evaluates = self._is_evaluation(chain, count)
        return ForwardEvidence(
            evaluates, count, self._evaluating_line(chain) if evaluates else _frame_of(chain)
        )

    def _evaluating_line(self, chain: CallChain) -> Frame | None:
        """Return the innermost line of an evaluation that the training does not run. A function that runs the model may
        belong to both."""
        trained = {line for each in self._trained for line in each}
        own = [line for line in chain if line not in trained and line.code.co_name != "forward"]
        user = [line for line in own if kind_of(line.code.co_filename) == USER]
        return _frame_of((user[-1],)) if user else _frame_of(chain)

    def _is_evaluation(self, chain: CallChain, count: int) -> bool | None:
        if chain not in self._pending:
            return None  # the backward pass of these forward passes has begun
        most, passes = self._most.get(chain[-1], (0, 0))
        one_each = most == 1 and passes >= 2
        switched = self._switched_models(chain)
        modes = self._trained.get(chain)
        if modes is not None:
            # The same line trains and evaluates, for example in a loop over the phases of an epoch.
            evaluates = switched and modes == {True} and not _always_goes_backward(chain[-1])
            return evaluates or (one_each and count >= 3)
        if self._is_in_training_loop(chain):
            return switched and not _backward_follows(chain[-1])
        if switched or (one_each and count >= 2) or self._is_named(chain, count):
            return True
        # No line of the training calls a model repeatedly before a backward pass, but this line does.
        if (
            count >= 3
            and self._most
            and all(most == 1 and passes >= 2 for most, passes in self._most.values())
        ):
            return True
        return None

    def _switched_models(self, chain: CallChain) -> bool:
        """Return whether the running function called a model in evaluation mode that was trained in training mode."""
        for each, calls in list(self._pending.items()):
            if each[:-1] != chain[:-1] or each[-1].code is not chain[-1].code:
                continue
            for key, (reference, training) in calls.models.items():
                model = reference()
                trained, modes = self._modes.get(key, (reference, set()))
                if (
                    model is not None
                    and trained() is model
                    and not training
                    and not model.training
                    and modes == {True}
                ):
                    return True
        return False

    def _is_in_training_loop(self, chain: CallChain) -> bool:
        """Return whether the innermost loop around the call also runs backward passes."""
        for backward in list(self._backward):
            depth = _shared(chain, backward)
            if (
                depth != len(chain) - 1
                or len(backward) <= depth
                or backward[depth].code is not chain[-1].code
            ):
                continue
            if _in_same_loop(chain[-1], backward[depth].number):
                return True
        return False

    def _is_named(self, chain: CallChain, count: int) -> bool:
        """Return whether a function name suggests an evaluation, and the function has run no backward pass."""
        known = {line.code for each in (*self._trained, *self._backward) for line in each}
        own = chain[max((_shared(chain, each) for each in list(self._backward)), default=0) :]
        for position, line in enumerate(own):
            name = line.code.co_name
            if line.code in known or not suggests_evaluation(name) or _TRAINING_NAME.search(name):
                continue
            inner = [each.code for each in own[position:] if each.code not in known]
            if any(_BACKWARD_NAMES.intersection(code.co_names) for code in inner):
                return False
            return bool(self._backward) or not count or self._all_in_evaluation_mode(chain)
        return False

    def _all_in_evaluation_mode(self, chain: CallChain) -> bool:
        modes = [training for _, training in self._pending[chain].models.values()]
        return bool(modes) and not any(modes)


def _requires_grad(args: Iterable[Any], depth: int = 0) -> bool | None:
    """Return whether an argument requires gradients, or None if no argument is known to be a tensor."""
    found: bool | None = None
    for each in islice(args, MAX_ARGUMENTS):
        known: bool | None = None
        if isinstance(each, torch.Tensor):
            known = each.requires_grad
        elif isinstance(each, (list, tuple, dict)) and depth < 3:
            known = _requires_grad(each.values() if isinstance(each, dict) else each, depth + 1)
        if known:
            return True
        found = known if found is None else found
    return found


def _has_parameters(model: nn.Module) -> bool:
    return any(each._parameters for each in model.modules())


def _chain(frame: FrameType | None) -> CallChain:
    lines: list[Line] = []
    while frame is not None:
        code = frame.f_code
        if kind_of(code.co_filename) != INTERNAL:
            lines.append(Line(code, frame.f_lineno))
        frame = frame.f_back
    return tuple(reversed(lines))


def _shared(first: CallChain, second: CallChain) -> int:
    """Return how many of the outermost lines are equal."""
    shared = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        shared += 1
    return shared


def _common(first: CallChain, second: CallChain) -> int:
    """Return how many of the outermost functions are the same running functions."""
    shared = _shared(first, second)
    if shared < min(len(first), len(second)) and first[shared].code is second[shared].code:
        shared += 1
    return shared


def _is_running(chain: CallChain, running: CallChain) -> bool:
    """Return whether the function that called the model is still running, in the same loop."""
    last = len(chain) - 1
    if len(running) <= last or running[:last] != chain[:last] or running[last].code is not chain[last].code:
        return False
    return running[last].number == chain[last].number or _in_same_loop(chain[last], running[last].number)


def _in_same_loop(line: Line, other: int) -> bool:
    """Return whether the innermost loop around `line` also contains the line `other` of the same function.

    If the function has no loop around `line`, or its source is unknown, the result is True.
    """
    from legroom.observe.source.files import innermost_loop, tree_of  # `legroom.watch` does not need it

    tree = tree_of(line.code.co_filename)
    loop = innermost_loop(tree, line.number) if tree is not None else None
    if loop is None or loop.lineno < line.code.co_firstlineno:
        return True
    return loop.lineno <= other <= (loop.end_lineno or 0)


def _backward_follows(line: Line) -> bool:
    """Return whether the function contains a backward pass after a line. If its source is unknown, the result is
    True.
    """
    from legroom.observe.source.files import find_function_at, tree_of  # `legroom.watch` does not need it

    tree = tree_of(line.code.co_filename)
    if tree is None:
        return True
    return any(
        _names_backward(node) and node.lineno >= line.number
        for node in ast.walk(find_function_at(tree, line.number))
    )


def _always_goes_backward(line: Line) -> bool:
    """Return whether a backward pass follows a line in the same block or in a block around it. A backward pass in a
    condition that does not contain the line may not run.
    """
    from legroom.observe.source.files import find_function_at, tree_of  # `legroom.watch` does not need it

    tree = tree_of(line.code.co_filename)
    if tree is None:
        return False
    block: list[ast.stmt] = getattr(find_function_at(tree, line.number), "body", [])
    while block:
        inner: list[ast.stmt] = []
        for statement in block:
            if statement.lineno <= line.number <= (statement.end_lineno or 0):
                blocks = [
                    getattr(statement, name, []) for name in ("body", "orelse", "handlers", "finalbody")
                ]
                inner = next((each for each in blocks if each and _spans(each, line.number)), [])
            elif statement.lineno > line.number and _goes_backward(statement):
                return True
        block = inner
    return False


def _spans(block: list[ast.stmt], line: int) -> bool:
    return block[0].lineno <= line <= (block[-1].end_lineno or 0)


def _goes_backward(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr | ast.Assign | ast.With) and any(
        map(_names_backward, ast.walk(statement))
    )


def _names_backward(node: ast.AST) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and node.attr in _BACKWARD_NAMES


def _frame_of(chain: CallChain) -> Frame | None:
    """Return the user's innermost line outside the `forward` methods that the program calls without hooks, as in
    `self.model.forward(x)`."""
    lines = [line for line in reversed(chain) if kind_of(line.code.co_filename) == USER]
    outside = [line for line in lines if line.code.co_name != "forward"]
    for line in (*outside, *lines):
        return Frame(line.code.co_filename, line.number, line.code.co_name)
    return None
