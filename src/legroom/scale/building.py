"""Builds the engine of a strategy, or raises an error if the requirements of the strategy are not met."""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.data import DataLoader, Dataset

from legroom.arguments import check_count
from legroom.errors import UsageError
from legroom.observe.virtual.single_rank import has_no_peers
from legroom.scale.auto_strategy import StrategyChoice, cheapest
from legroom.scale.cutting.forward_graph import CannotSplitModel
from legroom.scale.cutting.planning import (
    DistributedPlanning,
    LocalPlanning,
    PipelinePlan,
    plan_pipeline,
    plan_split,
)
from legroom.scale.prediction import strategy_memory
from legroom.scale.prediction.step_trace import device_model_of
from legroom.scale.prediction.strategy_memory import StrategyPrediction, TrainingSetup, coordinator_shares
from legroom.scale.shares import checked_shares
from legroom.scale.strategies.data_parallel import DDP_IS_BETTER, data_parallel
from legroom.scale.strategies.engine import StrategyEngine, ddp_engine, single_device_engine
from legroom.scale.strategies.pipelined import Pipelined
from legroom.scale.strategies.sharded import sharded
from legroom.scale.strategies.split import placement_by_size, split
from legroom.scale.trees import tree_leaves
from legroom.scale.world import RankDevices
from legroom.train.guarding.scaling import Scaling, UserScaling, make_scaling
from legroom.train.ranks.waiting import waiting
from legroom.units import format_size


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelOptions:
    """The options of `legroom.parallel` other than model, optimizer and strategy."""

    batch: Any = None
    shares: list[float] | None = None
    precision: Any = None
    schedule: str = "1f1b"
    micro_batches: int | None = None
    offload: bool | None = None
    static_graph: bool | None = None
    find_unused_parameters: bool | None = None

    def check(self) -> None:
        if self.schedule not in ("1f1b", "gpipe"):
            raise UsageError(f"schedule='{self.schedule}' is not valid. Use '1f1b' or 'gpipe'.")
        if self.micro_batches is not None:
            check_count("micro_batches", self.micro_batches)
        _check_batch(self.batch)


def _check_batch(batch: Any) -> None:
    """Raise an error if the argument is a loader, a dataset or a value without tensors. Objects from other libraries
    are accepted.
    """
    if isinstance(batch, DataLoader | Dataset):
        name = type(batch).__name__
        raise UsageError(f"batch= must be one batch, not {name}. Example: `batch=next(iter(loader))`.")
    if batch is None or not all(isinstance(leaf, int | float | str | None) for leaf in tree_leaves(batch)):
        return
    raise UsageError(
        f"batch={batch!r} contains no tensors. Pass one batch with the target last, for example `batch=(x, y)`. "
        "The batch size is an argument of `run.loader(dataset, batch_size=64)`."
    )


def build(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    strategy: str,
    devices: RankDevices,
    options: ParallelOptions,
) -> tuple[StrategyEngine, StrategyChoice, Scaling]:
    return Builder(model, optimizer, devices, options).build(strategy)


