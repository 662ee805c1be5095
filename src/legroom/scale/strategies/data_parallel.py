"""`dp`: DataParallel whose coordinator gets fewer rows than the others, since it alone holds gradients, optimizer state and loss.

One process copies the model to every GPU in every step and gathers the outputs on the first one, the coordinator; the loss is that
of the whole batch, so the gradients are too, however the rows are divided. Which share leaves all GPUs equally full is foreseen
from a batch (see `balancing`) or given by hand; 0 leaves the coordinator to coordinate.
"""

from typing import Any

import torch
from torch import nn
from torch.nn.parallel import gather, parallel_apply, replicate

from legroom.scale.shares import divided
from legroom.scale.strategies.engine import Direct
from legroom.scale.world import Place
from legroom.train.guarding.batches.splitting import BatchArguments, concatenate_results, to_device

DDP_IS_BETTER = (
    "dp copies the whole model to every GPU in every step, runs in one process whose Python is shared by all of them, and keeps gradients, "
    "optimizer state and outputs on one GPU. ddp does none of that: `legroom launch --nproc {count} --strategy ddp script.py`"
)


def data_parallel(
    model: nn.Module, optimizer: torch.optim.Optimizer | None, place: Place, *, shares: list[float]
) -> Direct:
    model.to(place.device)
    wrapped = UnevenDataParallel(model, list(place.devices), shares)
    return Direct("dp", wrapped, model, optimizer, batch_device=place.device)


class UnevenDataParallel(nn.Module):
    """`nn.DataParallel` with a share of the rows for each device; the first one is the coordinator."""

    def __init__(self, module: nn.Module, devices: list[torch.device], shares: list[float]) -> None:
        super().__init__()
        self.module = module
        self.devices, self.shares = devices, shares

    def forward(self, *arguments: Any, **named: Any) -> Any:
        batch = BatchArguments(arguments, named)
        counts = divided(batch.batch_size, self.shares)
        pieces: list[tuple[Any, ...]] = []
        pieces_named: list[dict[str, Any]] = []
        start = 0
        at_work = [place for place, count in enumerate(counts) if count]
        for place in at_work:
            ours, ours_named = batch.slice(start, start + counts[place])
            start += counts[place]
            pieces.append(to_device(ours, self.devices[place], non_blocking=True))
            pieces_named.append(to_device(ours_named, self.devices[place], non_blocking=True))
        if at_work == [0]:
            return self.module(*pieces[0], **pieces_named[0])
        copies = replicate(self.module, self.devices, detach=not torch.is_grad_enabled())
        outputs = parallel_apply(
            [copies[place] for place in at_work],
            pieces,
            pieces_named,
            [self.devices[place] for place in at_work],
        )
        if isinstance(outputs[0], torch.Tensor) and outputs[0].dim():
            return gather(outputs, self.devices[0])
        home = [to_device(output, self.devices[0]) for output in outputs]
        return concatenate_results(home, [counts[place] for place in at_work])
