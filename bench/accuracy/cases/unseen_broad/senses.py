"""Networks of transformers' that see and hear. Cases stand above the model they train."""

from torch import Tensor, nn

from bench.accuracy.cases.case import CaseSet
from bench.lib.models.parts import Spec, freeze, hub, kinds, labelled, made, numbers, picture_loss, sized

SEVENTH_SENSES = CaseSet()
case = SEVENTH_SENSES.case


@case("adamw", "amp_bf16", 36, clip=True, ema=True)
def half_of_a_base_learns() -> Spec:
    """ViT's base size; the first half of it stays."""
    model = hub().ViTForImageClassification(hub().ViTConfig(num_labels=47))
    early = list(model.parameters())
    for parameter in early[: len(early) // 2]:
        parameter.requires_grad_(False)
    return Spec(model, labelled(3, 224, 224, classes=47), picture_loss)


@case("adamw", "amp_fp16", 10, clip=True)
def second_windows_at_256() -> Spec:
    """Swin's second form, its tiny size: cosines for scores, places by a perceptron."""
    config = hub().Swinv2Config(image_size=256, window_size=8, num_labels=12)
    return Spec(hub().Swinv2ForImageClassification(config), labelled(3, 256, 256, classes=12), picture_loss)


@case("sgdm", "fp32", 14)
def hierarchy_without_windows() -> Spec:
    """Hiera's tiny size: units of patches that are pooled on the way."""
    config = hub().HieraConfig(depths=[1, 2, 7, 2], num_labels=33)
    return Spec(hub().HieraForImageClassification(config), labelled(3, 224, 224, classes=33), picture_loss)


@case("adamw", "amp_bf16", 64)
def fast_over_small_maps() -> Spec:
    """LeViT: convolutions first, then attention with batch norms in place of layer norms."""
    config = hub().LevitConfig(num_labels=65)
    return Spec(hub().LevitForImageClassification(config), labelled(3, 224, 224, classes=65), picture_loss)


@case("adamw", "fp32", 6)
def pictures_before_words() -> Spec:
    """GIT: a picture's patches stand before the words that describe it."""
    config = hub().GitConfig(
        **sized(512, 6, vocab_size=20000, use_cache=False), vision_config=sized(512, 8, image_size=192, patch_size=16)
    )  # fmt: skip

    def loss(model: nn.Module, ids: Tensor, x: Tensor) -> Tensor:
        told: Tensor = model(input_ids=ids, pixel_values=x, labels=ids).loss
        return told

    return Spec(hub().GitForCausalLM(config), made(kinds(20000, 36), numbers(3, 192, 192)), loss)


@case("adamw", "amp_fp16", 5, accumulate=2, clip=True)
def half_minutes_written_down() -> Spec:
    """Whisper's base size, all of it learns."""
    config = hub().WhisperConfig(
        d_model=512, encoder_layers=6, decoder_layers=6, encoder_attention_heads=8, decoder_attention_heads=8,
        encoder_ffn_dim=2048, decoder_ffn_dim=2048, use_cache=False,
    )  # fmt: skip
    model = hub().WhisperForConditionalGeneration(config)
    batch = made(numbers(80, 3000), kinds(50000, 80))
    return Spec(model, batch, lambda m, x, y: m(input_features=x, labels=y).loss)


@case("adamw", "amp_bf16", 8)
def voices_of_callers() -> Spec:
    """UniSpeech-SAT over two seconds and a half; what hears the wave stays."""
    config = hub().UniSpeechSatConfig(
        **sized(512, 6, num_labels=40), mask_time_prob=0.0, layerdrop=0.0, apply_spec_augment=False
    )
    model = hub().UniSpeechSatForSequenceClassification(config)
    freeze(model.unispeech_sat.feature_extractor)
    return Spec(model, labelled(40000, classes=40), lambda m, x, y: m(input_values=x, labels=y).loss)


@case("radam", "amp_bf16", 6)
def films_in_tubes() -> Spec:
    """ViViT: sixteen frames of 112 in tubes of two frames."""
    config = hub().VivitConfig(
        **sized(384, 8, num_labels=24), image_size=112, num_frames=16, tubelet_size=[2, 16, 16]
    )
    batch = labelled(16, 3, 112, 112, classes=24)
    return Spec(hub().VivitForVideoClassification(config), batch, picture_loss)
