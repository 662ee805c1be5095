"""Models of the cases that were measured last, so that rules written before could not have been fitted to them.

As in `models`: random weights, configurations and never downloads, real libraries where they have the network.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint_sequential

from bench.model_parts import (
    Spec,
    causal,
    language_model_loss,
    masked_loss,
    tokens,
    tokens_and_class,
    torchvision,
    vision,
)


def _googlenet() -> Spec:
    model = torchvision().models.googlenet(weights=None, aux_logits=False, init_weights=False)
    return Spec(model, _pictures(224, 1000), _classified)


def _video() -> Spec:
    model = torchvision().models.video.r3d_18(weights=None, num_classes=101)

    def batch(count: int, device: str) -> list[Tensor]:
        return [
            torch.randn(count, 3, 8, 112, 112, device=device),
            torch.randint(0, 101, (count,), device=device),
        ]

    return Spec(model, batch, _classified)


def _lraspp() -> Spec:
    segmentation = torchvision().models.segmentation
    model = segmentation.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=21)

    def batch(count: int, device: str) -> list[Tensor]:
        return [
            torch.randn(count, 3, 320, 320, device=device),
            torch.randint(0, 21, (count, 320, 320), device=device),
        ]

    return Spec(model, batch, lambda model, x, y: F.cross_entropy(model(x)["out"], y))


def _pictures(size: int, classes: int) -> Callable[[int, str], list[Tensor]]:
    def batch(count: int, device: str) -> list[Tensor]:
        return [
            torch.randn(count, 3, size, size, device=device),
            torch.randint(0, classes, (count,), device=device),
        ]

    return batch


def _classified(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def _opt() -> Spec:
    return causal(
        "OPT", 384, hidden_size=768, ffn_dim=3072, num_hidden_layers=8, num_attention_heads=12, word_embed_proj_dim=768,
    )  # fmt: skip


def _qwen2() -> Spec:
    return causal(
        "Qwen2", 640, vocab_size=48000, hidden_size=896, intermediate_size=2432, num_hidden_layers=8, num_attention_heads=14,
        num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip


def _pythia() -> Spec:
    return causal(
        "GPTNeoX", 512, hidden_size=512, num_hidden_layers=6, num_attention_heads=8, intermediate_size=2048,
    )  # fmt: skip


def _albert() -> Spec:
    from transformers import AlbertConfig, AlbertForSequenceClassification

    config = AlbertConfig(
        hidden_size=768, num_attention_heads=12, intermediate_size=3072, num_labels=2, num_hidden_layers=8
    )
    return Spec(AlbertForSequenceClassification(config), tokens_and_class(30000, 192, 2), masked_loss)


def _clip_vision() -> Spec:
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

    model = CLIPVisionModelWithProjection(CLIPVisionConfig(num_hidden_layers=8))

    def batch(count: int, device: str) -> list[Tensor]:
        return [torch.randn(count, 3, 224, 224, device=device), torch.randn(count, 512, device=device)]

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        pictures = F.normalize(model(pixel_values=x).image_embeds.float(), dim=-1)
        likeness = pictures @ F.normalize(y.float(), dim=-1).T * 14.3
        return F.cross_entropy(likeness, torch.arange(len(x), device=x.device))

    return Spec(model, batch, loss)


class _LowRank(nn.Module):
    """A frozen linear layer and a trained low-rank correction: LoRA."""

    def __init__(self, plain: nn.Linear, rank: int = 8) -> None:
        super().__init__()
        self.plain = plain
        self.down = nn.Linear(plain.in_features, rank, bias=False)
        self.up = nn.Linear(rank, plain.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.plain(x) + self.up(self.down(x)) * 2.0
        return out


def _low_rank_gpt() -> Spec:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32000, hidden_size=1024, intermediate_size=2752, num_hidden_layers=8, num_attention_heads=16,
        num_key_value_heads=16, use_cache=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for block in model.model.layers:
        for name in ("q_proj", "v_proj"):
            setattr(block.self_attn, name, _LowRank(getattr(block.self_attn, name)))
    return Spec(model, tokens(32000, 512), language_model_loss)


class _SpeechNet(nn.Module):
    """Convolutions over a spectrogram, then recurrent layers in both directions: how small recognisers are made."""

    def __init__(self, letters: int = 32) -> None:
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv2d(1, 32, (11, 41), (2, 2), (5, 20)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20),
            nn.Conv2d(32, 32, (11, 21), (1, 2), (5, 10)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20),
        )  # fmt: skip
        self.rnn = nn.GRU(32 * 20, 384, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(768, letters)

    def forward(self, sound: Tensor) -> Tensor:
        x = self.front(sound[:, None]).transpose(1, 2).flatten(2)
        out: Tensor = self.head(self.rnn(x)[0])
        return out


def _speech_net() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        return [torch.randn(count, 400, 80, device=device), torch.randint(0, 32, (count, 200), device=device)]

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        out = model(x)
        return F.cross_entropy(out.flatten(0, 1).float(), y[:, : out.shape[1]].flatten())

    return Spec(_SpeechNet(), batch, loss)


class _Translator(nn.Module):
    """An encoder and a decoder of LSTMs with dot-product attention between them."""

    def __init__(self, words: int = 12000, width: int = 512) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.encoder = nn.LSTM(width, width // 2, 2, batch_first=True, bidirectional=True, dropout=0.1)
        self.decoder = nn.LSTM(width, width, 2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(2 * width, words)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, _ = self.encoder(self.embed(source))
        state, _ = self.decoder(self.embed(target))
        weights = torch.softmax(state @ memory.transpose(1, 2) / 22.6, -1)
        out: Tensor = self.head(torch.cat([state, weights @ memory], -1))
        return out


def _translator() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        return [torch.randint(0, 12000, (count, 48), device=device) for _ in range(2)]

    def loss(model: nn.Module, source: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(model(source, target).flatten(0, 1), target.flatten())

    return Spec(_Translator(), batch, loss)


class _SuperResolution(nn.Module):
    """Residual blocks without norms, and pixel shuffling at the end."""

    def __init__(self, width: int = 80, blocks: int = 8) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, width, 3, padding=1), nn.PReLU(), nn.Conv2d(width, width, 3, padding=1)
            )
            for _ in range(blocks)
        )
        self.leave = nn.Sequential(nn.Conv2d(width, 12, 3, padding=1), nn.PixelShuffle(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for block in self.blocks:
            x = x + block(x) * 0.1
        out: Tensor = self.leave(x)
        return out


def _super_resolution() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        return [torch.randn(count, 3, 72, 72, device=device), torch.randn(count, 3, 144, 144, device=device)]

    return Spec(_SuperResolution(), batch, lambda model, x, y: F.l1_loss(model(x), y))


class _PointNet(nn.Module):
    """Points as sequences of one-wide convolutions, then the maximum over all points."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in ((3, 64), (64, 128), (128, 1024)):
            layers += [nn.Conv1d(inputs, outputs, 1), nn.BatchNorm1d(outputs), nn.ReLU()]
        self.points = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.Linear(1024, 512), nn.ReLU(), nn.Dropout(0.3), nn.Linear(512, 40))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.points(x).max(2).values)
        return out


