"""Completes an optimizer step in which memory runs out, so that every parameter is updated exactly once.

If an optimizer step fails halfway, some parameters are updated and others are not. Guard avoids this state with one of
two strategies:

- **Copy and restart**, if parameters and state are small compared to the device memory. Parameters and state are copied
  before each step. If a step fails, parameters and state are restored from the copy, and the step is repeated under
  `RetryOnOOM`. This strategy is used only for torch's own optimizers, which change only parameters and state.
- **Retry**, otherwise. The step runs under `RetryOnOOM`, which repeats a single function that runs out of memory.
  `RetryOnOOM` costs a few microseconds per function, which is negligible for a large model.

Unscaling, clipping and the update of the loss scale consist of only a few functions and always run under `RetryOnOOM`.
Memory for the state that the first step creates is reserved from the beginning (`reserving`).
"""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from legroom.errors import UsageError
from legroom.train.guarding.recovery import classify_failure, release_memory
from legroom.train.guarding.reserving import StateReservation
from legroom.train.guarding.retry import RetryOnOOM
from legroom.train.guarding.state.copies import TensorCopies

RESTARTABLE = frozenset(
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
"""Optimizers whose step changes only parameters and state. Rprop is not included, because its step also writes to
gradients."""
MAX_COPY_BYTES = 32 << 20
MAX_COPY_DIVISOR = 200


class OptimizerStep:
    """Runs the steps of one optimizer. `max_copy_bytes` is the maximum number of bytes that are copied before each
    step. By default, the maximum is derived from the memory of the device.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, device: torch.device, *, max_copy_bytes: int | None = None
    ) -> None:
        if isinstance(optimizer, torch.optim.LBFGS):
            raise UsageError(
                "LBFGS runs the model inside optimizer.step(), so Guard cannot split the batch. Use another optimizer, or train without Guard."
            )
        self._optimizer = optimizer
        self._device = device
        self._max_copy_bytes = _max_copy_bytes(device) if max_copy_bytes is None else max_copy_bytes
        self._copy = _OptimizerCopy(optimizer)
        self._retrying = contextlib.ExitStack()
        self.reservation = StateReservation(optimizer, device, RESTARTABLE)
        self.retries = 0

    def run(
        self,
        step: Callable[[torch.optim.Optimizer], object],
        *,
        before: Callable[[], object] | None = None,
        after: Callable[[], object] | None = None,
    ) -> None:
        """Run `before` (unscale, clip), `step(optimizer)`, `zero_grad`, and `after` (the update of the loss scale)."""
        if before is not None:
            with self._retry_on_oom():
                before()
        # The mode stays active until the gradients are freed, so that offloaded gradients are not copied back.
        with contextlib.ExitStack() as self._retrying:
            with self._recovering_step():
                step(self._optimizer)
            self._optimizer.zero_grad(set_to_none=True)
        if after is not None:
            with self._retry_on_oom():
                after()

    @contextlib.contextmanager
    def _retry_on_oom(self) -> Iterator[None]:
        if self._device.type == "cpu":
            yield
            return
        with RetryOnOOM(self._offloadable, self._device) as retry:
            try:
                yield
            finally:
                self.retries += retry.retries

    @contextlib.contextmanager
    def _recovering_step(self) -> Iterator[None]:
        """Inside the block, `optimizer.step()` recovers from out-of-memory errors, even if a GradScaler calls it."""
        if self._device.type == "cpu":
            yield
            return
        optimizer: Any = self._optimizer
        instance_step = vars(optimizer).get("step")
        original = optimizer.step

        @functools.wraps(original)
        def step(*arguments: Any, **named: Any) -> Any:
            return self._step(functools.partial(original, *arguments, **named))

        optimizer.step = step
        try:
            yield
        finally:
            if instance_step is None:
                del optimizer.step
            else:
                optimizer.step = instance_step

    def _step(self, original: Callable[[], Any]) -> Any:
        self.reservation.release()
        if not self._has_copied():
            self._retrying.enter_context(self._retry_on_oom())
            return original()
        try:
            return original()
        except RuntimeError as error:
            if not classify_failure(error).is_oom:
                raise
        release_memory()
        self.retries += 1
        self._copy.restore()
        self._retrying.enter_context(self._retry_on_oom())
        return original()

    def _has_copied(self) -> bool:
        """Copy the parameters and state that a step changes, if the total size is small enough. Return False if the
        copy would be too large or if memory runs out.
        """
        if type(self._optimizer) not in RESTARTABLE or self._bytes() > self._max_copy_bytes:
            return False
        try:
            self._copy.save()
            return True
        except RuntimeError as error:
            if not classify_failure(error).is_oom:
                raise
        release_memory()
        self.retries += 1
        return False

    def _bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._copy.tensors())

    def _offloadable(self) -> Iterator[torch.Tensor]:
        for parameter in _parameters(self._optimizer):
            yield parameter
            if parameter.grad is not None:
                yield parameter.grad
        yield from _state_tensors(self._optimizer)


class _OptimizerCopy:
    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._copies = TensorCopies()
        self._state: dict[Any, dict[str, Any]] = {}
        self._groups: list[dict[str, Any]] = []

    def tensors(self) -> list[torch.Tensor]:
        return [*_parameters(self._optimizer), *_state_tensors(self._optimizer)]

    def save(self) -> None:
        self._copies.save(self.tensors())
        self._state = {owner: dict(values) for owner, values in self._optimizer.state.items()}
        self._groups = [{**group, "params": list(group["params"])} for group in self._optimizer.param_groups]

    def restore(self) -> None:
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


def _max_copy_bytes(device: torch.device) -> int:
    if device.type != "cuda":
        return MAX_COPY_BYTES
    return min(MAX_COPY_BYTES, torch.cuda.get_device_properties(device).total_memory // MAX_COPY_DIVISOR)
