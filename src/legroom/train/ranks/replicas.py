"""Handles DDP modules in a step that may have to be repeated.

During the step, DDP's own communication is disabled, as in `no_sync()`. Before the first micro-batch, buffers are
broadcast from rank 0, as in DDP. During the backward pass of the last micro-batch, `GradientReducer` averages the
gradients. Outside Guard, the model works as usual.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from legroom.errors import UsageError
from legroom.train.ranks.gradient_reducer import BUCKET_BYTES, GradientReducer
from legroom.train.ranks.waiting import waiting


class Replicas:
    def __init__(self, ddp: DistributedDataParallel) -> None:
        if getattr(ddp, "_comm_hooks", None):
            raise UsageError(
                "Guard averages gradients itself and cannot call the communication hook of this DDP model. "
                "Remove register_comm_hook()."
            )
        if getattr(ddp, "mixed_precision", None) is not None:
            raise UsageError(
                "Guard does not support DDP's mixed_precision=. Use Guard(..., precision=...) instead."
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
    def micro_batch(self, first: bool, last: bool) -> Iterator[None]:
        if first and self._ddp.broadcast_buffers and self._ddp.modules_buffers:
            self._broadcast_buffers()
        if last:
            self._reducer.start()
        with self.no_sync():
            yield

    def finish(self) -> bool:
        """Average the gradients after the last micro-batch. Return False if the step must be repeated."""
        return self._reducer.finish()

    def discard(self) -> None:
        self._reducer.stop()

    def no_sync(self) -> AbstractContextManager[None]:
        return no_ddp_sync(self._ddp)

    def collectives(self) -> int:
        return self._reducer.buckets + (len(self._buffers()) if self._ddp.broadcast_buffers else 0)

    @torch.no_grad()
    def _broadcast_buffers(self) -> None:
        source = dist.get_global_rank(self.group, 0)
        for buffers in self._buffers():
            flat = torch.cat([buffer.reshape(-1) for buffer in buffers])
            with waiting("a method of Guard"):
                dist.broadcast(flat, src=source, group=self.group)
            parts = torch.split(flat, [buffer.numel() for buffer in buffers])
            torch._foreach_copy_(
                buffers, [part.view(buffer.shape) for part, buffer in zip(parts, buffers, strict=True)]
            )

    def _buffers(self) -> list[list[torch.Tensor]]:
        by_kind: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
        for name, buffer in self._ddp.module.named_buffers():
            if name not in self._ignored:
                by_kind.setdefault((buffer.dtype, buffer.device), []).append(buffer)
        return list(by_kind.values())


@contextmanager
def no_ddp_sync(ddp: DistributedDataParallel) -> Iterator[None]:
    """Inside the block, disable all communication of DDP: gradients, buffers and the tracking of unused parameters."""
    saved = (ddp.require_forward_param_sync, ddp.find_unused_parameters, ddp.static_graph)
    ddp.require_forward_param_sync = ddp.find_unused_parameters = ddp.static_graph = False
    try:
        with ddp.no_sync():
            yield
    finally:
        ddp.require_forward_param_sync, ddp.find_unused_parameters, ddp.static_graph = saved