def _point_net() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        return [torch.randn(count, 3, 2048, device=device), torch.randint(0, 40, (count,), device=device)]

    return Spec(_PointNet(), batch, _classified)


class _VolumeNet(nn.Module):
    """A small U-Net over volumes, as for medical scans."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()

        def pair(inputs: int, outputs: int) -> nn.Sequential:
            return nn.Sequential(
                nn.Conv3d(inputs, outputs, 3, padding=1), nn.InstanceNorm3d(outputs, affine=True), nn.LeakyReLU(0.01),
                nn.Conv3d(outputs, outputs, 3, padding=1), nn.InstanceNorm3d(outputs, affine=True), nn.LeakyReLU(0.01),
            )  # fmt: skip

        self.first, self.second, self.third = (
            pair(1, width),
            pair(width, 2 * width),
            pair(2 * width, 4 * width),
        )
        self.rise2 = nn.ConvTranspose3d(4 * width, 2 * width, 2, 2)
        self.rise1 = nn.ConvTranspose3d(2 * width, width, 2, 2)
        self.back2, self.back1 = pair(4 * width, 2 * width), pair(2 * width, width)
        self.leave = nn.Conv3d(width, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        one = self.first(x)
        two = self.second(F.max_pool3d(one, 2))
        three = self.third(F.max_pool3d(two, 2))
        two = self.back2(torch.cat([self.rise2(three), two], 1))
        out: Tensor = self.leave(self.back1(torch.cat([self.rise1(two), one], 1)))
        return out


def _volume_net() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        return [
            torch.randn(count, 1, 48, 48, 48, device=device),
            torch.randint(0, 3, (count, 48, 48, 48), device=device),
        ]

    return Spec(_VolumeNet(), batch, _classified)


class _Graphs(nn.Module):
    """Message passing: gather along edges, add up at the nodes."""

    def __init__(self, features: int = 64, width: int = 256) -> None:
        super().__init__()
        self.enter = nn.Linear(features, width)
        self.messages = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(3))
        self.head = nn.Linear(width, 7)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = self.enter(x)
        for message, norm in zip(self.messages, self.norms, strict=True):
            sent = F.relu(message(torch.cat([x[edges[0]], x[edges[1]]], -1)))
            x = norm(x + torch.zeros_like(x).index_add(0, edges[1], sent.to(x.dtype)))
        out: Tensor = self.head(x)
        return out


def _graphs() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        nodes, edges = 100 * count, 800 * count
        return [
            torch.randn(nodes, 64, device=device),
            torch.randint(0, nodes, (2, edges), device=device),
            torch.randint(0, 7, (nodes,), device=device),
        ]

    return Spec(_Graphs(), batch, lambda model, x, edges, y: F.cross_entropy(model(x, edges), y))


class _Distilled(nn.Module):
    """A small network that learns from a large one that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        models = torchvision().models
        self.teacher = models.resnet50(weights=None).requires_grad_(False)
        self.student = models.resnet18(weights=None)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            taught = self.teacher(x)
        return self.student(x), taught


