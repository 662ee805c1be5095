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

from bench.case import Case as Case
from bench.case_sets import CASE_SETS
from bench.everyday_pictures import EVERYDAY_PICTURES
from bench.everyday_sequences import EVERYDAY_SEQUENCES
from bench.further_models import FURTHER
from bench.later_models import LATER
from bench.model_parts import Workshop, follow
from bench.models import MODELS

BUILDERS = MODELS | FURTHER | LATER | EVERYDAY_PICTURES | EVERYDAY_SEQUENCES
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
    # For the rules of cudnn.benchmark and DistributedDataParallel, with a twin without each.
    _case("resnet18", "adam_amsgrad", "fp32", 64),
    _case("resnet18", "adam", "amp_fp16", 64, benchmark=True),
    _case("resnet50", "sgdm", "amp_fp16", 64, channels_last=True, benchmark=True),
    _case("unet", "adam", "fp32", 4, benchmark=True),
    _case("resnet18", "sgdm", "fp32", 64, ddp=True),
    _case("distilbert", "adamw", "amp_bf16", 16, ddp=True),
    _case("distilbert", "adamw", "amp_bf16", 16),
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

_FRESH = [
    _case("resnet101", "sgd_fused", "amp_bf16", 40),
    _case("resnet101", "adamw", "amp_fp16", 32, channels_last=True, clip=True),
    _case("googlenet", "nesterov", "fp32", 64),
    _case("squeezenet1_1", "adam_loop", "amp_fp16", 96),
    _case("mnasnet1_0", "rmsprop_centered", "amp_bf16", 80),
    _case("alexnet", "sgd_loop", "fp32", 256),
    _case("vgg11_bn", "adamw", "amp_bf16", 48, channels_last=True),
    _case("densenet169", "adam", "amp_fp16", 24),
    _case("mobilenet_v3_small", "nadamw", "fp32", 192, ema=True),
    _case("regnet_y_400mf", "asgd", "fp32", 96, accumulate=2),
    _case("convnext_small", "adamw", "bf16", 32),
    _case("efficientnet_b1", "rmsprop", "amp_fp16", 48),
    _case("swin_v2_t", "adamw_fused", "amp_bf16", 24, clip=True),
    _case("maxvit_t", "adamw", "amp_bf16", 16),
    _case("video_resnet18", "sgdm", "fp32", 8),
    _case("video_resnet18", "adam_fused", "amp_bf16", 16),
    _case("lraspp", "adamw", "fp32", 16, keep_grads=True),
    _case("opt", "adamw", "amp_fp16", 8, ddp=True),
    _case("qwen2", "adamw", "amp_bf16", 4, retain=True),
    _case("qwen2", "adafactor", "bf16", 8, checkpoint=True, accumulate=2),
    _case("pythia", "adam_fused", "fp32", 8, keep_grads=True),
    _case("albert", "adamw", "amp_bf16", 48),
    _case("clip_vision", "adamw", "tf32", 40, ema=True),
    _case("low_rank_llama", "adamw", "bf16", 8),
    _case("low_rank_llama", "adamw", "amp_bf16", 4, checkpoint=True),
    _case("speech_net", "adamw", "fp32", 32),
    _case("speech_net", "sgdm", "amp_bf16", 48, clip=True),
    _case("translator", "adam", "fp32", 128),
    _case("translator", "adamw", "amp_fp16", 192, clip=True),
    _case("super_resolution", "adam", "fp32", 16),
    _case("super_resolution", "adam", "amp_fp16", 32, channels_last=True),
    _case("point_net", "adam", "fp32", 64),
    _case("volume_net", "adamw", "amp_fp16", 4),
    _case("graphs", "rprop", "fp32", 64),
    _case("distilled", "sgdm", "amp_bf16", 96),
    _case("critic", "adam", "fp32", 24),
    _case("stack", "adamw", "fp32", 96, checkpoint=True),
    _case("text_convolutions", "adagrad", "fp32", 128),
    _case("resnet50", "sgdm", "fp32", 48, ddp=True),
    _case("resnet50", "sgdm", "amp_bf16", 128, inference=True),
    _case("nano_gpt", "adamw", "amp_bf16", 8, ddp=True, accumulate=2),
]

