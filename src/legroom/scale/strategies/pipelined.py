"""`pipeline`: one part of the model on each rank, micro-batches following each other through all of them.

`torch.distributed.pipelining` schedules and sends; what each stage computes is a part of the model's score (see `cutting`). Every rank
has the whole batch, and runs the same script: the loss function is called as anywhere else, with a model that tells, before the
passes, what it was called with (the first stage needs that) and answers, after them, with what came out (the last stage has that).
Micro-batches must be alike for the schedule: rows that are left over make a last, smaller one, whose gradients add to the others'.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from legroom.errors import UsageError
from legroom.scale.cutting.forward_graph import input_tensors, record, tensors_of, without_data
from legroom.scale.cutting.planning import Plan
from legroom.scale.cutting.release_weights import let_go, move_plain
from legroom.scale.cutting.stages import Part, Player, Sheet
from legroom.scale.loss_weights import Weighing
from legroom.scale.optimizers import rebound
from legroom.scale.strategies.sharded import from_rank_zero
from legroom.scale.world import Place
from legroom.train.guarding.batches.splitting import BatchArguments
from legroom.train.guarding.passes import LossFunction, checked_loss
from legroom.train.guarding.scaling import Scaling


class Pipelined:
    """The engine of one stage."""

    name = "pipeline"
    is_sharded = True

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        place: Place,
        plan: Plan,
        *,
        schedule: str,
    ) -> None:
        self.module, self.optimizer, self._device = model, optimizer, place.device
        self.batch_device: torch.device | None = place.device
        self.shares = [1.0]
        (self._blueprint,) = without_data(model)  # the whole model: scores are taken from it
        self._cut, self._schedule, self._micro_batches = plan.cut, schedule, plan.micro_batches
        self._stage, self._stages = place.world.rank, place.world.size
        self._runners: dict[Any, _Runner] = {}
        self._front = PipelinedModel(model)
        self.model: nn.Module = self._front
        self._tied: list[tuple[nn.Parameter, Any, bool]] = []  # with its group, and whether it counts here
        self._take_part(plan.parts)

    def _take_part(self, parts: Sequence[Part]) -> None:
        """Keep this stage's weights, on its device; let go of the others'."""
        from_rank_zero(self.module)
        homes = dict(tensors_of(self.module))
        users: dict[int, set[int]] = {}
        for stage, part in enumerate(parts):
            for name in part.tensors(self.module):
                users.setdefault(id(homes[name]), set()).add(stage)
        kept = {id(homes[name]) for name in parts[self._stage].tensors(self.module)}
        if self._stage == 0:  # what no stage uses is kept somewhere, for whoever saves the model
            kept |= {id(tensor) for tensor in homes.values() if id(tensor) not in users}
        mine = {
            name for name, tensor in homes.items() if id(tensor) in kept
        }  # under all its names, as in the whole model
        parameters = {name: each for name, each in homes.items() if isinstance(each, nn.Parameter)}
        rebound(self.optimizer, {each: None for each in parameters.values() if id(each) not in kept})
        let_go(self.module, set(homes) - mine)
        self.module.to(self._device)
        move_plain(self.module, mine, self._device)
        known: set[int] = set()
        for each in parameters.values():
            stages = sorted(users.get(id(each), ()))
            if len(stages) > 1 and each.requires_grad and id(each) not in known:
                known.add(id(each))
                group = dist.new_group(stages)  # every rank makes every group
                if self._stage in stages:
                    self._tied.append((each, group, stages[0] == self._stage))

    def backward(
        self, loss_fn: LossFunction, batch: BatchArguments, weighing: Weighing, scaling: Scaling
    ) -> torch.Tensor:
        whole = weighing.count(*batch.arguments, **batch.named)
        total = torch.zeros((), device=self._device)
        for spans in _portions(batch.batch_size, self._micro_batches):
            micros = [batch.slice(start, stop) for start, stop in spans]
            weights = [weighing.count(*micro, **named) / whole if whole else 0.0 for micro, named in micros]
            total += self._runner(loss_fn, micros).run(loss_fn, micros, weights, scaling)
        for parameter, group, _ in self._tied:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad, group=group)
        dist.broadcast(total, src=self._stages - 1)
        return total

    def evaluate(self, function: Callable[..., Any], batch: BatchArguments) -> Any:
        with torch.no_grad():
            arguments, named = self._front.asked(function, batch.arguments, batch.named)
            player = self._player(arguments, named)
            part = player.part
            received = [
                torch.empty(like.shape, dtype=like.dtype, device=self._device)
                for like in player.likes(part.receives)
            ]
            for tensor in received:
                dist.recv(tensor, src=self._stage - 1)
            sent = player.play(received, input_tensors(arguments, named))
            told: list[Any] = [None]
            if self._stage < self._stages - 1:
                for tensor in sent:
                    dist.send(tensor.contiguous(), dst=self._stage + 1)
            else:
                told = [self._front.answered(player.result(sent), function, batch.arguments, batch.named)]
            dist.broadcast_object_list(told, src=self._stages - 1, device=torch.device("cpu"))
            return told[0]

    def norm(self, parameters: Sequence[nn.Parameter]) -> torch.Tensor:
        elsewhere = {id(parameter) for parameter, _, first in self._tied if not first}
        mine = [each.grad for each in parameters if each.grad is not None and id(each) not in elsewhere]
        squared = (
            nn.utils.get_total_norm(mine).to(self._device) ** 2
            if mine
            else torch.zeros((), device=self._device)
        )
        dist.all_reduce(squared)
        return squared.sqrt()

    def _runner(self, loss_fn: LossFunction, micros: Sequence[Any]) -> "_Runner":
        arguments, named = self._front.asked(loss_fn, *micros[0])
        key = (
            len(micros),
            _kind(arguments, named),
            tuple(module.training for module in self.module.modules()),
        )
        if key not in self._runners:
            player = self._player(arguments, named)
            self._runners[key] = _Runner(
                self._front, player, self._stage, self._stages, self._device, self._schedule, len(micros)
            )
        return self._runners[key]

    def _player(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> Player:
        for ours, theirs in zip(self.module.modules(), self._blueprint.modules(), strict=True):
            theirs.training = ours.training
        with torch.enable_grad():
            score = record(self._blueprint, arguments, named)
        part = Sheet(score).parts(self._cut.on(score))[self._stage]
        return Player(score, part, self.module, self._device)


class PipelinedModel(nn.Module):
    """What a loss function calls: it tells what it was called with, or answers with what the pipeline gave."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self._is_asking = False
        self._answer: list[Any] = []

    def forward(self, *arguments: Any, **named: Any) -> Any:
        if self._is_asking:
            raise _Asked(arguments, named)
        if self._answer:
            return self._answer.pop()
        raise UsageError(
            "this model lies on several ranks: call it once in the function that run.step or run.evaluate gets, and nowhere else"
        )

    def asked(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What `function` calls the model with."""
        self._is_asking = True
        try:
            function(*arguments, **named)
        except _Asked as asked:
            return asked.arguments, asked.named
        finally:
            self._is_asking = False
        raise UsageError("the function does not call run.model: under strategy='pipeline' it must, once")

    def answered(
        self, answer: Any, function: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> Any:
        """What `function` gives, its model answering with `answer`."""
        self._answer = [answer]
        try:
            return function(*arguments, **named)
        finally:
            self._answer = []


class _Asked(BaseException):
    """No error: it must pass every handler of the user's function."""

    def __init__(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        self.arguments, self.named = arguments, named


class _Runner:
    """A schedule for micro-batches of one kind."""

    def __init__(
        self,
        model: PipelinedModel,
        player: Player,
        stage: int,
        stages: int,
        device: torch.device,
        schedule: str,
        micro_batches: int,
    ) -> None:
        part = player.part
        self._model, self._player = model, player
        self._is_last = stage == stages - 1
        self._reads_inputs = bool(part.inputs)
        self._numbers = torch.arange(micro_batches)
        self._loss_fn: LossFunction | None = None
        self._micros: Sequence[Any] = ()
        self._weights: Sequence[float] = ()
        self._scaling: Scaling | None = None
        made = PipelineStage(
            _Stage(self),
            stage,
            stages,
            device,
            input_args=tuple(like.meta() for like in player.likes(part.receives)),
            output_args=tuple(like.meta() for like in player.likes(part.sends)),
        )
        # 1F1B needs as many micro-batches as there are stages; with fewer, GPipe holds no more of them.
        kind: Any = ScheduleGPipe if schedule == "gpipe" or micro_batches < stages else Schedule1F1B
        self._made = kind(made, micro_batches, loss_fn=self._loss, scale_grads=False)
        self._without_outputs = {"return_outputs": False} if _can_leave_outputs(kind) else {}

    def run(
        self, loss_fn: LossFunction, micros: Sequence[Any], weights: Sequence[float], scaling: Scaling
    ) -> torch.Tensor:
        """All passes of these micro-batches; on the last stage the loss they have together, elsewhere 0."""
        losses: list[torch.Tensor] = []
        with self._given(loss_fn, micros, weights, scaling):
            target = {"target": self._numbers, "losses": losses} if self._is_last else {}
            self._made.step(number=self._numbers, **target, **self._without_outputs)
        return torch.stack([loss.detach() for loss in losses]).sum() if losses else torch.zeros(())

    def play(self, received: Sequence[torch.Tensor], number: int) -> tuple[torch.Tensor, ...]:
        assert self._loss_fn is not None
        assert self._scaling is not None
        inputs: list[torch.Tensor] = []
        if self._reads_inputs:
            inputs = input_tensors(*self._model.asked(self._loss_fn, *self._micros[number]))
        with self._scaling.autocast():
            return self._player.play(received, inputs)

    def _loss(self, sent: Any, number: torch.Tensor) -> torch.Tensor:
        assert self._loss_fn is not None
        assert self._scaling is not None
        at = int(number)
        result = self._player.result((sent,) if isinstance(sent, torch.Tensor) else sent)
        with self._scaling.autocast():
            loss = checked_loss(self._model.answered(result, self._loss_fn, *self._micros[at]))
        return loss * self._weights[at]

    @contextmanager
    def _given(
        self, loss_fn: LossFunction, micros: Sequence[Any], weights: Sequence[float], scaling: Scaling
    ) -> Iterator[None]:
        """The batch is held while its passes run, and not longer."""
        self._loss_fn, self._micros, self._weights, self._scaling = loss_fn, micros, weights, scaling
        try:
            yield
        finally:
            self._loss_fn, self._micros, self._weights, self._scaling = None, (), (), None


class _Stage(nn.Module):
    """What torch's stage calls for every micro-batch."""

    def __init__(self, runner: _Runner) -> None:
        super().__init__()
        self._runner = [runner]

    def forward(self, *received: torch.Tensor, number: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self._runner[0].play(received, int(number))


def _can_leave_outputs(schedule: Any) -> bool:
    """`return_outputs=False` came after torch 2.6; without it the last stage holds every micro-batch's output until the step's end."""
    import inspect

    return "return_outputs" in inspect.signature(schedule.step).parameters


def _portions(rows: int, micro_batches: int) -> list[list[tuple[int, int]]]:
    """Rows as micro-batches of one size, and what is left over as a smaller one by itself."""
    size = -(-rows // micro_batches)
    count, rest = divmod(rows, size)
    portions = [[(place * size, (place + 1) * size) for place in range(count)]]
    return [*portions, [(count * size, rows)]] if rest else portions


def _kind(arguments: Any, named: Any) -> tuple[Any, ...]:
    return tuple((tuple(tensor.shape), tensor.dtype) for tensor in input_tensors(arguments, named))
