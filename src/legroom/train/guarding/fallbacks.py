"""Fallbacks for a single sample that does not fit. Guard activates one fallback after the other. If all fallbacks are
active and the sample still does not fit, Guard raises an error.

Spilling and activation checkpointing do not change the gradients, but they make a step slower. Lower precision changes
the gradients, so it is used only if the user allows it.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from legroom.arguments import check_names
from legroom.diagnose.oom.recognize import ErrorClassification
from legroom.errors import LegroomError, UsageError
from legroom.train.guarding.checkpointing import checkpoint_blocks
from legroom.train.spilling.spill import Spill
from legroom.units import format_size

FallbackName = Literal["spill", "checkpoint", "bf16", "fp16"]
EXACT_FALLBACKS: tuple[FallbackName, ...] = ("spill", "checkpoint")


class DoesNotFit(LegroomError, torch.OutOfMemoryError):  # noqa: N818
    """Raised if a single sample does not fit, even with all fallbacks. When this error is raised, the state from
    before the step has been restored."""


@dataclass(frozen=True, slots=True)
class Fallback:
    """A technique that reduces the memory use of a step."""

    name: FallbackName
    cost: str
    context: Callable[[], AbstractContextManager[Any]]


class Fallbacks:
    """The fallbacks of one Guard. `active` contains the fallbacks in use."""

    def __init__(self, names: Sequence[FallbackName], model: nn.Module, device: torch.device) -> None:
        names = check_names("fallbacks", names, "['checkpoint']")
        unknown = [name for name in names if name not in _FALLBACKS]
        if unknown:
            raise UsageError(
                f"'{unknown[0]}' is not a valid fallback. Valid fallbacks: {', '.join(map(repr, _FALLBACKS))}."
            )
        self._remaining = list(names)
        self._model, self._device = model, device
        self.active: list[Fallback] = []

    def activate_next(self) -> Fallback | None:
        """Activate the next fallback for the rest of the run, and return it. Return None if no fallback is left."""
        if not self._remaining:
            return None
        name = self._remaining.pop(0)
        fallback = _FALLBACKS[name](self._model, self._device)
        self.active.append(fallback)
        return fallback

    def contexts(self) -> list[AbstractContextManager[Any]]:
        return [fallback.context() for fallback in self.active]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(fallback.name for fallback in self.active)


def _spill(model: nn.Module, device: torch.device) -> Fallback:
    spill = Spill()
    return Fallback(
        "spill",
        "Activations stay in host memory until the backward pass. The gradients are the same, but the "
        "copies make the step slower.",
        lambda: spill,
    )


def _checkpoint(model: nn.Module, device: torch.device) -> Fallback:
    return Fallback(
        "checkpoint",
        "The backward pass recomputes the activations of each block. The gradients are the same, but a step "
        "takes about a third longer.",
        lambda: checkpoint_blocks(model),
    )


def _autocast(
    name: Literal["bf16", "fp16"], dtype: torch.dtype
) -> Callable[[nn.Module, torch.device], Fallback]:
    def fallback(model: nn.Module, device: torch.device) -> Fallback:
        return Fallback(
            name,
            f"The forward pass runs in {name}, as allowed by fallbacks=. The gradients differ because of "
            "rounding.",
            lambda: torch.autocast(device.type, dtype=dtype),
        )

    return fallback


_FALLBACKS: dict[str, Callable[[nn.Module, torch.device], Fallback]] = {
    "spill": _spill,
    "checkpoint": _checkpoint,
    "bf16": _autocast("bf16", torch.bfloat16),
    "fp16": _autocast("fp16", torch.float16),
}


def does_not_fit(
    subject: str,
    failure: ErrorClassification | None,
    phase: str,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    tried: Sequence[str],
    allocated: int | None,
) -> DoesNotFit:
    """Return the error for a sample that does not fit with any fallback. The message contains the failed operation, the
    memory in use, and advice.
    """
    usage = [
        ("parameters", _bytes(model.parameters(), device)),
        ("gradients", _bytes((p.grad for p in model.parameters() if p.grad is not None), device)),
        ("optimizer state", _bytes(_state(optimizer), device)),
        ("buffers", _bytes(model.buffers(), device)),
    ]
    other = (allocated or 0) - sum(size for _, size in usage)
    if other > 0:
        usage.append(("the batch and other tensors", other))
    parts = ", ".join(f"{name} {format_size(size)}" for name, size in usage if size)
    sentences = [f"{subject} does not fit on {device}: the {phase} pass ran out of memory"]
    if failure is not None and failure.requested:
        sentences[0] += f" while allocating {format_size(failure.requested)}"
    sentences[0] += f", even with {' and '.join(tried)}." if tried else "."
    if parts:
        sentences.append(f"Memory in use before the step: {parts}.")
    if failure is not None and failure.requested and failure.allocated is not None:
        needed = failure.allocated + failure.requested
        sentences.append(f"The step needs more than {format_size(needed)} for tensors.")
    untried = [name for name in ("spill", "checkpoint", "bf16") if name not in tried]
    if untried:
        sentences.append(f"Allow more fallbacks with Guard(..., fallbacks={(*tried, *untried)!r}).")
    sentences.append("Use shorter sequences, smaller images, a smaller model or a larger GPU.")
    return DoesNotFit(" ".join(sentences))


def optimizer_does_not_fit(optimizer: torch.optim.Optimizer, device: torch.device) -> DoesNotFit:
    """Return the error for a single optimizer operation that does not fit. After this error, and only after this error,
    some parameters are updated and others are not.
    """
    return DoesNotFit(
        f"The optimizer step does not fit on {device}, even with all other tensors in host memory "
        f"(optimizer state: {format_size(_bytes(_state(optimizer), device))}). The step is incomplete: load your latest checkpoint. "
        "Use an optimizer with less state or fewer temporaries (foreach=False or fused=True), a smaller model, "
        "or a larger GPU."
    )


def _bytes(tensors: Iterable[torch.Tensor], device: torch.device) -> int:
    return sum(tensor.nbytes for tensor in tensors if tensor.device.type == device.type)


def _state(optimizer: torch.optim.Optimizer) -> Iterable[torch.Tensor]:
    for state in optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, torch.Tensor))
