"""Networks for texts, sounds and series as people train them: transformers of the library of that name at smaller sizes,
torch's own attention, recurrent networks. Cases stand above the model they train.
"""

import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.case import CaseSet
from bench.model_parts import (
    Spec,
    causal,
    classified,
    hub,
    labelled,
    language_model_loss,
    masked_text_loss,
    padded_to_longest,
    squared,
    to_numbers,
    tokens,
)

ORDINARY_TEXTS = CaseSet()
case = ORDINARY_TEXTS.case


@case("adamw", "fp32", 16, clip=True)
def reviews() -> Spec:
    """DistilBERT as the course fine-tunes it: dynamic padding."""
    model = hub().DistilBertForSequenceClassification(hub().DistilBertConfig(num_labels=2))
    return Spec(model, padded_to_longest((203, 256, 118), 30522, 2), masked_text_loss)


@case("adamw", "amp_fp16", 32)
def named_things() -> Spec:
    config = hub().RobertaConfig(
        vocab_size=50265, hidden_size=512, num_hidden_layers=8, num_attention_heads=8, intermediate_size=2048,
        max_position_embeddings=514, num_labels=9,
    )  # fmt: skip
    model = hub().RobertaForTokenClassification(config)
    return Spec(model, padded_to_longest((128, 97, 110), 50265, 9, per_token=True), masked_text_loss)


@case("adamw", "amp_fp16", 12)
def answers() -> Spec:
    """Begin and end of the answer in a passage of 384."""
    config = hub().BertConfig(
        hidden_size=512, num_hidden_layers=6, num_attention_heads=8, intermediate_size=2048
    )
    model = hub().BertForQuestionAnswering(config)

    def batch(count: int, device: str) -> list[Tensor]:
        mask = torch.ones(count, 384, dtype=torch.long)
        mask[1:, 300:] = 0
        ids, kinds = torch.randint(0, 30522, (count, 384)), (torch.arange(384) > 20).long().repeat(count, 1)
        begins = torch.randint(21, 250, (count,))
        return [one.to(device) for one in (ids, mask, kinds, begins, begins + 5)]

    def loss(
        model: nn.Module, ids: Tensor, mask: Tensor, kinds: Tensor, begins: Tensor, ends: Tensor
    ) -> Tensor:
        told = model(
            ids, attention_mask=mask, token_type_ids=kinds, start_positions=begins, end_positions=ends
        )
        found: Tensor = told.loss
        return found

    return Spec(model, batch, loss)


@case("adamw", "fp32", 16, evaluate=True)
def poems() -> Spec:
    """DistilGPT-2 over blocks of 128."""
    return Spec(hub().GPT2LMHeadModel(hub().GPT2Config(n_layer=6)), tokens(50257, 128), language_model_loss)


@case("adamw_fused", "amp_bf16", 16, accumulate=2, clip=True)
def small_llama() -> Spec:
    return causal(
        "Llama", 256, vocab_size=16000, hidden_size=512, intermediate_size=1376, num_hidden_layers=8, num_attention_heads=8,
        num_key_value_heads=8, max_position_embeddings=512,
    )  # fmt: skip


