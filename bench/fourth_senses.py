"""Networks of transformers' for pictures, films, sounds, series and games. Cases stand above the model they train."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.case import CaseSet
from bench.layer_parts import lowered
from bench.model_parts import (
    Spec,
    bits,
    freeze,
    hub,
    kinds,
    labelled,
    made,
    masks,
    numbers,
    picture_loss,
    shares,
    sized,
)

FOURTH_SENSES = CaseSet()
case = FOURTH_SENSES.case


@case("adamw", "amp_fp16", 48)
def small_patches() -> Spec:
    """A ViT of width 384 over pictures of 224."""
    model = hub().ViTForImageClassification(hub().ViTConfig(**sized(384, 12, num_labels=196)))
    return Spec(model, labelled(3, 224, 224, classes=196), picture_loss)


@case("adamw", "fp32", 32, evaluate=True)
def taught_by_a_token() -> Spec:
    """DeiT's tiny size at 192."""
    config = hub().DeiTConfig(
        hidden_size=192, num_hidden_layers=12, num_attention_heads=3, intermediate_size=768, image_size=192, num_labels=90
    )  # fmt: skip
    return Spec(hub().DeiTForImageClassification(config), labelled(3, 192, 192, classes=90), picture_loss)


@case("adamw", "amp_bf16", 16, clip=True, checkpoint=True)
def relative_places() -> Spec:
    """BEiT with learnt distances in every layer."""
    config = hub().BeitConfig(
        **sized(512, 10, num_labels=24), use_relative_position_bias=True, use_mask_token=False
    )
    return Spec(hub().BeitForImageClassification(config), labelled(3, 224, 224, classes=24), picture_loss)


@case("adamw", "amp_bf16", 20)
def pyramid_of_patches() -> Spec:
    """Patches that overlap and grow fewer, keys thinned out (PVT's second form)."""
    config = hub().PvtV2Config(image_size=224, num_labels=45)
    return Spec(hub().PvtV2ForImageClassification(config), labelled(3, 224, 224, classes=45), picture_loss)


@case("adam", "fp32", 64, evaluate=True)
def features_with_registers() -> Spec:
    """Only the head over DINOv2 with registers learns."""
    config = hub().Dinov2WithRegistersConfig(
        hidden_size=384, num_hidden_layers=12, num_attention_heads=6, image_size=182, patch_size=14, num_labels=10
    )  # fmt: skip
    model = hub().Dinov2WithRegistersForImageClassification(config)
    freeze(model.dinov2_with_registers)
    return Spec(model, labelled(3, 182, 182, classes=10), picture_loss)


@case("adamw", "amp_fp16", 8)
def floods() -> Spec:
    """SegFormer of the second size over pictures of 320."""
    config = hub().SegformerConfig(
        depths=[3, 4, 6, 3], hidden_sizes=[64, 128, 320, 512], decoder_hidden_size=256, num_labels=10
    )  # fmt: skip

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        told = F.interpolate(model(pixel_values=x).logits, size=y.shape[1:], mode="bilinear")
        return F.cross_entropy(told.float(), y)

    return Spec(hub().SegformerForSemanticSegmentation(config), masks(3, 320, 320, 10), loss)


@case("adamw", "amp_fp16", 6, clip=True)
def actions_in_films() -> Spec:
    """VideoMAE: sixteen frames of 112, tubes of two."""
    config = hub().VideoMAEConfig(
        **sized(384, 8, num_labels=101), image_size=112, num_frames=16, tubelet_size=2
    )
    return Spec(
        hub().VideoMAEForVideoClassification(config), labelled(16, 3, 112, 112, classes=101), picture_loss
    )


@case("adamw", "fp32", 6)
def boxes_as_words() -> Spec:
    """YOLOS: fifty questions beside the patches; each has its box already."""
    config = hub().YolosConfig(**sized(256, 8, num_labels=5), image_size=[320, 320], num_detection_tokens=50)

    def loss(model: nn.Module, x: Tensor, kind: Tensor, box: Tensor) -> Tensor:
        told = model(pixel_values=x)
        return F.cross_entropy(told.logits.transpose(1, 2), kind) + 5 * F.l1_loss(told.pred_boxes, box)

    return Spec(
        hub().YolosForObjectDetection(config), made(numbers(3, 320, 320), kinds(6, 50), shares(50, 4)), loss
    )


