"""From what was asked for to an engine: each strategy gets what it needs, or a sentence that says what is missing."""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from legroom.errors import UsageError
from legroom.scale.auto_strategy import Choice, cheapest
from legroom.scale.batch_shares import coordinator_shares
from legroom.scale.cutting.forward_graph import CannotCut
from legroom.scale.cutting.planning import Among, AmongRanks, Plan, plan_pipeline, plan_split
from legroom.scale.prediction import strategy_memory
from legroom.scale.prediction.step_trace import likeness_of
from legroom.scale.prediction.strategy_memory import Forecast, Job
from legroom.scale.shares import checked_shares
from legroom.scale.strategies.data_parallel import DDP_IS_BETTER, data_parallel
from legroom.scale.strategies.distributed import distributed
from legroom.scale.strategies.engine import Engine
from legroom.scale.strategies.pipelined import Pipelined
from legroom.scale.strategies.sharded import sharded
from legroom.scale.strategies.single import alone
from legroom.scale.strategies.split import homes_by_weight, split
from legroom.scale.world import Place
from legroom.train.guarding.scaling import Scaling, UserScaling, make_scaling
from legroom.units import format_size


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
    return Builder(model, optimizer, place, wishes).build(wanted)


@dataclass
class Builder:
    """One model, one place, and what was wished for."""

    model: nn.Module
    optimizer: torch.optim.Optimizer | None
    place: Place
    wishes: Wishes
    plan: Plan | None = field(default=None, init=False)
    """Of a pipeline, once it was made."""

    def build(self, wanted: str) -> tuple[Engine, Choice, Scaling]:
        wanted = self._possible(wanted)
        choice = self._choose() if wanted == "auto" else Choice(wanted, "")
        how = make_scaling(self.wishes.precision, None, self.place.device)
        name, _, offloaded = choice.strategy.partition(", ")
        if name in ("fsdp", "pipeline") and how.scaler is not None:
            raise UsageError(
                f"precision='fp16' needs a loss scale that all parts of the model share, which strategy='{name}' has not: use 'bf16'"
            )
        if name == "ddp":
            return self._ddp(), choice, how
        if name == "fsdp":
            offload = bool(offloaded) or bool(self.wishes.offload)
            dtype = getattr(how, "dtype", None)
            engine = sharded(
                self.model, self.optimizer, self.place, shares=self._shares(), dtype=dtype, offload=offload
            )
            return engine, choice, UserScaling()
        if name == "pipeline":
            plan = self._pipeline_plan()
            told = replace(
                choice, note=choice.note or _stages_told(plan), plan=plan, peaks=plan.balance.peaks
            )
            return (
                Pipelined(self.model, self.optimizer, self.place, plan, schedule=self.wishes.schedule),
                told,
                how,
            )
        if name == "dp":
            return *self._dp(choice), how
        if name == "split":
            return *self._split(choice), how
        return alone(self.model, self.optimizer, self.place), choice, how

    # --- which one

    def _possible(self, wanted: str) -> str:
        """The same script runs where there is one device: there, every strategy is the plain one."""
        launched, size, devices = self.place.world.launched, self.place.world.size, len(self.place.devices)
        if wanted in ("dp", "split") and size > 1:
            other = "ddp" if wanted == "dp" else "pipeline"
            raise UsageError(
                f"strategy='{wanted}' is for one process with several GPUs, and {size} were started: use '{other}', which has one GPU in "
                "each process, or start one"
            )
        if wanted in ("ddp", "fsdp"):
            return wanted if launched else "alone"
        if wanted == "pipeline":
            return wanted if size > 1 else "alone"
        if wanted in ("dp", "split"):
            return wanted if devices > 1 else "alone"
        if launched:
            return wanted if size > 1 and self.place.device.type == "cuda" else "ddp"
        return wanted if devices > 1 else "alone"

    def _choose(self) -> Choice:
        note = (
            ""
            if self.wishes.batch is not None
            else "Activations are not counted: give batch=, one batch, and they are."
        )
        if self.place.world.size == 1:
            return self._choose_in_one_process(note)
        job = self._job()
        shares = self._shares()

        def looked_at() -> list[Forecast]:
            found = [strategy_memory.ddp(job, shares), strategy_memory.fsdp(job, shares)]
            return [*found, strategy_memory.fsdp(job, shares, offload=True)]

        told = self._among().agreed(looked_at)
        among = list(told)
        among.insert(2, self._pipeline_forecast(job, cheaper_fits=any(each.fits for each in told[:2])))
        return cheapest(among, note=note)

    def _choose_in_one_process(self, note: str) -> Choice:
        count = len(self.place.devices)
        faster = f"One process per GPU is faster: `legroom launch --nproc {count} script.py`."
        like = likeness_of(self.place.device)
        rooms = [likeness_of(device).room for device in self.place.devices]
        if self.wishes.batch is None:
            whole = Job(self.model, self.optimizer, None, tuple(rooms), like)
            return cheapest([Forecast("dp", strategy_memory.plain(whole, 0).peaks[0].reserved, min(rooms)),
                             Forecast("split", 0, min(rooms), "needs batch= to be looked at")], note=f"{faster} {note}")  # fmt: skip
        _, peaks = coordinator_shares(self.model, self.optimizer, self.wishes.batch, count, like)
        found = [Forecast("dp", max(peaks), min(rooms))]
        if found[0].fits:
            found.append(Forecast("split", 0, min(rooms), "not looked at: a cheaper one fits"))
        else:
            try:
                _, balance = plan_split(self.model, self.optimizer, self.wishes.batch, count, like)
                found.append(Forecast("split", max(balance.peaks), min(rooms)))
            except CannotCut:
                found.append(Forecast("split", 0, min(rooms), "cannot be foreseen for this model"))
        return cheapest(found, note=faster)

    def _pipeline_forecast(self, job: Job, *, cheaper_fits: bool) -> Forecast:
        room = min(job.rooms)
        if cheaper_fits:
            return Forecast("pipeline", 0, room, "not looked at: a cheaper one fits")
        if job.batch is None:
            return Forecast("pipeline", 0, room, "needs batch= to be looked at")
        try:
            return strategy_memory.pipeline(self._pipeline_plan(), job.rooms)
        except CannotCut:
            return Forecast("pipeline", 0, room, "this model cannot be cut")

    # --- what each needs

    def _ddp(self) -> Engine:
        unused, may_change = False, False
        if self.wishes.batch is not None and self.wishes.static_graph is None:
            job = self._job()
            unused, may_change = self._among().agreed(lambda: strategy_memory.unused_parameters(job))
        return distributed(
            self.model,
            self.optimizer,
            self.place,
            shares=self._shares(),
            unused=unused,
            may_change=may_change,
            static_graph=self.wishes.static_graph,
        )

    def _dp(self, choice: Choice) -> tuple[Engine, Choice]:
        count = len(self.place.devices)
        better = DDP_IS_BETTER.format(count=count)
        if self.wishes.shares is not None or self.wishes.batch is None:
            shares = checked_shares(self.wishes.shares, count, zero_allowed=True)
            told = replace(choice, note=better)
        else:
            like = likeness_of(self.place.device)
            shares, peaks = coordinator_shares(self.model, self.optimizer, self.wishes.batch, count, like)
            note = (
                f"The coordinator gets {shares[0]:g} rows and each other GPU about {shares[1]:.0f}: {format_size(peaks[0])} are foreseen on "
                f"the coordinator, {format_size(max(peaks[1:]))} on the others. {better}"
            )
            told = replace(choice, note=note, peaks=tuple(peaks))
        return data_parallel(self.model, self.optimizer, self.place, shares=shares), told

    def _split(self, choice: Choice) -> tuple[Engine, Choice]:
        count = len(self.place.devices)
        try:
            homes, balance = plan_split(
                self.model, self.optimizer, self._batch("split"), count, likeness_of(self.place.device)
            )
            held = ", ".join(map(format_size, balance.peaks))
            told = replace(
                choice,
                note=f"Layers are split so that the GPUs are foreseen to hold {held}.",
                peaks=balance.peaks,
            )
        except CannotCut as trouble:
            homes = homes_by_weight(self.model, count)
            told = replace(
                choice, note=f"Layers are split by the size of their weights alone: {trouble.reason}."
            )
        return split(self.model, self.optimizer, self.place, homes), told

    def _pipeline_plan(self) -> Plan:
        if self.plan is None:
            self.plan = plan_pipeline(
                self.model,
                self.optimizer,
                self._batch("pipeline"),
                self.place.world.size,
                likeness_of(self.place.device),
                schedule=self.wishes.schedule,
                micro_batches=self.wishes.micro_batches,
                among=AmongRanks(),
            )
        return self.plan

    def _shares(self) -> list[float]:
        """Of rows, by each rank's room where GPUs differ, unless given."""
        size = self.place.world.size
        if self.wishes.shares is not None or size == 1 or self.place.device.type != "cuda":
            return checked_shares(self.wishes.shares, size, zero_allowed=False)
        job = self._job()
        return self._among().agreed(lambda: strategy_memory.fair_shares(job))

    def _job(self) -> Job:
        like = likeness_of(self.place.device)
        rooms: list[int] = [like.room]
        if self.place.world.size > 1:
            rooms = [0] * self.place.world.size
            dist.all_gather_object(rooms, like.room)
        return Job(self.model, self.optimizer, self.wishes.batch, tuple(rooms), like)

    def _among(self) -> Among:
        return AmongRanks() if self.place.world.size > 1 else Among()

    def _batch(self, strategy: str) -> Any:
        if self.wishes.batch is None:
            raise UsageError(
                f"strategy='{strategy}' needs batch=, one batch with the target last, to see what goes where: "
                "legroom.parallel(model, optimizer, batch=(x, y))"
            )
        return self.wishes.batch


def _stages_told(plan: Plan) -> str:
    held = ", ".join(map(format_size, plan.balance.peaks))
    return f"The model is cut into {plan.cut.stages} stages that are foreseen to hold {held}; {plan.micro_batches} micro-batches a step."
