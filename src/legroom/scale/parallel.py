"""One model on as many devices as there are, with one script.

    run = legroom.parallel(model, optimizer, strategy="auto")
    for x, y in run.loader(dataset, batch_size=64):             # 64 rows a step, over all ranks
        loss = run.step(lambda x, y: criterion(run.model(x), y), x, y)

The script runs unchanged with `python`, torchrun and `legroom launch`, on one CPU, one GPU, several, several machines. Whatever the
strategy, the gradients of a step are those of its whole batch, each rank's mean loss weighed by its rows, so that the weights afterwards
are what one process would have got.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Dataset

from legroom.errors import UsageError
from legroom.log import log
from legroom.scale.auto_strategy import Choice
from legroom.scale.building import Wishes, build
from legroom.scale.loading import Loader
from legroom.scale.loss_weights import Weighing
from legroom.scale.optimizers import Optimizer, checked_optimizer
from legroom.scale.strategies import NAMES
from legroom.scale.strategies.engine import Engine
from legroom.scale.world import Place, read_world, take_place
from legroom.train.guarding.batches.splitting import BatchArguments, to_device
from legroom.train.guarding.batches.weighting import Weight
from legroom.train.guarding.guard import Guard
from legroom.train.guarding.passes import LossFunction
from legroom.train.guarding.scaling import Scaling

Strategy = Literal["auto", "ddp", "fsdp", "pipeline", "split", "dp"]


def parallel(
    model: nn.Module,
    optimizer: Optimizer = None,
    strategy: Strategy = "auto",
    *,
    batch: Any = None,
    shares: Sequence[float] | None = None,
    weight: Weight | None = None,
    precision: Any = None,
    clip_norm: float | None = None,
    schedule: Literal["1f1b", "gpipe"] = "1f1b",
    micro_batches: int | None = None,
    offload: bool | None = None,
    static_graph: bool | None = None,
) -> "Parallel":
    """Move the model to its device or devices, wrap it, and give all that a training script needs of the run.

    `optimizer`: made from the model's parameters, or a function of them. `batch`: one batch of the whole run, inputs first and target
    last; what is to be cut, chosen or foreseen is from it. `shares`: of rows, one per GPU. `weight`: for a loss that is a mean over
    something else than rows (tokens), counts it in a batch. `precision`: "bf16", "fp16", "fp32", "auto" or a `legroom.precision(...)`.
    `clip_norm`: clip gradients to this norm, over all ranks. `schedule`, `micro_batches`: of a pipeline. `offload`: shards of "fsdp" wait in
    host memory; by default only where they would not fit otherwise. `static_graph`: for "ddp", if you know better.
    """
    if not isinstance(model, nn.Module):
        raise UsageError(f"give the model first, an nn.Module: legroom.parallel got a {type(model).__name__}")
    wanted = _wanted(strategy)
    place = take_place(read_world(os.environ))
    wishes = Wishes(
        batch=batch,
        shares=None if shares is None else list(shares),
        precision=precision,
        schedule=schedule,
        micro_batches=micro_batches,
        offload=offload,
        static_graph=static_graph,
    )
    wishes.check()
    engine, choice, scaling = build(model, checked_optimizer(optimizer, model), wanted, place, wishes)
    if choice.told and place.world.rank == 0:
        log.warning("%s", choice.told)
    return Parallel(engine, choice, place, scaling, weight, clip_norm)


class Parallel:
    """A run: the model, placed and wrapped, and what a script asks of the other ranks."""

    def __init__(
        self,
        engine: Engine,
        choice: Choice,
        place: Place,
        scaling: Scaling,
        weight: Weight | None,
        clip_norm: float | None,
    ) -> None:
        self.model = engine.model
        """What a loss function calls."""
        self.module = engine.module
        """The model without its wrapper, its parameters under their own names: what is saved and loaded."""
        self.optimizer = engine.optimizer
        self.strategy = engine.name
        """"alone", "dp", "ddp", "fsdp", "pipeline" or "split"."""
        self.choice = choice
        """Why this strategy, and what the others would have needed."""
        self.device = place.device
        self.rank, self.size = place.world.rank, place.world.size
        self.is_sharded = engine.is_sharded
        self._engine, self._place, self._scaling, self._clip_norm = engine, place, scaling, clip_norm
        self._weighing = Weighing(weight, ranks=len(engine.shares))
        self._loaders: list[Loader] = []

    @property
    def main(self) -> bool:
        """Whether this is the rank that prints and logs."""
        return self.rank == 0

    def loader(self, dataset: Dataset[Any], batch_size: int, **options: Any) -> Loader:
        """Batches of `batch_size` rows over all ranks; of each, this rank's rows, on its device.

        `shuffle` (True), `drop_last` (False), `seed`, `workers`, and whatever else a DataLoader takes.
        """
        divided = len(self._engine.shares) > 1
        made = Loader(
            dataset,
            batch_size,
            place=self.rank if divided else 0,
            shares=self._engine.shares,
            device=self._engine.batch_device,
            local_ranks=self._place.world.local_size,
            on_batch=self._weighing.rows_count,
            **options,
        )
        self._loaders.append(made)
        return made

    def step(self, loss_fn: LossFunction, *batch: Any, **named: Any) -> torch.Tensor:
        """Forward, backward, optimizer step, gradients to None. `loss_fn(*batch, **named)` must call `run.model`.

        Returns this rank's part of the loss: its mean over ranks, `run.gather(loss).mean()`, is the whole batch's.
        """
        if not callable(loss_fn):
            raise UsageError(
                f"the first argument is a {type(loss_fn).__name__}: give the function that computes the loss first, then the batch"
            )
        if self.optimizer is None:
            raise UsageError("there is no optimizer to step: give legroom.parallel(model, optimizer)")
        loss = self._engine.backward(loss_fn, self._here(batch, named), self._weighing, self._scaling)
        self._scaling.unscale_(self.optimizer)
        if self._clip_norm is not None:
            self._clip(self._clip_norm)
        self._scaling.step(self.optimizer)
        self._scaling.update()
        self.optimizer.zero_grad()
        return loss

    def evaluate(self, function: Callable[..., Any], *batch: Any, **named: Any) -> Any:
        """`function(*batch, **named)` without gradients: `run.evaluate(lambda x: run.model(x), x)`, on every rank."""
        return self._engine.evaluate(function, self._here(batch, named))

    def gather(self, value: Any) -> Any:
        """What every rank has, put together: rows one after the other as in the whole batch, numbers in a row, else a list."""
        return self._weighing.gathered(value)

    def guard(self, **options: Any) -> "Guard | Parallel":
        """Steps that survive a full GPU (see `legroom.Guard`), weighed as `step` weighs them.

        A model that lies on several devices cannot be guarded: there the run itself is given back, whose `step` is the same.
        """
        if self.optimizer is None:
            raise UsageError("there is no optimizer to guard: give legroom.parallel(model, optimizer)")
        if self.strategy in ("pipeline", "split"):
            log.warning(
                "Steps of strategy='%s' are not guarded: out of memory stays an error there.", self.strategy
            )
            return self
        options.setdefault("clip_norm", self._clip_norm)
        if self._scaling.scaler is not None:
            options.setdefault("precision", self._scaling)
        if len(self._engine.shares) > 1:
            options.setdefault("weight", self._weighing.count)
        return Guard(self.model, self.optimizer, **options)

    def state_dict(self) -> dict[str, Any]:
        """Where the loaders stand. Weights and optimizer state are `run.module`'s and `run.optimizer`'s own."""
        return {"loaders": [loader.state_dict() for loader in self._loaders]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loaders that were made in the same order go on where those stood."""
        for loader, stood in zip(self._loaders, state["loaders"], strict=True):
            loader.load_state_dict(stood)

    def wait(self) -> None:
        """Until every rank is here."""
        if dist.is_available() and dist.is_initialized():
            dist.barrier()

    def __repr__(self) -> str:
        return f"<Parallel: {self.strategy}, rank {self.rank} of {self.size} on {self.device}>"

    def _here(self, batch: tuple[Any, ...], named: dict[str, Any]) -> BatchArguments:
        device = self._engine.batch_device
        return BatchArguments(
            *((batch, named) if device is None else to_device((batch, named), device, non_blocking=True))
        )

    def _clip(self, most: float) -> None:
        assert self.optimizer is not None
        parameters = [each for group in self.optimizer.param_groups for each in group["params"]]
        nn.utils.clip_grads_with_norm_(parameters, most, self._engine.norm(parameters))


def _wanted(strategy: str) -> str:
    """What the command line asked for (`legroom launch --strategy`) wins over what the script says."""
    told = os.environ.get("LEGROOM_STRATEGY", "")
    for name, whence in ((strategy, "strategy="), (told or "auto", "LEGROOM_STRATEGY=")):
        if name not in NAMES:
            raise UsageError(f"{whence}'{name}' is no strategy: take one of {', '.join(NAMES)}")
    if told and strategy not in ("auto", told):
        log.warning("LEGROOM_STRATEGY=%s is taken instead of the script's strategy='%s'.", told, strategy)
    return told or strategy
