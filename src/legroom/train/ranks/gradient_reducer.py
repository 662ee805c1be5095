"""Averages gradients across ranks in buckets during the backward pass, like DDP. Unlike DDP's reducer, this reducer can
be stopped during a pass.

An exception during the backward pass leaves DDP's own C++ reducer in an undefined state. The other ranks then wait for
buckets that the failed rank can no longer send. This reducer records which buckets it has sent, and sends them in a
fixed order through `torch.distributed.all_reduce`. Therefore, a failed rank can complete its pending collectives. The
arithmetic is the same as in DDP: gradients are multiplied by 1 / (number of ranks) and summed.

A bucket exists only while it is reduced, so no memory is used between steps. In addition to the gradients, each bucket
contains one number per parameter, which shows whether any rank has a gradient for this parameter. A parameter that this
rank does not use gets the gradient of the other ranks. A parameter that no rank uses gets no gradient, as in DDP.

A Python hook runs once per bucket, for the parameter whose gradient is expected last. If another gradient of the
bucket is missing when the hook runs, the bucket is sent after the backward pass.
"""

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist

from legroom.errors import UsageError
from legroom.train.ranks.waiting import waiting

FIRST_BUCKET_BYTES = 1 << 20  # small, so that the first bucket is sent early
BUCKET_BYTES = 25 << 20


class GradientReducer:
    def __init__(
        self, parameters: Iterable[torch.nn.Parameter], group: Any, *, bucket_bytes: int = BUCKET_BYTES
    ) -> None:
        self._group = group
        self._ranks = dist.get_world_size(group)
        self._buckets = _make_buckets(list(parameters), bucket_bytes)
        self._sent = 0
        self._is_active = False
        self._overlaps = True
        reference = weakref.ref(self)
        for bucket in self._buckets:
            bucket.parameters[-1].register_post_accumulate_grad_hook(_ready_hook(reference))  # type: ignore[no-untyped-call]

    @property
    def buckets(self) -> int:
        return len(self._buckets)

    def start(self) -> None:
        """Prepare for the last forward and backward pass of a step. In that pass, each bucket is sent as soon as its
        gradients exist."""
        self._sent = 0
        self._is_active = self._overlaps
        for bucket in self._buckets:
            bucket.start()

    def finish(self) -> bool:
        """Send the remaining buckets after the backward pass, wait for all buckets, and write the averages into the
        gradients. Return False if a gradient changed after it was sent, which makes the averages wrong. After a late
        change, the step must be repeated, and buckets are no longer sent early.

        A late change occurs if parts of the backward pass run more than once, for example if
        `checkpoint(use_reentrant=True)` wraps modules that share a parameter. A late change happens on every rank or
        on none.
        """
        self._is_active = False
        self._send(all_remaining=True)
        changed = [bucket.receive() for bucket in self._buckets]
        self._overlaps = self._overlaps and not any(changed)
        return not any(changed)

    def stop(self) -> None:
        self._is_active = False
        for bucket in self._buckets:
            bucket.drop()

    def on_ready(self) -> None:
        if self._is_active:
            self._send()

    @torch.no_grad()
    def _send(self, all_remaining: bool = False) -> None:
        """Send buckets in a fixed order, because all ranks must send the same buckets in the same order."""
        while self._sent < len(self._buckets):
            bucket = self._buckets[self._sent]
            if not (all_remaining or bucket.is_ready()):
                return
            bucket.send(self._group, self._ranks)
            self._sent += 1


class _Bucket:
    """Parameters of one dtype and device whose gradients are reduced together."""

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
                "Guard cannot average sparse gradients across ranks. Use sparse=False in the embedding."
            )
        first = self.parameters[0]
        kind: dict[str, Any] = {"dtype": first.dtype, "device": first.device}
        if any(gradient is None for gradient in gradients):
            has_gradient = torch.tensor([float(gradient is not None) for gradient in gradients], **kind)
            parts = [
                torch.zeros(parameter.numel(), **kind) if gradient is None else gradient.reshape(-1)
                for parameter, gradient in zip(self.parameters, gradients, strict=True)
            ]
        else:
            has_gradient = torch.ones(len(gradients), **kind)
            parts = [gradient.reshape(-1) for gradient in gradients if gradient is not None]
        flat = torch.cat([*parts, has_gradient]).mul_(1 / ranks)
        self._flat = flat
        self._work = dist.all_reduce(flat, group=group, async_op=True)

    @torch.no_grad()
    def receive(self) -> bool:
        """Write the averages into the gradients. Return True if a gradient changed since it was sent."""
        flat, work = self._flat, self._work
        assert flat is not None, "receive() without send()"
        changed = _versions(self.parameters) != self._at_send
        self.drop()
        if work is not None:
            with waiting("a method of Guard"):
                work.wait()
        sizes = [parameter.numel() for parameter in self.parameters]
        *parts, has_gradient = torch.split(flat, [*sizes, len(sizes)])
        gradients = [parameter.grad for parameter in self.parameters]
        existing = [
            (gradient, part.view(gradient.shape))
            for gradient, part in zip(gradients, parts, strict=True)
            if gradient is not None
        ]
        if existing:
            torch._foreach_copy_([gradient for gradient, _ in existing], [part for _, part in existing])
        if len(existing) < len(gradients):
            for parameter, part, on_any_rank in zip(
                self.parameters, parts, has_gradient.tolist(), strict=True
            ):
                if parameter.grad is None and parameter.requires_grad and on_any_rank > 0:
                    parameter.grad = part.view(parameter.shape).clone()
        return changed

    def drop(self) -> None:
        self._flat = self._work = None


def _versions(parameters: list[torch.nn.Parameter]) -> list[int]:
    """Return the version counters of the gradients. The version counter of a gradient changes whenever the backward
    pass adds to the gradient."""
    return [-1 if (gradient := parameter.grad) is None else gradient._version for parameter in parameters]


def _make_buckets(parameters: list[torch.nn.Parameter], bucket_bytes: int) -> list[_Bucket]:
    """Group parameters into buckets. The last parameters come first, because the backward pass computes their
    gradients first."""
    buckets: list[_Bucket] = []
    open_buckets: dict[tuple[torch.dtype, torch.device], tuple[list[torch.nn.Parameter], int]] = {}
    for parameter in reversed(parameters):
        kind = (parameter.dtype, parameter.device)
        members, size = open_buckets.pop(kind, ([], 0))
        members.append(parameter)
        size += parameter.numel() * parameter.element_size()
        if size >= (bucket_bytes if buckets else min(FIRST_BUCKET_BYTES, bucket_bytes)):
            buckets.append(_Bucket(members))
        else:
            open_buckets[kind] = (members, size)
    return buckets + [_Bucket(members) for members, _ in open_buckets.values()]


def _ready_hook(reference: "weakref.ref[GradientReducer]") -> Callable[[torch.Tensor], None]:
    def hook(_: torch.Tensor) -> None:
        if (reducer := reference()) is not None:
            reducer.on_ready()

    return hook
