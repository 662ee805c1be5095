"""Training steps whose memory is measured on a real GPU and predicted without one.

A case is plain data (`Case`): which model, optimizer, precision and batch size, and which habits of a training
loop (checkpointing, accumulation, clipping, an EMA copy, ...). `build(case, device)` gives the step to run.
Nothing here imports Legroom, so that the same file serves on the machine with the GPU, where it is not installed.

`CASES["reference"]` are the cases of the published reference measurements, `CASES["study"]` may be looked at while
rules are written, and `CASES["held-back"]` are measured and predicted once, when the rules are done.
"""

import contextlib
import copy
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

if __package__:
    from bench.models import MODELS
else:  # run as a plain script beside its siblings, on a machine without the package
    from models import MODELS


@dataclass(frozen=True, kw_only=True)
class Case:
    """One training step, as data."""

    model: str
    optimizer: str
    precision: str
    """`fp32`, `tf32` (fp32 with TF32 matrix products), `amp_fp16`, `amp_bf16` or `bf16` (everything in bfloat16)."""
    batch: int
    channels_last: bool = False
    checkpoint: bool = False
    """Activation checkpointing, as the model offers it."""
    accumulate: int = 1
    """Micro-batches per optimizer step."""
    clip: bool = False
    """`clip_grad_norm_` before the optimizer's step."""
    ema: bool = False
    """An exponential moving average of the parameters, kept on the device."""
    frozen: bool = False
    """Only the last quarter of the parameter tensors is trained."""
    keep_grads: bool = False
    """`zero_grad(set_to_none=False)`."""
    benchmark: bool = False
    """`torch.backends.cudnn.benchmark`."""

    inputs_first: bool = False
    """The batch is made before gradients are cleared and lives until the step has ended. Not part of the name."""

    @property
    def key(self) -> str:
        """The name of the case in tables: `resnet50/sgdm/fp32/b16`, then the habits that are switched on."""
        habits = [
            name if value is True else f"{name}{value}"
            for name, value in asdict(self).items()
            if name not in ("model", "optimizer", "precision", "batch", "inputs_first")
            and value != type(self).__dataclass_fields__[name].default
        ]
        return "/".join([self.model, self.optimizer, self.precision, f"b{self.batch}", *habits])


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
}


