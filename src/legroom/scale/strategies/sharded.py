"""Implements strategy `fsdp` with FSDP2. Each rank has a shard of weights, gradients and optimizer state, and gathers
the weights of a module while the module runs.

The modules that are gathered separately are selected by size. These modules are small compared to the shards, but large
enough for efficient communication. Smaller modules are gathered with their parent module.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from legroom.scale.optimizers import replace_parameters
from legroom.scale.strategies.engine import WrappedModelEngine
from legroom.scale.world import RankDevices
from legroom.train.ranks.waiting import waiting
from legroom.units import MiB

MAX_UNIT_FRACTION = 1 / 8
"""Modules that are larger than this fraction of the model are divided into their child modules, if possible."""
MIN_UNIT_FRACTION = 1 / 256
"""Modules that are smaller than this fraction of the model are gathered with their parent module."""
MIN_UNIT_BYTES = MiB


@dataclass(frozen=True, slots=True)
class Wrapping:
    """The modules that are gathered separately, innermost first."""

    names: tuple[str, ...]
    largest: int
    """The size in bytes of the largest module that is gathered separately. The rest of the model counts as one module.
    """


def sharded(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    devices: RankDevices,
    *,
    shares: list[float],
    dtype: torch.dtype | None = None,
    offload: bool = False,
) -> WrappedModelEngine:
    """Return the FSDP2 engine. `dtype` is the dtype of computations. Shards and gradient sums stay in float32.

    With `offload`, shards are kept in host memory.
    """
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    broadcast_from_rank_zero(model)
    mesh = init_device_mesh(devices.device.type, (devices.world.size,))
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
    replace_parameters(optimizer, {before[name]: after[name] for name in before})
    return WrappedModelEngine(
        "fsdp", model, model, optimizer, shares=shares, batch_device=devices.device, is_sharded=True
    )


def wrapping(model: nn.Module) -> Wrapping:
    """Return the modules that are gathered separately: the repeated blocks of a transformer, and the largest other
    modules with at most MAX_UNIT_FRACTION of the model's bytes.
    """
    total = _bytes(model.parameters())
    shared = _shared_parameters(model)
    chosen: list[str] = []

    def visit(name: str, module: nn.Module, *, is_block: bool) -> None:
        own = list(module.parameters())
        size = _bytes(own)
        if size < max(total * MIN_UNIT_FRACTION, min(MIN_UNIT_BYTES, total * MAX_UNIT_FRACTION)):
            return
        children = list(module.named_children())
        has_forward = type(module).forward is not nn.Module.forward and not isinstance(
            module, nn.ModuleList | nn.ModuleDict
        )
        if name and has_forward and (size <= total * MAX_UNIT_FRACTION or is_block or not children):
            if not any(id(parameter) in shared for parameter in own):
                chosen.append(name)
            return
        types = Counter(type(child) for _, child in children)
        for child_name, child in children:
            repeated = isinstance(module, nn.ModuleList | nn.Sequential) and types[type(child)] > 1
            visit(f"{name}.{child_name}" if name else child_name, child, is_block=repeated)

    visit("", model, is_block=False)
    sizes = [_bytes(model.get_submodule(name).parameters()) for name in chosen]
    return Wrapping(tuple(chosen), max([*sizes, total - sum(sizes)]))


def _shared_parameters(model: nn.Module) -> set[int]:
    """Return the ids of the parameters that two modules share. Shared parameters are gathered with the whole model."""
    seen: set[int] = set()
    shared: set[int] = set()
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                (shared if id(parameter) in seen else seen).add(id(parameter))
    return shared


@torch.no_grad()
def broadcast_from_rank_zero(module: nn.Module) -> None:
    if dist.get_world_size() == 1:
        return
    with waiting("legroom.parallel()"):
        for tensor in (*module.parameters(), *module.buffers()):
            dist.broadcast(tensor.detach(), src=0)


def _bytes(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
