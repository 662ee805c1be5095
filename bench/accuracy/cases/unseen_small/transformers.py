"""Transformers for text and images, trained from scratch or fine-tuned."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.accuracy.cases.case import CaseSet
from bench.lib.models import parts
from bench.lib.models.blocks import (
    Checkpointed,
    PatchEmbedding,
    Select,
    SentenceEncoder,
    TokenEmbedding,
    transformer_layer,
)
from bench.lib.models.layers import add_lora, sequential, with_new_head
from bench.lib.models.parts import (
    Spec,
    batch_of,
    causal_lm,
    classification_loss,
    freeze,
    huggingface,
    integers,
    labelled,
    masked_text_loss,
    token_loss,
    transformer_sizes,
)

CASES = CaseSet()
case = CASES.case


@case("adamw", "fp32", 9, clip=True)
def letters_of_complaint() -> Spec:
    """Build BERT-base on batches of 88, 130 and 61 tokens."""
    model = huggingface().BertForSequenceClassification(huggingface().BertConfig(num_labels=14))
    return Spec(model, parts.padded_to_longest((88, 130, 61), 30522, 14), masked_text_loss)


@case("adamw", "amp_fp16", 22, accumulate=2, evaluate=True)
def names_in_news() -> Spec:
    """Build DistilBERT for token classification."""
    model = huggingface().DistilBertForTokenClassification(huggingface().DistilBertConfig(num_labels=9))
    return Spec(model, parts.padded_to_longest((115, 140, 92), 30522, 9, per_token=True), masked_text_loss)


@case("adam", "fp32", 25)
def frozen_words() -> Spec:
    """Build a RoBERTa in which only the head is trained."""
    config = huggingface().RobertaConfig(vocab_size=50265, max_position_embeddings=514, num_labels=6)
    model = huggingface().RobertaForSequenceClassification(config)
    freeze(model.roberta)
    return Spec(model, parts.padded_to_longest((150, 128), 50265, 6), masked_text_loss)


@case("adamw", "tf32", 30)
def own_masked_words() -> Spec:
    """Return a small BERT masked language model that is trained from scratch."""
    model = huggingface().BertForMaskedLM(
        huggingface().BertConfig(**transformer_sizes(320, 5, vocab_size=20000))
    )
    return Spec(model, parts.tokens(20000, 128), parts.masked_loss)


@case("adamw", "amp_bf16", 50)
def questions_find_answers() -> Spec:
    def loss(model: nn.Module, question: Tensor, answer: Tensor) -> Tensor:
        similarity = model(question) @ model(answer).T * 20
        return F.cross_entropy(similarity, torch.arange(len(similarity), device=similarity.device))

    return Spec(SentenceEncoder(), batch_of(integers(30522, 40), integers(30522, 110)), loss)


@case("adamw", "amp_bf16", 40, clip=True)
def plays_by_letter() -> Spec:
    """Return a six-layer character GPT with 65 symbols (nanoGPT)."""
    layers = [transformer_layer(384, 6, causal=True, drop=0.2) for _ in range(6)]
    model = sequential(
        TokenEmbedding(65, 384, 256), *layers, nn.LayerNorm(384), nn.Linear(384, 65, bias=False)
    )
    return Spec(model, batch_of(integers(65, 256), integers(65, 256)), token_loss)


@case("adam", "fp32", 7, accumulate=2)
def music_computed_again() -> Spec:
    """Build a model on long sequences, with activation checkpointing."""
    layers = Checkpointed(*(transformer_layer(448, 7, causal=True) for _ in range(10)))
    model = sequential(TokenEmbedding(3000, 448, 900), layers, nn.LayerNorm(448), nn.Linear(448, 3000))
    return Spec(model, batch_of(integers(3000, 900), integers(3000, 900)), token_loss)


@case("adamw", "tf32", 10, clip=True)
def tales_for_children() -> Spec:
    return causal_lm("Llama", 288, **transformer_sizes(320, 6, vocab_size=12000, num_key_value_heads=5))


@case("adamw", "bf16", 3, accumulate=4)
def low_paths_in_mistral() -> Spec:
    """Build LoRA on queries and values of ten wide Mistral layers."""
    spec = causal_lm("Mistral", 720, **transformer_sizes(1024, 10, vocab_size=32000, num_key_value_heads=4))
    add_lora(spec.model, ("q_proj", "v_proj"), 8)
    return spec


@case("adamw", "bf16", 5, checkpoint=True)
def qwen_computed_again() -> Spec:
    """Build LoRA on the MLPs of Qwen2, with activation checkpointing."""
    spec = causal_lm("Qwen2", 600, **transformer_sizes(896, 12, vocab_size=36000, num_key_value_heads=2))
    add_lora(spec.model, ("gate_proj", "up_proj", "down_proj"), 16)
    spec.model.enable_input_require_grads()
    return spec


@case("adamw", "amp_fp16", 5)
def opt_on_recipes() -> Spec:
    """Return a small OPT with a smaller vocabulary."""
    sizes = {"vocab_size": 24000, "hidden_size": 640, "num_hidden_layers": 8, "ffn_dim": 2560, "num_attention_heads": 10}  # fmt: skip
    return causal_lm("OPT", 400, **sizes, word_embed_proj_dim=640)


@case("adafactor", "amp_bf16", 11, clip=True)
def headlines_for_articles() -> Spec:
    """Build T5-small for summarization."""
    config = huggingface().T5Config(decoder_start_token_id=0, use_cache=False, num_layers=5, d_ff=1536)
    batch = parts.source_and_target(32128, ((280, 24), (340, 20)))
    return Spec(huggingface().T5ForConditionalGeneration(config), batch, masked_text_loss)


@case("adamw", "amp_fp16", 21)
def patches_at_176() -> Spec:
    """Return a small vision transformer that is trained from scratch on 176-pixel images."""
    enter = PatchEmbedding(nn.Conv2d(3, 384, 16, 16), 121, 384)
    layers = [transformer_layer(384, 6, drop=0.1) for _ in range(12)]
    model = sequential(enter, *layers, nn.LayerNorm(384), Select("first"), nn.Linear(384, 53))
    return Spec(model, labelled(3, 176, 176, classes=53), classification_loss)


@case("sgdm", "fp32", 14)
def last_layers_of_patches() -> Spec:
    """Return a vision transformer in which only the last two layers are trained."""
    model = with_new_head("vit_b_16", 17, frozen=True)
    for layer in list(model.encoder.layers)[-2:]:
        layer.requires_grad_(True)
    return Spec(model, labelled(3, 224, 224, classes=17), classification_loss)