def build(
    case: Case, device: str
) -> tuple[torch.nn.Module, torch.optim.Optimizer, Callable[[], torch.Tensor]]:
    """The model, its optimizer, and a function that takes one whole training step."""
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = case.benchmark
    torch.backends.cuda.matmul.allow_tf32 = case.precision == "tf32"
    spec = MODELS[case.model]()
    model = spec.model
    if case.checkpoint:
        model.gradient_checkpointing_enable()
    model.to(device)
    if case.precision == "bf16":
        model.to(torch.bfloat16)
    if case.channels_last:
        model.to(memory_format=torch.channels_last)
    model.train()
    if case.frozen:
        parameters = list(model.parameters())
        for parameter in parameters[: len(parameters) * 3 // 4]:
            parameter.requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = OPTIMIZERS[case.optimizer](trained)
    average = copy.deepcopy(model) if case.ema else None
    kind = torch.device(device).type
    scaler = torch.amp.GradScaler(kind) if case.precision == "amp_fp16" else None

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

    def forward_and_backward(inputs: list[torch.Tensor]) -> torch.Tensor:
        with precision():
            loss = spec.loss(model, *inputs)
            if not case.inputs_first:
                loss = loss / case.accumulate
        if scaler is not None:
            scaler.scale(loss).backward()
        else:
            loss.backward()
        return loss

    def step() -> torch.Tensor:
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
        if scaler is not None:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        if average is not None:
            with torch.no_grad():
                for old, new in zip(average.parameters(), model.parameters(), strict=True):
                    old.lerp_(new, 0.001)
        return loss.detach()

    return model, optimizer, step


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


def _case(model: str, optimizer: str, precision: str, batch: int, **habits: Any) -> Case:
    return Case(model=model, optimizer=optimizer, precision=precision, batch=batch, **habits)


_STUDY = [
    _case("efficientnet_b0", "rmsprop_momentum", "fp32", 48),
    _case("efficientnet_b0", "adamw", "amp_bf16", 96, channels_last=True),
    _case("densenet121", "nesterov", "fp32", 32),
    _case("swin_t", "adamw", "amp_fp16", 32, clip=True),
    _case("regnet_y_800mf", "nesterov", "amp_fp16", 64, channels_last=True),
    _case("deeplabv3_resnet50", "sgdm", "fp32", 4),
    _case("resnet50", "sgdm", "fp32", 64, channels_last=True),
    _case("resnet50", "sgdm", "amp_fp16", 96, channels_last=True, ema=True),
    _case("resnet18", "adam_amsgrad", "fp32", 64, benchmark=True),
    _case("t5_small", "adafactor", "fp32", 12),
    _case("t5_small", "adamw", "amp_bf16", 24, clip=True),
    _case("llama_gqa", "adamw", "bf16", 4),
    _case("llama_gqa", "adamw", "amp_bf16", 4, checkpoint=True, clip=True),
    _case("distilbert", "nadam", "fp32", 24),
    _case("whisper_encoder", "radam", "amp_fp16", 6),
    _case("gru_classifier", "adagrad", "fp32", 128),
    _case("wavenet", "adam", "fp32", 12),
    _case("vae", "adamax", "fp32", 96),
    _case("diffusion_unet", "adamw", "amp_bf16", 12, ema=True),
    _case("diffusion_unet", "adamw_loop", "fp32", 6),
    _case("mixture_of_experts", "adamw_fused", "amp_bf16", 16),
    _case("nano_gpt", "lion", "amp_bf16", 8, accumulate=3),
    _case("nano_gpt", "adamw", "tf32", 8, clip=True),
    _case("vit_b_16", "adamw", "amp_bf16", 48, frozen=True),
    _case("transformer_encoder", "adam", "fp32", 32, keep_grads=True),
    _case("conv3d_net", "sgdm", "amp_fp16", 8),
    _case("mlp_mixer", "adadelta", "fp32", 64),
    _case("recommender", "adagrad", "fp32", 4096),
]

_HELD_BACK = [
    _case("efficientnet_v2_s", "nesterov", "amp_fp16", 32),
    _case("densenet121", "adamw", "amp_bf16", 48, channels_last=True),
    _case("swin_t", "adamw", "fp32", 16),
    _case("regnet_x_1_6gf", "nadam", "fp32", 48),
    _case("fcn_resnet50", "adam", "amp_bf16", 6),
    _case("resnext50_32x4d", "rmsprop", "fp32", 32),
    _case("wide_resnet50_2", "nesterov", "amp_fp16", 64, channels_last=True, clip=True),
    _case("shufflenet_v2_x1_0", "adam", "fp32", 128),
    _case("inception_v3", "sgdm", "amp_bf16", 48),
    _case("resnet34", "lion", "fp32", 96, accumulate=2),
    _case("mobilenet_v2", "adamw_loop", "amp_fp16", 96, ema=True),
    _case("vit_b_32", "adamax", "fp32", 96),
    _case("t5_small", "adamw", "fp32", 20, checkpoint=True),
    _case("llama_gqa", "adamw_fused", "fp32", 3),
    _case("llama_gqa", "adafactor", "bf16", 8, checkpoint=True),
    _case("distilbert", "adam_amsgrad", "amp_bf16", 48, clip=True),
    _case("roberta_mlm", "adamw", "amp_fp16", 16),
    _case("whisper_encoder", "adamw", "fp32", 4),
    _case("electra_small", "radam", "tf32", 48),
    _case("gru_classifier", "adam", "amp_fp16", 64, clip=True),
    _case("bilstm_tagger", "adamw", "fp32", 48),
    _case("wavenet", "nadam", "amp_bf16", 24),
    _case("vae", "adagrad", "amp_fp16", 128),
    _case("dcgan_generator", "adam", "fp32", 96),
    _case("diffusion_unet", "adamw_fused", "bf16", 12),
    _case("mixture_of_experts", "adamw", "fp32", 8),
    _case("nano_gpt", "adamw", "bf16", 12, accumulate=2, keep_grads=True),
    _case("nano_gpt", "adadelta", "fp32", 6, checkpoint=True),
    _case("transformer_encoder", "adamw", "amp_bf16", 64),
    _case("conv3d_net", "adamw", "fp32", 6),
    _case("bert_base", "adamw_fused", "amp_bf16", 32, frozen=True),
]

CASES: dict[str, list[Case]] = {"reference": _REFERENCE, "study": _STUDY, "held-back": _HELD_BACK}
