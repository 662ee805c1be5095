"""What a forward and backward pass changes, and how it is put back when memory ran out in the middle.

    before = Transaction(model, parameters, device)
    before.begin()              # gradients that were there step aside
    ...                         # passes over micro-batches; before.mark() between them
    before.commit()             # gradients that were there are added
    before.roll_back()          # or: everything as at begin()
    before.back_to_mark()       # or: everything as at the last mark(), finished micro-batches' gradients kept

Put back are the random generators, the buffers and the gradients. Gradients from earlier passes are kept out of the way
rather than copied: added to in place, they could not be told from the failed pass's any more.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from legroom.diagnose.oom.recognize import is_oom
from legroom.train.guarding.recovery import empty_cache, release
from legroom.train.guarding.state.buffers import Buffers
from legroom.train.guarding.state.random_state import RandomState

T = TypeVar("T")


class Transaction:
    """One for the whole run: what it keeps is made once and used again."""

    def __init__(
        self, model: nn.Module, parameters: Callable[[], Iterable[nn.Parameter]], device: torch.device
    ) -> None:
        self._parameters = parameters
        self._device = device
        self._at_begin = Buffers(model)
        self._at_mark = Buffers(model)
        self._random: RandomState | None = None
        self._random_at_mark: RandomState | None = None
        self._trained: list[nn.Parameter] = []
        self._earlier: list[tuple[nn.Parameter, torch.Tensor]] = []
        self._versions: list[int] = []
        self._allocated: int | None = None

    def begin(self) -> None:
        self._allocated = _allocated(self._device)
        self._random = RandomState(self._device)
        with_room(self._at_begin.take)
        self._trained = [parameter for parameter in self._parameters() if parameter.requires_grad]
        earlier = [(parameter, parameter.grad) for parameter in self._trained]
        self._earlier = [(parameter, gradient) for parameter, gradient in earlier if gradient is not None]
        if any(gradient._base is not None for _, gradient in self._earlier):
            # Views of a bucket that the next pass overwrites.
            self._earlier = with_room(
                lambda: [(owner, gradient.clone()) for owner, gradient in self._earlier]
            )
        for parameter, _ in self._earlier:
            parameter.grad = None
        self._random_at_mark = None

    def commit(self) -> None:
        """The pass is done: gradients from earlier ones are added to its own."""
        self._merge()
        self._trained = []
        self._random = self._random_at_mark = None

    def roll_back(self) -> None:
        """As at `begin()`, but for the earlier gradients, which stay aside for the next attempt."""
        assert self._random is not None
        for parameter in self._trained:
            parameter.grad = None
        torch.clear_autocast_cache()
        empty_cache()
        self._at_begin.restore()
        self._random.restore()
        self._random_at_mark = None

    def release(self) -> None:
        """The failed attempt's memory goes back to the device, that of tensors in reference cycles too."""
        torch.clear_autocast_cache()
        now = _allocated(self._device)
        if now is None or self._allocated is None or now > self._allocated + self._gradient_bytes():
            release()  # searching for cycles takes long, so only where something is left
        else:
            empty_cache()

    # --- between micro-batches

    def mark(self) -> None:
        """The micro-batches so far are finished: a failure in the next need not cost them."""
        self._random_at_mark = RandomState(self._device, with_numpy=False)
        with_room(self._at_mark.take)
        self._versions = self._gradient_versions()

    def can_go_back_to_mark(self) -> bool:
        """Whether there is one, no gradient was touched since (by a sample of them), and NumPy, whose generator marks leave
        out, has drawn nothing."""
        assert self._random is not None
        return (
            self._random_at_mark is not None
            and self._versions == self._gradient_versions()
            and not self._random.numpy_has_drawn()
        )

    def back_to_mark(self) -> None:
        assert self._random_at_mark is not None
        torch.clear_autocast_cache()
        empty_cache()
        self._at_mark.restore()
        self._random_at_mark.restore()

    # ---

    def earlier_to_host(self) -> bool:
        """Let earlier gradients wait in host memory: whether there were any on the device."""
        moved = [
            (parameter, gradient) for parameter, gradient in self._earlier if gradient.device.type != "cpu"
        ]
        if not moved or self._device.type == "cpu":
            return False
        self._earlier = [(parameter, gradient.cpu()) for parameter, gradient in self._earlier]
        return True

    def _merge(self) -> None:
        pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        for parameter, gradient in self._earlier:
            if gradient.device != parameter.device:
                gradient = with_room(lambda p=parameter, g=gradient: g.to(p.device))  # type: ignore[misc]
            if parameter.grad is not None:
                pairs.append((gradient, parameter.grad))
            parameter.grad = gradient
        self._earlier = []
        _add(pairs)

    def _gradient_bytes(self) -> int:
        """What gradients of finished micro-batches take on the device at least."""
        return sum(parameter.grad.nbytes for parameter in self._trained if parameter.grad is not None)

    def _gradient_versions(self) -> list[int]:
        gradients = [parameter.grad for parameter in self._trained[:: max(1, len(self._trained) // 8)]]
        return [-1 if gradient is None else gradient._version for gradient in gradients]


def _allocated(device: torch.device) -> int | None:
    """Bytes of tensors on the device, without the ninety figures that `memory_allocated` sorts first."""
    if device.type != "cuda":
        return None
    figures: Any = torch.cuda.memory_stats_as_nested_dict(device)
    return int(figures.get("allocated_bytes", {}).get("all", {}).get("current", 0))


def with_room(make: Callable[[], T]) -> T:
    """`make()`, once more after what is cached was given back, if memory runs out. It must be fit to run twice."""
    try:
        return make()
    except RuntimeError as error:
        if not is_oom(error):
            raise
    release()
    return make()


@torch.no_grad()
def _add(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for ours, more in pairs:
        ours.add_(more)