class _Adapted(nn.Module):
    """A frozen layer and what was learnt beside it."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer
        self.down, self.up = nn.Linear(layer.in_features, rank, bias=False), nn.Linear(rank, layer.out_features, bias=False)  # fmt: skip
        self.drop = nn.Dropout(0.05)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x) + 2 * self.up(self.down(self.drop(x)))
        return out


@case("adamw", "bf16", 8, checkpoint=True)
def adapted_qwen() -> Spec:
    config = hub().Qwen2Config(
        vocab_size=32000, hidden_size=896, intermediate_size=4864, num_hidden_layers=12, num_attention_heads=14,
        num_key_value_heads=2, use_cache=False, tie_word_embeddings=True,
    )  # fmt: skip
    model = hub().Qwen2ForCausalLM(config)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for layer in model.model.layers:
        attention = layer.self_attn
        attention.q_proj, attention.v_proj = _Adapted(attention.q_proj, 8), _Adapted(attention.v_proj, 8)
    model.enable_input_require_grads()
    return Spec(model, tokens(32000, 384), language_model_loss)


@case("adafactor", "fp32", 8)
def summaries() -> Spec:
    """T5: long in, short out."""
    config = hub().T5Config(
        vocab_size=32128, d_model=512, d_ff=1024, num_layers=6, num_heads=6, d_kv=64, feed_forward_proj="gated-gelu",
        decoder_start_token_id=0, use_cache=False,
    )  # fmt: skip

    def batch(count: int, device: str) -> list[Tensor]:
        source, target = torch.randint(2, 32128, (count, 512)), torch.randint(2, 32128, (count, 64))
        mask = torch.ones_like(source)
        mask[:, 400:] = 0
        return [source.to(device), mask.to(device), target.to(device)]

    return Spec(hub().T5ForConditionalGeneration(config), batch, masked_text_loss)


@case("adamw", "amp_fp16", 12)
def captions_of_speech() -> Spec:
    config = hub().WhisperConfig(
        d_model=384, encoder_layers=4, decoder_layers=4, encoder_attention_heads=6, decoder_attention_heads=6,
        encoder_ffn_dim=1536, decoder_ffn_dim=1536, use_cache=False,
    )  # fmt: skip
    model = hub().WhisperForConditionalGeneration(config)

    def batch(count: int, device: str) -> list[Tensor]:
        return [torch.randn(count, 80, 3000).to(device), torch.randint(0, 50000, (count, 40)).to(device)]

    return Spec(model, batch, lambda m, x, y: m(input_features=x, labels=y).loss)


@case("adamw", "amp_bf16", 64, clip=True)
def pictures_and_words() -> Spec:
    """CLIP at a small size."""
    config = hub().CLIPConfig(
        text_config={"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 4, "vocab_size": 20000},
        vision_config={"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 8, "num_attention_heads": 6, "image_size": 192, "patch_size": 16},
        projection_dim=256,
    )  # fmt: skip

    def batch(count: int, device: str) -> list[Tensor]:
        words = torch.randint(3, 20000, (count, 32))
        words[:, -1] = 19999
        return [words.to(device), torch.randn(count, 3, 192, 192).to(device)]

    def loss(model: nn.Module, words: Tensor, pictures: Tensor) -> Tensor:
        found: Tensor = model(input_ids=words, pixel_values=pictures, return_loss=True).loss
        return found

    return Spec(hub().CLIPModel(config), batch, loss)


@case("adamw", "amp_fp16", 32)
def tiny_image_transformer() -> Spec:
    config = hub().ViTConfig(
        hidden_size=192, num_hidden_layers=12, num_attention_heads=3, intermediate_size=768, num_labels=102
    )
    model = hub().ViTForImageClassification(config)
    return Spec(model, labelled(3, 224, 224, classes=102), lambda m, x, y: m(pixel_values=x, labels=y).loss)


class _Sentences(nn.Module):
    """The mean of a small BERT's words."""

    def __init__(self) -> None:
        super().__init__()
        config = hub().BertConfig(
            hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
        )
        self.body = hub().BertModel(config, add_pooling_layer=False)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        words = self.body(input_ids=ids, attention_mask=mask).last_hidden_state
        weight = mask.unsqueeze(-1).to(words.dtype)
        return F.normalize((words * weight).sum(1) / weight.sum(1).clamp(min=1e-9), dim=1)


@case("adamw", "fp32", 64)
def like_sentences() -> Spec:
    """Questions and their answers; all other answers of the batch are wrong ones."""

    def batch(count: int, device: str) -> list[Tensor]:
        made: list[Tensor] = []
        for length in (24, 96):
            mask = (torch.arange(length) < torch.randint(6, length + 1, (count, 1))).long()
            mask[0] = 1
            made += [(torch.randint(5, 30522, (count, length)) * mask).to(device), mask.to(device)]
        return made

    def loss(model: nn.Module, a: Tensor, a_mask: Tensor, b: Tensor, b_mask: Tensor) -> Tensor:
        scores = model(a, a_mask) @ model(b, b_mask).t() * 20
        return F.cross_entropy(scores, torch.arange(len(a), device=a.device))

    return Spec(_Sentences(), batch, loss)


