"""A model that every rank holds whole (DDP), in a step that may have to be given up.

DDP's own communication stays idle during the step: forward and backward run as in `no_sync()`, buffers are taken from
rank 0 at the first micro-batch, as DDP does once per step, and gradients are averaged by our GradientReducer while the last
micro-batch's backward runs. Outside of Guard the model works as ever.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from legroom.errors import UsageError
from legroom.train.ranks.gradient_reducer import BUCKET_BYTES, GradientReducer


class Replicas:
    """One DDP module of the model."""

    def __init__(self, ddp: DistributedDataParallel) -> None:
        if getattr(ddp, "_comm_hooks", None):
            raise UsageError(
                "Guard averages gradients itself and cannot call the communication hook of this DDP model: "
                "build the model without register_comm_hook()."
            )
        if getattr(ddp, "mixed_precision", None) is not None:
            raise UsageError(
                "Guard does not work with DDP's mixed_precision=: use Guard's precision= instead."
            )
        self._ddp = ddp
        self.group: Any = ddp.process_group
        self._ignored = ignored = set(getattr(ddp, "parameters_to_ignore", ()))
        self._reducer = GradientReducer(
            [
                parameter
                for name, parameter in ddp.module.named_parameters()
                if parameter.requires_grad and name not in ignored
            ],
            self.group,
            bucket_bytes=getattr(ddp, "bucket_bytes_cap", BUCKET_BYTES),
        )

    @contextmanager
    def chunk(self, first: bool, last: bool) -> Iterator[None]:
        """Around forward and backward of one micro-batch."""
        if first and self._ddp.broadcast_buffers and self._ddp.modules_buffers:
            self._take_buffers()
        if last:
            self._reducer.start()
        with self.alone():
            yield

    def finish(self) -> bool:
        """After the last micro-batch: gradients are averaged. False: the step must be done again."""
        return self._reducer.finish()

    def forget(self) -> None:
        """The step has failed."""
        self._reducer.stop()

    def alone(self) -> AbstractContextManager[None]:
        return silent(self._ddp)

    def collectives(self) -> int:
        """How many make up one step."""
        return self._reducer.buckets + (len(self._buffers()) if self._ddp.broadcast_buffers else 0)

    @torch.no_grad()
    def _take_buffers(self) -> None:
        """Everyone gets rank 0's, in one broadcast per dtype."""
        source = dist.get_global_rank(self.group, 0)
        for buffers in self._buffers():
            flat = torch.cat([buffer.reshape(-1) for buffer in buffers])
            dist.broadcast(flat, src=source, group=self.group)
            pieces = torch.split(flat, [buffer.numel() for buffer in buffers])
            torch._foreach_copy_(
                buffers, [piece.view(buffer.shape) for piece, buffer in zip(pieces, buffers, strict=True)]
            )

    def _buffers(self) -> list[list[torch.Tensor]]:
        by_kind: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
        for name, buffer in self._ddp.module.named_buffers():
            if name not in self._ignored:
                by_kind.setdefault((buffer.dtype, buffer.device), []).append(buffer)
        return list(by_kind.values())


@contextmanager
def silent(ddp: DistributedDataParallel) -> Iterator[None]:
    """Inside, DDP communicates nothing: no gradients, no buffers, and no tracking of what is unused."""
    kept = (ddp.require_forward_param_sync, ddp.find_unused_parameters, ddp.static_graph)
    ddp.require_forward_param_sync = ddp.find_unused_parameters = ddp.static_graph = False
    try:
        with ddp.no_sync():
            yield
    finally:
        ddp.require_forward_param_sync, ddp.find_unused_parameters, ddp.static_graph = kept
