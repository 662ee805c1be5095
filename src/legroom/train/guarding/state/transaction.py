"""Restores the state that forward and backward passes have changed, if memory runs out during the passes.

    transaction = Transaction(model, parameters, device)
    transaction.begin()                   # sets existing gradients aside
    ...                                   # passes over micro-batches, with transaction.savepoint() between them
    transaction.commit()                  # adds the existing gradients
    transaction.rollback()                # or: restores the state at begin()
    transaction.rollback_to_savepoint()   # or: restores the state at the last savepoint, with the gradients so far

The state consists of the random generators, the buffers and the gradients. Gradients from earlier passes are set aside,
because a failed pass would otherwise add to them in place.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from legroom.diagnose.oom.recognize import is_oom
from legroom.train.guarding.recovery import empty_cache, release_memory
from legroom.train.guarding.state.copies import TensorCopies
from legroom.train.guarding.state.random_state import RandomState

T = TypeVar("T")


class Transaction:
    def __init__(
        self, model: nn.Module, parameters: Callable[[], Iterable[nn.Parameter]], device: torch.device
    ) -> None:
        self._parameters = parameters
        self._device = device
        self._buffers_at_begin = _BufferCopies(model)
        self._buffers_at_savepoint = _BufferCopies(model)
        self._random: RandomState | None = None
        self._random_at_savepoint: RandomState | None = None
        self._trainable: list[nn.Parameter] = []
        self._earlier: list[tuple[nn.Parameter, torch.Tensor]] = []
        self._versions: list[int] = []
        self._allocated: int | None = None

    def begin(self) -> None:
        self._allocated = _allocated(self._device)
        self._random = RandomState(self._device)
        retry_after_release(self._buffers_at_begin.save)
        self._trainable = [parameter for parameter in self._parameters() if parameter.requires_grad]
        earlier = [(parameter, parameter.grad) for parameter in self._trainable]
        self._earlier = [(parameter, gradient) for parameter, gradient in earlier if gradient is not None]
        if any(gradient._base is not None for _, gradient in self._earlier):
            # Gradients that are views of a bucket: the next pass overwrites them.
            self._earlier = retry_after_release(
                lambda: [(owner, gradient.clone()) for owner, gradient in self._earlier]
            )
        for parameter, _ in self._earlier:
            parameter.grad = None
        self._random_at_savepoint = None

    def commit(self) -> None:
        self._add_earlier()
        self._trainable = []
        self._random = self._random_at_savepoint = None

    def rollback(self) -> None:
        """Restore the state that was saved by `begin()`. Earlier gradients stay set aside for the next attempt."""
        assert self._random is not None
        for parameter in self._trainable:
            parameter.grad = None
        torch.clear_autocast_cache()
        empty_cache()
        self._buffers_at_begin.restore()
        self._random.restore()
        self._random_at_savepoint = None

    def release(self) -> None:
        torch.clear_autocast_cache()
        now = _allocated(self._device)
        if now is None or self._allocated is None or now > self._allocated + self._gradient_bytes():
            release_memory()  # garbage collection is slow, so only if tensors of the attempt are still alive
        else:
            empty_cache()

    # --- between micro-batches

    def savepoint(self) -> None:
        """Save the state after the finished micro-batches, so that a failure in the next micro-batch does not discard
        their gradients.
        """
        self._random_at_savepoint = RandomState(self._device, with_numpy=False)
        retry_after_release(self._buffers_at_savepoint.save)
        self._versions = self._gradient_versions()

    def can_rollback_to_savepoint(self) -> bool:
        """Return True if there is a savepoint that can be restored.

        The gradients must not have changed since the savepoint. To save time, only some of the gradients are checked.
        NumPy's generator must not have changed either, because savepoints do not include it.
        """
        assert self._random is not None
        return (
            self._random_at_savepoint is not None
            and self._versions == self._gradient_versions()
            and not self._random.numpy_state_changed()
        )

    def rollback_to_savepoint(self) -> None:
        assert self._random_at_savepoint is not None
        torch.clear_autocast_cache()
        empty_cache()
        self._buffers_at_savepoint.restore()
        self._random_at_savepoint.restore()

    # --- gradients from earlier passes

    def offload_earlier_gradients(self) -> bool:
        on_device = any(gradient.device.type != "cpu" for _, gradient in self._earlier)
        if not on_device or self._device.type == "cpu":
            return False
        self._earlier = [(parameter, gradient.cpu()) for parameter, gradient in self._earlier]
        return True

    def _add_earlier(self) -> None:
        pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        for parameter, gradient in self._earlier:
            if gradient.device != parameter.device:
                gradient = retry_after_release(lambda p=parameter, g=gradient: g.to(p.device))  # type: ignore[misc]
            if parameter.grad is not None:
                pairs.append((gradient, parameter.grad))
            parameter.grad = gradient
        self._earlier = []
        _add(pairs)

    def _gradient_bytes(self) -> int:
        return sum(parameter.grad.nbytes for parameter in self._trainable if parameter.grad is not None)

    def _gradient_versions(self) -> list[int]:
        gradients = [parameter.grad for parameter in self._trainable[:: max(1, len(self._trainable) // 8)]]
        return [-1 if gradient is None else gradient._version for gradient in gradients]


class _BufferCopies:
    """A copy of every buffer of a model, such as running statistics. Passes change buffers, but never weights."""

    def __init__(self, model: nn.Module) -> None:
        self._modules: list[dict[str, torch.Tensor | None]] = [module._buffers for module in model.modules()]
        self._lengths: list[int] = []
        self._with_buffers: list[dict[str, torch.Tensor | None]] = []
        self._saved: list[tuple[dict[str, torch.Tensor | None], str, torch.Tensor | None]] = []
        self._copies = TensorCopies()

    def save(self) -> None:
        lengths = list(map(len, self._modules))
        if lengths != self._lengths:  # most modules have no buffers
            self._lengths, self._with_buffers = lengths, [buffers for buffers in self._modules if buffers]
        self._saved = [
            (buffers, name, tensor) for buffers in self._with_buffers for name, tensor in buffers.items()
        ]
        self._copies.save([tensor for _, _, tensor in self._saved if tensor is not None])

    def restore(self) -> None:
        """Restore the buffers, and remove buffers that were added since the copy."""
        for buffers in self._modules:
            buffers.clear()
        for buffers, name, tensor in self._saved:
            buffers[name] = tensor
        self._copies.restore()


def _allocated(device: torch.device) -> int | None:
    """Return the bytes that tensors use on the device. This function is faster than `torch.cuda.memory_allocated`,
    which sorts all statistics.
    """
    if device.type != "cuda":
        return None
    stats: Any = torch.cuda.memory_stats_as_nested_dict(device)
    return int(stats.get("allocated_bytes", {}).get("all", {}).get("current", 0))


def retry_after_release(make: Callable[[], T]) -> T:
    """Call `make()`. If memory runs out, release cached memory and call `make()` again. It must be safe to call `make`
    twice.
    """
    try:
        return make()
    except RuntimeError as error:
        if not is_oom(error):
            raise
    release_memory()
    return make()


@torch.no_grad()
def _add(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for ours, more in pairs:
        ours.add_(more)
