"""From what was asked for to an engine: each strategy gets what it needs, or a sentence that says what is missing."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from legroom.errors import UsageError
from legroom.scale.choosing import Choice
from legroom.scale.cutting.planning import AmongRanks, plan_pipeline, plan_split
from legroom.scale.foresight import likeness_of
from legroom.scale.shares import checked_shares
from legroom.scale.strategies.alone import alone
from legroom.scale.strategies.data_parallel import DDP_IS_BETTER, checked_devices, data_parallel
from legroom.scale.strategies.distributed import distributed
from legroom.scale.strategies.engine import Engine
from legroom.scale.strategies.pipelined import Pipelined
from legroom.scale.strategies.sharded import sharded
from legroom.scale.strategies.split import split
from legroom.scale.world import Place
from legroom.train.guarding.scaling import Given, Scaling, scaling


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What a person said beyond model, optimizer and strategy."""

    batch: Any = None
    shares: list[float] | None = None
    precision: Any = None
    schedule: str = "1f1b"
    micro_batches: int | None = None
    offload: bool | None = None
    static_graph: bool | None = None

    def check(self) -> None:
        if self.schedule not in ("1f1b", "gpipe"):
            raise UsageError(f"schedule= is '1f1b' or 'gpipe', not '{self.schedule}'")
        if self.micro_batches is not None and self.micro_batches < 1:
            raise UsageError(f"micro_batches={self.micro_batches} is no number of micro-batches")


def build(
    model: nn.Module, optimizer: torch.optim.Optimizer | None, wanted: str, place: Place, wishes: Wishes
) -> tuple[Engine, Choice, Scaling]:
    """The engine, why it is this one, and how losses are scaled."""
    size = place.world.size
    how = scaling(wishes.precision, None, place.device)
    if wanted == "auto":
        wanted = "ddp" if place.world.launched else "alone"
    if wanted == "ddp" and place.world.launched:
        shares = checked_shares(wishes.shares, size, zero_allowed=False)
        return (
            distributed(model, optimizer, place, shares=shares, static_graph=wishes.static_graph),
            Choice("ddp", ""),
            how,
        )
    if wanted == "fsdp" and place.world.launched:
        shares = checked_shares(wishes.shares, size, zero_allowed=False)
        dtype = getattr(how, "dtype", None)
        return (
            sharded(model, optimizer, place, shares=shares, dtype=dtype, offload=bool(wishes.offload)),
            Choice("fsdp", ""),
            Given(),
        )
    if wanted == "pipeline" and size > 1:
        plan = plan_pipeline(
            model,
            optimizer,
            _batch(wishes, "pipeline"),
            size,
            likeness_of(place.device),
            schedule=wishes.schedule,
            micro_batches=wishes.micro_batches,
            among=AmongRanks(),
        )
        return Pipelined(model, optimizer, place, plan, schedule=wishes.schedule), Choice("pipeline", ""), how
    if wanted == "split" and len(place.devices) > 1:
        homes, _ = plan_split(
            model, optimizer, _batch(wishes, "split"), len(place.devices), likeness_of(place.device)
        )
        return split(model, optimizer, place, homes), Choice("split", ""), how
    if wanted == "dp" and len(place.devices) > 1:
        checked_devices(place)
        shares = checked_shares(wishes.shares, len(place.devices), zero_allowed=True)
        return (
            data_parallel(model, optimizer, place, shares=shares),
            Choice("dp", "", DDP_IS_BETTER.format(count=len(place.devices))),
            how,
        )
    return alone(model, optimizer, place), Choice("alone", ""), how


def _batch(wishes: Wishes, strategy: str) -> Any:
    if wishes.batch is None:
        raise UsageError(
            f"strategy='{strategy}' needs batch=, one batch with the target last, to see what goes where: "
            "legroom.parallel(model, optimizer, batch=(x, y))"
        )
    return wishes.batch
