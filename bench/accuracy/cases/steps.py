"""Training steps whose memory is measured on a real GPU and predicted without one.

A case is plain data (`Case`): which model, optimizer, precision and batch size, and which habits of a training
loop (checkpointing, accumulation, clipping, an EMA copy, ...). `build(case, device)` gives the step to run.
Nothing here imports Legroom, so that the same file serves on the machine with the GPU, where it is not installed.

`CASES["reference"]` are the cases of the published reference measurements, `CASES["study"]` may be looked at while
rules are written, `CASES["held-back"]` were measured and predicted once, when the first rules were done, and
`CASES["fresh"]` when the next ones were, `CASES["fresh-again"]` after those, and `CASES["everyday"]` (ordinary training, weighted as
people train) when later ones were. Sets after those are listed in `case_sets`.
"""

import contextlib
import copy
import itertools
import tempfile
from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch

from bench.accuracy.cases.case import Case as Case
from bench.accuracy.cases.largest_batch_models import LARGEST_BATCH_MODELS
from bench.accuracy.cases.sets import CASE_SETS
from bench.lib.models.parts import Workshop, follow
from bench.lib.models.reference import MODELS

BUILDERS = MODELS | LARGEST_BATCH_MODELS
for _set in CASE_SETS.values():
    if twice := BUILDERS.keys() & _set.builders.keys():
        raise ValueError(f"models of one name: {', '.join(sorted(twice))}")
    BUILDERS |= _set.builders


class Lion(torch.optim.Optimizer):
    """A hand-written optimizer of the kind people paste into their projects: a plain loop over parameters."""

    def __init__(self, params: Any, lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99)) -> None:
        super().__init__(params, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            slow, fast = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["average"] = torch.zeros_like(parameter)
                average = state["average"]
                update = average.mul(slow).add(parameter.grad, alpha=1 - slow).sign_()
                parameter.add_(update, alpha=-group["lr"])
                average.mul_(fast).add_(parameter.grad, alpha=1 - fast)


OPTIMIZERS: dict[str, Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01),
    "sgdm": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True, weight_decay=1e-4),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-4),
    "adam_amsgrad": lambda p: torch.optim.Adam(p, lr=1e-4, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-4),
    "adamw_loop": lambda p: torch.optim.AdamW(p, lr=1e-4, foreach=False),
    "adamw_fused": lambda p: torch.optim.AdamW(p, lr=1e-4, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-4),
    "rmsprop_momentum": lambda p: torch.optim.RMSprop(p, lr=1e-4, momentum=0.9, weight_decay=1e-5),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-3),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=1e-2),
    "adamax": lambda p: torch.optim.Adamax(p, lr=1e-3),
    "nadam": lambda p: torch.optim.NAdam(p, lr=1e-4),
    "radam": lambda p: torch.optim.RAdam(p, lr=1e-4),
    "lion": Lion,
    "sgd_fused": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, fused=True),
    "sgd_loop": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, foreach=False),
    "adam_fused": lambda p: torch.optim.Adam(p, lr=1e-4, fused=True),
    "adam_loop": lambda p: torch.optim.Adam(p, lr=1e-4, foreach=False),
    "asgd": lambda p: torch.optim.ASGD(p, lr=1e-3),
    "rprop": lambda p: torch.optim.Rprop(p, lr=1e-4),
    "rmsprop_centered": lambda p: torch.optim.RMSprop(p, lr=1e-4, centered=True),
    "nadamw": lambda p: torch.optim.NAdam(p, lr=1e-4, weight_decay=0.01, decoupled_weight_decay=True),
    "sparse_adam": lambda p: torch.optim.SparseAdam(p, lr=1e-3),
}


def build(
    case: Case, device: str, *, skipped: Collection[int] = ()
) -> tuple[torch.nn.Module, torch.optim.Optimizer, Callable[[], torch.Tensor]]:
    """The model, its optimizer, and a function that takes one whole training step.

    That function's `scaler` is the GradScaler in use, or None. `skipped`: these optimizer steps (counted from 0) are left out, as
    a GradScaler does when gradients overflow, for comparison with a measured run that did so.
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
        join_alone()
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

        own_step = spec.training(Workshop(model, optimizer_of, make_batch, precision))
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
            follow(average.parameters(), model.parameters(), 0.001)
        if case.evaluate:
            model.eval()
            with torch.no_grad(), precision():
                spec.loss(model, *make_batch())
            model.train()
        return loss.detach()

    step.scaler = scaler  # type: ignore[attr-defined]
    return model, optimizer, step


def join_alone() -> None:
    """A process group of one."""
    distributed = torch.distributed
    if not distributed.is_initialized():
        meeting_point = tempfile.mkdtemp()
        distributed.init_process_group(
            "nccl", init_method=f"file://{meeting_point}/meet", rank=0, world_size=1
        )


def _grid(model: str, batches: tuple[int, ...], *combinations: tuple[str, str]) -> list[Case]:
    return [
        Case(model=model, optimizer=optimizer, precision=precision, batch=batch, inputs_first=True)
        for optimizer, precision in combinations
        for batch in batches
    ]


_REFERENCE = [
    *_grid("resnet18", (32, 256), ("sgdm", "fp32"), ("adam", "amp_fp16")),
    *_grid("resnet50", (16, 128), ("sgdm", "fp32"), ("adamw", "amp_bf16"), ("adamw", "fp32")),
    *_grid("vgg16", (16, 64), ("sgdm", "fp32"), ("adam", "amp_fp16")),
    *_grid("mobilenet_v3_large", (32, 200), ("rmsprop", "fp32"), ("adamw", "amp_bf16")),
    *_grid("convnext_tiny", (16, 96), ("adamw", "fp32"), ("adamw_fused", "amp_bf16")),
    *_grid("vit_b_16", (16, 64), ("adamw", "fp32"), ("adamw", "amp_bf16")),
    *_grid("gpt2", (2, 12), ("adamw", "fp32"), ("adamw", "amp_bf16"), ("adamw_fused", "bf16")),
    *_grid("gpt2_ckpt", (4, 24), ("adamw", "fp32"), ("adamw", "amp_bf16")),
    *_grid("bert_base", (8, 64), ("adamw", "fp32"), ("adamw", "amp_fp16")),
    *_grid("lstm", (20, 160), ("sgd", "fp32"), ("adam", "amp_fp16")),
    *_grid("unet", (2, 12), ("adam", "fp32"), ("adam", "amp_bf16")),
    *_grid("mlp", (64, 8192), ("sgd", "fp32"), ("adam", "fp32")),
]


CASES: dict[str, list[Case]] = {
    "reference": _REFERENCE,
    **{name: chosen.cases for name, chosen in CASE_SETS.items()},
}
