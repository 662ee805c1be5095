"""Implements strategy `dp`: DataParallel with different batch shares. The first GPU (the coordinator) gets fewer
samples, because it also has gradients, optimizer state and the loss.

One process copies the model to every GPU in every step and gathers the outputs on the coordinator. The loss is computed
over the whole batch, so the gradients do not depend on the shares. The shares that balance the memory are predicted
from a batch (`strategy_memory.coordinator_shares`) or given by the user. With a share of 0, the coordinator only
gathers results.
"""

from typing import Any

import torch
from torch import nn
from torch.nn.parallel import gather, parallel_apply, replicate

from legroom.scale.shares import split_by_shares
from legroom.scale.strategies.engine import WrappedModelEngine
from legroom.scale.world import RankDevices
from legroom.train.guarding.batches.splitting import (
    BatchArguments,
    concatenate_results,
    result_to_device,
    to_device,
)

DDP_IS_BETTER = (
    "ddp is faster: `legroom launch --nproc {count} --strategy ddp script.py`. dp copies the model to every GPU in every step, runs all "
    "GPUs from one Python process, and keeps gradients, optimizer state and outputs on one GPU."
)


def data_parallel(
    model: nn.Module, optimizer: torch.optim.Optimizer | None, devices: RankDevices, *, shares: list[float]
) -> WrappedModelEngine:
    model.to(devices.device)
    wrapped = UnevenDataParallel(model, list(devices.devices), shares)
    return WrappedModelEngine("dp", wrapped, model, optimizer, batch_device=devices.device)


class UnevenDataParallel(nn.Module):
    """`nn.DataParallel` with a batch share for each device. The first device is the coordinator."""

    def __init__(self, module: nn.Module, devices: list[torch.device], shares: list[float]) -> None:
        super().__init__()
        self.module = module
        self.devices, self.shares = devices, shares

    def forward(self, *arguments: Any, **named: Any) -> Any:
        batch = BatchArguments(arguments, named)
        counts = split_by_shares(batch.batch_size, self.shares)
        slices: list[tuple[Any, ...]] = []
        named_slices: list[dict[str, Any]] = []
        start = 0
        active = [index for index, count in enumerate(counts) if count]
        for index in active:
            part, named_part = batch.slice(start, start + counts[index])
            start += counts[index]
            slices.append(to_device(part, self.devices[index], non_blocking=True))
            named_slices.append(to_device(named_part, self.devices[index], non_blocking=True))
        if active == [0]:
            return self.module(*slices[0], **named_slices[0])
        copies = replicate(self.module, self.devices, detach=not torch.is_grad_enabled())
        outputs = parallel_apply(
            [copies[index] for index in active],
            slices,
            named_slices,
            [self.devices[index] for index in active],
        )
        if isinstance(outputs[0], torch.Tensor) and outputs[0].dim():
            return gather(outputs, self.devices[0])
        on_coordinator = [result_to_device(output, self.devices[0]) for output in outputs]
        return concatenate_results(on_coordinator, [counts[index] for index in active])
