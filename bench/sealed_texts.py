"""Fine-tuning and small pre-training with the transformers library, at sizes that people's own GPUs take. Cases stand above
the model they train.
"""

import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.case import CaseSet
from bench.model_parts import (
    Spec,
    causal,
    freeze,
    hub,
    labelled,
    language_model_loss,
    masked_text_loss,
    padded_to_longest,
    tokens,
)

SEALED_TEXTS = CaseSet()
case = SEALED_TEXTS.case


def _bert(width: int, layers: int, **more: Any) -> Any:
    return hub().BertConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=width // 64, intermediate_size=4 * width, **more
    )  # fmt: skip


@case("adam", "fp32", 128, evaluate=True)
def moods() -> Spec:
    """A small BERT over short messages."""
    model = hub().BertForSequenceClassification(_bert(256, 4, num_labels=6))
    return Spec(model, padded_to_longest((64, 51, 60), 30522, 6), masked_text_loss)


@case("adamw", "amp_bf16", 32)
def several_topics() -> Spec:
    """DistilBERT with its words and first four layers frozen, several labels at once."""
    config = hub().DistilBertConfig(num_labels=28, problem_type="multi_label_classification")
    model = hub().DistilBertForSequenceClassification(config)
    freeze(model.distilbert.embeddings)
    for layer in list(model.distilbert.transformer.layer)[:4]:
        freeze(layer)

    def batch(count: int, device: str) -> list[Tensor]:
        mask = (torch.arange(192) < torch.randint(40, 193, (count, 1))).long()
        ids, wanted = torch.randint(5, 30522, (count, 192)) * mask, torch.randint(0, 2, (count, 28)).float()
        return [one.to(device) for one in (ids, mask, wanted)]

    return Spec(model, batch, masked_text_loss)


@case("adamw", "amp_fp16", 16, clip=True)
def alike_or_not() -> Spec:
    """RoBERTa's base size says how alike two sentences are: one number."""
    config = hub().RobertaConfig(
        vocab_size=50265, max_position_embeddings=514, num_labels=1, problem_type="regression"
    )
    model = hub().RobertaForSequenceClassification(config)

    def batch(count: int, device: str) -> list[Tensor]:
        mask = (torch.arange(96) < torch.randint(30, 97, (count, 1))).long()
        ids = torch.where(mask == 1, torch.randint(5, 50265, (count, 96)), 1)
        return [one.to(device) for one in (ids, mask, torch.rand(count) * 5)]

    return Spec(model, batch, masked_text_loss)


@case("adamw", "fp32", 16)
def names_in_many_languages() -> Spec:
    """Few layers under very many words."""
    config = hub().XLMRobertaConfig(
        vocab_size=250002, hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536,
        max_position_embeddings=514, num_labels=7,
    )  # fmt: skip
    model = hub().XLMRobertaForTokenClassification(config)
    return Spec(model, padded_to_longest((77, 104, 128), 250002, 7, per_token=True), masked_text_loss)


class _Beside(nn.Module):
    """A frozen layer of GPT-2's own kind, and a thin way beside it."""

    def __init__(self, layer: Any, rank: int) -> None:
        super().__init__()
        self.layer = layer
        inputs, outputs = layer.weight.shape
        self.a, self.b = (
            nn.Parameter(torch.randn(inputs, rank) * 0.02),
            nn.Parameter(torch.zeros(rank, outputs)),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x) + (F.dropout(x, 0.1, self.training) @ self.a @ self.b) * 2
        return out


@case("adamw", "amp_bf16", 8)
def adapted_gpt() -> Spec:
    model = hub().GPT2LMHeadModel(hub().GPT2Config(use_cache=False))
    freeze(model)
    for block in model.transformer.h:
        block.attn.c_attn = _Beside(block.attn.c_attn, 16)
    return Spec(model, tokens(50257, 256), language_model_loss)


@case("adamw", "fp32", 4, accumulate=4)
def dialogues() -> Spec:
    """DistilGPT-2 over dialogues of different lengths; the question is not learnt."""
    model = hub().GPT2LMHeadModel(hub().GPT2Config(n_layer=6, use_cache=False))
    lengths = itertools.cycle((180, 224, 143, 201, 96, 250))

    def batch(count: int, device: str) -> list[Tensor]:
        length = next(lengths)
        mask = (torch.arange(length) < torch.randint(60, length + 1, (count, 1))).long()
        mask[-1] = 1
        ids = torch.randint(0, 50257, (count, length))
        labels = ids.masked_fill(mask == 0, -100)
        labels[:, :40] = -100
        return [one.to(device) for one in (ids, mask, labels)]

    return Spec(model, batch, masked_text_loss)


@case("adamw_fused", "amp_bf16", 32, clip=True)
def fifteen_million() -> Spec:
    """Children's stories from scratch."""
    return causal(
        "Llama", 256, vocab_size=32000, hidden_size=288, intermediate_size=768, num_hidden_layers=6, num_attention_heads=6,
        max_position_embeddings=256, tie_word_embeddings=True,
    )  # fmt: skip


