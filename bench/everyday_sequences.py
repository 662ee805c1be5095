"""Ordinary networks for text, tables, graphs, games and series, as people train them (`workloads.CASES["everyday"]`).

Like `models`, this file needs torch and transformers, not Legroom.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

from bench.layer_parts import joined, normed_lines
from bench.model_parts import Spec, causal, language_model_loss, perceptron, tokens


def _classified(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


# Language models and their fine-tuning


def _gpt2_medium() -> Spec:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_embd=1024, n_layer=24, n_head=16, use_cache=False)
    return Spec(GPT2LMHeadModel(config), tokens(50257, 512), language_model_loss)


def _mistral() -> Spec:
    return causal(
        "Mistral", 640, vocab_size=32000, hidden_size=768, intermediate_size=2304, num_hidden_layers=8, num_attention_heads=12,
        num_key_value_heads=4, sliding_window=None,
    )  # fmt: skip


def _gemma() -> Spec:
    return causal(
        "Gemma", 384, vocab_size=48000, hidden_size=640, intermediate_size=2560, num_hidden_layers=6, num_attention_heads=8,
        num_key_value_heads=1, head_dim=80,
    )  # fmt: skip


def _padded(vocabulary: int, length: int, classes: int) -> Callable[[int, str], list[Tensor]]:
    """Texts of different lengths, padded to the same one, and a label for each."""

    def batch(count: int, device: str) -> list[Tensor]:
        ids = torch.randint(5, vocabulary, (count, length), device=device)
        lengths = torch.linspace(length // 3, length, count).long()
        # The mask comes from the host, as a tokenizer's does.
        mask = (torch.arange(length)[None] < lengths[:, None]).long().to(device)
        return [ids, mask, torch.randint(0, classes, (count,), device=device)]

    return batch


def _labelled_text_loss(model: nn.Module, ids: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
    loss: Tensor = model(input_ids=ids, attention_mask=mask, labels=labels).loss
    return loss


def _bert_reviews() -> Spec:
    from transformers import BertConfig, BertForSequenceClassification

    model = BertForSequenceClassification(BertConfig(num_labels=5))
    return Spec(model, _padded(30522, 192, 5), _labelled_text_loss)


def _deberta() -> Spec:
    from transformers import DebertaV2Config, DebertaV2ForSequenceClassification

    config = DebertaV2Config(
        vocab_size=30000, hidden_size=384, num_hidden_layers=6, num_attention_heads=6, intermediate_size=1536,
        relative_attention=True, position_buckets=64, norm_rel_ebd="layer_norm", share_att_key=True,
        pos_att_type=["p2c", "c2p"], num_labels=3,
    )  # fmt: skip
    return Spec(DebertaV2ForSequenceClassification(config), _padded(30000, 160, 3), _labelled_text_loss)


def _marian() -> Spec:
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=24000, d_model=512, encoder_layers=6, decoder_layers=6, encoder_ffn_dim=2048, decoder_ffn_dim=2048,
        encoder_attention_heads=8, decoder_attention_heads=8, pad_token_id=0, decoder_start_token_id=0, use_cache=False,
    )  # fmt: skip
    return Spec(MarianMTModel(config), tokens(24000, 128), language_model_loss)


def _whisper() -> Spec:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        d_model=384, encoder_layers=4, decoder_layers=4, encoder_attention_heads=6, decoder_attention_heads=6,
        encoder_ffn_dim=1536, decoder_ffn_dim=1536, use_cache=False,
    )  # fmt: skip

    def batch(count: int, device: str) -> list[Tensor]:
        return [
            torch.randn(count, 80, 3000, device=device),
            torch.randint(0, 50000, (count, 100), device=device),
        ]

    def loss(model: nn.Module, sound: Tensor, labels: Tensor) -> Tensor:
        out: Tensor = model(input_features=sound, labels=labels).loss
        return out

    return Spec(WhisperForConditionalGeneration(config), batch, loss)


class _StoryBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.enter, self.leave = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1)
        )

    def forward(self, x: Tensor) -> Tensor:
        n, t, c = x.shape
        q, k, v = (
            part.view(n, t, self.heads, -1).transpose(1, 2) for part in self.enter(self.norm1(x)).split(c, 2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1 if self.training else 0.0)
        x = x + self.leave(y.transpose(1, 2).reshape(n, t, c))
        out: Tensor = x + self.feed(self.norm2(x))
        return out


class _Stories(nn.Module):
    """A small GPT written by hand, its head tied to the embedding."""

    def __init__(self, words: int = 16000, width: int = 512, depth: int = 8, length: int = 256) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(_StoryBlock(width, 8) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight
        self.checkpointed = False

    def gradient_checkpointing_enable(self) -> None:
        self.checkpointed = True

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        out: Tensor = self.head(self.norm(x))
        return out


def _next_word_loss(model: nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
    scores = model(ids)
    return F.cross_entropy(scores[:, :-1].reshape(-1, scores.shape[-1]), labels[:, 1:].reshape(-1))


# Recurrent networks


class _WordModel(nn.Module):
    """A language model of three LSTMs and tied words (AWD-LSTM's sizes)."""

    def __init__(self, words: int = 12000, width: int = 400, hidden: int = 1150) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        sizes = [width, hidden, hidden, width]
        self.layers = nn.ModuleList(nn.LSTM(a, b, batch_first=True) for a, b in itertools.pairwise(sizes))
        self.head = nn.Linear(width, words)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = F.dropout(self.embed(ids), 0.2, self.training)
        for layer in self.layers:
            x = F.dropout(layer(x)[0], 0.25, self.training)
        out: Tensor = self.head(x)
        return out


class _PackedClassifier(nn.Module):
    """Sentences of different lengths, packed, through GRUs in both directions."""

    def __init__(self, words: int = 20000, width: int = 300, hidden: int = 256) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width, padding_idx=0)
        self.rnn = nn.GRU(width, hidden, 2, batch_first=True, bidirectional=True, dropout=0.3)
        self.head = nn.Linear(2 * hidden, 4)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.embed(ids), lengths, batch_first=True, enforce_sorted=False)
        out, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True, total_length=ids.shape[1])
        scores: Tensor = self.head(out.max(1)[0])
        return scores


