"""Builds the training step of a case.

This file imports nothing from Legroom, so it also runs on a GPU machine where Legroom is not installed.
"""

import contextlib
import copy
import itertools
import tempfile
from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch

from bench.accuracy.cases.case import Case
from bench.accuracy.cases.sets import BUILDERS
from bench.lib.models.parts import StepParts, ema_update
from bench.lib.optimizers import OPTIMIZERS


def build(
    case: Case, device: str, *, skipped: Collection[int] = ()
) -> tuple[torch.nn.Module, torch.optim.Optimizer, Callable[[], torch.Tensor]]:
    """Return the model, its optimizer, and a function that runs one training step.

    The function's `scaler` attribute is the GradScaler, or None. `skipped` lists optimizer steps, counted from 0, to
    skip. A GradScaler skips a step when gradients overflow. Pass the steps that were skipped in the measured run.
    """
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = case.benchmark
    torch.backends.cuda.matmul.allow_tf32 = case.precision == "tf32"
    spec = BUILDERS[case.model]()
    model = spec.model
    if case.checkpoint:
        model.gradient_checkpointing_enable()
    model.to(device)
    if case.precision == "bf16":
        model.to(torch.bfloat16)
    if case.channels_last:
        model.to(memory_format=torch.channels_last)
    model.train(not case.inference)
    if case.frozen:
        parameters = list(model.parameters())
        for parameter in parameters[: len(parameters) * 3 // 4]:
            parameter.requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    average = copy.deepcopy(model) if case.ema else None
    kind = torch.device(device).type
    scaler = torch.amp.GradScaler(kind) if case.precision == "amp_fp16" and not case.inference else None
    if case.ddp:
        join_group_of_one()
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[0])

    def precision() -> contextlib.AbstractContextManager[Any]:
        if case.precision in ("amp_bf16", "amp_fp16"):
            return torch.autocast(
                kind, dtype=torch.bfloat16 if case.precision == "amp_bf16" else torch.float16
            )
        return contextlib.nullcontext()

    def make_batch() -> list[torch.Tensor]:
        inputs = spec.batch(case.batch, device)
        if case.precision == "bf16":
            inputs = [x.to(torch.bfloat16) if x.is_floating_point() else x for x in inputs]
        if case.channels_last:
            inputs = [x.to(memory_format=torch.channels_last) if x.dim() == 4 else x for x in inputs]
        return inputs

    if spec.training is not None:
        optimizers: list[torch.optim.Optimizer] = []

        def optimizer_of(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
            optimizers.append(OPTIMIZERS[case.optimizer](list(parameters)))
            return optimizers[-1]

        own_step = spec.training(StepParts(model, optimizer_of, make_batch, precision))
        own_step.scaler = None
        return model, optimizers[0], own_step

    optimizer = OPTIMIZERS[case.optimizer](trained)

    def forward_and_backward(inputs: list[torch.Tensor]) -> torch.Tensor:
        with precision():
            loss = spec.loss(model, *inputs)
            if not case.inputs_first:
                loss = loss / case.accumulate
        scaled = loss if scaler is None else scaler.scale(loss)
        if case.retain:
            scaled.backward(retain_graph=True)
        scaled.backward()
        return loss

    numbers = itertools.count()

    def skip_next() -> bool:
        return next(numbers) in skipped

    def step() -> torch.Tensor:
        if case.inference:
            with torch.no_grad(), precision():
                answer: torch.Tensor = spec.loss(model, *make_batch())
            return answer
        if case.inputs_first:
            inputs = make_batch()
            optimizer.zero_grad()
            loss = forward_and_backward(inputs)
        else:
            optimizer.zero_grad(set_to_none=not case.keep_grads)
            for _ in range(case.accumulate):
                loss = forward_and_backward(make_batch()).detach()
        if case.clip:
            if scaler is not None:
                scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
        if scaler is not None and skip_next():
            if not case.clip:
                scaler.unscale_(optimizer)
            scaler.update()
        elif scaler is not None:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        if average is not None:
            ema_update(average.parameters(), model.parameters(), 0.001)
        if case.evaluate:
            model.eval()
            with torch.no_grad(), precision():
                spec.loss(model, *make_batch())
            model.train()
        return loss.detach()

    step.scaler = scaler  # type: ignore[attr-defined]
    return model, optimizer, step


def join_group_of_one() -> None:
    """Create an NCCL process group with this process as its only rank."""
    distributed = torch.distributed
    if not distributed.is_initialized():
        folder = tempfile.mkdtemp()
        distributed.init_process_group("nccl", init_method=f"file://{folder}/store", rank=0, world_size=1)