# torch's own attention.


class _Waves(nn.Module):
    """Places as sines and cosines."""

    def __init__(self, width: int, longest: int) -> None:
        super().__init__()
        place = torch.arange(longest).unsqueeze(1)
        speed = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
        table = torch.zeros(1, longest, width)
        table[0, :, 0::2], table[0, :, 1::2] = torch.sin(place * speed), torch.cos(place * speed)
        self.register_buffer("table", table)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.drop(x + self.table[:, : x.size(1)])
        return out


class _WholeTransformer(nn.Module):
    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(8000, width), nn.Embedding(6500, width)
        self.waves = _Waves(width, 200)
        self.body = nn.Transformer(width, 8, 3, 3, 512, 0.1, batch_first=True)
        self.head = nn.Linear(width, 6500)
        self.scale = math.sqrt(width)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        ahead = nn.Transformer.generate_square_subsequent_mask(target.size(1), device=target.device)
        empty, empty_target = source == 1, (target == 1).float().masked_fill(target == 1, float("-inf"))
        y = self.body(
            self.waves(self.source(source) * self.scale), self.waves(self.target(target) * self.scale), tgt_mask=ahead,
            src_key_padding_mask=empty, tgt_key_padding_mask=empty_target, memory_key_padding_mask=empty,
        )  # fmt: skip
        out: Tensor = self.head(y)
        return out