def _packed_classifier() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        return [
            torch.randint(1, 20000, (count, 120), device=device),
            torch.linspace(20, 120, count).long(),
            torch.randint(0, 4, (count,), device=device),
        ]

    return Spec(
        _PackedClassifier(), batch, lambda model, x, lengths, y: F.cross_entropy(model(x, lengths), y)
    )


class _Forecast(nn.Module):
    """Sensors in, the next day out."""

    def __init__(self, sensors: int = 8, hidden: int = 128) -> None:
        super().__init__()
        self.rnn = nn.LSTM(sensors, hidden, 2, batch_first=True, dropout=0.2)
        self.head = nn.Sequential(nn.Linear(hidden, 64), nn.ReLU(), nn.Linear(64, 24))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.rnn(x)[0][:, -1])
        return out


def _forecast() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        return [torch.randn(count, 168, 8, device=device), torch.randn(count, 24, device=device)]

    return Spec(_Forecast(), batch, lambda model, x, y: F.mse_loss(model(x).float(), y))


class _AttentiveTranslator(nn.Module):
    """A GRU reads, an LSTM cell with attention writes, word by word."""

    def __init__(self, words: int = 8000, width: int = 256, hidden: int = 512) -> None:
        super().__init__()
        self.hidden = hidden
        self.source, self.target = nn.Embedding(words, width), nn.Embedding(words, width)
        self.read = nn.GRU(width, hidden // 2, batch_first=True, bidirectional=True)
        self.cell = nn.LSTMCell(width + hidden, hidden)
        self.score = nn.Linear(2 * hidden, 1)
        self.head = nn.Linear(2 * hidden, words)

    def forward(self, given: Tensor, wanted: Tensor) -> Tensor:
        seen, _ = self.read(self.source(given))
        state = seen.new_zeros(len(given), self.hidden)
        cell = torch.zeros_like(state)
        told = []
        for word in self.target(wanted).unbind(1):
            asked = torch.cat([seen, state[:, None].expand_as(seen)], 2)
            share = self.score(torch.tanh(asked)).softmax(1)
            found = (share * seen).sum(1)
            state, cell = self.cell(torch.cat([word, found], 1), (state, cell))
            told.append(torch.cat([state, found], 1))
        out: Tensor = self.head(torch.stack(told, 1))
        return out


def _attentive_translator() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        return [
            torch.randint(0, 8000, (count, 30), device=device),
            torch.randint(0, 8000, (count, 24), device=device),
        ]

    def loss(model: nn.Module, given: Tensor, wanted: Tensor) -> Tensor:
        return F.cross_entropy(model(given, wanted).flatten(0, 1).float(), wanted.flatten())

    return Spec(_AttentiveTranslator(), batch, loss)


# Tables, recommendations, graphs, games


class _Columns(nn.Module):
    """A transformer over the columns of a table."""

    def __init__(self, numbers: int = 12, kinds: int = 20, width: int = 128) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(numbers, width))
        self.embed = nn.Embedding(kinds * 50, width)
        self.first = nn.Parameter(torch.randn(1, 1, width))
        layer = nn.TransformerEncoderLayer(width, 8, 256, 0.1, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(width, 2)

    def forward(self, numbers: Tensor, kinds: Tensor) -> Tensor:
        parts = [self.first.expand(len(numbers), -1, -1), numbers[..., None] * self.scale, self.embed(kinds)]
        out: Tensor = self.head(self.body(torch.cat(parts, 1))[:, 0])
        return out


def _table(count: int, device: str) -> list[Tensor]:
    return [
        torch.randn(count, 12, device=device),
        torch.randint(0, 1000, (count, 20), device=device),
        torch.randint(0, 2, (count,), device=device),
    ]


def _table_loss(model: nn.Module, numbers: Tensor, kinds: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(numbers, kinds), y)


class _TableNet(nn.Module):
    """Embeddings of categories beside numbers, and a perceptron with batch norms."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.ModuleList(nn.Embedding(1000, 16) for _ in range(20))
        self.body = joined(normed_lines(332, 512, 512, 256, drop=0.2), nn.Linear(256, 2))

    def forward(self, numbers: Tensor, kinds: Tensor) -> Tensor:
        found = [embed(kinds[:, column]) for column, embed in enumerate(self.embed)]
        out: Tensor = self.body(torch.cat([numbers, *found], 1))
        return out


class _GraphAttention(nn.Module):
    """Two layers of attention along the edges of one large graph."""

    def __init__(self, inputs: int = 256, width: int = 64, heads: int = 4, classes: int = 40) -> None:
        super().__init__()
        self.heads = heads
        self.enter = nn.ModuleList(
            [nn.Linear(inputs, heads * width), nn.Linear(heads * width, heads * width)]
        )
        self.ask = nn.ParameterList(nn.Parameter(torch.randn(2, heads, width)) for _ in range(2))
        self.head = nn.Linear(heads * width, classes)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        for enter, ask in zip(self.enter, self.ask, strict=True):
            y = enter(x).view(len(x), self.heads, -1)
            scores = (y * ask[0]).sum(-1)[source] + (y * ask[1]).sum(-1)[target]
            share = F.leaky_relu(scores, 0.2).exp()
            total = torch.zeros_like(y[..., 0]).index_add(0, target, share)
            told = y[source] * (share / (total[target] + 1e-9))[..., None]
            x = F.elu(torch.zeros_like(y).index_add(0, target, told).flatten(1))
        out: Tensor = self.head(x)
        return out


def _graph_attention() -> Spec:
    """The batch counts thousands of nodes, with eight edges each."""

    def batch(count: int, device: str) -> list[Tensor]:
        nodes = 1000 * count
        return [
            torch.randn(nodes, 256, device=device),
            torch.randint(0, nodes, (2, 8 * nodes), device=device),
            torch.randint(0, 40, (nodes,), device=device),
        ]

    return Spec(_GraphAttention(), batch, lambda model, x, edges, y: F.cross_entropy(model(x, edges), y))


class _Player(nn.Module):
    """Atari's network, and a copy of it that says what is to be reached (DQN)."""

    def __init__(self, actions: int = 6) -> None:
        super().__init__()
        self.play, self.aim = self._network(actions), self._network(actions)
        self.aim.requires_grad_(False)

    @staticmethod
    def _network(actions: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(),
            nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, actions),
        )  # fmt: skip

    def forward(self, now: Tensor, later: Tensor, action: Tensor, reward: Tensor) -> Tensor:
        worth = self.play(now / 255.0).gather(1, action[:, None]).squeeze(1)
        with torch.no_grad():
            reached = reward + 0.99 * self.aim(later / 255.0).max(1)[0]
        return F.smooth_l1_loss(worth, reached)


