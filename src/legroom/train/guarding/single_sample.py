"""When a single row does not fit: what can still be done, one rung after the other, each with its price; and what is said at the end.

Spilling and checkpointing give the same gradients and cost time. Lower precision gives others, so it is on the ladder only
where it was allowed.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from legroom.diagnose.oom.recognize import ErrorClassification
from legroom.errors import LegroomError, UsageError
from legroom.train.guarding.checkpointing import checkpointed
from legroom.train.spilling.spill import Spill
from legroom.units import format_size

RungName = Literal["spill", "checkpoint", "bf16", "fp16"]
EXACT: tuple[RungName, ...] = ("spill", "checkpoint")


class DoesNotFit(LegroomError, torch.OutOfMemoryError):  # noqa: N818
    """One row of the batch does not fit, whatever was tried. Everything is as it was before the step."""


@dataclass(frozen=True, slots=True)
class Rung:
    """One thing that makes a step need less memory."""

    name: RungName
    price: str
    contexts: Callable[[], AbstractContextManager[Any]]


class Ladder:
    """The rungs that are allowed, in order; `rungs` are those in use."""

    def __init__(self, names: Sequence[RungName], model: nn.Module, device: torch.device) -> None:
        unknown = [name for name in names if name not in _RUNGS]
        if unknown:
            raise UsageError(f"ladder= knows {', '.join(_RUNGS)}; '{unknown[0]}' is none of them")
        self._left = list(names)
        self._model, self._device = model, device
        self.rungs: list[Rung] = []

    def climb(self) -> Rung | None:
        """The next rung, in use from now on; None at the top."""
        if not self._left:
            return None
        name = self._left.pop(0)
        rung = _RUNGS[name](self._model, self._device)
        self.rungs.append(rung)
        return rung

    def contexts(self) -> list[AbstractContextManager[Any]]:
        return [rung.contexts() for rung in self.rungs]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(rung.name for rung in self.rungs)


def _spill(model: nn.Module, device: torch.device) -> Rung:
    spill = Spill()
    return Rung(
        "spill",
        "activations wait in host memory for the backward pass; same gradients, slower by the time they take to travel",
        lambda: spill,
    )


def _checkpoint(model: nn.Module, device: torch.device) -> Rung:
    return Rung(
        "checkpoint",
        "blocks compute their activations twice; same gradients, about a third slower",
        lambda: checkpointed(model),
    )


def _lower(name: Literal["bf16", "fp16"], dtype: torch.dtype) -> Callable[[nn.Module, torch.device], Rung]:
    def rung(model: nn.Module, device: torch.device) -> Rung:
        return Rung(
            name,
            f"the forward pass computes in {name}, as was allowed; gradients differ by its rounding",
            lambda: torch.autocast(device.type, dtype=dtype),
        )

    return rung


_RUNGS: dict[str, Callable[[nn.Module, torch.device], Rung]] = {
    "spill": _spill,
    "checkpoint": _checkpoint,
    "bf16": _lower("bf16", torch.bfloat16),
    "fp16": _lower("fp16", torch.float16),
}


def does_not_fit(
    what: str,
    failure: ErrorClassification | None,
    phase: str,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    tried: Sequence[str],
    in_use: int | None,
) -> DoesNotFit:
    """The error at the end: what did not fit, what holds the memory, what would fit."""
    held = [
        ("parameters", _bytes(model.parameters(), device)),
        ("gradients", _bytes((p.grad for p in model.parameters() if p.grad is not None), device)),
        ("optimizer state", _bytes(_state(optimizer), device)),
        ("buffers", _bytes(model.buffers(), device)),
    ]
    rest = (in_use or 0) - sum(size for _, size in held)
    if rest > 0:
        held.append(("the batch and other tensors of the program", rest))
    parts = ", ".join(f"{name} {format_size(size)}" for name, size in held if size)
    sentences = [f"{what} does not fit on {device}: the {phase} pass ran out of memory"]
    if failure is not None and failure.requested:
        sentences[0] += f" when it asked for {format_size(failure.requested)}"
    sentences[0] += f", even with {' and '.join(tried)}." if tried else "."
    if parts:
        sentences.append(f"Before the step the device held: {parts}.")
    if failure is not None and failure.requested and failure.allocated is not None:
        needed = failure.allocated + failure.requested
        sentences.append(f"It takes more than {format_size(needed)} for PyTorch's tensors to get further.")
    untried = [name for name in ("spill", "checkpoint", "bf16") if name not in tried]
    more = f"allow more, with Guard(..., ladder={(*tried, *untried)!r}); " if untried else ""
    sentences.append(
        f"What would help: {more}shorter sequences or smaller images, a smaller model, or a larger GPU."
    )
    return DoesNotFit(" ".join(sentences))


def optimizer_does_not_fit(optimizer: torch.optim.Optimizer, device: torch.device) -> DoesNotFit:
    """The one failure that leaves a step half done: a single operation of the optimizer is too large by itself."""
    return DoesNotFit(
        f"The optimizer's step does not fit on {device}, though all that it did not need at the moment was in host memory "
        f"(its state takes {format_size(_bytes(_state(optimizer), device))}). The step is not finished: load your latest checkpoint. "
        "What would help: an optimizer with less state or without temporaries (foreach=False, fused=True), a smaller model, or a larger GPU."
    )


def _bytes(tensors: Iterable[torch.Tensor], device: torch.device) -> int:
    return sum(tensor.nbytes for tensor in tensors if tensor.device.type == device.type)


def _state(optimizer: torch.optim.Optimizer) -> Iterable[torch.Tensor]:
    for state in optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, torch.Tensor))
