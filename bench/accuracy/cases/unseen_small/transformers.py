"""Transformers that go on learning or begin: words, pictures, sound. Cases stand above the model they train."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.accuracy.cases.case import CaseSet
from bench.lib.models import parts as parts
from bench.lib.models.blocks import Again, Patches, Taken, Words, attending
from bench.lib.models.layers import headed, joined, lowered
from bench.lib.models.parts import (
    Spec,
    causal,
    classified,
    freeze,
    hub,
    kinds,
    labelled,
    made,
    masked_text_loss,
    sized,
)

SIXTH_TRANSFORMERS = CaseSet()
case = SIXTH_TRANSFORMERS.case


def each_place(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """A word for every place."""
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


@case("adamw", "fp32", 9, clip=True)
def letters_of_complaint() -> Spec:
    """BERT's base size, batches of 88, 130 and 61 words."""
    model = hub().BertForSequenceClassification(hub().BertConfig(num_labels=14))
    return Spec(model, parts.padded_to_longest((88, 130, 61), 30522, 14), masked_text_loss)


@case("adamw", "amp_fp16", 22, accumulate=2, evaluate=True)
def names_in_news() -> Spec:
    """A tag for every word by DistilBERT."""
    model = hub().DistilBertForTokenClassification(hub().DistilBertConfig(num_labels=9))
    return Spec(model, parts.padded_to_longest((115, 140, 92), 30522, 9, per_token=True), masked_text_loss)


@case("adam", "fp32", 25)
def frozen_words() -> Spec:
    """RoBERTa stays; its head learns."""
    config = hub().RobertaConfig(vocab_size=50265, max_position_embeddings=514, num_labels=6)
    model = hub().RobertaForSequenceClassification(config)
    freeze(model.roberta)
    return Spec(model, parts.padded_to_longest((150, 128), 50265, 6), masked_text_loss)


@case("adamw", "tf32", 30)
def own_masked_words() -> Spec:
    """A small BERT from the beginning."""
    model = hub().BertForMaskedLM(hub().BertConfig(**sized(320, 5, vocab_size=20000)))
    return Spec(model, parts.tokens(20000, 128), parts.masked_loss)


class Sentence(nn.Module):
    """The mean of a BERT's words."""

    def __init__(self, width: int = 384, layers: int = 6) -> None:
        super().__init__()
        config = hub().BertConfig(**sized(width, layers))
        self.body = hub().BertModel(config, add_pooling_layer=False)

    def forward(self, ids: Tensor) -> Tensor:
        told = self.body(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
        return F.normalize(told.mean(1).float(), dim=1)


@case("adamw", "amp_bf16", 50)
def questions_find_answers() -> Spec:
    def loss(model: nn.Module, question: Tensor, answer: Tensor) -> Tensor:
        near = model(question) @ model(answer).T * 20
        return F.cross_entropy(near, torch.arange(len(near), device=near.device))

    return Spec(Sentence(), made(kinds(30522, 40), kinds(30522, 110)), loss)


@case("adamw", "amp_bf16", 40, clip=True)
def plays_by_letter() -> Spec:
    """A GPT of six layers over 65 letters (nanoGPT)."""
    layers = [attending(384, 6, causal=True, drop=0.2) for _ in range(6)]
    model = joined(Words(65, 384, 256), *layers, nn.LayerNorm(384), nn.Linear(384, 65, bias=False))
    return Spec(model, made(kinds(65, 256), kinds(65, 256)), each_place)


@case("adam", "fp32", 7, accumulate=2)
def music_computed_again() -> Spec:
    """Long rows of notes; layers are computed again on the way back."""
    layers = Again(*(attending(448, 7, causal=True) for _ in range(10)))
    model = joined(Words(3000, 448, 900), layers, nn.LayerNorm(448), nn.Linear(448, 3000))
    return Spec(model, made(kinds(3000, 900), kinds(3000, 900)), each_place)


@case("adamw", "tf32", 10, clip=True)
def tales_for_children() -> Spec:
    return causal("Llama", 288, **sized(320, 6, vocab_size=12000, num_key_value_heads=5))


@case("adamw", "bf16", 3, accumulate=4)
def low_paths_in_mistral() -> Spec:
    """Low paths beside questions and values of ten wide layers."""
    spec = causal("Mistral", 720, **sized(1024, 10, vocab_size=32000, num_key_value_heads=4))
    lowered(spec.model, ("q_proj", "v_proj"), 8)
    return spec


@case("adamw", "bf16", 5, checkpoint=True)
def qwen_computed_again() -> Spec:
    """Low paths beside all lines of the perceptrons, layers computed again."""
    spec = causal("Qwen2", 600, **sized(896, 12, vocab_size=36000, num_key_value_heads=2))
    lowered(spec.model, ("gate_proj", "up_proj", "down_proj"), 16)
    spec.model.enable_input_require_grads()
    return spec


@case("adamw", "amp_fp16", 5)
def opt_on_recipes() -> Spec:
    """OPT's smallest form with fewer words."""
    sizes = {"vocab_size": 24000, "hidden_size": 640, "num_hidden_layers": 8, "ffn_dim": 2560, "num_attention_heads": 10}  # fmt: skip
    return causal("OPT", 400, **sizes, word_embed_proj_dim=640)


@case("adafactor", "amp_bf16", 11, clip=True)
def headlines_for_articles() -> Spec:
    """T5's small size, headlines for articles."""
    config = hub().T5Config(decoder_start_token_id=0, use_cache=False, num_layers=5, d_ff=1536)
    batch = parts.written_for_texts(32128, ((280, 24), (340, 20)))
    return Spec(hub().T5ForConditionalGeneration(config), batch, masked_text_loss)


@case("adamw", "amp_fp16", 21)
def patches_at_176() -> Spec:
    """A small vision transformer from the beginning, patches of sixteen."""
    enter = Patches(nn.Conv2d(3, 384, 16, 16), 121, 384)
    layers = [attending(384, 6, drop=0.1) for _ in range(12)]
    model = joined(enter, *layers, nn.LayerNorm(384), Taken("first"), nn.Linear(384, 53))
    return Spec(model, labelled(3, 176, 176, classes=53), classified)


@case("sgdm", "fp32", 14)
def last_layers_of_patches() -> Spec:
    """Only the last two layers of a vision transformer learn."""
    model = headed("vit_b_16", 17, frozen=True)
    for layer in list(model.encoder.layers)[-2:]:
        layer.requires_grad_(True)
    return Spec(model, labelled(3, 224, 224, classes=17), classified)