def _player() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        return [
            *(torch.randint(0, 256, (count, 4, 84, 84), device=device, dtype=torch.uint8) for _ in "ab"),
            torch.randint(0, 6, (count,), device=device),
            torch.randn(count, device=device),
        ]

    return Spec(_Player(), batch, lambda model, *given: model(*given))


class _Agent(nn.Module):
    """An actor and a critic for simulated bodies (PPO)."""

    def __init__(self, senses: int = 48, actions: int = 12, width: int = 256) -> None:
        super().__init__()

        def network(outputs: int) -> nn.Sequential:
            return nn.Sequential(
                nn.Linear(senses, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, outputs)
            )  # fmt: skip

        self.actor, self.critic = network(actions), network(1)
        self.spread = nn.Parameter(torch.zeros(actions))

    def forward(self, senses: Tensor, action: Tensor, before: Tensor, gain: Tensor) -> Tensor:
        told = torch.distributions.Normal(self.actor(senses), self.spread.exp())
        ratio = (told.log_prob(action).sum(-1) - before).exp()
        kept = torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
        worth = F.mse_loss(self.critic(senses).squeeze(-1), gain)
        return 0.5 * worth - kept - 0.01 * told.entropy().sum(-1).mean()


def _agent() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        return [
            torch.randn(count, 48, device=device), torch.randn(count, 12, device=device), torch.randn(count, device=device),
            torch.randn(count, device=device),
        ]  # fmt: skip

    return Spec(_Agent(), batch, lambda model, *given: model(*given))


