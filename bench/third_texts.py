"""Networks of transformers' at sizes that people fine-tune or train from scratch: words, pictures, sounds. Cases stand above the
model they train.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.case import CaseSet
from bench.layer_parts import lowered
from bench.model_parts import (
    Spec,
    causal,
    hub,
    kinds,
    labelled,
    language_model_loss,
    made,
    masked_text_loss,
    numbers,
    padded_to_longest,
    picture_loss,
    sized,
    tokens,
    written_for_texts,
)

THIRD_TEXTS = CaseSet()
case = THIRD_TEXTS.case


@case("adamw", "fp32", 32, clip=True)
def people_and_places() -> Spec:
    """BERT's base size marks names in short sentences."""
    model = hub().BertForTokenClassification(hub().BertConfig(vocab_size=28996, num_labels=9))
    return Spec(model, padded_to_longest((48, 37, 61), 28996, 9, per_token=True), masked_text_loss)


@case("adamw", "amp_fp16", 24)
def spam() -> Spec:
    """ELECTRA's base size over messages."""
    model = hub().ElectraForSequenceClassification(
        hub().ElectraConfig(**sized(768, 12, embedding_size=768, num_labels=2))
    )
    return Spec(model, padded_to_longest((88, 120, 101), 30522, 2), masked_text_loss)


@case("adamw", "fp32", 8)
def answers_in_passages() -> Spec:
    """RoBERTa tells where an answer begins and ends."""
    config = hub().RobertaConfig(vocab_size=50265, max_position_embeddings=514)
    model = hub().RobertaForQuestionAnswering(config)

    def batch(count: int, device: str) -> list[Tensor]:
        begins = torch.randint(20, 200, (count,))
        return [one.to(device) for one in (torch.randint(5, 50265, (count, 288)), begins, begins + 4)]

    def loss(model: nn.Module, ids: Tensor, begins: Tensor, ends: Tensor) -> Tensor:
        found: Tensor = model(
            input_ids=ids, attention_mask=torch.ones_like(ids), start_positions=begins, end_positions=ends
        ).loss
        return found

    return Spec(model, batch, loss)


@case("adam", "fp32", 64, evaluate=True)
def tiny_intents() -> Spec:
    """A BERT of two layers for what a customer wants."""
    model = hub().BertForSequenceClassification(hub().BertConfig(**sized(128, 2, num_labels=77)))
    return Spec(model, padded_to_longest((30, 42, 25), 30522, 77), masked_text_loss)


@case("adamw", "amp_bf16", 8, clip=True)
def older_gpt() -> Spec:
    """GPT-Neo: every second layer looks at the last 256 words only."""
    return causal(
        "GPTNeo", 384, hidden_size=768, num_layers=8, attention_types=[[["global", "local"], 4]], num_heads=12, window_size=256,
    )  # fmt: skip


@case("adamw", "amp_bf16", 4, accumulate=4, clip=True)
def second_gemma() -> Spec:
    """Gemma 2: a window in every second layer, scores bent at the end."""
    return causal(
        "Gemma2", 512, vocab_size=48000, hidden_size=512, intermediate_size=2048, num_hidden_layers=8, num_attention_heads=4,
        num_key_value_heads=2, head_dim=128, sliding_window=256,
    )  # fmt: skip


@case("adamw", "bf16", 4, checkpoint=True)
def instructed_llama() -> Spec:
    """Low paths beside every line, layers computed again."""
    config = hub().LlamaConfig(
        vocab_size=32000, hidden_size=1024, intermediate_size=2816, num_hidden_layers=16, num_attention_heads=16,
        num_key_value_heads=4, max_position_embeddings=1024, use_cache=False,
    )  # fmt: skip
    lines = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    model = lowered(hub().LlamaForCausalLM(config), lines, 16)
    model.enable_input_require_grads()
    return Spec(model, tokens(32000, 768), language_model_loss)


