"""`fsdp`: FSDP2. Each rank keeps a part of every weight, gradient and optimizer state, and gathers a module's weights while it computes.

What is gathered at once is a module chosen by size: small enough that two of them are little beside the shards, large enough that
the network is worth waking. What is too small for a gathering of its own goes with the modules around it.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from legroom.scale.optimizers import rebound
from legroom.scale.strategies.engine import Direct
from legroom.scale.world import Place
from legroom.units import MiB

LARGEST_PART = 1 / 8
"""Of the model: what is gathered at once is no more, if its modules allow it."""
SMALLEST_PART = 1 / 256
"""Of the model: less is not worth a gathering of its own."""
WORTH_SENDING = MiB


@dataclass(frozen=True, slots=True)
class Wrapping:
    """Which modules are gathered on their own, innermost first, and what that means for memory."""

    names: tuple[str, ...]
    largest: int
    """Bytes that the largest of them has, the rest of the model being one too."""


def sharded(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    place: Place,
    *,
    shares: list[float],
    dtype: torch.dtype | None = None,
    offload: bool = False,
) -> Direct:
    """`dtype`: compute in it, while shards and sums of gradients stay in float32. `offload`: shards wait in host memory."""
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    from_rank_zero(model)
    mesh = init_device_mesh(place.device.type, (place.world.size,))
    options: dict[str, Any] = {"mesh": mesh}
    if dtype not in (None, torch.float32):
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    if offload:
        options["offload_policy"] = CPUOffloadPolicy()
    before = dict(model.named_parameters(remove_duplicate=False))
    for name in wrapping(model).names:
        fully_shard(model.get_submodule(name), **options)
    fully_shard(model, **options)
    after = dict(model.named_parameters(remove_duplicate=False))
    rebound(optimizer, {before[name]: after[name] for name in before})
    return Direct("fsdp", model, model, optimizer, shares=shares, batch_device=place.device, is_sharded=True)


def wrapping(model: nn.Module) -> Wrapping:
    """The modules that are gathered on their own: the largest that are no more than LARGEST_PART of the model, or are one of several alike (the blocks of a transformer)."""
    whole = _bytes(model.parameters())
    shared = _shared(model)
    chosen: list[str] = []

    def look(name: str, module: nn.Module, *, is_block: bool) -> None:
        mine = list(module.parameters())
        size = _bytes(mine)
        if size < max(whole * SMALLEST_PART, min(WORTH_SENDING, whole * LARGEST_PART)):
            return
        children = list(module.named_children())
        is_call = type(module).forward is not nn.Module.forward and not isinstance(
            module, nn.ModuleList | nn.ModuleDict
        )
        if name and is_call and (size <= whole * LARGEST_PART or is_block or not children):
            if not any(id(parameter) in shared for parameter in mine):
                chosen.append(name)
            return
        kinds = Counter(type(child) for _, child in children)
        for child_name, child in children:
            repeated = isinstance(module, nn.ModuleList | nn.Sequential) and kinds[type(child)] > 1
            look(f"{name}.{child_name}" if name else child_name, child, is_block=repeated)

    look("", model, is_block=False)
    sizes = [_bytes(model.get_submodule(name).parameters()) for name in chosen]
    return Wrapping(tuple(chosen), max([*sizes, whole - sum(sizes)]))


def _shared(model: nn.Module) -> set[int]:
    """Parameters with two homes: both must be gathered together, so they go with the whole model."""
    seen: set[int] = set()
    twice: set[int] = set()
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                (twice if id(parameter) in seen else seen).add(id(parameter))
    return twice


@torch.no_grad()
def from_rank_zero(module: nn.Module) -> None:
    """Every rank starts from rank 0's weights and buffers, wherever its own came from."""
    if dist.get_world_size() == 1:
        return
    for tensor in (*module.parameters(), *module.buffers()):
        dist.broadcast(tensor.detach(), src=0)


def _bytes(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