class _SeriesTransformer(nn.Module):
    def __init__(self, sensors: int = 7, width: int = 256) -> None:
        super().__init__()
        self.enter = nn.Linear(sensors, width)
        self.register_buffer("places", _waves(336, width))
        layer = nn.TransformerEncoderLayer(width, 8, 512, 0.1, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(width, sensors)

    def forward(self, x: Tensor) -> Tensor:
        future = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        out: Tensor = self.head(self.body(self.enter(x) + self.places, mask=future, is_causal=True))
        return out


def _waves(length: int, width: int) -> Tensor:
    places = torch.arange(length)[:, None] * torch.exp(
        torch.arange(0, width, 2) * (-math.log(10000.0) / width)
    )
    return torch.stack([places.sin(), places.cos()], 2).flatten(1)


def _series_transformer() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        return [torch.randn(count, 336, 7, device=device), torch.randn(count, 336, 7, device=device)]

    return Spec(_SeriesTransformer(), batch, lambda model, x, y: F.mse_loss(model(x).float(), y))


def _mean_squares(*shape: int) -> Any:
    return lambda count, device: [torch.rand(count, *shape, device=device)]


def _autoencoder() -> Spec:
    model = nn.Sequential(*perceptron(784, 512, 256, 32, 256, 512, 784), nn.Sigmoid())
    return Spec(model, _mean_squares(784), lambda model, x: F.binary_cross_entropy(model(x), x))


EVERYDAY_SEQUENCES: dict[str, Callable[[], Spec]] = {
    "gpt2_medium": _gpt2_medium,
    "mistral": _mistral,
    "gemma": _gemma,
    "bert_reviews": _bert_reviews,
    "deberta": _deberta,
    "marian": _marian,
    "whisper": _whisper,
    "stories": lambda: Spec(_Stories(), tokens(16000, 256), _next_word_loss),
    "word_model": lambda: Spec(_WordModel(), tokens(12000, 70), _next_word_loss),
    "packed_classifier": _packed_classifier,
    "forecast": _forecast,
    "attentive_translator": _attentive_translator,
    "columns": lambda: Spec(_Columns(), _table, _table_loss),
    "table_net": lambda: Spec(_TableNet(), _table, _table_loss),
    "graph_attention": _graph_attention,
    "player": _player,
    "agent": _agent,
    "series_transformer": _series_transformer,
    "autoencoder": _autoencoder,
}
