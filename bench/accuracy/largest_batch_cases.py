"""Training steps whose true largest batch under a cap is measured on a real GPU and foretold without one.

Nothing here imports Legroom: the same file serves on the machine with the GPU. `study` may be looked at while the search
is written; `held-back` is foretold and measured once, when it is done, `fresh` likewise for the present search, and `later` for
the present rules; `published` came with the reference measurements.
"""

from dataclasses import dataclass, replace
from typing import Any

from bench.accuracy.cases.steps import Case


@dataclass(frozen=True, kw_only=True)
class Capped:
    """A training step of any batch size, on a device with so much memory for PyTorch."""

    case: Case
    """Its batch is where the measuring begins."""
    cap: int
    """GiB."""
    half: str

    @property
    def key(self) -> str:
        return f"{replace(self.case, batch=0).key.replace('/b0', '')} in {self.cap} GiB"


def _capped(
    half: str, model: str, optimizer: str, precision: str, batch: int, cap: int, **habits: Any
) -> Capped:
    case = Case(model=model, optimizer=optimizer, precision=precision, batch=batch, **habits)
    return Capped(case=case, cap=cap, half=half)


PUBLISHED: tuple[tuple[Capped, int], ...] = (
    (_capped("published", "resnet50", "sgdm", "fp32", 94, 8, inputs_first=True), 94),
    (_capped("published", "gpt2", "adamw", "amp_bf16", 20, 16, inputs_first=True), 20),
    (_capped("published", "bert_base", "adamw", "fp32", 85, 8, inputs_first=True), 85),
    (_capped("published", "unet", "adam", "fp32", 38, 8, inputs_first=True), 38),
    (_capped("published", "lstm", "adam", "amp_fp16", 371, 4, inputs_first=True), 371),
)
"""Each with its true largest batch."""

MEASURED_HERE: tuple[Capped, ...] = (
    _capped("study", "vit_b_16", "adamw", "amp_bf16", 69, 6),
    _capped("study", "convnext_tiny", "adamw", "fp32", 42, 5),
    _capped("study", "mobilenet_v3_large", "rmsprop", "fp32", 111, 5),
    _capped("study", "nano_gpt", "adamw", "amp_bf16", 17, 6, accumulate=2),
    _capped("study", "gru_classifier", "adam", "amp_fp16", 439, 3, clip=True),
    _capped("study", "llama_gqa", "adamw", "bf16", 20, 8, checkpoint=True),
    _capped("study", "mlp_mixer", "adam", "fp32", 74, 4),
    _capped("study", "resnet18", "adam", "amp_fp16", 318, 4, channels_last=True),
    _capped("held-back", "distilbert", "adamw", "amp_bf16", 79, 5, clip=True),
    _capped("held-back", "gpt2", "adamw_fused", "fp32", 16, 16),
    _capped("held-back", "efficientnet_b0", "nesterov", "amp_fp16", 83, 4),
    _capped("held-back", "transformer_encoder", "adam", "fp32", 62, 4),
    _capped("held-back", "bilstm_tagger", "adamw", "fp32", 225, 3),
    _capped("held-back", "swin_t", "adamw", "fp32", 53, 6),
    _capped("held-back", "diffusion_unet", "adamw", "amp_bf16", 84, 5, ema=True),
    _capped("held-back", "resnet34", "sgdm", "fp32", 180, 6),
    _capped("fresh", "vgg16", "sgdm", "fp32", 77, 8),
    _capped("fresh", "regnet_x_1_6gf", "sgdm", "fp32", 76, 5),
    _capped("fresh", "densenet121", "adamw", "amp_bf16", 58, 4, channels_last=True),
    _capped("fresh", "fcn_resnet50", "adam", "amp_fp16", 37, 6),
    _capped("fresh", "volume_net", "adam", "fp32", 19, 4),
    _capped("fresh", "super_resolution", "adam", "amp_bf16", 179, 4),
    _capped("fresh", "roberta_mlm", "adamw", "amp_fp16", 22, 6),
    _capped("fresh", "qwen2", "adamw", "bf16", 8, 6, clip=True),
    _capped("fresh", "whisper_encoder", "adamw", "fp32", 11, 4),
    _capped("fresh", "translator", "adam", "fp32", 237, 3),
    _capped("later", "sick_plants", "adam", "fp32", 36, 8, clip=True),
    _capped("later", "sounds_of_a_city", "adam", "amp_bf16", 88, 6),
    _capped("later", "wounds", "adamw", "fp32", 16, 5),
    _capped("later", "hearts_in_detail", "adamw", "amp_fp16", 378, 3),
    _capped("later", "famous_faces", "adam", "fp32", 1246, 3),
    _capped("later", "emotions_in_voices", "adamw", "amp_fp16", 38, 4),
    _capped("later", "questions_from_texts", "adafactor", "fp32", 64, 6, clip=True),
    _capped("later", "hotel_reviews", "adam", "fp32", 209, 3),
    _capped("later", "next_film", "adam", "fp32", 199, 4),
    _capped("later", "insurance", "adamw", "fp32", 157134, 4),
)
