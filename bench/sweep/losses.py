"""Sweep cases: the losses of torch.nn with every reduction, weights, label smoothing, ignored and soft targets."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from bench.sweep.kit import Case, Kit, table, variants

ROWS = ((37, 50), (4096, 257), (100000, 12), (1000, 30000))
REDUCTIONS = ("mean", "sum", "none")


def cases() -> Iterator[Case]:
    for reduction in REDUCTIONS:
        entries = {f"{name}-{reduction}": action for name, action in _losses(reduction).items()}
        yield from table(entries, ROWS if reduction == "mean" else ROWS[:2])
        single = {f"{name}-{reduction}": action for name, action in _in_single(reduction).items()}
        yield from table(single, ROWS if reduction == "mean" else ROWS[:2], half=False, autocast=False)
    yield from table(_COMBINED, ROWS[:3])
    yield from variants(
        "multilabel_margin_loss",
        lambda k: F.multilabel_margin_loss(k.x, k.ints(k.shape[1], *k.shape)),
        ((37, 50), (4096, 30)),
        half=False,
        autocast=False,
    )  # fmt: skip  (the square of the classes)
    for length, batch, classes, targets in ((20, 4, 12, 5), (150, 24, 60, 25), (400, 16, 1000, 60)):
        yield from variants(f"ctc-{targets}", lambda k, t=targets: _ctc(k, t), ((length, batch, classes),), half=False)  # fmt: skip
        yield from variants(f"ctc-native-{targets}", lambda k, t=targets: _ctc(k, t, host=False), ((length, batch, classes),), half=False, layouts=False)  # fmt: skip


def _ctc(k: Kit, targets: int, host: bool = True) -> Any:
    length, batch, classes = k.shape
    device = "cpu" if host else "cuda"
    sizes = (torch.full((batch,), length, device=device), torch.full((batch,), targets, device=device))
    return F.ctc_loss(
        k.x.log_softmax(2), k.ints(classes - 1, batch, targets) + 1, *sizes, zero_infinity=not host
    )


def _classes(k: Kit) -> Any:
    return k.ints(k.shape[1], k.shape[0])


def _other(k: Kit) -> Any:
    return k.plain(*k.shape, grad=False)


def _sign(k: Kit, *shape: int) -> Any:
    return k.mask(*shape).to(k.dtype) * 2 - 1


def _losses(r: str) -> dict[str, Any]:
    return {
        "cross_entropy": lambda k: F.cross_entropy(k.x, _classes(k), reduction=r),
        "cross_entropy-smooth": lambda k: F.cross_entropy(k.x, _classes(k), reduction=r, label_smoothing=0.1),
        "cross_entropy-weighted": lambda k: F.cross_entropy(k.x, _classes(k), k.plain(k.shape[1], grad=False), reduction=r),
        "cross_entropy-weighted-smooth": lambda k: F.cross_entropy(k.x, _classes(k), k.plain(k.shape[1], grad=False), reduction=r, label_smoothing=0.1),
        "cross_entropy-ignoring": lambda k: F.cross_entropy(k.x, _classes(k) - 1, ignore_index=-1, reduction=r),
        "cross_entropy-probable": lambda k: F.cross_entropy(k.x, _other(k).softmax(1), reduction=r),
        "cross_entropy-probable-smooth": lambda k: F.cross_entropy(k.x, _other(k).softmax(1), reduction=r, label_smoothing=0.1),
        "cross_entropy-single": lambda k: F.cross_entropy(k.x.float(), _classes(k), reduction=r),
        "nll_loss": lambda k: F.nll_loss(k.x.log_softmax(1), _classes(k), reduction=r),
        "mse_loss": lambda k: F.mse_loss(k.x, _other(k), reduction=r),
        "mse_loss-weighted": lambda k: (F.mse_loss(k.x, _other(k), reduction="none") * k.plain(k.shape[0], 1, grad=False)).mean(),
        "mse_loss-both": lambda k: F.mse_loss(k.x, k.plain(*k.shape), reduction=r),
        "l1_loss": lambda k: F.l1_loss(k.x, _other(k), reduction=r),
        "l1_loss-both": lambda k: F.l1_loss(k.x, k.plain(*k.shape), reduction=r),
        "smooth_l1_loss": lambda k: F.smooth_l1_loss(k.x, _other(k), reduction=r),
        "huber_loss": lambda k: F.huber_loss(k.x, _other(k), reduction=r),
        "bce_with_logits": lambda k: F.binary_cross_entropy_with_logits(k.x, _other(k).sigmoid(), reduction=r),
        "bce_with_logits-weighted": lambda k: F.binary_cross_entropy_with_logits(k.x, _other(k).sigmoid(), weight=k.plain(k.shape[1], grad=False), reduction=r),
        "bce_with_logits-positive": lambda k: F.binary_cross_entropy_with_logits(k.x, _other(k).sigmoid(), pos_weight=k.plain(k.shape[1], grad=False), reduction=r),
        "kl_div": lambda k: F.kl_div(k.x.log_softmax(1), _other(k).softmax(1), reduction="batchmean" if r == "mean" else r),
        "kl_div-log": lambda k: F.kl_div(k.x.log_softmax(1), _other(k).log_softmax(1), reduction=r, log_target=True),
        "poisson_nll_loss": lambda k: F.poisson_nll_loss(k.x, _other(k).abs(), reduction=r),
        "poisson_nll_loss-full": lambda k: F.poisson_nll_loss(k.x, _other(k).abs(), full=True, reduction=r),
        "gaussian_nll_loss": lambda k: F.gaussian_nll_loss(k.x, _other(k), k.plain(*k.shape).exp(), reduction=r),
        "soft_margin_loss": lambda k: F.soft_margin_loss(k.x, _sign(k, *k.shape), reduction=r),
        "multilabel_soft_margin_loss": lambda k: F.multilabel_soft_margin_loss(k.x, k.mask(*k.shape).to(k.dtype), reduction=r),
        "hinge_embedding_loss": lambda k: F.hinge_embedding_loss(k.x, _sign(k, *k.shape), reduction=r),
        "margin_ranking_loss": lambda k: F.margin_ranking_loss(k.x[:, 0], k.plain(k.shape[0]), _sign(k, k.shape[0]), reduction=r),
        "cosine_embedding_loss": lambda k: F.cosine_embedding_loss(k.x, k.plain(*k.shape), _sign(k, k.shape[0]), reduction=r),
        "triplet_margin_loss": lambda k: F.triplet_margin_loss(k.x, k.plain(*k.shape), k.plain(*k.shape), reduction=r),
        "triplet_margin_loss-swap": lambda k: F.triplet_margin_loss(k.x, k.plain(*k.shape), k.plain(*k.shape), swap=True, reduction=r),
        "triplet_margin_with_distance_loss": lambda k: nn.TripletMarginWithDistanceLoss(reduction=r)(k.x, k.plain(*k.shape), k.plain(*k.shape)),
    }  # fmt: skip


def _in_single(r: str) -> dict[str, Any]:
    return {
        "binary_cross_entropy": lambda k: F.binary_cross_entropy(k.x.sigmoid(), _other(k).sigmoid(), reduction=r),
        "binary_cross_entropy-weighted": lambda k: F.binary_cross_entropy(k.x.sigmoid(), _other(k).sigmoid(), weight=k.plain(k.shape[0], 1, grad=False).abs(), reduction=r),
        "multi_margin_loss": lambda k: F.multi_margin_loss(k.x, _classes(k), reduction=r),
    }  # fmt: skip


def _focal(k: Kit) -> Any:
    each = F.binary_cross_entropy_with_logits(k.x, k.mask(*k.shape).to(k.dtype), reduction="none")
    chance = torch.exp(-each)
    return ((1 - chance) ** 2 * each).mean()


def _contrastive(k: Kit) -> Any:
    one, other = (
        F.normalize(part, dim=-1) for part in (k.x[:1000], k.plain(min(1000, k.shape[0]), k.shape[1]))
    )
    logits = one @ other.t() / 0.07
    target = torch.arange(len(one), device="cuda")
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target)) / 2


def _supervised(k: Kit) -> Any:
    rows = F.normalize(k.x[:700], dim=1)
    scores = rows @ rows.t() / 0.1
    scores = scores - scores.amax(1, keepdim=True).detach()
    labels = k.ints(10, len(rows))
    same = (labels[:, None] == labels[None]).to(k.dtype)
    chance = scores - scores.exp().sum(1, keepdim=True).log()
    return -(same * chance).sum(1).div(same.sum(1)).mean()


def _quantiles(k: Kit) -> Any:
    error = _other(k)[..., None] - k.x[..., None] * torch.tensor(
        [0.1, 0.5, 0.9], device="cuda", dtype=k.dtype
    )
    return torch.maximum(error * 0.9, -error * 0.1).mean()


_COMBINED: dict[str, Any] = {
    "focal": _focal,
    "contrastive": _contrastive,
    "supervised-contrastive": _supervised,
    "quantiles": _quantiles,
    "dice": lambda k: 1 - (2 * (k.x.sigmoid() * k.mask(*k.shape)).sum() + 1) / (k.x.sigmoid().sum() + k.mask(*k.shape).sum() + 1),
    "distilled": lambda k: F.kl_div((k.x / 4).log_softmax(1), (_other(k) / 4).softmax(1), reduction="batchmean") * 16 + F.cross_entropy(k.x, _classes(k)),
    "charbonnier": lambda k: torch.sqrt((k.x - _other(k)) ** 2 + 1e-6).mean(),
    "log-cosh": lambda k: torch.log(torch.cosh((k.x - _other(k)).clamp(-10, 10))).mean(),
    "entropy": lambda k: -(k.x.softmax(1) * k.x.log_softmax(1)).sum(1).mean(),
    "label-chances": lambda k: k.x.log_softmax(1).gather(1, _classes(k)[:, None]).mean(),
    "kl-to-normal": lambda k: -0.5 * (1 + k.x - k.plain(*k.shape) ** 2 - k.x.exp()).sum(1).mean(),
    "reparametrized": lambda k: k.plain(*k.shape) + torch.randn_like(k.x) * (0.5 * k.x).exp(),
    "hinge": lambda k: F.relu(1 - k.x).mean() + F.relu(1 + k.plain(*k.shape)).mean(),
    "clipped-policy": lambda k: -torch.min(k.x.exp() * _other(k), k.x.exp().clamp(0.8, 1.2) * _other(k)).mean(),
    "z-loss": lambda k: k.x.logsumexp(-1).pow(2).mean(),
    "barlow": lambda k: (((k.x - k.x.mean(0)) / (k.x.std(0) + 1e-5)).t() @ k.plain(*k.shape) / k.shape[0]).pow(2).sum(),
}  # fmt: skip
