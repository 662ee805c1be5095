"""`ddp`: every rank holds the model and has rows of its own; gradients are averaged while backward runs.

Gradients are views into the buckets that are sent, so they exist once. Unused parameters make DDP wait for ever unless it is told: a
trace of one step finds them, and says whether the graph can change from step to step (then they are looked for in each).
"""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from legroom.scale.strategies.engine import Direct
from legroom.scale.world import Place


def distributed(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    place: Place,
    *,
    shares: list[float],
    unused: bool = False,
    may_change: bool = False,
    static_graph: bool | None = None,
) -> Direct:
    """`unused`: a step leaves some parameters without gradient; `may_change`: which ones may differ between steps."""
    model.to(place.device)
    static = (unused and not may_change) if static_graph is None else static_graph
    wrapped = DistributedDataParallel(
        model,
        device_ids=[place.device] if place.device.type == "cuda" else None,
        gradient_as_bucket_view=True,
        static_graph=static,
        find_unused_parameters=unused and not static,
    )
    return Direct("ddp", wrapped, model, optimizer, shares=shares, batch_device=place.device)
