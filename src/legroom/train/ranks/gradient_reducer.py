"""Gradients averaged over ranks, in buckets, while backward still runs: DDP's work, done where it can be stopped.

DDP's own reducer sits in C++: an exception in the middle of backward leaves it half way, and the buckets that its peers
wait for cannot be sent from outside. This one knows at any time what it has sent, starts anew at each step, and
sends its buckets in a fixed order through `torch.distributed.all_reduce`, where appointments are kept.
The arithmetic is DDP's: gradients times one over the number of ranks, summed.

A bucket exists only while it travels, so nothing is held between steps. Behind the gradients each bucket carries one
number per parameter that says whether any rank had a gradient for it: a parameter that is unused on this rank gets the
others' gradient, and one that is unused everywhere keeps none, as DDP has it.

Python is called once per bucket, not once per parameter: by the parameter of the bucket whose gradient should come last.
Whether the others' have come is seen from their gradients then; if one has not, the bucket leaves at the end.
"""

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist

from legroom.errors import UsageError

FIRST_BUCKET_BYTES = 1 << 20  # small, so that the first one leaves early
BUCKET_BYTES = 25 << 20


class GradientReducer:
    """Averages the gradients of `parameters` over the ranks of `group`, as backward makes them."""

    def __init__(
        self, parameters: Iterable[torch.nn.Parameter], group: Any, *, bucket_bytes: int = BUCKET_BYTES
    ) -> None:
        self._group = group
        self._ranks = dist.get_world_size(group)
        self._buckets = _cut(list(parameters), bucket_bytes)
        self._sent = 0
        self._listening = False
        self._overlaps = True
        me = weakref.ref(self)
        for bucket in self._buckets:
            bucket.parameters[-1].register_post_accumulate_grad_hook(_telling(me))  # type: ignore[no-untyped-call]

    @property
    def buckets(self) -> int:
        return len(self._buckets)

    def start(self) -> None:
        """Before the last forward and backward of a step: send each bucket as soon as its gradients are made."""
        self._sent = 0
        self._listening = self._overlaps
        for bucket in self._buckets:
            bucket.start()

    def finish(self) -> bool:
        """After that backward: send what is left, wait for all, and put the averages into the gradients.

        False if a gradient grew after it was sent, so that the averages are wrong: the step must be done again, and
        is then done without sending early. That happens where parts of backward run more than once
        (`checkpoint(use_reentrant=True)` around a shared parameter), and on every rank alike.
        """
        self._listening = False
        self._send(all_that_are_left=True)
        grew = [bucket.receive() for bucket in self._buckets]
        self._overlaps = self._overlaps and not any(grew)
        return not any(grew)

    def stop(self) -> None:
        """The step has failed: what was under way is let go."""
        self._listening = False
        for bucket in self._buckets:
            bucket.drop()

    def one_is_ready(self) -> None:
        """Backward has made the gradient that should be the last of a bucket."""
        if self._listening:
            self._send()

    @torch.no_grad()
    def _send(self, all_that_are_left: bool = False) -> None:
        """In the order of the buckets, whatever the order of the gradients: ranks must not differ."""
        while self._sent < len(self._buckets):
            bucket = self._buckets[self._sent]
            if not (all_that_are_left or bucket.is_ready()):
                return
            bucket.send(self._group, self._ranks)
            self._sent += 1


class _Bucket:
    """Parameters of one dtype and device whose gradients travel together."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        self.parameters = parameters
        self._before: list[int] = []
        self._at_send: list[int] = []
        self._flat: torch.Tensor | None = None
        self._work: Any = None

    def start(self) -> None:
        self.drop()
        self._before = _versions(self.parameters)

    def is_ready(self) -> bool:
        """Whether backward has come by every parameter."""
        return all(
            now != before or not parameter.requires_grad
            for now, before, parameter in zip(
                _versions(self.parameters), self._before, self.parameters, strict=True
            )
        )

    def send(self, group: Any, ranks: int) -> None:
        gradients = [parameter.grad for parameter in self.parameters]
        self._at_send = _versions(self.parameters)
        if any(gradient is not None and gradient.is_sparse for gradient in gradients):
            raise UsageError(
                "Guard cannot average sparse gradients over ranks: use sparse=False in the embedding."
            )
        first = self.parameters[0]
        kind: dict[str, Any] = {"dtype": first.dtype, "device": first.device}
        if any(gradient is None for gradient in gradients):
            made = torch.tensor([float(gradient is not None) for gradient in gradients], **kind)
            pieces = [
                torch.zeros(parameter.numel(), **kind) if gradient is None else gradient.reshape(-1)
                for parameter, gradient in zip(self.parameters, gradients, strict=True)
            ]
        else:
            made = torch.ones(len(gradients), **kind)
            pieces = [gradient.reshape(-1) for gradient in gradients if gradient is not None]
        flat = torch.cat([*pieces, made]).mul_(1 / ranks)
        self._flat = flat
        self._work = dist.all_reduce(flat, group=group, async_op=True)

    @torch.no_grad()
    def receive(self) -> bool:
        """Put the averages where they belong. True if a gradient grew since it was sent."""
        flat, work = self._flat, self._work
        assert flat is not None, "receive() without send()"
        grew = _versions(self.parameters) != self._at_send
        self.drop()
        if work is not None:
            work.wait()
        sizes = [parameter.numel() for parameter in self.parameters]
        *pieces, made = torch.split(flat, [*sizes, len(sizes)])
        gradients = [parameter.grad for parameter in self.parameters]
        here = [
            (gradient, piece.view(gradient.shape))
            for gradient, piece in zip(gradients, pieces, strict=True)
            if gradient is not None
        ]
        if here:
            torch._foreach_copy_([gradient for gradient, _ in here], [piece for _, piece in here])
        if len(here) < len(gradients):
            for parameter, piece, anywhere in zip(self.parameters, pieces, made.tolist(), strict=True):
                if parameter.grad is None and parameter.requires_grad and anywhere > 0:
                    parameter.grad = piece.view(parameter.shape).clone()
        return grew

    def drop(self) -> None:
        self._flat = self._work = None


def _versions(parameters: list[torch.nn.Parameter]) -> list[int]:
    """Changes whenever backward adds to a gradient."""
    return [-1 if (gradient := parameter.grad) is None else gradient._version for parameter in parameters]


def _cut(parameters: list[torch.nn.Parameter], bucket_bytes: int) -> list[_Bucket]:
    """Last parameters first: backward makes their gradients first."""
    buckets: list[_Bucket] = []
    open_buckets: dict[tuple[torch.dtype, torch.device], tuple[list[torch.nn.Parameter], int]] = {}
    for parameter in reversed(parameters):
        kind = (parameter.dtype, parameter.device)
        inside, size = open_buckets.pop(kind, ([], 0))
        inside.append(parameter)
        size += parameter.numel() * parameter.element_size()
        if size >= (bucket_bytes if buckets else min(FIRST_BUCKET_BYTES, bucket_bytes)):
            buckets.append(_Bucket(inside))
        else:
            open_buckets[kind] = (inside, size)
    return buckets + [_Bucket(inside) for inside, _ in open_buckets.values()]


def _telling(reducer: "weakref.ref[GradientReducer]") -> Callable[[torch.Tensor], None]:
    def tell(_: torch.Tensor) -> None:
        if (alive := reducer()) is not None:
            alive.one_is_ready()

    return tell
