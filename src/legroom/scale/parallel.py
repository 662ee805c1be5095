"""Trains one model on one or more devices with the same script.

    run = legroom.parallel(model, optimizer, strategy="auto")
    for x, y in run.loader(dataset, batch_size=64):             # 64 samples per step, across all ranks
        loss = run.step(lambda x, y: criterion(run.model(x), y), x, y)

The script runs unchanged with `python`, torchrun and `legroom launch`, on a CPU, one GPU, several GPUs or several
machines. With every strategy, the gradients of a step are the same as for the global batch. This is because the mean
loss of each rank is weighted by its number of samples. Therefore the weights of the model are the same as in a single
process.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Dataset

from legroom.arguments import check_positive
from legroom.errors import UsageError
from legroom.log import log
from legroom.scale.auto_strategy import StrategyChoice
from legroom.scale.building import ParallelOptions, build
from legroom.scale.loading import DistributedLoader
from legroom.scale.loss_weights import LossWeighting
from legroom.scale.optimizers import Optimizer, checked_optimizer
from legroom.scale.shares import numbers_of
from legroom.scale.strategies import NAMES
from legroom.scale.strategies.engine import StrategyEngine
from legroom.scale.world import RankDevices, read_world, setup_rank
from legroom.train.guarding.batches.splitting import BatchArguments, to_device
from legroom.train.guarding.batches.weighting import Weight
from legroom.train.guarding.guard import Guard
from legroom.train.guarding.passes import LossFunction
from legroom.train.guarding.scaling import Scaling
from legroom.train.ranks.waiting import waiting

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
    find_unused_parameters: bool | None = None,
) -> "Parallel":
    """Move the model to its devices, wrap it for the strategy, and return the run.

    `optimizer` is an optimizer for the model's parameters, or a function that creates one. `batch` is one global
    batch, inputs first and target last. The batch is used to predict the memory and to split the model. `shares`
    contains the relative number of samples for each GPU. `weight` is a function that counts the elements in a batch.
    It is needed if the loss is a mean over elements other than samples, such as tokens. `precision` is "bf16", "fp16",
    "fp32", "auto" or a `legroom.precision(...)`. `clip_norm` is the norm to which gradients are clipped, across all
    ranks. `schedule` and `micro_batches` are pipeline options. With `offload`, the shards of "fsdp" are kept in host
    memory. By default, the shards are offloaded only if they do not fit on the GPUs. `static_graph` and
    `find_unused_parameters` are DDP options. By default, Legroom detects the values of these DDP options from `batch`.
    """
    if not isinstance(model, nn.Module):
        given = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        raise UsageError(
            f"legroom.parallel() expects the model (nn.Module) as its first argument, not {given}."
        )
    if weight is not None and not callable(weight):
        raise UsageError(
            f"weight= must be a function that counts the elements of a batch, not {type(weight).__name__}."
        )
    if clip_norm is not None:
        check_positive("clip_norm", clip_norm)
    strategy_name = _strategy_name(strategy)
    devices = setup_rank(read_world(os.environ))
    options = ParallelOptions(
        batch=batch,
        shares=None if shares is None else numbers_of(shares),
        precision=precision,
        schedule=schedule,
        micro_batches=micro_batches,
        offload=offload,
        static_graph=static_graph,
        find_unused_parameters=find_unused_parameters,
    )
    options.check()
    engine, choice, scaling = build(
        model, checked_optimizer(optimizer, model), strategy_name, devices, options
    )
    if choice.message and devices.world.rank == 0:
        log.warning("%s", choice.message)
    return Parallel(engine, choice, devices, scaling, weight, clip_norm)


class Parallel:
    """A model that is wrapped for a strategy, with its optimizer, its loaders, and the training step."""

    def __init__(
        self,
        engine: StrategyEngine,
        choice: StrategyChoice,
        devices: RankDevices,
        scaling: Scaling,
        weight: Weight | None,
        clip_norm: float | None,
    ) -> None:
        self.model = engine.model
        """The model to call in loss functions."""
        self.module = engine.module
        """The model without its wrapper, for saving and loading under its own parameter names."""
        self.optimizer = engine.optimizer
        self.strategy = engine.name
        """The name of the strategy: "single", "dp", "ddp", "fsdp", "pipeline" or "split"."""
        self.choice = choice
        """The reason for the strategy, and the predictions of all strategies."""
        self.device = devices.device
        self.rank, self.world_size = devices.world.rank, devices.world.size
        self.is_sharded = engine.is_sharded
        self._engine, self._devices, self._scaling, self._clip_norm = engine, devices, scaling, clip_norm
        self._weighting = LossWeighting(weight, ranks=len(engine.shares))
        self._loaders: list[DistributedLoader] = []

    @property
    def is_main(self) -> bool:
        """True on rank 0, which prints and logs."""
        return self.rank == 0

    def loader(self, dataset: Dataset[Any], batch_size: int, **options: Any) -> DistributedLoader:
        """Return a loader of global batches of `batch_size` samples, which yields this rank's samples on its device.

        The options are `shuffle` (default True), `drop_last` (default False), `seed`, `num_workers`, and other
        DataLoader options.
        """
        is_split = len(self._engine.shares) > 1
        loader = DistributedLoader(
            dataset,
            batch_size,
            index=self.rank if is_split else 0,
            shares=self._engine.shares,
            device=self._engine.batch_device,
            local_ranks=self._devices.world.local_size,
            on_batch=self._weighting.set_counted,
            **options,
        )
        self._loaders.append(loader)
        return loader

    def step(self, loss_fn: LossFunction, *batch: Any, **named: Any) -> torch.Tensor:
        """Run the forward pass, the backward pass and the optimizer step, set gradients to None, and return this rank's
        loss.

        `loss_fn(*batch, **named)` must call `run.model`. The mean of the result over ranks, `run.gather(loss).mean()`,
        is the loss of the global batch.
        """
        if not callable(loss_fn):
            raise UsageError(
                f"The first argument must be the loss function, not {type(loss_fn).__name__}. Pass the batch after the function."
            )
        if self.optimizer is None:
            raise UsageError("The run has no optimizer. Use legroom.parallel(model, optimizer).")
        loss = self._engine.backward(loss_fn, self._on_device(batch, named), self._weighting, self._scaling)
        self._scaling.unscale_(self.optimizer)
        if self._clip_norm is not None:
            self._clip(self._clip_norm)
        self._scaling.step(self.optimizer)
        self._scaling.update()
        self.optimizer.zero_grad()
        return loss

    def evaluate(self, function: Callable[..., Any], *batch: Any, **named: Any) -> Any:
        """Call a function without gradients on every rank, as in `run.evaluate(lambda x: run.model(x), x)`."""
        return self._engine.evaluate(function, self._on_device(batch, named))

    def gather(self, value: Any) -> Any:
        """Gather a value from all ranks. Samples are concatenated in the order of the global batch, scalars become a
        tensor, and other values become a list."""
        return self._weighting.gather(value)

    def guard(self, **options: Any) -> "Guard | Parallel":
        """Return a `legroom.Guard` for the model of this run. The guard weights samples in the same way as the run.

        With strategy `pipeline` or `split`, the run itself is returned, because Guard does not support a model on several
        devices. `run.step` has the same signature as `guard.step`.
        """
        if self.optimizer is None:
            raise UsageError("The run has no optimizer. Use legroom.parallel(model, optimizer).")
        if self.strategy in ("pipeline", "split"):
            log.warning(
                "Steps with strategy='%s' are not guarded: out-of-memory errors are raised.", self.strategy
            )
            return self
        options.setdefault("clip_norm", self._clip_norm)
        if self._scaling.scaler is not None:
            options.setdefault("precision", self._scaling)
        if len(self._engine.shares) > 1:
            options.setdefault("weight", self._weighting.count)
        return Guard(self.model, self.optimizer, **options)

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch and the number of used batches of each loader. The model and the optimizer are not included,
        so save `run.module` and `run.optimizer` separately.
        """
        return {"loaders": [loader.state_dict() for loader in self._loaders]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the epoch and the number of used batches of each loader. The loaders must be created in the same
        order as in the run that was saved."""
        for loader, position in zip(self._loaders, state["loaders"], strict=True):
            loader.load_state_dict(position)

    def barrier(self) -> None:
        """Wait for all ranks."""
        if dist.is_available() and dist.is_initialized():
            with waiting("run.barrier()"):
                dist.barrier()

    def __repr__(self) -> str:
        return f"<Parallel: {self.strategy}, rank {self.rank} of {self.world_size} on {self.device}>"

    def _on_device(self, batch: tuple[Any, ...], named: dict[str, Any]) -> BatchArguments:
        device = self._engine.batch_device
        return BatchArguments(
            *((batch, named) if device is None else to_device((batch, named), device, non_blocking=True))
        )

    def _clip(self, max_norm: float) -> None:
        assert self.optimizer is not None
        parameters = [each for group in self.optimizer.param_groups for each in group["params"]]
        nn.utils.clip_grads_with_norm_(parameters, max_norm, self._engine.norm(parameters))


def _strategy_name(strategy: str) -> str:
    """Return the strategy from the command line (`legroom launch --strategy`), or the strategy that the script sets if
    the option is not given.
    """
    override = os.environ.get("LEGROOM_STRATEGY", "")
    for name, source in ((strategy, "strategy="), (override or "auto", "LEGROOM_STRATEGY=")):
        if name not in NAMES:
            raise UsageError(f"{source}'{name}' is not valid. Use one of {', '.join(NAMES)}.")
    if override and strategy not in ("auto", override):
        log.warning("LEGROOM_STRATEGY=%s overrides strategy='%s' in the script.", override, strategy)
    return override or strategy