@case("adam", "fp32", 128)
def german_to_english() -> Spec:
    lengths = itertools.cycle(((27, 25), (32, 30), (24, 28)))

    def batch(count: int, device: str) -> list[Tensor]:
        texts = []
        for length, vocabulary in zip(next(lengths), (8000, 6500), strict=True):
            text = torch.randint(4, vocabulary, (count, length))
            text[1:, length * 2 // 3 :] = 1
            texts.append(text.to(device))
        return texts

    def loss(model: nn.Module, source: Tensor, target: Tensor) -> Tensor:
        told = model(source, target[:, :-1])
        return F.cross_entropy(told.reshape(-1, 6500), target[:, 1:].reshape(-1), ignore_index=1)

    return Spec(_WholeTransformer(), batch, loss)


class _Looking(nn.Module):
    """One layer of MultiheadAttention over a text, and its weights as an answer of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(20000, 128), nn.Embedding(200, 128)
        self.look = nn.MultiheadAttention(128, 4, batch_first=True)
        self.norm1, self.norm2 = nn.LayerNorm(128, eps=1e-6), nn.LayerNorm(128, eps=1e-6)
        self.more = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 128))
        self.head = nn.Sequential(
            nn.Dropout(0.1), nn.Linear(128, 20), nn.ReLU(), nn.Dropout(0.1), nn.Linear(20, 2)
        )

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.size(1), device=ids.device))
        y, _ = self.look(x, x, x)
        x = self.norm1(x + F.dropout(y, 0.1, self.training))
        out: Tensor = self.head(self.norm2(x + self.more(x)).mean(1))
        return out


@case("adam", "fp32", 32)
def one_look() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        return [torch.randint(0, 20000, (count, 200)).to(device), torch.randint(0, 2, (count,)).to(device)]

    return Spec(_Looking(), batch, classified)


# Recurrent networks, and convolutions in time.


class _FilmReviews(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(25002, 100, padding_idx=1)
        self.read = nn.LSTM(100, 256, num_layers=2, bidirectional=True, dropout=0.5)
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(512, 1)

    def forward(self, text: Tensor) -> Tensor:
        _, (state, _) = self.read(self.drop(self.words(text)))
        out: Tensor = self.head(self.drop(torch.cat((state[-2], state[-1]), dim=1)))
        return out


@case("adam", "fp32", 64, evaluate=True)
def film_reviews() -> Spec:
    lengths = itertools.cycle((233, 410, 377, 298))

    def batch(count: int, device: str) -> list[Tensor]:
        text = torch.randint(2, 25002, (next(lengths), count))
        return [text.to(device), torch.randint(0, 2, (count,)).float().to(device)]

    return Spec(_FilmReviews(), batch, lambda m, x, y: F.binary_cross_entropy_with_logits(m(x).squeeze(1), y))


class _Letters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.read = nn.LSTM(96, 512, 3, batch_first=True, dropout=0.3)
        self.drop, self.head = nn.Dropout(0.3), nn.Linear(512, 96)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.read(F.one_hot(x, 96).float())
        out: Tensor = self.head(self.drop(y).reshape(-1, 512))
        return out


@case("adam", "fp32", 100, clip=True)
def letter_by_letter() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        return [torch.randint(0, 96, (count, 100)).to(device), torch.randint(0, 96, (count, 100)).to(device)]

    return Spec(_Letters(), batch, lambda m, x, y: F.cross_entropy(m(x), y.reshape(-1)))


class _LastOfSeries(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.read, self.head = nn.GRU(5, 50, 2, batch_first=True), nn.Linear(50, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.read(x)[0][:, -1])
        return out


@case("adam", "fp32", 32)
def prices() -> Spec:
    return Spec(_LastOfSeries(), to_numbers(60, 5, outputs=(1,)), squared)


class _Dilated(nn.Module):
    def __init__(self, inputs: int, outputs: int, dilation: int) -> None:
        super().__init__()
        weighted = torch.nn.utils.parametrizations.weight_norm
        self.left = 6 * dilation
        self.conv1 = weighted(nn.Conv1d(inputs, outputs, 7, padding=self.left, dilation=dilation))
        self.conv2 = weighted(nn.Conv1d(outputs, outputs, 7, padding=self.left, dilation=dilation))
        self.short = nn.Conv1d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = F.dropout(F.relu(self.conv1(x)[..., : -self.left].contiguous()), 0.05, self.training)
        y = F.dropout(F.relu(self.conv2(y)[..., : -self.left].contiguous()), 0.05, self.training)
        return F.relu(y + self.short(x))


@case("adam", "fp32", 64)
def digits_as_series() -> Spec:
    """784 pixels, one after another."""
    blocks = [_Dilated(1 if level == 0 else 25, 25, 2**level) for level in range(8)]
    model = nn.Sequential(*blocks, nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(25, 10))
    return Spec(model, labelled(1, 784, classes=10), classified)


@case("adam", "fp32", 256)
def spoken_words() -> Spec:
    """Raw sound through four wide convolutions (M5)."""
    layers: list[nn.Module] = [
        nn.Conv1d(1, 32, 80, stride=16),
        nn.BatchNorm1d(32),
        nn.ReLU(),
        nn.MaxPool1d(4),
    ]
    for inputs, outputs in ((32, 32), (32, 64), (64, 64)):
        layers += [nn.Conv1d(inputs, outputs, 3), nn.BatchNorm1d(outputs), nn.ReLU(), nn.MaxPool1d(4)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(64, 35), nn.LogSoftmax(1))
    return Spec(model, labelled(1, 16000, classes=35), lambda m, x, y: F.nll_loss(m(x), y))


class _Environment(nn.Module):
    """Sound becomes a spectrogram inside the network."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(1024))
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise((1, 16, 32, 64, 128)):
            layers += [nn.Conv2d(inputs, outputs, 3, 1, 2), nn.ReLU(), nn.MaxPool2d(2)]
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(2048, 50))

    def forward(self, sound: Tensor) -> Tensor:
        waves = torch.stft(sound, 1024, 512, window=self.window, return_complex=True)
        out: Tensor = self.body(torch.log1p(waves.abs().pow(2)).unsqueeze(1))
        return out


@case("adam", "fp32", 32)
def street_sounds() -> Spec:
    return Spec(_Environment(), labelled(88200, classes=50), classified)
