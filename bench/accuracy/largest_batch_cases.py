"""Training steps whose largest batch under a memory limit was measured on an H200.

This file imports nothing from Legroom, so it also runs on a GPU machine where Legroom is not installed.

There are three groups. `published` is part of the reference measurements. `development` was visible while the search
was written. For `predicted-first`, the prediction was committed before the measurement.
"""

from dataclasses import dataclass, replace
from typing import Any

from bench.accuracy.cases.case import Case


@dataclass(frozen=True, kw_only=True)
class Capped:
    """A training step of any batch size, with a limit on the memory that PyTorch can use."""

    case: Case
    """The training step. The measurement starts at the batch size of this step."""
    cap: int
    """The memory limit in GiB."""
    group: str

    @property
    def key(self) -> str:
        return f"{replace(self.case, batch=0).key.replace('/b0', '')} in {self.cap} GiB"


def _case(
    group: str, model: str, optimizer: str, precision: str, batch: int, cap: int, **options: Any
) -> Capped:
    case = Case(model=model, optimizer=optimizer, precision=precision, batch=batch, **options)
    return Capped(case=case, cap=cap, group=group)


LARGEST_BATCH_CASES: tuple[Capped, ...] = (
    _case("published", "resnet50", "sgdm", "fp32", 94, 8, inputs_first=True),
    _case("published", "gpt2", "adamw", "amp_bf16", 20, 16, inputs_first=True),
    _case("published", "bert_base", "adamw", "fp32", 85, 8, inputs_first=True),
    _case("published", "unet", "adam", "fp32", 38, 8, inputs_first=True),
    _case("published", "lstm", "adam", "amp_fp16", 371, 4, inputs_first=True),
    _case("development", "vit_b_16", "adamw", "amp_bf16", 69, 6),
    _case("development", "convnext_tiny", "adamw", "fp32", 42, 5),
    _case("development", "mobilenet_v3_large", "rmsprop", "fp32", 111, 5),
    _case("development", "nano_gpt", "adamw", "amp_bf16", 17, 6, accumulate=2),
    _case("development", "gru_classifier", "adam", "amp_fp16", 439, 3, clip=True),
    _case("development", "llama_gqa", "adamw", "bf16", 20, 8, checkpoint=True),
    _case("development", "mlp_mixer", "adam", "fp32", 74, 4),
    _case("development", "resnet18", "adam", "amp_fp16", 318, 4, channels_last=True),
    _case("development", "distilbert", "adamw", "amp_bf16", 79, 5, clip=True),
    _case("development", "gpt2", "adamw_fused", "fp32", 16, 16),
    _case("development", "efficientnet_b0", "nesterov", "amp_fp16", 83, 4),
    _case("development", "transformer_encoder", "adam", "fp32", 62, 4),
    _case("development", "bilstm_tagger", "adamw", "fp32", 225, 3),
    _case("development", "swin_t", "adamw", "fp32", 53, 6),
    _case("development", "diffusion_unet", "adamw", "amp_bf16", 84, 5, ema=True),
    _case("development", "resnet34", "sgdm", "fp32", 180, 6),
    _case("predicted-first", "vgg16", "sgdm", "fp32", 77, 8),
    _case("predicted-first", "regnet_x_1_6gf", "sgdm", "fp32", 76, 5),
    _case("predicted-first", "densenet121", "adamw", "amp_bf16", 58, 4, channels_last=True),
    _case("predicted-first", "fcn_resnet50", "adam", "amp_fp16", 37, 6),
    _case("predicted-first", "volume_net", "adam", "fp32", 19, 4),
    _case("predicted-first", "super_resolution", "adam", "amp_bf16", 179, 4),
    _case("predicted-first", "roberta_mlm", "adamw", "amp_fp16", 22, 6),
    _case("predicted-first", "qwen2", "adamw", "bf16", 8, 6, clip=True),
    _case("predicted-first", "whisper_encoder", "adamw", "fp32", 11, 4),
    _case("predicted-first", "translator", "adam", "fp32", 237, 3),
    _case("predicted-first", "sick_plants", "adam", "fp32", 36, 8, clip=True),
    _case("predicted-first", "sounds_of_a_city", "adam", "amp_bf16", 88, 6),
    _case("predicted-first", "wounds", "adamw", "fp32", 16, 5),
    _case("predicted-first", "hearts_in_detail", "adamw", "amp_fp16", 378, 3),
    _case("predicted-first", "famous_faces", "adam", "fp32", 1246, 3),
    _case("predicted-first", "emotions_in_voices", "adamw", "amp_fp16", 38, 4),
    _case("predicted-first", "questions_from_texts", "adafactor", "fp32", 64, 6, clip=True),
    _case("predicted-first", "hotel_reviews", "adam", "fp32", 209, 3),
    _case("predicted-first", "next_film", "adam", "fp32", 199, 4),
    _case("predicted-first", "insurance", "adamw", "fp32", 157134, 4),
)
