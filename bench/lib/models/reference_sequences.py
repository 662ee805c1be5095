"""Text, audio and sequence models of the reference cases."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bench.lib.models.parts import (
    Spec,
    causal_lm,
    language_model_loss,
    masked_loss,
    tokens,
    tokens_and_class,
)


def _gpt2(*, checkpointed: bool = False) -> Spec:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_layer=12, n_embd=768, n_head=12, use_cache=False))
    if checkpointed:
        model.gradient_checkpointing_enable()
    return Spec(model, tokens(50257, 512), language_model_loss)


def _bert_base() -> Spec:
    from transformers import BertConfig, BertForSequenceClassification

    model = BertForSequenceClassification(BertConfig(num_labels=2))
    return Spec(model, tokens_and_class(30522, 128, 2), masked_loss)


def _distilbert() -> Spec:
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    model = DistilBertForSequenceClassification(DistilBertConfig(num_labels=4))
    return Spec(model, tokens_and_class(30522, 256, 4), masked_loss)


def _roberta_mlm() -> Spec:
    from transformers import RobertaConfig, RobertaForMaskedLM

    model = RobertaForMaskedLM(RobertaConfig(num_hidden_layers=6, max_position_embeddings=514))
    return Spec(model, tokens(50265, 256), masked_loss)


def _llama_gqa() -> Spec:
    return causal_lm(
        "Llama", 768, vocab_size=32000, hidden_size=1024, intermediate_size=2816, num_hidden_layers=10, num_attention_heads=16,
        num_key_value_heads=4,
    )  # fmt: skip


def _whisper_encoder() -> Spec:
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    encoder = WhisperEncoder(
        WhisperConfig(d_model=512, encoder_layers=6, encoder_attention_heads=8, encoder_ffn_dim=2048)
    )

    def batch(count: int, device: str) -> list[Tensor]:
        return [torch.randn(count, 80, 3000, device=device), torch.randn(count, 1500, 512, device=device)]

    return Spec(encoder, batch, lambda model, x, y: F.mse_loss(model(x).last_hidden_state.float(), y.float()))


class _RecurrentLanguageModel(nn.Module):
    def __init__(self, vocabulary: int = 10000, width: int = 650) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.rnn = nn.LSTM(width, width, 2, batch_first=True, dropout=0.5)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.rnn(self.embed(ids))[0])
        return out


def _lstm() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        return [torch.randint(0, 10000, (count, 70), device=device) for _ in range(2)]

    return Spec(
        _RecurrentLanguageModel(),
        batch,
        lambda model, x, y: F.cross_entropy(model(x).flatten(0, 1), y.flatten()),
    )


class _GRUClassifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20000, 256)
        self.rnn = nn.GRU(256, 512, 3, batch_first=True, dropout=0.2)
        self.head = nn.Linear(512, 5)

    def forward(self, ids: Tensor) -> Tensor:
        states, _ = self.rnn(self.embed(ids))
        out: Tensor = self.head(states.mean(1))
        return out


class _BiLSTMTagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(30000, 300)
        self.rnn = nn.LSTM(300, 400, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(800, 45)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.rnn(self.embed(ids))[0])
        return out


def _gru_classifier() -> Spec:
    return Spec(
        _GRUClassifier(), tokens_and_class(20000, 200, 5), lambda model, x, y: F.cross_entropy(model(x), y)
    )


def _bilstm_tagger() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        return [
            torch.randint(0, 30000, (count, 150), device=device),
            torch.randint(0, 45, (count, 150), device=device),
        ]

    return Spec(
        _BiLSTMTagger(), batch, lambda model, x, y: F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    )


class _CausalBlock(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        count, length, width = x.shape
        q, k, v = (
            t.view(count, length, self.heads, width // self.heads).transpose(1, 2)
            for t in self.qkv(self.norm1(x)).split(width, 2)
        )
        mixed = F.scaled_dot_product_attention(
            q, k, v, dropout_p=self.dropout if self.training else 0, is_causal=True
        )
        x = x + self.out(mixed.transpose(1, 2).reshape(count, length, width))
        out: Tensor = x + self.feed(self.norm2(x))
        return out


class _NanoGPT(nn.Module):
    def __init__(self, vocabulary: int = 32768, width: int = 512, layers: int = 8, heads: int = 8) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(vocabulary, width), nn.Embedding(512, width)
        self.blocks = nn.ModuleList(_CausalBlock(width, heads, 0.1) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.checkpointing = False

    def gradient_checkpointing_enable(self) -> None:
        self.checkpointing = True

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.embed(ids) + self.place(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointing else block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())


def _nano_gpt() -> Spec:
    return Spec(_NanoGPT(), tokens(32768, 512), lambda model, ids, labels: model(ids, labels))


def _transformer_encoder() -> Spec:
    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, norm_first=True)
    model = nn.Sequential(
        nn.Linear(64, 512), nn.TransformerEncoder(layer, 6, enable_nested_tensor=False), nn.Linear(512, 10)
    )

    def batch(count: int, device: str) -> list[Tensor]:
        return [torch.randn(count, 256, 64, device=device), torch.randint(0, 10, (count,), device=device)]

    return Spec(model, batch, lambda model, x, y: F.cross_entropy(model(x).mean(1), y))


REFERENCE_SEQUENCES: dict[str, Callable[[], Spec]] = {
    "gpt2": _gpt2,
    "gpt2_ckpt": lambda: _gpt2(checkpointed=True),
    "bert_base": _bert_base,
    "distilbert": _distilbert,
    "roberta_mlm": _roberta_mlm,
    "llama_gqa": _llama_gqa,
    "whisper_encoder": _whisper_encoder,
    "lstm": _lstm,
    "gru_classifier": _gru_classifier,
    "bilstm_tagger": _bilstm_tagger,
    "nano_gpt": _nano_gpt,
    "transformer_encoder": _transformer_encoder,
}
