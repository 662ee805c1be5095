"""Sweep cases: small compositions of operations, such as routing, codebooks, graphs, scans, boxes, alignments and
initialization.

A prediction may be correct for single operations and wrong for their combination, because of accumulated gradients,
retained views and shared casts.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.lib.models.parts import torchvision
from bench.sweep.kit import Case, Kit, custom_case, table

TOKENS = ((2, 9, 32), (16, 128, 256), (8, 500, 192))
ROWS = ((40, 32), (3000, 128), (30000, 64))


def cases() -> Iterator[Case]:
    yield from table(_ON_TOKENS, TOKENS, layouts=False)
    yield from table(_ON_ROWS, ROWS, layouts=False)
    yield from _initial_values()
    yield from _boxes()


def _experts(k: Kit) -> Any:
    """Run two of four experts per token, chosen by a router."""
    width = k.shape[-1]
    x = k.x.reshape(-1, width)
    weights, places = k.layer(nn.Linear, width, 4)(x).softmax(-1).topk(2, -1)
    out = torch.zeros_like(x)
    for number in range(4):
        expert = nn.Sequential(
            k.layer(nn.Linear, width, 2 * width), nn.SiLU(), k.layer(nn.Linear, 2 * width, width)
        )
        share = (weights * (places == number)).sum(-1, keepdim=True)
        out = out + expert(x) * share.to(x.dtype)
    return out.view(k.shape)


def _codebook(k: Kit) -> Any:
    """Return the nearest of 256 vectors with a straight-through gradient."""
    x = k.x.reshape(-1, k.shape[-1]).float()
    book = k.plain(256, k.shape[-1], dtype=torch.float32)
    nearest = (x.pow(2).sum(1, keepdim=True) - 2 * x @ book.t() + book.pow(2).sum(1)).argmin(1)
    taken = F.embedding(nearest, book)
    return x + (taken - x).detach(), F.mse_loss(taken, x.detach()) + 0.25 * F.mse_loss(x, taken.detach())


def _selective_scan(k: Kit) -> Any:
    """Return a linear recurrence with one factor per step."""
    state = torch.zeros(k.shape[0], k.shape[2], 8, device="cuda", dtype=k.dtype)
    decay = k.plain(k.shape[2], 8).sigmoid()
    outs = []
    for step in range(min(9, k.shape[1])):
        state = state * decay + k.x[:, step, :, None] * k.plain(8)
        outs.append(state.sum(-1))
    return torch.stack(outs, 1)


def _alignment(k: Kit) -> Any:
    """Return the forward algorithm of a conditional random field."""
    scores = k.layer(nn.Linear, k.shape[2], 12)(k.x).float()
    moves = k.plain(12, 12, dtype=torch.float32)
    forward = scores[:, 0]
    for step in range(1, min(10, k.shape[1])):
        forward = torch.logsumexp(forward[:, :, None] + moves + scores[:, step, None], 1)
    return torch.logsumexp(forward, 1).mean()


def _cached_keys(k: Kit) -> Any:
    """Run autoregressive decoding with a growing key-value cache."""
    keys = values = None
    out: Any = None
    with torch.no_grad():
        for step in range(min(8, k.shape[1])):
            q = k.x[:, step : step + 1].view(k.shape[0], 1, 4, -1).transpose(1, 2)
            keys = q if keys is None else torch.cat([keys, q], 2)
            values = q if values is None else torch.cat([values, q], 2)
            out = F.scaled_dot_product_attention(q, keys, values)
    return out


def _reversed(k: Kit) -> Any:
    class Reverse(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return -gradients[0]

    return k.layer(nn.Linear, k.shape[-1], 2)(Reverse.apply(k.x.mean(1)))


def _loop_of_layers(k: Kit) -> Any:
    x = k.x
    for _ in range(3):
        norm, up, down = (
            k.layer(nn.LayerNorm, k.shape[-1]),
            k.layer(nn.Linear, k.shape[-1], 64),
            k.layer(nn.Linear, 64, k.shape[-1]),
        )
        x = x + F.dropout(down(F.gelu(up(norm(x)))), 0.1)
    return x


def _shared_layer(k: Kit) -> Any:
    layer = k.layer(nn.Linear, k.shape[-1], k.shape[-1])
    return layer(torch.tanh(layer(torch.tanh(layer(k.x)))))


def _dense_joins(k: Kit) -> Any:
    found = [k.x]
    for _ in range(3):
        joined = torch.cat(found, -1)
        found.append(F.relu(k.layer(nn.Linear, joined.shape[-1], 32)(joined)))
    return torch.cat(found, -1)


def _patches_masked(k: Kit) -> Any:
    """Mask three quarters of the tokens by replacing them with one learned token."""
    batch, length, width = k.shape
    order = torch.rand(batch, length, device="cuda").argsort(1)
    back = order.argsort(1)
    kept = order[:, : max(1, length // 4)]
    seen = torch.gather(k.x, 1, kept[..., None].expand(-1, -1, width))
    seen = k.layer(nn.Linear, width, width)(seen)
    blank = k.plain(1, 1, width).expand(batch, length - kept.shape[1], -1)
    full = torch.cat([seen, blank.to(seen.dtype)], 1)
    return torch.gather(full, 1, back[..., None].expand(-1, -1, width))


_ON_TOKENS: dict[str, Any] = {
    "experts": _experts,
    "codebook": _codebook,
    "selective-scan": _selective_scan,
    "alignment": _alignment,
    "cached-keys": _cached_keys,
    "reversed-gradient": _reversed,
    "loop-of-layers": _loop_of_layers,
    "shared-layer": _shared_layer,
    "dense-joins": _dense_joins,
    "patches-masked": _patches_masked,
    "tied-logits": lambda k: F.cross_entropy((k.x @ k.plain(3000, k.shape[-1]).t()).flatten(0, 1), k.ints(3000, k.shape[0] * k.shape[1])),
    "shifted-logits": lambda k: F.cross_entropy(k.layer(nn.Linear, k.shape[-1], 3000)(k.x)[:, :-1].reshape(-1, 3000), k.ints(3000, k.shape[0] * (k.shape[1] - 1)), ignore_index=0),
    "logits-in-single": lambda k: F.cross_entropy(k.layer(nn.Linear, k.shape[-1], 3000, bias=False)(k.x).float().flatten(0, 1), k.ints(3000, k.shape[0] * k.shape[1])),
    "class-weights": lambda k: F.cross_entropy(k.layer(nn.Linear, k.shape[-1], 10)(k.x).transpose(1, 2), k.ints(10, *k.shape[:2]), weight=torch.ones(10, device="cuda", dtype=torch.float32)) if k.dtype == torch.float32 else None,
    "pooled-by-attention": lambda k: (k.layer(nn.Linear, k.shape[-1], 1)(k.x).softmax(1) * k.x).sum(1),
    "masked-pool": lambda k: k.x.masked_fill(k.mask(*k.shape[:2], 1), 0).sum(1) / 5,
    "convolved-tokens": lambda k: F.conv1d(k.x.transpose(1, 2), k.plain(k.shape[2], 1, 3), padding=1, groups=k.shape[2]).transpose(1, 2),
    "cross-of-fields": lambda k: (k.x.sum(1) ** 2 - (k.x**2).sum(1)).sum(-1),
    "pairs-of-fields": lambda k: torch.bmm(k.x[:, :40], k.x[:, :40].transpose(1, 2))[:, *torch.triu_indices(min(40, k.shape[1]), min(40, k.shape[1]), 1, device="cuda")],
    "lstm-over-tokens": lambda k: k.layer(nn.Linear, 64, 10)(k.layer(nn.LSTM, k.shape[-1], 64, batch_first=True)(k.x)[0]),
    "gru-then-attention": lambda k: F.scaled_dot_product_attention(*(k.layer(nn.GRU, k.shape[-1], 64, batch_first=True)(k.x)[0],) * 3),
    "teacher": lambda k: F.mse_loss(k.layer(nn.Linear, k.shape[-1], 64)(k.x), k.layer(nn.Linear, k.shape[-1], 64).requires_grad_(False)(k.x.detach())),
}  # fmt: skip


def _graph(k: Kit) -> tuple[Tensor, Tensor]:
    return k.ints(k.shape[0], 4 * k.shape[0]), k.ints(k.shape[0], 4 * k.shape[0])


def _messages(k: Kit) -> Any:
    source, target = _graph(k)
    made = F.relu(k.layer(nn.Linear, 2 * k.shape[1], 48)(torch.cat([k.x[source], k.x[target]], 1)))
    return torch.zeros(k.shape[0], 48, device="cuda", dtype=made.dtype).index_add(0, target, made)


def _graph_attention(k: Kit) -> Any:
    source, target = _graph(k)
    h = k.layer(nn.Linear, k.shape[1], 32)(k.x)
    score = F.leaky_relu((h[source] * k.plain(32)).sum(1) + (h[target] * k.plain(32)).sum(1), 0.2).float()
    top = torch.full((k.shape[0],), -1e9, device="cuda").scatter_reduce(0, target, score, "amax")
    score = (score - top[target].detach()).exp()
    total = torch.zeros(k.shape[0], device="cuda").index_add(0, target, score)
    share = (score / total[target].clamp(min=1e-9)).to(h.dtype)
    return torch.zeros_like(h).index_add(0, target, h[source] * share[:, None])


def _mixture_density(k: Kit) -> Any:
    out = k.layer(nn.Linear, k.shape[1], 15)(k.x)
    chance, mean, deviation = out.float().chunk(3, 1)
    each = torch.distributions.Normal(mean, deviation.exp()).log_prob(
        k.plain(k.shape[0], 1, grad=False, dtype=torch.float32)
    )
    return -torch.logsumexp(chance.log_softmax(1) + each, 1).mean()


def _coupling(k: Kit) -> Any:
    half = k.shape[1] // 2
    kept, changed = k.x[:, :half], k.x[:, half:]
    scale, shift = k.layer(nn.Linear, half, 2 * (k.shape[1] - half))(kept).chunk(2, 1)
    return torch.cat([kept, changed * torch.tanh(scale).exp() + shift], 1), torch.tanh(scale).sum(1)


def _sinkhorn(k: Kit) -> Any:
    cost = torch.cdist(k.x[:300].float(), k.plain(200, k.shape[1]).float())
    f, g = torch.zeros(len(cost), device="cuda"), torch.zeros(200, device="cuda")
    for _ in range(4):
        f = -torch.logsumexp(g - cost, 1)
        g = -torch.logsumexp(f[:, None] - cost, 0)
    return (torch.exp(f[:, None] + g - cost) * cost).sum()


def _harmonics(k: Kit) -> Any:
    angles = (k.x[..., None] * 2.0 ** torch.arange(6, device="cuda")).flatten(1)
    return k.layer(nn.Linear, 12 * k.shape[1], 32)(torch.cat([angles.sin(), angles.cos()], 1).to(k.dtype))


def _physics(k: Kit) -> Any:
    """Return the second derivative of a network with respect to its input."""
    x = k.plain(min(k.shape[0], 2000), 2, dtype=torch.float32)
    net = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)).cuda()
    u = net(x)
    (first,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first[:, 0].sum(), x, create_graph=True)
    return (first[:, 1] - second[:, 0]).pow(2).mean()


_ON_ROWS: dict[str, Any] = {
    "messages": _messages,
    "graph-attention": _graph_attention,
    "mixture-density": _mixture_density,
    "coupling": _coupling,
    "sinkhorn": _sinkhorn,
    "harmonics": _harmonics,
    "physics": _physics,
    "double-q": lambda k: F.smooth_l1_loss(k.layer(nn.Linear, k.shape[1], 6)(k.x).gather(1, k.ints(6, k.shape[0], 1)), (k.layer(nn.Linear, k.shape[1], 6)(k.x).max(1, keepdim=True)[0] * 0.99).detach()),
    "actor-critic": lambda k: _actor_critic(k),
    "memory-queue": lambda k: _memory_queue(k),
    "margin-softmax": lambda k: F.cross_entropy(30 * (F.normalize(k.x, dim=1) @ F.normalize(k.plain(500, k.shape[1]), dim=1).t() - 0.3 * F.one_hot(k.ints(500, k.shape[0]), 500).to(k.dtype)), k.ints(500, k.shape[0])),
    "wide-and-deep": lambda k: k.layer(nn.Linear, 64, 1)(torch.cat([k.layer(nn.Embedding, 1000, 8)(k.ints(1000, k.shape[0], 4)).flatten(1), k.layer(nn.Linear, k.shape[1], 32)(k.x)], 1).relu()).squeeze(1),
    "quantized-weights": lambda k: F.linear(k.x, _rounded(k.plain(64, k.shape[1]))),
    "mixup": lambda k: (0.3 * k.x + 0.7 * k.x[torch.randperm(k.shape[0], device="cuda")]).pow(2).mean(),
}  # fmt: skip


def _actor_critic(k: Kit) -> Any:
    hidden = torch.tanh(k.layer(nn.Linear, k.shape[1], 64)(k.x))
    policy = torch.distributions.Categorical(logits=k.layer(nn.Linear, 64, 6)(hidden).float())
    value = k.layer(nn.Linear, 64, 1)(hidden).squeeze(1).float()
    action = policy.sample()
    advantage = k.plain(k.shape[0], grad=False, dtype=torch.float32) - value.detach()
    return (
        -(policy.log_prob(action) * advantage).mean() + value.pow(2).mean() - 0.01 * policy.entropy().mean()
    )


def _memory_queue(k: Kit) -> Any:
    queue = F.normalize(torch.randn(k.shape[1], 4096, device="cuda"), dim=0)
    q, key = (
        F.normalize(k.layer(nn.Linear, k.shape[1], k.shape[1])(k.x[:256]).float(), dim=1),
        F.normalize(k.x[:256].detach().float(), dim=1),
    )
    logits = torch.cat([(q * key).sum(1, keepdim=True), q @ queue.clone()], 1) / 0.07
    queue[:, : len(key)] = key.t()
    return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long, device="cuda"))


def _rounded(weight: Tensor) -> Tensor:
    scale = weight.abs().amax(1, keepdim=True) / 7
    return weight + ((weight / scale).round().clamp(-8, 7) * scale - weight).detach()


def _initial_values() -> Iterator[Case]:
    for name, shape in itertools.product(
        ("xavier_uniform_", "xavier_normal_", "kaiming_uniform_", "kaiming_normal_", "orthogonal_", "trunc_normal_", "eye_", "dirac_", "sparse_"),
        ((64, 64), (700, 300), (3000, 64)),
    ):  # fmt: skip
        if name == "dirac_":
            shape = (*shape, 3)
        options = {"sparsity": 0.5} if name == "sparse_" else {}
        yield custom_case(name, "x".join(map(str, shape)), lambda n=name, s=shape, o=options: getattr(nn.init, n)(torch.empty(s, device="cuda"), **o))  # fmt: skip


def _boxes() -> Iterator[Case]:
    """Yield operations of torchvision. The operations are skipped if torchvision is not installed."""
    try:
        ops: Any = torchvision().ops
    except ImportError:
        return

    def boxes(count: int, grad: bool = True) -> Tensor:
        corner = torch.rand(count, 2, device="cuda", requires_grad=grad) * 50
        return torch.cat([corner, corner + torch.rand(count, 2, device="cuda") * 30 + 1], 1)

    def picture(dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(2, 64, 64, 64, device="cuda", dtype=dtype, requires_grad=True)

    def regions(count: int) -> Tensor:
        return torch.cat([torch.randint(0, 2, (count, 1), device="cuda").float(), boxes(count, False)], 1)

    actions: dict[str, Any] = {
        "box_iou": lambda n: ops.box_iou(boxes(n), boxes(50)).sum().backward(),
        "generalized_box_iou": lambda n: ops.generalized_box_iou(boxes(n), boxes(50)).sum().backward(),
        "giou_loss": lambda n: ops.generalized_box_iou_loss(boxes(n), boxes(n)).sum().backward(),
        "ciou_loss": lambda n: ops.complete_box_iou_loss(boxes(n), boxes(n)).sum().backward(),
        "sigmoid_focal_loss": lambda n: ops.sigmoid_focal_loss(torch.randn(n, 80, device="cuda", requires_grad=True), torch.rand(n, 80, device="cuda").round(), reduction="mean").backward(),
        "roi_align": lambda n: ops.roi_align(picture(), regions(n), 7, 1.0, 2).sum().backward(),
        "roi_align-half": lambda n: ops.roi_align(picture(torch.float16), regions(n).half(), 7, 1.0, 2).sum().backward(),
        "roi_pool": lambda n: ops.roi_pool(picture(), regions(n), 7).sum().backward(),
        "ps_roi_align": lambda n: ops.ps_roi_align(picture(), regions(n), 4).sum().backward(),
        "deform_conv2d": lambda n: ops.DeformConv2d(64, 32, 3, padding=1).cuda()(picture(), torch.randn(2, 18, 64, 64, device="cuda", requires_grad=True)).sum().backward(),
        "stochastic_depth": lambda n: ops.stochastic_depth(picture(), 0.2, "row").sum().backward(),
        "drop_block": lambda n: ops.drop_block2d(picture(), 0.2, 5).sum().backward(),
        "squeeze_excitation": lambda n: ops.SqueezeExcitation(64, 16).cuda()(picture()).sum().backward(),
        "frozen_batch_norm": lambda n: ops.FrozenBatchNorm2d(64).cuda()(picture()).sum().backward(),
        "nms": lambda n: ops.nms(boxes(n, False), torch.rand(n, device="cuda"), 0.5),
        "batched_nms": lambda n: ops.batched_nms(boxes(n, False), torch.rand(n, device="cuda"), torch.randint(0, 9, (n,), device="cuda"), 0.5),
    }  # fmt: skip
    for (name, action), count in itertools.product(actions.items(), (60, 4000)):
        yield custom_case(name, str(count), lambda a=action, n=count: a(n))
