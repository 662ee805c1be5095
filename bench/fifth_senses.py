"""Networks of transformers' that see, hear and foresee. Cases stand above the model they train."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import model_parts as parts
from bench.case import CaseSet
from bench.layer_parts import lowered
from bench.model_parts import Spec, bits, freeze, hub, kinds, labelled, made, numbers, picture_loss, sized

FIFTH_SENSES = CaseSet()
case = FIFTH_SENSES.case


@case("adamw", "amp_fp16", 32, clip=True)
def base_patches() -> Spec:
    """ViT's base size over food."""
    model = hub().ViTForImageClassification(hub().ViTConfig(num_labels=101))
    return Spec(model, labelled(3, 224, 224, classes=101), picture_loss)


@case("adamw", "bf16", 24)
def patches_adapted() -> Spec:
    """Low paths beside queries and values of a ViT, all in bfloat16."""
    model = lowered(
        hub().ViTForImageClassification(hub().ViTConfig(num_labels=5)),
        ("query", "value", "q_proj", "v_proj"),
        16,
    )
    model.classifier.requires_grad_(True)
    return Spec(model, labelled(3, 224, 224, classes=5), picture_loss)


@case("adamw", "fp32", 16)
def windows_for_fish() -> Spec:
    """Swin of transformers', narrow, at 192."""
    config = hub().SwinConfig(
        image_size=192, patch_size=4, embed_dim=64, depths=[2, 2, 6, 2], num_heads=[2, 4, 8, 16], window_size=6, num_labels=31
    )  # fmt: skip
    return Spec(hub().SwinForImageClassification(config), labelled(3, 192, 192, classes=31), picture_loss)


@case("adamw", "amp_bf16", 32)
def pools_for_attention() -> Spec:
    """PoolFormer: a mean of neighbours where others attend."""
    config = hub().PoolFormerConfig(num_labels=60)
    return Spec(
        hub().PoolFormerForImageClassification(config), labelled(3, 224, 224, classes=60), picture_loss
    )


@case("adamw", "fp32", 24)
def convolved_questions() -> Spec:
    """CvT: queries, keys and values by depthwise kernels."""
    config = hub().CvtConfig(depth=[1, 2, 6], num_labels=20)
    return Spec(hub().CvtForImageClassification(config), labelled(3, 192, 192, classes=20), picture_loss)


@case("adamw", "amp_fp16", 8)
def roofs_and_trees() -> Spec:
    """SegFormer of the smallest size at 448, told at a quarter."""
    config = hub().SegformerConfig(num_labels=7)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(pixel_values=x).logits.float(), y[:, ::4, ::4])

    return Spec(hub().SegformerForSemanticSegmentation(config), parts.masks(3, 448, 448, 7), loss)


@case("adamw", "amp_bf16", 4, clip=True)
def time_and_space() -> Spec:
    """TimeSformer: first along time, then over places; eight frames of 160."""
    config = hub().TimesformerConfig(**sized(384, 8, num_labels=50), image_size=160, num_frames=8)
    return Spec(
        hub().TimesformerForVideoClassification(config), labelled(8, 3, 160, 160, classes=50), picture_loss
    )


@case("adamw", "fp32", 24)
def words_about_pictures() -> Spec:
    """VisualBERT: a question beside what another network saw in forty regions."""
    config = hub().VisualBertConfig(**sized(512, 8, num_labels=1000), visual_embedding_dim=2048)

    def loss(model: nn.Module, ids: Tensor, regions: Tensor, y: Tensor) -> Tensor:
        seen = torch.ones(regions.shape[:2], device=ids.device)
        told = model(
            input_ids=ids, attention_mask=torch.ones_like(ids), visual_embeds=regions, visual_attention_mask=seen,
            visual_token_type_ids=torch.ones_like(seen, dtype=torch.long),
        )  # fmt: skip
        return F.binary_cross_entropy_with_logits(told.logits, y)

    return Spec(
        hub().VisualBertForQuestionAnswering(config),
        made(kinds(30522, 24), numbers(40, 2048), bits(1000)),
        loss,
    )


@case("adamw", "amp_bf16", 24, accumulate=2)
def eyes_learn_ears_do_not() -> Spec:
    """SigLIP whose text tower stays."""
    config = hub().SiglipConfig(
        text_config=sized(384, 6, vocab_size=50000, max_position_embeddings=48), vision_config=sized(384, 10, image_size=192, patch_size=16)
    )  # fmt: skip
    model = hub().SiglipModel(config)
    freeze(model.text_model)

    def loss(model: nn.Module, ids: Tensor, x: Tensor) -> Tensor:
        told: Tensor = model(input_ids=ids, pixel_values=x, return_loss=True).loss
        return told

    return Spec(model, made(kinds(50000, 48), numbers(3, 192, 192)), loss)