@case("adamw", "amp_fp16", 48)
def pictures_and_words_adapted() -> Spec:
    """CLIP with low paths beside its queries and values."""
    config = hub().CLIPConfig(
        text_config=sized(384, 8, vocab_size=49408), vision_config=sized(576, 8, image_size=224, patch_size=32), projection_dim=256
    )  # fmt: skip
    model = lowered(hub().CLIPModel(config), ("q_proj", "v_proj"), 16)

    def loss(model: nn.Module, ids: Tensor, x: Tensor) -> Tensor:
        told: Tensor = model(
            input_ids=ids, pixel_values=x, attention_mask=torch.ones_like(ids), return_loss=True
        ).loss
        return told

    return Spec(model, made(kinds(49400, 60), numbers(3, 224, 224)), loss)


@case("adamw", "tf32", 8)
def what_is_in_it() -> Spec:
    """A ViT sees, a GPT-2 that looks at it writes."""
    seen = hub().ViTConfig(**sized(384, 8))
    told = hub().GPT2Config(
        vocab_size=30000, n_embd=384, n_layer=6, n_head=6, add_cross_attention=True, is_decoder=True, use_cache=False
    )  # fmt: skip
    config = hub().VisionEncoderDecoderConfig.from_encoder_decoder_configs(seen, told)
    config.decoder_start_token_id = config.pad_token_id = 0
    model = hub().VisionEncoderDecoderModel(config=config)
    return Spec(model, made(numbers(3, 224, 224), kinds(30000, 48)), picture_loss)


@case("adamw", "fp32", 16)
def commands() -> Spec:
    """wav2vec 2.0 over one second, its convolutions frozen."""
    config = hub().Wav2Vec2Config(
        **sized(512, 8, num_labels=12), mask_time_prob=0.0, layerdrop=0.0, apply_spec_augment=False, classifier_proj_size=128
    )  # fmt: skip
    model = hub().Wav2Vec2ForSequenceClassification(config)
    model.freeze_feature_encoder()
    return Spec(model, labelled(16000, classes=12), lambda m, x, y: m(input_values=x, labels=y).loss)


@case("adamw", "amp_bf16", 6)
def who_speaks_when() -> Spec:
    """WavLM, an answer for two speakers in every frame."""
    config = hub().WavLMConfig(
        **sized(384, 6, num_labels=2), mask_time_prob=0.0, layerdrop=0.0, apply_spec_augment=False
    )  # fmt: skip
    model = hub().WavLMForAudioFrameClassification(config)
    model.freeze_feature_encoder()

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        told = model(input_values=x).logits.float()
        return F.binary_cross_entropy_with_logits(told, y[:, : told.size(1)])

    return Spec(model, made(numbers(64000), bits(200, 2)), loss)


@case("adamw", "amp_fp16", 6, checkpoint=True, accumulate=2)
def spoken_hindi() -> Spec:
    """Whisper's base size, layers computed again."""
    config = hub().WhisperConfig(
        d_model=512, encoder_layers=6, decoder_layers=6, encoder_attention_heads=8, decoder_attention_heads=8, encoder_ffn_dim=2048,
        decoder_ffn_dim=2048, use_cache=False,
    )  # fmt: skip
    return Spec(
        hub().WhisperForConditionalGeneration(config),
        made(numbers(80, 3000), kinds(50000, 96)),
        lambda m, x, y: m(input_features=x, labels=y).loss,
    )


@case("adam", "fp32", 64)
def series_in_patches() -> Spec:
    """PatchTST: seven series of 512, each in patches of sixteen, 96 steps ahead."""
    config = hub().PatchTSTConfig(
        num_input_channels=7, context_length=512, patch_length=16, patch_stride=8, prediction_length=96, d_model=128,
        num_hidden_layers=3, num_attention_heads=16, ffn_dim=256, loss="mse",
    )  # fmt: skip

    def loss(model: nn.Module, past: Tensor, future: Tensor) -> Tensor:
        told: Tensor = model(past_values=past, future_values=future).loss
        return told

    return Spec(hub().PatchTSTForPrediction(config), made(numbers(512, 7), numbers(96, 7)), loss)


@case("adamw", "fp32", 64, clip=True)
def moves_as_words() -> Spec:
    """A decision transformer: what is still to be won, what is seen, what is done."""
    config = hub().DecisionTransformerConfig(
        state_dim=17, act_dim=6, hidden_size=256, n_layer=4, n_head=4, max_ep_len=1000, n_positions=1024
    )  # fmt: skip

    def loss(model: nn.Module, state: Tensor, move: Tensor, still: Tensor, time: Tensor) -> Tensor:
        told = model(
            states=state, actions=move, rewards=still, returns_to_go=still, timesteps=time,
            attention_mask=torch.ones_like(time), return_dict=True,
        )  # fmt: skip
        return F.mse_loss(told.action_preds, move)

    return Spec(
        hub().DecisionTransformerModel(config),
        made(numbers(60, 17), numbers(60, 6), numbers(60, 1), kinds(1000, 60)),
        loss,
    )
