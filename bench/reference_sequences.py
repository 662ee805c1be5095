"""Texts, sounds and series among the models of the first measured steps: transformers' own, and small honest ones."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bench.model_parts import (
    Spec,
    causal,
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


def _gpt2_xl() -> Spec:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=48, n_embd=1600, n_head=25, use_cache=False)
    return Spec(GPT2LMHeadModel(config), tokens(50257, 512), language_model_loss)


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


def _electra_small() -> Spec:
    from transformers import ElectraConfig, ElectraForSequenceClassification

    model = ElectraForSequenceClassification(ElectraConfig(num_labels=3))
    return Spec(model, tokens_and_class(30522, 128, 3), masked_loss)


def _t5_small() -> Spec:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(d_model=512, d_ff=2048, num_layers=6, num_heads=8, use_cache=False)
    config.decoder_start_token_id = 0

    def batch(count: int, device: str) -> list[Tensor]:
        return [
            torch.randint(0, 32128, (count, 256), device=device),
            torch.randint(0, 32128, (count, 128), device=device),
        ]

    return Spec(T5ForConditionalGeneration(config), batch, language_model_loss)


def _llama_gqa() -> Spec:
    return causal(
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


class _WaveBlock(nn.Module):
    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.gate = nn.Conv1d(width, 2 * width, 3, padding=dilation, dilation=dilation)
        self.mix = nn.Conv1d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.gate(x).chunk(2, 1)
        out: Tensor = x + self.mix(torch.tanh(left) * torch.sigmoid(right))
        return out


def _wavenet() -> Spec:
    width = 128
    model = nn.Sequential(
        nn.Conv1d(1, width, 7, padding=3),
        *(_WaveBlock(width, 2**i) for i in range(8)),
        nn.ReLU(),
        nn.Conv1d(width, 256, 1),
    )

    def batch(count: int, device: str) -> list[Tensor]:
        return [
            torch.randn(count, 1, 8000, device=device),
            torch.randint(0, 256, (count, 8000), device=device),
        ]

    return Spec(model, batch, lambda model, x, y: F.cross_entropy(model(x), y))


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


class _Experts(nn.Module):
    """Four experts; every token goes to the best two of them, at dense shapes (as small projects write it)."""

    def __init__(self, width: int, experts: int = 4) -> None:
        super().__init__()
        self.route = nn.Linear(width, experts)
        self.rise = nn.Parameter(torch.randn(experts, width, 2 * width) * 0.02)
        self.fall = nn.Parameter(torch.randn(experts, 2 * width, width) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        weights, _ = torch.topk(self.route(x).softmax(-1), 2, dim=-1)
        gates = torch.where(self.route(x).softmax(-1) >= weights[..., -1:], self.route(x).softmax(-1), 0.0)
        hidden = F.gelu(torch.einsum("bld,edh->eblh", x, self.rise))
        return torch.einsum("eblh,ehd,ble->bld", hidden, self.fall, gates.to(hidden.dtype))


class _MixtureOfExperts(nn.Module):
    def __init__(self, vocabulary: int = 16000, width: int = 384, layers: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.attend = nn.ModuleList(
            nn.MultiheadAttention(width, 6, batch_first=True, dropout=0.1) for _ in range(layers)
        )
        self.experts = nn.ModuleList(_Experts(width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2 * layers))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.embed(ids)
        for index, (attend, experts) in enumerate(zip(self.attend, self.experts, strict=True)):
            normed = self.norms[2 * index](x)
            x = x + attend(normed, normed, normed, need_weights=False)[0]
            x = x + experts(self.norms[2 * index + 1](x))
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


def _mixture_of_experts() -> Spec:
    return Spec(_MixtureOfExperts(), tokens(16000, 256), lambda model, ids, labels: model(ids, labels))


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
    "gpt2_xl": _gpt2_xl,
    "bert_base": _bert_base,
    "distilbert": _distilbert,
    "roberta_mlm": _roberta_mlm,
    "electra_small": _electra_small,
    "t5_small": _t5_small,
    "llama_gqa": _llama_gqa,
    "whisper_encoder": _whisper_encoder,
    "lstm": _lstm,
    "gru_classifier": _gru_classifier,
    "bilstm_tagger": _bilstm_tagger,
    "wavenet": _wavenet,
    "nano_gpt": _nano_gpt,
    "mixture_of_experts": _mixture_of_experts,
    "transformer_encoder": _transformer_encoder,
}
