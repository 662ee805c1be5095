"""Implements strategy `pipeline`. Each rank has one stage of the model, and micro-batches pass through the stages one
after the other.

`torch.distributed.pipelining` provides the schedule and the communication. Each stage runs a part of the recorded
forward graph (see `cutting`). Every rank has the whole batch and runs the same script. The loss function is called
twice. In the first call, the model captures its arguments, which the first stage needs. In the second call, after the
passes, the model returns the output of the last stage. The schedule requires micro-batches of equal size. The remaining
samples form a smaller last micro-batch, and its gradients are added to the other gradients.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from legroom.errors import UsageError
from legroom.scale.cutting.forward_graph import input_tensors, meta_copies, named_tensors, record_forward
from legroom.scale.cutting.planning import PipelinePlan
from legroom.scale.cutting.release_weights import move_plain_attributes, release_tensors
from legroom.scale.cutting.stages import GraphPartitioner, StageProgram, StageRunner
from legroom.scale.loss_weights import LossWeighting
from legroom.scale.optimizers import replace_parameters
from legroom.scale.strategies.sharded import broadcast_from_rank_zero
from legroom.scale.world import RankDevices
from legroom.train.checkpoints.saving import STAGE_ATTRIBUTE
from legroom.train.guarding.batches.splitting import BatchArguments
from legroom.train.guarding.passes import LossFunction, checked_loss
from legroom.train.guarding.scaling import Scaling
from legroom.train.ranks.waiting import waiting


class Pipelined:
    name = "pipeline"
    is_sharded = True

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        devices: RankDevices,
        plan: PipelinePlan,
        *,
        schedule: str,
    ) -> None:
        self.module, self.optimizer, self._device = model, optimizer, devices.device
        self.batch_device: torch.device | None = devices.device
        self.shares = [1.0]
        (self._meta_model,) = meta_copies(model)  # forward graphs are recorded from it
        self._cut, self._schedule, self._micro_batches = plan.cut, schedule, plan.micro_batches
        self._stage, self._stages = devices.world.rank, devices.world.size
        self._schedules: dict[Any, _Schedule] = {}
        self._wrapper = PipelinedModel(model)
        self.model: nn.Module = self._wrapper
        self._tied: list[
            tuple[nn.Parameter, Any, bool]
        ] = []  # parameter, its process group, whether this is its first stage
        self._keep_own_weights(plan.programs)

    def _keep_own_weights(self, programs: Sequence[StageProgram]) -> None:
        broadcast_from_rank_zero(self.module)
        tensors = dict(named_tensors(self.module))
        users: dict[int, set[int]] = {}
        for stage, program in enumerate(programs):
            for name in program.tensors(self.module):
                users.setdefault(id(tensors[name]), set()).add(stage)
        own_ids = {id(tensors[name]) for name in programs[self._stage].tensors(self.module)}
        if self._stage == 0:  # unused tensors are kept on the first stage, so that they are saved
            own_ids |= {id(tensor) for tensor in tensors.values() if id(tensor) not in users}
        own = {name for name, tensor in tensors.items() if id(tensor) in own_ids}  # including all aliases
        parameters = {name: each for name, each in tensors.items() if isinstance(each, nn.Parameter)}
        replace_parameters(
            self.optimizer, {each: None for each in parameters.values() if id(each) not in own_ids}
        )
        release_tensors(self.module, set(tensors) - own)
        vars(self.module)[STAGE_ATTRIBUTE] = True
        self.module.to(self._device)
        move_plain_attributes(self.module, own, self._device)
        seen: set[int] = set()
        for each in parameters.values():
            stages = sorted(users.get(id(each), ()))
            if len(stages) > 1 and each.requires_grad and id(each) not in seen:
                seen.add(id(each))
                with waiting("legroom.parallel()"):
                    group = dist.new_group(stages)  # every rank must create every group
                if self._stage in stages:
                    self._tied.append((each, group, stages[0] == self._stage))

    def backward(
        self, loss_fn: LossFunction, batch: BatchArguments, weighting: LossWeighting, scaling: Scaling
    ) -> torch.Tensor:
        total_weight = weighting.count(*batch.arguments, **batch.named)
        total = torch.zeros((), device=self._device)
        for spans in _equal_spans(batch.batch_size, self._micro_batches):
            micros = [batch.slice(start, stop) for start, stop in spans]
            weights = [
                weighting.count(*micro, **named) / total_weight if total_weight else 0.0
                for micro, named in micros
            ]
            total += self._schedule_for(loss_fn, micros).run(loss_fn, micros, weights, scaling)
        for parameter, group, _ in self._tied:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            with waiting("run.step()"):
                dist.all_reduce(parameter.grad, group=group)
        with waiting("run.step()"):
            dist.broadcast(total, src=self._stages - 1)
        return total

    def evaluate(self, function: Callable[..., Any], batch: BatchArguments) -> Any:
        with torch.no_grad():
            arguments, named = self._wrapper.capture_arguments(function, batch.arguments, batch.named)
            runner = self._runner(arguments, named)
            received = [
                torch.empty(info.shape, dtype=info.dtype, device=self._device)
                for info in runner.slot_infos(runner.program.receives)
            ]
            with waiting("run.evaluate()"):
                for tensor in received:
                    dist.recv(tensor, src=self._stage - 1)
            sent = runner.run(received, input_tensors(arguments, named))
            result: list[Any] = [None]
            if self._stage < self._stages - 1:
                with waiting("run.evaluate()"):
                    for tensor in sent:
                        dist.send(tensor.contiguous(), dst=self._stage + 1)
            else:
                output = runner.result(sent)
                result = [self._wrapper.call_with_output(output, function, batch.arguments, batch.named)]
            with waiting("run.evaluate()"):
                dist.broadcast_object_list(result, src=self._stages - 1, device=torch.device("cpu"))
            return result[0]

    def norm(self, parameters: Sequence[nn.Parameter]) -> torch.Tensor:
        counted_elsewhere = {id(parameter) for parameter, _, is_first in self._tied if not is_first}
        own = [
            each.grad for each in parameters if each.grad is not None and id(each) not in counted_elsewhere
        ]
        squared = (
            nn.utils.get_total_norm(own).to(self._device) ** 2
            if own
            else torch.zeros((), device=self._device)
        )
        with waiting("run.step()"):
            dist.all_reduce(squared)
        return squared.sqrt()

    def _schedule_for(self, loss_fn: LossFunction, micros: Sequence[Any]) -> "_Schedule":
        arguments, named = self._wrapper.capture_arguments(loss_fn, *micros[0])
        key = (
            len(micros),
            _signature(arguments, named),
            tuple(module.training for module in self.module.modules()),
        )
        if key not in self._schedules:
            self._schedules[key] = _Schedule(
                self._wrapper,
                self._runner(arguments, named),
                self._stage,
                self._stages,
                self._device,
                self._schedule,
                len(micros),
            )
        return self._schedules[key]

    def _runner(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> StageRunner:
        for module, meta_module in zip(self.module.modules(), self._meta_model.modules(), strict=True):
            meta_module.training = module.training
        with torch.enable_grad():
            graph = record_forward(self._meta_model, arguments, named)
        program = GraphPartitioner(graph).programs(self._cut.on(graph))[self._stage]
        return StageRunner(graph, program, self.module, self._device)


class PipelinedModel(nn.Module):
    """The model that is passed to loss functions. The first call captures the arguments, and the second call returns
    the output of the pipeline."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self._is_capturing = False
        self._output: list[Any] = []

    def forward(self, *arguments: Any, **named: Any) -> Any:
        if self._is_capturing:
            raise _Captured(arguments, named)
        if self._output:
            return self._output.pop()
        raise UsageError(
            "This model is split across several ranks. Call the model exactly once, in the function passed to "
            "run.step or run.evaluate."
        )

    def capture_arguments(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        self._is_capturing = True
        try:
            function(*arguments, **named)
        except _Captured as captured:
            return captured.arguments, captured.named
        finally:
            self._is_capturing = False
        raise UsageError(
            "The function does not call run.model. With strategy='pipeline', the function must call "
            "run.model exactly once."
        )

    def call_with_output(
        self, output: Any, function: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> Any:
        self._output = [output]
        try:
            return function(*arguments, **named)
        finally:
            self._output = []


class _Captured(BaseException):
    """Raised to end the user's function after the arguments are captured. The base class is BaseException, so that
    `except Exception` in the function does not catch this exception.
    """

    def __init__(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        self.arguments, self.named = arguments, named


class _Schedule:
    def __init__(
        self,
        model: PipelinedModel,
        runner: StageRunner,
        stage: int,
        stages: int,
        device: torch.device,
        schedule: str,
        micro_batches: int,
    ) -> None:
        program = runner.program
        self._model, self._runner = model, runner
        self._is_last = stage == stages - 1
        self._reads_inputs = bool(program.inputs)
        self._indices = torch.arange(micro_batches)
        self._loss_fn: LossFunction | None = None
        self._micros: Sequence[Any] = ()
        self._weights: Sequence[float] = ()
        self._scaling: Scaling | None = None
        pipeline_stage = PipelineStage(
            _Stage(self),
            stage,
            stages,
            device,
            input_args=tuple(info.meta() for info in runner.slot_infos(program.receives)),
            output_args=tuple(info.meta() for info in runner.slot_infos(program.sends)),
        )
        # 1F1B needs at least as many micro-batches as stages. With fewer, GPipe needs no more memory.
        schedule_class: Any = ScheduleGPipe if schedule == "gpipe" or micro_batches < stages else Schedule1F1B
        self._schedule = schedule_class(pipeline_stage, micro_batches, loss_fn=self._loss, scale_grads=False)
        self._step_options = {"return_outputs": False} if _can_drop_outputs(schedule_class) else {}

    def run(
        self, loss_fn: LossFunction, micros: Sequence[Any], weights: Sequence[float], scaling: Scaling
    ) -> torch.Tensor:
        """Run all passes of these micro-batches. Return their total loss on the last stage, and 0 on the other stages."""
        losses: list[torch.Tensor] = []
        with self._batch(loss_fn, micros, weights, scaling):
            target = {"target": self._indices, "losses": losses} if self._is_last else {}
            self._schedule.step(index=self._indices, **target, **self._step_options)
        return torch.stack([loss.detach() for loss in losses]).sum() if losses else torch.zeros(())

    def forward(self, received: Sequence[torch.Tensor], index: int) -> tuple[torch.Tensor, ...]:
        assert self._loss_fn is not None
        assert self._scaling is not None
        inputs: list[torch.Tensor] = []
        if self._reads_inputs:
            inputs = input_tensors(*self._model.capture_arguments(self._loss_fn, *self._micros[index]))
        with self._scaling.autocast():
            return self._runner.run(received, inputs)

    def _loss(self, sent: Any, index: torch.Tensor) -> torch.Tensor:
        assert self._loss_fn is not None
        assert self._scaling is not None
        number = int(index)
        output = self._runner.result((sent,) if isinstance(sent, torch.Tensor) else sent)
        with self._scaling.autocast():
            loss = checked_loss(self._model.call_with_output(output, self._loss_fn, *self._micros[number]))
        return loss * self._weights[number]

    @contextmanager
    def _batch(
        self, loss_fn: LossFunction, micros: Sequence[Any], weights: Sequence[float], scaling: Scaling
    ) -> Iterator[None]:
        """Keep a reference to the batch only while its passes run."""
        self._loss_fn, self._micros, self._weights, self._scaling = loss_fn, micros, weights, scaling
        try:
            yield
        finally:
            self._loss_fn, self._micros, self._weights, self._scaling = None, (), (), None


class _Stage(nn.Module):
    def __init__(self, schedule: _Schedule) -> None:
        super().__init__()
        self._schedule = [schedule]

    def forward(self, *received: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self._schedule[0].forward(received, int(index))


def _can_drop_outputs(schedule: Any) -> bool:
    """Return whether this version of torch supports `return_outputs=False` (torch 2.6 does not). Without this option,
    the last stage keeps all outputs of a step.
    """
    import inspect

    return "return_outputs" in inspect.signature(schedule.step).parameters


def _equal_spans(batch_size: int, micro_batches: int) -> list[list[tuple[int, int]]]:
    """Return the sample ranges of micro-batches of equal size and, separately, a smaller range with the remaining
    samples.
    """
    size = -(-batch_size // micro_batches)
    count, rest = divmod(batch_size, size)
    spans = [[(index * size, (index + 1) * size) for index in range(count)]]
    return [*spans, [(count * size, batch_size)]] if rest else spans


def _signature(arguments: Any, named: Any) -> tuple[Any, ...]:
    return tuple((tuple(tensor.shape), tensor.dtype) for tensor in input_tensors(arguments, named))
