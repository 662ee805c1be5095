"""Gradients averaged over ranks, in buckets, while backward still runs: DDP's work, done where it can be stopped.

DDP's own reducer sits in C++: an exception in the middle of backward leaves it half way, and the buckets that its peers
wait for cannot be sent from outside. This one knows at any time what it has sent, starts anew at each step, and
sends its buckets in a fixed order through `torch.distributed.all_reduce`, where appointments are kept.
The arithmetic is DDP's: gradients times one over the number of ranks, summed.

A bucket exists only while it travels, so nothing is held between steps. Behind the gradients each bucket carries one
number per parameter that says whether any rank had a gradient for it: a parameter that is unused on this rank gets the
others' gradient, and one that is unused everywhere keeps none, as DDP has it.
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
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(_telling(me, bucket))
            for bucket in self._buckets
            for parameter in bucket.parameters
        ]

    @property
    def buckets(self) -> int:
        return len(self._buckets)

    def start(self) -> None:
        """Before the last forward and backward of a step: send each bucket as soon as its gradients are made."""
        self._sent = 0
        for bucket in self._buckets:
            bucket.start()
        self._listening = self._overlaps

    def finish(self) -> bool:
        """After that backward: send what is left, wait for all, and put the averages into the gradients.

        False if a gradient grew after it was sent, so that the averages are wrong: the step must be done again, and
        is then done without sending early. That happens where parts of backward run more than once
        (`checkpoint(use_reentrant=True)` around a shared parameter), and on every rank alike.
        """
        self._listening = False
        self._send(all_that_are_left=True)
        for bucket in self._buckets:
            bucket.receive()
        grew = any(bucket.grew for bucket in self._buckets)
        self._overlaps = self._overlaps and not grew
        return not grew

    def stop(self) -> None:
        """The step has failed: what was under way is let go."""
        self._listening = False
        for bucket in self._buckets:
            bucket.drop()

    def close(self) -> None:
        """Leave the parameters as they were found."""
        for hook in self._hooks:
            hook.remove()

    def ready(self, bucket: "_Bucket", parameter: torch.nn.Parameter) -> None:
        """Backward has made this gradient."""
        if self._listening:
            bucket.ready(parameter)
            self._send()

    @torch.no_grad()
    def _send(self, all_that_are_left: bool = False) -> None:
        """In the order of the buckets, whatever the order of the gradients: ranks must not differ."""
        while self._sent < len(self._buckets):
            bucket = self._buckets[self._sent]
            if not (all_that_are_left or bucket.is_ready):
                return
            bucket.send(self._group, self._ranks)
            self._sent += 1


class _Bucket:
    """Parameters of one dtype and device whose gradients travel together."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        self.parameters = parameters
        self.grew = False
        self._missing: set[int] = set()
        self._flat: torch.Tensor | None = None
        self._work: Any = None

    @property
    def is_ready(self) -> bool:
        return not self._missing

    def start(self) -> None:
        self.drop()
        self.grew = False
        self._missing = {id(parameter) for parameter in self.parameters if parameter.requires_grad}

    def ready(self, parameter: torch.nn.Parameter) -> None:
        self.grew = self.grew or self._work is not None
        self._missing.discard(id(parameter))

    def send(self, group: Any, ranks: int) -> None:
        gradients = [parameter.grad for parameter in self.parameters]
        for gradient in gradients:
            if gradient is not None and gradient.layout is not torch.strided:
                raise UsageError(
                    "Guard cannot average sparse gradients over ranks: use sparse=False in the embedding."
                )
        first = self.parameters[0]
        size = sum(parameter.numel() for parameter in self.parameters)
        flat = torch.empty(size + len(self.parameters), dtype=first.dtype, device=first.device)
        pieces = self._pieces(flat)
        if any(gradient is None for gradient in gradients):
            flat.zero_()
            for place, gradient in enumerate(gradients, start=size):
                if gradient is not None:
                    flat[place] = 1
        else:
            flat[size:] = 1
        here = [
            (piece, gradient)
            for piece, gradient in zip(pieces, gradients, strict=True)
            if gradient is not None
        ]
        if here:
            torch._foreach_copy_([piece for piece, _ in here], [gradient for _, gradient in here])
        flat.mul_(1 / ranks)
        self._flat = flat
        self._work = dist.all_reduce(flat, group=group, async_op=True)

    @torch.no_grad()
    def receive(self) -> None:
        flat, work = self._flat, self._work
        assert flat is not None, "receive() without send()"
        self.drop()
        if work is not None:
            work.wait()
        pieces = self._pieces(flat)
        here = [
            (parameter.grad, piece)
            for parameter, piece in zip(self.parameters, pieces, strict=True)
            if parameter.grad is not None
        ]
        if here:
            torch._foreach_copy_([gradient for gradient, _ in here], [piece for _, piece in here])
        if len(here) < len(self.parameters):
            anywhere = flat[-len(self.parameters) :].tolist()
            for parameter, piece, count in zip(self.parameters, pieces, anywhere, strict=True):
                if parameter.grad is None and parameter.requires_grad and count > 0:
                    parameter.grad = piece.clone()

    def drop(self) -> None:
        self._flat = self._work = None

    def _pieces(self, flat: torch.Tensor) -> list[torch.Tensor]:
        sizes = [parameter.numel() for parameter in self.parameters]
        pieces = flat.split([*sizes, len(sizes)])
        return [
            piece.view(parameter.shape) for piece, parameter in zip(pieces, self.parameters, strict=False)
        ]


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


def _telling(reducer: "weakref.ref[GradientReducer]", bucket: _Bucket) -> Callable[[torch.Tensor], None]:
    def tell(parameter: torch.Tensor) -> None:
        if (alive := reducer()) is not None:
            alive.ready(bucket, parameter)  # type: ignore[arg-type]

    return tell