_FRESH_AGAIN = [
    _case("wav2vec", "adamw", "fp32", 12),
    _case("temporal_convolutions", "adam", "amp_fp16", 48),
    _case("sharpener", "adam", "fp32", 24),
    _case("denoiser", "sgdm", "amp_bf16", 64),
    _case("scans", "sgdm", "fp32", 4),
    _case("clips", "adamw", "amp_fp16", 12, clip=True),
    _case("line_reader", "adam", "fp32", 96),
    _case("flow", "adamw", "fp32", 6, clip=True),
    _case("video_in_parts", "nesterov", "amp_bf16", 10),
    _case("street_scenes", "adamw_fused", "amp_fp16", 12, channels_last=True),
    _case("bart", "adamw", "amp_bf16", 16, clip=True),
    _case("phi", "adamw_fused", "bf16", 8, accumulate=2),
    _case("segformer", "adamw", "amp_bf16", 16),
    _case("recogniser", "nadam", "amp_bf16", 24),
    _case("translated", "adam", "amp_fp16", 16),
    _case("codes", "adam", "fp32", 40, ema=True),
    _case("speaker", "adam", "amp_fp16", 128, clip=True),
    _case("brain_waves", "adamax", "fp32", 128),
    _case("projected", "adagrad", "fp32", 48),
    _case("radiance", "radam", "fp32", 4096),
    _case("efficientnet_b2", "rmsprop", "fp32", 24),
    _case("regnet_x_800mf", "sgdm", "amp_bf16", 72),
    _case("scans", "adamw", "amp_bf16", 6, inference=True),
]

_EVERYDAY = [
    _case("digits", "adadelta", "fp32", 64),
    _case("wide_residual", "nesterov", "fp32", 128),
    _case("wide_residual", "sgdm", "amp_fp16", 256, channels_last=True),
    _case("resnet34", "adamw", "amp_bf16", 64),
    _case("resnet152", "sgdm", "amp_fp16", 32, channels_last=True),
    _case("resnet18", "sgdm", "fp32", 100),
    _case("resnet50", "adam", "amp_fp16", 48, frozen=True),
    _case("efficientnet_b3", "adamw", "amp_bf16", 24),
    _case("vgg19_bn", "sgdm", "amp_bf16", 32),
    _case("convnext_base", "adamw", "amp_bf16", 24, ema=True),
    _case("swin_s", "adamw", "amp_fp16", 20),
    _case("small_vision_transformer", "adamw", "fp32", 64, clip=True),
    _case("small_vision_transformer", "adamw_fused", "amp_bf16", 128),
    _case("medical_unet", "adam", "fp32", 16),
    _case("medical_unet", "adamw", "amp_fp16", 24),
    _case("encoded_unet", "adamw", "amp_bf16", 16),
    _case("adversarial", "adam", "fp32", 128),
    _case("painter", "adam", "fp32", 2),
    _case("noise_net", "adam", "fp32", 64, ema=True),
    _case("noise_net", "adamw", "amp_bf16", 128, clip=True),
    _case("detector", "sgdm", "amp_fp16", 16),
    _case("pose", "adam", "fp32", 32),
    _case("contrasted", "sgdm", "amp_bf16", 128),
    _case("spectrograms", "adam", "fp32", 32),
    _case("gpt2_medium", "adamw", "amp_bf16", 4, checkpoint=True, clip=True),
    _case("mistral", "adamw_fused", "bf16", 8),
    _case("gemma", "adamw", "amp_bf16", 8, accumulate=2),
    _case("bert_reviews", "adamw", "fp32", 24, clip=True),
    _case("bert_reviews", "adamw", "amp_fp16", 48, frozen=True),
    _case("deberta", "adamw", "amp_bf16", 32, clip=True),
    _case("marian", "adafactor", "fp32", 32),
    _case("whisper", "adamw", "amp_fp16", 8, accumulate=2, clip=True),
    _case("stories", "adamw", "amp_bf16", 64, clip=True),
    _case("stories", "adam", "tf32", 48, checkpoint=True),
    _case("word_model", "sgd", "fp32", 40, clip=True),
    _case("packed_classifier", "adam", "fp32", 64),
    _case("forecast", "adam", "fp32", 256),
    _case("forecast", "adamw", "amp_fp16", 512),
    _case("attentive_translator", "adam", "fp32", 64, clip=True),
    _case("columns", "adamw", "fp32", 512),
    _case("table_net", "adam", "fp32", 4096),
    _case("graph_attention", "adam", "fp32", 20),
    _case("player", "rmsprop", "fp32", 512),
    _case("agent", "adam", "fp32", 16384, clip=True),
    _case("series_transformer", "adam", "fp32", 32),
    _case("autoencoder", "adam", "fp32", 1024),
]

CASES: dict[str, list[Case]] = {
    "reference": _REFERENCE,
    "study": _STUDY,
    "held-back": _HELD_BACK,
    "fresh": _FRESH,
    "fresh-again": _FRESH_AGAIN,
    "everyday": _EVERYDAY,
    **{name: chosen.cases for name, chosen in CASE_SETS.items()},
}
