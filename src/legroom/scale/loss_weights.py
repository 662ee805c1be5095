"""What each rank's mean loss counts, so that the gradients are those of the whole batch, and what ranks have, put together.

Engines average gradients over ranks as if each had as many rows. With n of N rows on one of W ranks, its loss is multiplied by
n · W / N first: the average is then the mean over all N rows, exactly. N is summed over the hosts while the forward pass runs.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from legroom.train.guarding.batches.splitting import BatchArguments
from legroom.train.guarding.batches.weighting import Weight, count_weight


class Weighing:
    """The ranks that have rows of their own; one rank where every rank sees the whole batch."""

    def __init__(self, weight: Weight | None, *, ranks: int) -> None:
        self._weight, self._ranks = weight, ranks
        self._rows_count = True
        self._hosts: Any = dist.new_group(backend="gloo") if ranks > 1 else None

    def rows_count(self, whether: bool) -> None:
        """Whether the rows of the batch at hand are this rank's, or one that only keeps it company."""
        self._rows_count = whether

    def count(self, *arguments: Any, **named: Any) -> float:
        """What these rows weigh."""
        batch = BatchArguments(arguments, named)
        if not self._rows_count:
            return 0.0
        return (
            float(batch.batch_size)
            if self._weight is None
            else count_weight(self._weight, batch, 0, batch.batch_size)
        )

    def begin(self, batch: BatchArguments) -> Callable[[], float]:
        """The sum over ranks is under way; what is returned waits for it and tells what this rank's loss counts."""
        if self._ranks == 1:
            return _once
        mine = self.count(*batch.arguments, **batch.named)
        total = torch.tensor([mine], dtype=torch.float64, device="cpu")
        work = dist.all_reduce(total, group=self._hosts, async_op=True)

        def wait() -> float:
            work.wait()
            return mine * self._ranks / total.item() if total.item() else 0.0

        return wait

    def gathered(self, value: Any) -> Any:
        """Of tensors with rows, all rows in the order of the whole batch; of single numbers, one per rank; else a list."""
        if isinstance(value, dict):
            return {name: self.gathered(item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self.gathered(item) for item in value)
        if not isinstance(value, torch.Tensor):
            return self._everyones(value)
        rows = value.detach().reshape(1) if value.dim() == 0 else value.detach()
        if self._ranks == 1:
            return rows
        if value.dim() and not self._rows_count:
            rows = rows[:0]
        counts = self._everyones(len(rows))
        padded = rows.new_zeros(max(counts), *rows.shape[1:])
        padded[: len(rows)] = rows
        pieces = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(pieces, padded)
        return torch.cat([piece[:number] for piece, number in zip(pieces, counts, strict=True)])

    def _everyones(self, value: Any) -> list[Any]:
        if self._ranks == 1:
            return [value]
        told: list[Any] = [None] * self._ranks
        dist.all_gather_object(told, value, group=self._hosts)
        return told


def _once() -> float:
    return 1.0