@case("adamw", "amp_fp16", 8, accumulate=2)
def letters_for_frames() -> Spec:
    """wav2vec 2.0 over three seconds, convolutions frozen, a letter for every frame."""
    config = hub().Wav2Vec2Config(
        **sized(768, 6, vocab_size=32), mask_time_prob=0.0, layerdrop=0.0, apply_spec_augment=False
    )  # fmt: skip
    model = hub().Wav2Vec2ForCTC(config)
    model.freeze_feature_encoder()

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        told = model(input_values=x).logits.float()
        return F.cross_entropy(told.transpose(1, 2), y[:, : told.size(1)])

    return Spec(model, made(numbers(48000), kinds(32, 200)), loss)


@case("adamw", "fp32", 12)
def squeezed_speech() -> Spec:
    """SEW: fewer frames go through the layers; which language is it?"""
    config = hub().SEWConfig(
        **sized(384, 6, num_labels=9), mask_time_prob=0.0, layerdrop=0.0, apply_spec_augment=False
    )  # fmt: skip
    return Spec(
        hub().SEWForSequenceClassification(config),
        labelled(24000, classes=9),
        lambda m, x, y: m(input_values=x, labels=y).loss,
    )


@case("adamw", "amp_bf16", 8, clip=True)
def tiny_whisper_listens() -> Spec:
    """Whisper's tiny size, its listener frozen but for the last layer."""
    config = hub().WhisperConfig(use_cache=False)
    model = hub().WhisperForConditionalGeneration(config)
    freeze(model.model.encoder)
    model.model.encoder.layers[-1].requires_grad_(True)
    return Spec(
        model,
        made(numbers(80, 3000), kinds(50000, 128)),
        lambda m, x, y: m(input_features=x, labels=y).loss,
    )


@case("adamw", "fp32", 16)
def speech_into_text() -> Spec:
    """Speech2Text: two convolutions, then reader and writer."""
    config = hub().Speech2TextConfig(
        vocab_size=8000, d_model=256, encoder_layers=8, decoder_layers=4, encoder_ffn_dim=1024, decoder_ffn_dim=1024, use_cache=False
    )  # fmt: skip
    return Spec(
        hub().Speech2TextForConditionalGeneration(config),
        made(numbers(800, 80), kinds(8000, 60)),
        lambda m, x, y: m(input_features=x, labels=y).loss,
    )


@case("adam", "fp32", 96)
def mixed_series() -> Spec:
    """PatchTSMixer: patches of nine series mixed by perceptrons, 72 steps ahead."""
    config = hub().PatchTSMixerConfig(
        num_input_channels=9, context_length=512, patch_length=16, patch_stride=16, prediction_length=72, d_model=128, num_layers=6, loss="mse"
    )  # fmt: skip

    def loss(model: nn.Module, past: Tensor, future: Tensor) -> Tensor:
        told: Tensor = model(past_values=past, future_values=future).loss
        return told

    return Spec(hub().PatchTSMixerForPrediction(config), made(numbers(512, 9), numbers(72, 9)), loss)


@case("adamw", "tf32", 8)
def boxes_after_questions() -> Spec:
    """A DETR whose pictures were seen by a small ViT before; twenty-five questions, each has its box already."""

    class Asked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.see = hub().ViTModel(
                hub().ViTConfig(**sized(384, 6, image_size=320)), add_pooling_layer=False
            )
            layer = nn.TransformerDecoderLayer(384, 6, 1024, batch_first=True)
            self.answer, self.ask = nn.TransformerDecoder(layer, 4), nn.Parameter(torch.randn(25, 384))
            self.kind, self.box = nn.Linear(384, 9), nn.Linear(384, 4)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            seen = self.see(pixel_values=x).last_hidden_state
            told = self.answer(self.ask.expand(len(x), -1, -1), seen)
            return self.kind(told), self.box(told).sigmoid()

    def loss(model: nn.Module, x: Tensor, kind: Tensor, box: Tensor) -> Tensor:
        told, place = model(x)
        return F.cross_entropy(told.transpose(1, 2), kind) + 5 * F.l1_loss(place, box)

    return Spec(Asked(), made(numbers(3, 320, 320), kinds(9, 25), parts.shares(25, 4)), loss)