@dataclass
class Builder:
    """Builds the engine for one model."""

    model: nn.Module
    optimizer: torch.optim.Optimizer | None
    devices: RankDevices
    options: ParallelOptions
    plan: PipelinePlan | None = field(default=None, init=False)

    def build(self, strategy: str) -> tuple[StrategyEngine, StrategyChoice, Scaling]:
        strategy = self._applicable(strategy)
        is_traced = any(isinstance(parameter, FakeTensor) for parameter in self.model.parameters())
        if strategy in ("auto", "pipeline") and is_traced and has_no_peers():
            raise UsageError(
                f"A dry run cannot trace strategy='{strategy}', which needs its own memory prediction. Use --strategy ddp or fsdp, or "
                "launch the script on virtual GPUs."
            )
        choice = self._choose() if strategy == "auto" else StrategyChoice(strategy, "")
        scaling = make_scaling(self.options.precision, None, self.devices.device)
        name, _, offloaded = choice.strategy.partition(", ")
        if name in ("fsdp", "pipeline") and scaling.scaler is not None:
            raise UsageError(
                f"precision='fp16' needs a loss scale for the whole model, which strategy='{name}' does not support. Use 'bf16'."
            )
        if name == "ddp":
            return self._ddp(), choice, scaling
        if name == "fsdp":
            offload = bool(offloaded) or bool(self.options.offload)
            dtype = getattr(scaling, "dtype", None)
            engine = sharded(
                self.model, self.optimizer, self.devices, shares=self._shares(), dtype=dtype, offload=offload
            )
            return engine, choice, UserScaling()
        if name == "pipeline":
            plan = self._pipeline_plan()
            choice = replace(
                choice, note=choice.note or _stages_note(plan), plan=plan, peaks=plan.balance.peaks
            )
            pipelined = Pipelined(
                self.model, self.optimizer, self.devices, plan, schedule=self.options.schedule
            )
            return pipelined, choice, scaling
        if name == "dp":
            return *self._dp(choice), scaling
        if name == "split":
            return *self._split(choice), scaling
        return single_device_engine(self.model, self.optimizer, self.devices), choice, scaling

    # --- choice of the strategy

    def _applicable(self, strategy: str) -> str:
        """Return the given strategy. With only one device, return `single`, so that a script for several devices also
        runs on one device.
        """
        launched, size = self.devices.world.launched, self.devices.world.size
        device_count = len(self.devices.devices)
        if strategy in ("dp", "split") and size > 1:
            other = "ddp" if strategy == "dp" else "pipeline"
            raise UsageError(
                f"strategy='{strategy}' requires a single process with several GPUs, but {size} processes "
                f"were started. Use '{other}', which uses one GPU per process, or start only one process."
            )
        if strategy in ("ddp", "fsdp"):
            return strategy if launched else "single"
        if strategy == "pipeline":
            return strategy if size > 1 else "single"
        if strategy in ("dp", "split"):
            return strategy if device_count > 1 else "single"
        if launched:
            return strategy if size > 1 and self.devices.device.type == "cuda" else "ddp"
        return strategy if device_count > 1 else "single"

    def _choose(self) -> StrategyChoice:
        note = (
            ""
            if self.options.batch is not None
            else "The prediction does not include activations. To include activations, pass one batch as "
            "`batch=`."
        )
        if self.devices.world.size == 1:
            return self._choose_in_one_process(note)
        setup = self._setup()
        shares = self._shares()

        def predict() -> list[StrategyPrediction]:
            return [
                strategy_memory.ddp(setup, shares),
                strategy_memory.fsdp(setup, shares),
                strategy_memory.fsdp(setup, shares, offload=True),
            ]

        ddp, fsdp, offloaded = self._planning().broadcast(predict)
        pipeline = self._pipeline_prediction(setup, cheaper_fits=ddp.fits or fsdp.fits)
        return cheapest([ddp, fsdp, pipeline, offloaded], note=note)

    def _choose_in_one_process(self, note: str) -> StrategyChoice:
        count = len(self.devices.devices)
        faster = f"One process per GPU is faster: `legroom launch --nproc {count} script.py`."
        device_model = device_model_of(self.devices.device)
        capacities = [device_model_of(device).capacity for device in self.devices.devices]
        capacity = min(capacities)
        if self.options.batch is None:
            setup = TrainingSetup(self.model, self.optimizer, None, tuple(capacities), device_model)
            peak = strategy_memory.single_device(setup, 0).peaks[0].reserved
            return cheapest(
                [
                    StrategyPrediction("dp", peak, capacity),
                    StrategyPrediction("split", 0, capacity, _NEEDS_BATCH),
                ],
                note=f"{faster} {note}",
            )
        _, peaks = coordinator_shares(self.model, self.optimizer, self.options.batch, count, device_model)
        dp = StrategyPrediction("dp", max(peaks), capacity)
        if dp.fits:
            split_prediction = StrategyPrediction("split", 0, capacity, _CHEAPER_FITS)
        else:
            try:
                _, balance = plan_split(self.model, self.optimizer, self.options.batch, count, device_model)
                split_prediction = StrategyPrediction("split", max(balance.peaks), capacity)
            except CannotSplitModel:
                split_prediction = StrategyPrediction(
                    "split", 0, capacity, "cannot be predicted for this model"
                )
        return cheapest([dp, split_prediction], note=faster)

    def _pipeline_prediction(self, setup: TrainingSetup, *, cheaper_fits: bool) -> StrategyPrediction:
        capacity = min(setup.capacities)
        if cheaper_fits:
            return StrategyPrediction("pipeline", 0, capacity, _CHEAPER_FITS)
        if setup.batch is None:
            return StrategyPrediction("pipeline", 0, capacity, _NEEDS_BATCH)
        try:
            return strategy_memory.pipeline(self._pipeline_plan(), setup.capacities)
        except CannotSplitModel:
            return StrategyPrediction("pipeline", 0, capacity, "this model cannot be split")

    # --- requirements of each strategy

    def _ddp(self) -> StrategyEngine:
        has_unused, may_change = False, False
        is_given = self.options.static_graph is not None or self.options.find_unused_parameters is not None
        if (
            has_no_peers()
        ):  # a trace in a trace is not possible; the search for unused parameters costs little memory
            has_unused = may_change = self.options.batch is not None and not is_given
        elif self.options.batch is not None and not is_given:
            setup = self._setup()
            has_unused, may_change = self._planning().broadcast(
                lambda: strategy_memory.unused_parameters(setup)
            )
        return ddp_engine(
            self.model,
            self.optimizer,
            self.devices,
            shares=self._shares(),
            has_unused=has_unused,
            may_change=may_change,
            static_graph=self.options.static_graph,
            find_unused_parameters=self.options.find_unused_parameters,
        )

    def _dp(self, choice: StrategyChoice) -> tuple[StrategyEngine, StrategyChoice]:
        count = len(self.devices.devices)
        better = DDP_IS_BETTER.format(count=count)
        if self.options.shares is not None or self.options.batch is None:
            shares = checked_shares(self.options.shares, count, zero_allowed=True)
            choice = replace(choice, note=better)
        else:
            device_model = device_model_of(self.devices.device)
            shares, peaks = coordinator_shares(
                self.model, self.optimizer, self.options.batch, count, device_model
            )
            note = (
                f"Samples per batch: {shares[0]:g} on the first GPU, about {shares[1]:.0f} on each of the others. Predicted memory: "
                f"{format_size(peaks[0])} on the first GPU, {format_size(max(peaks[1:]))} on the others. {better}"
            )
            choice = replace(choice, note=note, peaks=tuple(peaks))
        return data_parallel(self.model, self.optimizer, self.devices, shares=shares), choice

    def _split(self, choice: StrategyChoice) -> tuple[StrategyEngine, StrategyChoice]:
        count = len(self.devices.devices)
        try:
            placement, balance = plan_split(
                self.model, self.optimizer, self._batch("split"), count, device_model_of(self.devices.device)
            )
            peaks = ", ".join(map(format_size, balance.peaks))
            choice = replace(
                choice,
                note=f"The layers are split among the GPUs. Predicted memory: {peaks}.",
                peaks=balance.peaks,
            )
        except CannotSplitModel as error:
            placement = placement_by_size(self.model, count)
            choice = replace(
                choice,
                note=f"The layers are split by the size of their weights only, because {error.reason}.",
            )
        return split(self.model, self.optimizer, self.devices, placement), choice

    def _pipeline_plan(self) -> PipelinePlan:
        if self.plan is None:
            self.plan = plan_pipeline(
                self.model,
                self.optimizer,
                self._batch("pipeline"),
                self.devices.world.size,
                device_model_of(self.devices.device),
                schedule=self.options.schedule,
                micro_batches=self.options.micro_batches,
                planning=self._planning(),
            )
        return self.plan

    def _shares(self) -> list[float]:
        """Return the fraction of the batch for each rank. The user passes these fractions, or they are proportional to
        the memory of each GPU.
        """
        size = self.devices.world.size
        if self.options.shares is not None or size == 1 or self.devices.device.type != "cuda":
            return checked_shares(self.options.shares, size, zero_allowed=False)
        setup = self._setup()
        return self._planning().broadcast(lambda: strategy_memory.fair_shares(setup))

    def _setup(self) -> TrainingSetup:
        device_model = device_model_of(self.devices.device)
        world = self.devices.world
        capacities: list[int] = [device_model.capacity]
        if has_no_peers():
            gpus = [
                torch.device(self.devices.device.type, rank % world.local_size) for rank in range(world.size)
            ]
            capacities = [device_model_of(gpu).capacity for gpu in gpus]
        elif world.size > 1:
            capacities = [0] * world.size
            with waiting("legroom.parallel()"):
                dist.all_gather_object(capacities, device_model.capacity)
        return TrainingSetup(self.model, self.optimizer, self.options.batch, tuple(capacities), device_model)

    def _planning(self) -> LocalPlanning:
        """Return the object that coordinates the planning of stages across all ranks. If a single rank is traced, the
        other ranks do not exist, and this rank plans alone.
        """
        return (
            DistributedPlanning() if self.devices.world.size > 1 and not has_no_peers() else LocalPlanning()
        )

    def _batch(self, strategy: str) -> Any:
        if self.options.batch is None:
            raise UsageError(
                f"strategy='{strategy}' needs one batch, with the target last, to split the model. Use "
                "legroom.parallel(model, optimizer, batch=(x, y))."
            )
        return self.options.batch


_CHEAPER_FITS = "not predicted: a cheaper strategy fits"
_NEEDS_BATCH = "not predicted: needs batch="


def _stages_note(plan: PipelinePlan) -> str:
    peaks = ", ".join(map(format_size, plan.balance.peaks))
    number = plan.micro_batches
    return (
        f"The model is split into {plan.cut.stages} stages, with {number} {'micro-batch' if number == 1 else 'micro-batches'} per step. "
        f"Predicted memory: {peaks}."
    )
