"""A ResNet-50 and a GPT without dropout, so that two ways of training can be compared exactly."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Bottleneck(nn.Module):
    """A block of three convolutions with a residual connection."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1, self.norm1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3, self.norm3 = nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.norm1(self.conv1(x)))
        out = self.relu(self.norm2(self.conv2(out)))
        out = self.norm3(self.conv3(out))
        out += self.shortcut(x)
        result: Tensor = self.relu(out)
        return result


class ResNet50(nn.Module):
    """ResNet-50 with the stride in the 3 × 3 convolution."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, padding=3, bias=False)
        self.norm1, self.relu = nn.BatchNorm2d(64), nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(3, 2, padding=1)
        inputs = 64
        for number, (width, blocks, stride) in enumerate(
            ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)), 1
        ):
            layer = []
            for block in range(blocks):
                layer.append(Bottleneck(inputs, width, stride if block == 0 else 1))
                inputs = 4 * width
            setattr(self, f"layer{number}", nn.Sequential(*layer))
        self.average, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.relu(self.norm1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        result: Tensor = self.head(self.average(x).flatten(1))
        return result


class Block(nn.Module):
    """Causal attention and a feed-forward layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        count, length, width = x.shape
        q, k, v = (
            each.view(count, length, self.heads, width // self.heads).transpose(1, 2)
            for each in self.qkv(self.norm1(x)).split(width, 2)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(count, length, width))
        result: Tensor = x + self.feed(self.norm2(x))
        return result


class GPT(nn.Module):
    """A GPT. With `tied`, the head shares its weights with the embedding."""

    def __init__(
        self, layers: int, width: int, heads: int, vocabulary: int, length: int, *, tied: bool = False
    ) -> None:
        super().__init__()
        self.length = length
        self.embed, self.place = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.shape[1]
        assert length <= self.length, f"{length} tokens are more than {self.length}"
        x = self.embed(ids) + self.place(torch.arange(length, device=ids.device))
        for block in self.blocks:
            x = block(x)
        result: Tensor = self.head(self.norm(x))
        return result


def image_batch(rows: int, size: int = 224, classes: int = 1000) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, 3, size, size), torch.randint(0, classes, (rows,))


def text_batch(rows: int, length: int, vocabulary: int) -> tuple[Tensor, Tensor]:
    ids = torch.randint(0, vocabulary, (rows, length + 1))
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def token_loss(output: Tensor, target: Tensor) -> Tensor:
    """Return the cross-entropy over classes or over tokens."""
    return F.cross_entropy(output.flatten(0, -2), target.flatten())