@case("adamw", "bf16", 4, checkpoint=True)
def smaller_than_small() -> Spec:
    """Thirty thin layers, three heads for keys."""
    return causal(
        "Llama", 640, vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=2048, tie_word_embeddings=True,
    )  # fmt: skip


@case("adamw", "amp_bf16", 6, clip=True)
def newer_qwen() -> Spec:
    return causal(
        "Qwen3", 448, vocab_size=24000, hidden_size=640, intermediate_size=1920, num_hidden_layers=10, num_attention_heads=10,
        num_key_value_heads=2, head_dim=64,
    )  # fmt: skip


def _pairs(vocabulary: int, source: tuple[int, ...], target: int) -> Callable[[int, str], list[Tensor]]:
    """Padded texts and what they become."""
    lengths = itertools.cycle(source)

    def batch(count: int, device: str) -> list[Tensor]:
        length = next(lengths)
        mask = (torch.arange(length) < torch.randint(length // 2, length + 1, (count, 1))).long()
        mask[0] = 1
        labels = torch.randint(3, vocabulary, (count, target))
        labels[1:, target * 3 // 4 :] = -100
        return [
            one.to(device) for one in (torch.randint(3, vocabulary, (count, length)) * mask, mask, labels)
        ]

    return batch


@case("adamw", "amp_bf16", 16)
def sentences_into_others() -> Spec:
    config = hub().T5Config(
        vocab_size=32128, d_model=384, d_ff=1536, num_layers=8, num_heads=6, decoder_start_token_id=0, use_cache=False
    )  # fmt: skip
    return Spec(hub().T5ForConditionalGeneration(config), _pairs(32128, (61, 88, 70), 64), masked_text_loss)


@case("adafactor", "amp_fp16", 6)
def headlines() -> Spec:
    """A small Pegasus: long articles, short headlines."""
    config = hub().PegasusConfig(
        vocab_size=40000, d_model=512, encoder_layers=6, decoder_layers=6, encoder_attention_heads=8, decoder_attention_heads=8,
        encoder_ffn_dim=2048, decoder_ffn_dim=2048, max_position_embeddings=512, use_cache=False,
    )  # fmt: skip
    model = hub().PegasusForConditionalGeneration(config)
    return Spec(model, _pairs(40000, (512,), 32), masked_text_loss)


@case("adamw", "fp32", 8)
def only_the_decoder_learns() -> Spec:
    config = hub().WhisperConfig(
        d_model=512, encoder_layers=6, decoder_layers=6, encoder_attention_heads=8, decoder_attention_heads=8,
        encoder_ffn_dim=2048, decoder_ffn_dim=2048, use_cache=False,
    )  # fmt: skip
    model = hub().WhisperForConditionalGeneration(config)
    model.freeze_encoder()

    def batch(count: int, device: str) -> list[Tensor]:
        return [torch.randn(count, 80, 3000).to(device), torch.randint(0, 50000, (count, 56)).to(device)]

    return Spec(model, batch, lambda m, x, y: m(input_features=x, labels=y).loss)


@case("adamw", "amp_bf16", 32, evaluate=True)
def pairs_by_themselves() -> Spec:
    """SigLIP: each pair of picture and words is a question of its own."""
    config = hub().SiglipConfig(
        text_config={"hidden_size": 320, "intermediate_size": 1280, "num_hidden_layers": 5, "num_attention_heads": 5, "vocab_size": 16000, "projection_size": 320},
        vision_config={"hidden_size": 320, "intermediate_size": 1280, "num_hidden_layers": 7, "num_attention_heads": 5, "image_size": 224, "patch_size": 16},
    )  # fmt: skip

    def batch(count: int, device: str) -> list[Tensor]:
        return [torch.randint(0, 16000, (count, 48)).to(device), torch.randn(count, 3, 224, 224).to(device)]

    def loss(model: nn.Module, words: Tensor, pictures: Tensor) -> Tensor:
        found: Tensor = model(input_ids=words, pixel_values=pictures, return_loss=True).loss
        return found

    return Spec(hub().SiglipModel(config), batch, loss)


@case("adamw", "fp32", 48)
def features_seen_before() -> Spec:
    """A frozen DINOv2 of small size under a new line."""
    config = hub().Dinov2Config(
        hidden_size=384, num_hidden_layers=12, num_attention_heads=6, image_size=224, patch_size=14, num_labels=20
    )  # fmt: skip
    model = hub().Dinov2ForImageClassification(config)
    freeze(model.dinov2)
    return Spec(model, labelled(3, 224, 224, classes=20), lambda m, x, y: m(pixel_values=x, labels=y).loss)


@case("adamw", "amp_bf16", 48)
def hidden_patches() -> Spec:
    """Three quarters of each picture are hidden and to be guessed."""
    config = hub().ViTMAEConfig(
        hidden_size=384, num_hidden_layers=8, num_attention_heads=6, intermediate_size=1536, decoder_hidden_size=256,
        decoder_num_hidden_layers=4, decoder_num_attention_heads=8, decoder_intermediate_size=1024,
    )  # fmt: skip
    model = hub().ViTMAEForPreTraining(config)

    def batch(count: int, device: str) -> list[Tensor]:
        return [torch.randn(count, 3, 224, 224).to(device)]

    return Spec(model, batch, lambda m, x: m(pixel_values=x).loss)


@case("adamw", "amp_fp16", 8)
def sounds_as_pictures() -> Spec:
    """Patches of a spectrogram through a transformer."""
    config = hub().ASTConfig(
        hidden_size=384, num_hidden_layers=8, num_attention_heads=6, intermediate_size=1536, max_length=512, num_labels=35
    )  # fmt: skip
    model = hub().ASTForAudioClassification(config)

    def batch(count: int, device: str) -> list[Tensor]:
        return [torch.randn(count, 512, 128).to(device), torch.randint(0, 35, (count,)).to(device)]

    return Spec(model, batch, lambda m, x, y: m(input_values=x, labels=y).loss)


@case("adamw", "amp_fp16", 64)
def hidden_words() -> Spec:
    """BERT from scratch: one word in seven is hidden."""
    model = hub().BertForMaskedLM(_bert(512, 4))

    def batch(count: int, device: str) -> list[Tensor]:
        ids = torch.randint(5, 30522, (count, 128))
        hidden = torch.rand(count, 128) < 0.15
        made = (ids.masked_fill(hidden, 103), torch.ones_like(ids), ids.masked_fill(~hidden, -100))
        return [one.to(device) for one in made]

    return Spec(model, batch, masked_text_loss)


def _told(model: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
    """How likely a model finds each text."""
    scores = model(input_ids=ids, attention_mask=mask).logits[:, :-1].float().log_softmax(-1)
    each = scores.gather(2, ids[:, 1:].unsqueeze(2)).squeeze(2)
    return (each * mask[:, 1:]).sum(1)


class _Preferred(nn.Module):
    """A language model that learns which answer was liked, held near to itself as it was (DPO)."""

    def __init__(self) -> None:
        super().__init__()
        config = hub().GPT2Config(vocab_size=32000, n_embd=512, n_layer=6, n_head=8, use_cache=False)
        self.now, self.before = hub().GPT2LMHeadModel(config), hub().GPT2LMHeadModel(config)
        freeze(self.before)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        with torch.no_grad():
            liked_before, other_before = _told(self.before, ids, mask).chunk(2)
        liked, other = _told(self.now, ids, mask).chunk(2)
        return -F.logsigmoid(0.1 * ((liked - liked_before) - (other - other_before))).mean()


@case("adamw", "amp_bf16", 8, clip=True)
def liked_answers() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        mask = (torch.arange(200) < torch.randint(80, 201, (2 * count, 1))).long()
        return [torch.randint(0, 32000, (2 * count, 200)).to(device), mask.to(device)]

    return Spec(_Preferred(), batch, lambda m, ids, mask: m(ids, mask))


@case("adamw", "fp32", 32)
def which_passage() -> Spec:
    """Question and passage together in one small BERT; one number for each pair."""
    model = hub().BertForSequenceClassification(_bert(384, 6, num_labels=1))

    def batch(count: int, device: str) -> list[Tensor]:
        mask = (torch.arange(200) < torch.randint(60, 201, (count, 1))).long()
        ids = torch.randint(5, 30522, (count, 200)) * mask
        return [one.to(device) for one in (ids, mask, torch.randint(0, 2, (count,)).float())]

    def loss(model: nn.Module, ids: Tensor, mask: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(
            model(input_ids=ids, attention_mask=mask).logits.squeeze(1), y
        )

    return Spec(model, batch, loss)


@case("adamw", "amp_bf16", 24)
def modern_reviews() -> Spec:
    """A small ModernBERT: local attention in most layers."""
    config = hub().ModernBertConfig(
        vocab_size=30000, hidden_size=384, intermediate_size=576, num_hidden_layers=9, num_attention_heads=6, num_labels=3,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2,
    )  # fmt: skip
    model = hub().ModernBertForSequenceClassification(config)
    return Spec(model, padded_to_longest((256, 230, 190), 30000, 3), masked_text_loss)


class _WordsTaught(nn.Module):
    """A recurrent network over words learns from a frozen BERT."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = hub().BertForSequenceClassification(_bert(512, 6, num_labels=2)).requires_grad_(False)
        self.words, self.read = (
            nn.Embedding(30522, 150, padding_idx=0),
            nn.LSTM(150, 150, batch_first=True, bidirectional=True),
        )
        self.head = nn.Sequential(nn.Linear(300, 200), nn.ReLU(), nn.Linear(200, 2))

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            wanted = self.teacher(input_ids=ids, attention_mask=mask).logits
        out, _ = self.read(self.words(ids))
        return self.head(out.amax(1)), wanted


@case("adam", "fp32", 64)
def words_taught() -> Spec:
    def loss(model: nn.Module, ids: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        told, wanted = model(ids, mask)
        return 0.5 * F.mse_loss(told, wanted) + 0.5 * F.cross_entropy(told, labels)

    return Spec(_WordsTaught(), padded_to_longest((96, 72, 120), 30522, 2), loss)
