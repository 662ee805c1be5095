"""Computes the weight of each rank's mean loss, so that the gradients are the same as for the global batch.

Engines average gradients across ranks with equal weights. If a rank has n of the N samples of W ranks, its loss is
multiplied by n · W / N. The average over ranks is then exactly the mean over all N samples. N is summed over the ranks
on the CPU while the forward pass runs.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from legroom.train.guarding.batches.splitting import BatchArguments
from legroom.train.guarding.batches.weighting import Weight, count_weight
from legroom.train.ranks.waiting import wait_for_ranks, waiting


class LossWeighting:
    """Computes the loss weights. `ranks` is the number of ranks that have different samples, which is 1 if every rank
    has the whole batch.
    """

    def __init__(self, weight: Weight | None, *, ranks: int) -> None:
        self._weight, self._ranks = weight, ranks
        self._is_counted = True
        self._host_group: Any = None
        if ranks > 1:
            wait_for_ranks("legroom.parallel()", "loss_weights")
            with waiting("legroom.parallel()"):
                self._host_group = dist.new_group(backend="gloo")

    def set_counted(self, is_counted: bool) -> None:
        """Set whether the samples of the current batch are counted. A rank without samples uses one sample that is not
        counted, with weight 0.
        """
        self._is_counted = is_counted

    def count(self, *arguments: Any, **named: Any) -> float:
        batch = BatchArguments(arguments, named)
        if not self._is_counted:
            return 0.0
        return (
            float(batch.batch_size)
            if self._weight is None
            else count_weight(self._weight, batch, 0, batch.batch_size)
        )

    def begin(self, batch: BatchArguments) -> Callable[[], float]:
        """Start summing the weights across all ranks. The returned function waits for the sum and returns the weight
        of this rank's loss.
        """
        if self._ranks == 1:
            return _one
        own = self.count(*batch.arguments, **batch.named)
        total = torch.tensor([own], dtype=torch.float64, device="cpu")
        work = dist.all_reduce(total, group=self._host_group, async_op=True)

        def wait() -> float:
            with waiting("run.step()"):
                work.wait()
            return own * self._ranks / total.item() if total.item() else 0.0

        return wait

    def gather(self, value: Any) -> Any:
        """Gather a value from all ranks. Tensors are concatenated in the order of the global batch, scalars become one
        number per rank, and other values become a list.
        """
        if isinstance(value, dict):
            return {name: self.gather(item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self.gather(item) for item in value)
        if not isinstance(value, torch.Tensor):
            return self._all_gather(value)
        samples = value.detach().reshape(1) if value.dim() == 0 else value.detach()
        if self._ranks == 1:
            return samples
        if value.dim() and not self._is_counted:
            samples = samples[:0]
        counts = self._all_gather(len(samples))
        padded = samples.new_zeros(max(counts), *samples.shape[1:])
        padded[: len(samples)] = samples
        parts = [torch.empty_like(padded) for _ in counts]
        with waiting("run.gather()"):
            dist.all_gather(parts, padded)
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    def _all_gather(self, value: Any) -> list[Any]:
        if self._ranks == 1:
            return [value]
        values: list[Any] = [None] * self._ranks
        with waiting("run.gather()"):
            dist.all_gather_object(values, value, group=self._host_group)
        return values


def _one() -> float:
    return 1.0