def _distilled() -> Spec:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        out, taught = model(x)
        softened = F.kl_div(
            F.log_softmax(out / 4, -1), F.log_softmax(taught / 4, -1), log_target=True, reduction="batchmean"
        )
        return F.cross_entropy(out, y) + softened

    return Spec(_Distilled(), _pictures(160, 1000), loss)


class _Critic(nn.Module):
    """A discriminator of pictures with spectral norms."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        normed: Any = nn.utils.parametrizations.spectral_norm
        layers: list[nn.Module] = []
        for inputs, outputs in (
            (3, width),
            (width, 2 * width),
            (2 * width, 4 * width),
            (4 * width, 8 * width),
        ):
            layers += [normed(nn.Conv2d(inputs, outputs, 4, 2, 1)), nn.LeakyReLU(0.2)]
        self.body = nn.Sequential(*layers, nn.Flatten(), normed(nn.Linear(8 * width * 64, 1)))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x)
        return out


def _critic() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        return [torch.randn(count, 3, 128, 128, device=device)]

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        """A critic's loss with a penalty on its gradient: the graph is walked twice."""
        x = x.requires_grad_(True)
        out = model(x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        penalty: Tensor = (slope.flatten(1).norm(2, dim=1) - 1).pow(2).mean()
        return out.mean() + 10 * penalty

    return Spec(_Critic(), batch, loss)


class _Stack(nn.Module):
    """Many equal blocks, recomputed in four pieces where checkpointing is on (the older, re-entrant kind)."""

    def __init__(self, width: int = 1024, depth: int = 16) -> None:
        super().__init__()
        self.blocks = nn.Sequential(
            *(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))
              for _ in range(depth))
        )  # fmt: skip
        self.checkpointing = False

    def gradient_checkpointing_enable(self) -> None:
        self.checkpointing = True

    def forward(self, x: Tensor) -> Tensor:
        if self.checkpointing:
            out: Tensor = checkpoint_sequential(self.blocks, 4, x.requires_grad_(True), use_reentrant=True)
            return out
        whole: Tensor = self.blocks(x)
        return whole


def _stack() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        return [torch.randn(count, 64, 1024, device=device), torch.randn(count, 64, 1024, device=device)]

    return Spec(_Stack(), batch, lambda model, x, y: F.smooth_l1_loss(model(x), y))


class _TextConvolutions(nn.Module):
    def __init__(self, words: int = 30000, width: int = 300) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width, sparse=False)
        self.reads = nn.ModuleList(nn.Conv1d(width, 256, size, padding=size // 2) for size in (3, 4, 5))
        self.head = nn.Linear(768, 20)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids).transpose(1, 2)
        found = [F.relu(read(x)).amax(2) for read in self.reads]
        out: Tensor = self.head(F.dropout(torch.cat(found, 1), 0.5, self.training))
        return out


def _text_convolutions() -> Spec:
    return Spec(_TextConvolutions(), tokens_and_class(30000, 400, 20), _classified)


FURTHER: dict[str, Callable[[], Spec]] = {
    **{
        name: (lambda name=name: vision(name))  # type: ignore[misc]
        for name in ("resnet101", "squeezenet1_1", "mnasnet1_0", "alexnet", "vgg11_bn", "densenet169", "mobilenet_v3_small",
                     "regnet_y_400mf", "convnext_small")
    },
    "efficientnet_b1": lambda: vision("efficientnet_b1", size=240),
    "swin_v2_t": lambda: vision("swin_v2_t", size=256),
    "maxvit_t": lambda: vision("maxvit_t"),
    "googlenet": _googlenet,
    "video_resnet18": _video,
    "lraspp": _lraspp,
    "opt": _opt,
    "qwen2": _qwen2,
    "pythia": _pythia,
    "albert": _albert,
    "clip_vision": _clip_vision,
    "low_rank_llama": _low_rank_gpt,
    "speech_net": _speech_net,
    "translator": _translator,
    "super_resolution": _super_resolution,
    "point_net": _point_net,
    "volume_net": _volume_net,
    "graphs": _graphs,
    "distilled": _distilled,
    "critic": _critic,
    "stack": _stack,
    "text_convolutions": _text_convolutions,
}  # fmt: skip