@case("adafactor", "bf16", 2, accumulate=2)
def whole_qwen() -> Spec:
    return causal(
        "Qwen2", 600, vocab_size=64000, hidden_size=896, intermediate_size=4864, num_hidden_layers=8, num_attention_heads=14,
        num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip


@case("adamw", "fp32", 16)
def which_is_better() -> Spec:
    """A reward: of two answers the liked one gets the higher number."""
    config = hub().GPT2Config(n_embd=512, n_layer=6, n_head=8, vocab_size=32000, use_cache=False)
    model = hub().GPT2Model(config)

    class Reward(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = model, nn.Linear(512, 1)

        def forward(self, ids: Tensor) -> Tensor:
            told = self.body(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
            out: Tensor = self.head(told[:, -1]).squeeze(1)
            return out

    return Spec(
        Reward(),
        made(kinds(32000, 180), kinds(32000, 180)),
        lambda m, a, b: -F.logsigmoid(m(a) - m(b)).mean(),
    )


@case("adamw", "amp_bf16", 8)
def shorter_news() -> Spec:
    """BART's base size."""
    config = hub().BartConfig(
        vocab_size=50265, d_model=768, encoder_layers=4, decoder_layers=4, encoder_ffn_dim=3072, decoder_ffn_dim=3072,
        encoder_attention_heads=12, decoder_attention_heads=12, use_cache=False,
    )  # fmt: skip
    model = hub().BartForConditionalGeneration(config)
    return Spec(model, written_for_texts(50265, ((400, 60), (350, 72), (384, 50))), masked_text_loss)


@case("adamw", "amp_bf16", 16)
def lowered_t5() -> Spec:
    config = hub().T5Config(vocab_size=32128, d_model=512, d_ff=2048, num_layers=6, num_heads=8, decoder_start_token_id=0, use_cache=False)  # fmt: skip
    model = lowered(hub().T5ForConditionalGeneration(config), ("q", "v"), 16)
    return Spec(model, written_for_texts(32128, ((128, 32), (110, 40), (140, 28))), masked_text_loss)


@case("adamw", "fp32", 16, evaluate=True)
def beans() -> Spec:
    """ViT's base size over leaves."""
    model = hub().ViTForImageClassification(hub().ViTConfig(num_labels=3))
    return Spec(model, labelled(3, 224, 224, classes=3), picture_loss)


@case("adamw", "amp_bf16", 24)
def phone_transformer() -> Spec:
    model = hub().MobileViTForImageClassification(hub().MobileViTConfig(num_labels=14, image_size=256))
    return Spec(model, labelled(3, 256, 256, classes=14), picture_loss)


@case("adamw", "amp_fp16", 6)
def depth_by_patches() -> Spec:
    """A vision transformer's patches, put together into depth (DPT)."""
    config = hub().DPTConfig(
        **sized(384, 8, image_size=256, patch_size=16, backbone_out_indices=[1, 3, 5, 7]), neck_hidden_sizes=[48, 96, 192, 384],
        fusion_hidden_size=128,
    )  # fmt: skip

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.l1_loss(model(pixel_values=x).predicted_depth.float(), y)

    return Spec(hub().DPTForDepthEstimation(config), made(numbers(3, 256, 256), numbers(256, 256)), loss)


@case("adamw", "amp_fp16", 8)
def emotions_in_voices() -> Spec:
    """HuBERT over four seconds; its convolutions are frozen."""
    config = hub().HubertConfig(**sized(512, 6, num_labels=8), mask_time_prob=0.0, layerdrop=0.0)
    model = hub().HubertForSequenceClassification(config)
    model.freeze_feature_encoder()
    return Spec(model, labelled(64000, classes=8), lambda m, x, y: m(input_values=x, labels=y).loss)


@case("adamw", "amp_bf16", 8)
def lowered_whisper() -> Spec:
    config = hub().WhisperConfig(
        d_model=512, encoder_layers=6, decoder_layers=6, encoder_attention_heads=8, decoder_attention_heads=8,
        encoder_ffn_dim=2048, decoder_ffn_dim=2048, use_cache=False,
    )  # fmt: skip
    model = lowered(hub().WhisperForConditionalGeneration(config), ("q_proj", "v_proj"), 32)
    return Spec(
        model, made(numbers(80, 3000), kinds(50000, 48)), lambda m, x, y: m(input_features=x, labels=y).loss
    )


@case("adamw", "fp32", 8)
def written_lines() -> Spec:
    """A picture of a line in, its letters out: a ViT and a decoder that looks at it."""
    seen = hub().ViTConfig(**sized(384, 6, image_size=256))
    told = hub().TrOCRConfig(
        vocab_size=6000, d_model=384, decoder_layers=4, decoder_attention_heads=6, decoder_ffn_dim=1536, cross_attention_hidden_size=384,
        use_cache=False,
    )  # fmt: skip
    config = hub().VisionEncoderDecoderConfig.from_encoder_decoder_configs(seen, told)
    config.decoder_start_token_id = config.pad_token_id = 1
    model = hub().VisionEncoderDecoderModel(config=config)
    return Spec(model, made(numbers(3, 256, 256), kinds(6000, 64)), picture_loss)


@case("adamw", "amp_fp16", 16)
def forms() -> Spec:
    """Words and where they stand on a page (LayoutLM)."""
    model = hub().LayoutLMForTokenClassification(hub().LayoutLMConfig(**sized(512, 6, num_labels=13)))

    def loss(model: nn.Module, ids: Tensor, boxes: Tensor, y: Tensor) -> Tensor:
        found: Tensor = model(input_ids=ids, bbox=boxes, attention_mask=torch.ones_like(ids), labels=y).loss
        return found

    def boxes(count: int) -> Tensor:
        near = torch.randint(0, 500, (count, 256, 2))
        return torch.cat([near, near + torch.randint(1, 400, (count, 256, 2))], 2)

    return Spec(model, made(kinds(30522, 256), boxes, kinds(13, 256)), loss)
