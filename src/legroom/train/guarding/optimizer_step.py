"""The optimizer's part of a step, carried through when memory runs out in it: never half a step, never two.

An optimizer that fails half way has changed some numbers and not others. Two ways keep that from being the end:

- **small**: parameters and state take little of the device, so a copy of them is made before each step. A step that
  fails is taken back to it and done again with room made. For torch's own optimizers, which change nothing else.
- **any other**: the step runs under `MakingRoom` from the start, where a function that runs out of memory is called again on
  the spot. That costs Python some microseconds for every function, which a model of that size does not notice.

Unscaling, clipping and the loss scale's update are a few functions: they always run the second way. State that the first step
will make has its room kept from the beginning (`reserving`), so that it does not come as a surprise here.
"""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from legroom.errors import UsageError
from legroom.train.guarding.recovery import read_failure, release
from legroom.train.guarding.reserving import ReservedState
from legroom.train.guarding.retry import MakingRoom
from legroom.train.guarding.state.copies import Copies

PLAIN = frozenset(
    getattr(torch.optim, name)
    for name in (
        "SGD",
        "Adam",
        "AdamW",
        "Adamax",
        "Adagrad",
        "Adadelta",
        "RMSprop",
        "NAdam",
        "RAdam",
        "ASGD",
        "Adafactor",
    )
)
"""Optimizers whose step changes parameters and state alone, and nothing else (Rprop writes to gradients)."""
SMALL = 32 << 20
"""Bytes of parameters and state that are copied at most, ..."""
SMALL_PART = 200
"""... and at most one part in so many of the device."""


class Updating:
    """Steps one optimizer. `small_bytes`: how much may be copied before each step; by default by the device's size."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, device: torch.device, *, small_bytes: int | None = None
    ) -> None:
        if isinstance(optimizer, torch.optim.LBFGS):
            raise UsageError(
                "LBFGS runs the model inside its own step, so a step cannot be split: use another optimizer, or no Guard"
            )
        self._optimizer = optimizer
        self._device = device
        self._small = _small_bytes(device) if small_bytes is None else small_bytes
        self._before = _Before(optimizer)
        self._room = contextlib.ExitStack()
        self.reserved = ReservedState(optimizer, device, PLAIN)
        self.retries = 0
        """How often memory ran out and the work was done all the same."""

    def run(
        self,
        step: Callable[[torch.optim.Optimizer], object],
        *,
        before: Callable[[], object] | None = None,
        after: Callable[[], object] | None = None,
    ) -> None:
        """`before` (unscale, clip), `step(optimizer)`, zero the gradients, `after` (the loss scale's update)."""
        if before is not None:
            with self._making_room():
                before()
        with contextlib.ExitStack() as self._room:  # open until gradients, which need not come back, are gone
            with self._carried_through():
                step(self._optimizer)
            self._optimizer.zero_grad(set_to_none=True)
        if after is not None:
            with self._making_room():
                after()

    @contextlib.contextmanager
    def _making_room(self) -> Iterator[None]:
        if self._device.type == "cpu":  # memory of a device is short, if any
            yield
            return
        with MakingRoom(self._movable, self._device) as room:
            try:
                yield
            finally:
                self.retries += room.retries

    @contextlib.contextmanager
    def _carried_through(self) -> Iterator[None]:
        """Within the block, `optimizer.step()` is done to its end, whoever calls it (a scaler does)."""
        if self._device.type == "cpu":
            yield
            return
        optimizer: Any = self._optimizer
        own = vars(optimizer).get("step")
        plain = optimizer.step

        @functools.wraps(plain)
        def step(*arguments: Any, **named: Any) -> Any:
            return self._step(functools.partial(plain, *arguments, **named))

        optimizer.step = step
        try:
            yield
        finally:
            if own is None:
                del optimizer.step
            else:
                optimizer.step = own

    def _step(self, plain: Callable[[], Any]) -> Any:
        self.reserved.give()
        if not self._copied():
            self._room.enter_context(self._making_room())
            return plain()
        try:
            return plain()
        except RuntimeError as error:
            if not read_failure(error).is_oom:
                raise
        release()
        self.retries += 1
        self._before.restore()
        self._room.enter_context(self._making_room())
        return plain()

    def _copied(self) -> bool:
        """Whether a copy was made of all that a step changes."""
        if type(self._optimizer) not in PLAIN or self._bytes() > self._small:
            return False
        try:
            self._before.take()
            return True
        except RuntimeError as error:
            if not read_failure(error).is_oom:
                raise
        release()
        self.retries += 1
        return False

    def _bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._before.tensors())

    def _movable(self) -> Iterator[torch.Tensor]:
        for parameter in _parameters(self._optimizer):
            yield parameter
            if parameter.grad is not None:
                yield parameter.grad
        yield from _state_tensors(self._optimizer)


class _Before:
    """An optimizer's parameters and state before a step."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._copies = Copies()
        self._state: dict[Any, dict[str, Any]] = {}
        self._groups: list[dict[str, Any]] = []

    def tensors(self) -> list[torch.Tensor]:
        return [*_parameters(self._optimizer), *_state_tensors(self._optimizer)]

    def take(self) -> None:
        self._copies.take(self.tensors())
        self._state = {owner: dict(values) for owner, values in self._optimizer.state.items()}
        self._groups = [{**group, "params": list(group["params"])} for group in self._optimizer.param_groups]

    def restore(self) -> None:
        """The same tensors with the same numbers; state that the step made is gone, to be made again."""
        state: Any = self._optimizer.state
        for owner in [owner for owner in state if owner not in self._state]:
            del state[owner]
        for owner, values in self._state.items():
            state[owner].clear()
            state[owner].update(values)
        for group, before in zip(self._optimizer.param_groups, self._groups, strict=True):
            group.update(before)
        self._copies.restore()


def _parameters(optimizer: torch.optim.Optimizer) -> Iterable[torch.Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _state_tensors(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    values = (
        value for state in optimizer.state.values() if isinstance(state, dict) for value in state.values()
    )
    return [value for value in values if isinstance(value, torch.Tensor)]


def _small_bytes(device: torch.device) -> int:
    if device.type != "cuda":
        return SMALL
    return min(SMALL, torch.cuda.get_device_properties(device).total_memory // SMALL_PART)
