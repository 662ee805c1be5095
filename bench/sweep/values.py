"""Sweep cases: elementwise operations, reductions, sorting, indexing, shapes and copies."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from bench.sweep.kit import Case, Kit, table, variants

MATRICES = ((37, 50), (4096, 257), (100000, 64), (48, 90000))
FEW = ((37, 50), (3000, 700))
CUBES = ((7, 9, 33), (64, 300, 128), (512, 50, 256))
WHOLE = ("int64", "bool", "uint8")


def cases() -> Iterator[Case]:
    yield from table(_ELEMENTWISE, FEW)
    yield from table(_ALL_TYPES, FEW, integers=WHOLE)
    yield from table(_SPECIAL, FEW, half=False, autocast=False)
    yield from table(_REDUCTIONS, MATRICES)
    yield from table(_COUNTS, MATRICES, integers=WHOLE)
    yield from table(_SOLID, CUBES)
    yield from table(_ORDERS, (*MATRICES, (1, 700000), (20000, 600)))
    yield from table(_ORDERS_IN_SINGLE, FEW, half=False, autocast=False)
    yield from table(_PLACES, (*FEW, (60000, 40)))
    yield from table(_SHAPES, FEW, integers=("int64",))
    yield from table(_COPIES, FEW)
    for name, action in _OF_NUMBERS.items():
        yield from variants(name, action, ((1000,), (400000,), (3000000,)), half=False, layouts=False, autocast=False)  # fmt: skip


def _fill(k: Kit) -> Any:
    x = k.x * 2
    x[k.mask(*k.shape)] = 0.0
    return x


def _assigned(k: Kit) -> Any:
    x = k.x * 2
    x[: k.shape[0] // 2] = k.plain(k.shape[0] // 2, *k.shape[1:])
    return x


def _each(function: Any) -> Any:
    return lambda k: function(k.x)


_ELEMENTWISE: dict[str, Any] = {
    **{
        name: _each(getattr(torch, name))
        for name in (
            "exp", "expm1", "sin", "tan", "tanh", "sigmoid", "erf", "sqrt", "rsqrt", "reciprocal", "log", "log1p", "log2", "square",
            "sinh", "atan", "asinh", "floor", "round", "frac", "trunc", "sign", "deg2rad", "nan_to_num", "sinc", "logit", "lgamma", "digamma",
        )
    },
    **{
        name: _each(getattr(F, name))
        for name in (
            "relu", "relu6", "elu", "selu", "celu", "gelu", "silu", "mish", "softplus", "softsign", "tanhshrink", "hardtanh", "hardswish",
            "hardsigmoid", "hardshrink", "softshrink", "leaky_relu", "logsigmoid",
        )
    },
    "threshold": lambda k: F.threshold(k.x, 0.1, 0.0),
    "gelu-tanh": lambda k: F.gelu(k.x, approximate="tanh"),
    "rrelu": lambda k: F.rrelu(k.x, training=True),
    "relu-in-place": lambda k: F.relu(k.x * 1.5, inplace=True),
    "leaky-in-place": lambda k: F.leaky_relu(k.x * 1.5, 0.1, inplace=True),
    "silu-in-place": lambda k: F.silu(k.x * 1.5, inplace=True),
    "dropout-in-place": lambda k: F.dropout(k.x * 1.5, 0.3, inplace=True),
    "prelu-one": lambda k: F.prelu(k.x, k.plain(1)),
    "prelu-many": lambda k: F.prelu(k.x, k.plain(k.shape[1])),
    "glu": lambda k: F.glu(k.x[:, : k.shape[1] // 2 * 2]),
    "pow-scalar": lambda k: k.x.abs() ** 2.3,
    "pow-two": lambda k: k.x**2,
    "pow-tensor": lambda k: k.x.abs() ** k.tensor(*k.shape),
    "scalar-pow": lambda k: 2.0**k.x,
    "add": lambda k: k.x + k.tensor(*k.shape),
    "add-row": lambda k: k.x + k.plain(k.shape[1]),
    "add-column": lambda k: k.x + k.plain(k.shape[0], 1),
    "add-scalar-tensor": lambda k: k.x + k.plain(()),
    "mul": lambda k: k.x * k.tensor(*k.shape),
    "mul-row": lambda k: k.x * k.plain(k.shape[1]),
    "mul-column": lambda k: k.x * k.plain(k.shape[0], 1),
    "mul-scalar-tensor": lambda k: k.x * k.plain(()),
    "mul-by-itself": lambda k: k.x * k.x,
    "mixed-types": lambda k: k.x * k.plain(*k.shape, dtype=torch.float32),
    "sub-div": lambda k: (k.x - k.plain(k.shape[1])) / (k.plain(k.shape[0], 1).abs() + 1),
    "scalar-div": lambda k: 1.0 / k.x,
    "remainder": lambda k: k.x % 3.0,
    "remainder-tensor": lambda k: torch.remainder(k.x, k.plain(k.shape[1]).abs() + 1),
    "fmod": lambda k: torch.fmod(k.x, 2.0),
    "addcmul": lambda k: torch.addcmul(k.x, k.tensor(*k.shape), k.tensor(*k.shape)),
    "addcdiv": lambda k: torch.addcdiv(k.x, k.tensor(*k.shape), k.tensor(*k.shape)),
    "lerp": lambda k: torch.lerp(k.x, k.tensor(*k.shape), 0.3),
    "lerp-tensor": lambda k: torch.lerp(k.x, k.tensor(*k.shape), k.tensor(*k.shape)),
    "clamp": lambda k: k.x.clamp(-1, 1),
    "clamp-tensor": lambda k: torch.clamp(k.x, min=k.plain(k.shape[1])),
    "clip-in-place": lambda k: (k.x * 2).clamp_(-1, 1),
    "maximum": lambda k: torch.maximum(k.x, k.tensor(*k.shape)),
    "minimum": lambda k: torch.minimum(k.x, k.plain(k.shape[1])),
    "where": lambda k: torch.where(k.mask(*k.shape), k.x, k.tensor(*k.shape)),
    "where-scalar": lambda k: torch.where(k.x > 0, k.x, 0.0),
    "where-broadcast": lambda k: torch.where(k.mask(k.shape[0], 1), k.x, k.plain(k.shape[1])),
    "masked_fill": lambda k: k.x.masked_fill(k.mask(*k.shape), -1e4),
    "masked_fill-row": lambda k: k.x.masked_fill(k.mask(k.shape[1]), float("-inf")),
    "masked-assignment": _fill,
    "part-assignment": _assigned,
    "atan2": lambda k: torch.atan2(k.x, k.tensor(*k.shape)),
    "hypot": lambda k: torch.hypot(k.x, k.tensor(*k.shape)),
    "copysign": lambda k: torch.copysign(k.x, k.tensor(*k.shape)),
    "logaddexp": lambda k: torch.logaddexp(k.x, k.tensor(*k.shape)),
    "xlogy": lambda k: torch.xlogy(k.x.abs(), k.tensor(*k.shape).abs()),
    "abs": lambda k: k.x.abs(),
    "softcap": lambda k: torch.tanh(k.x / 30) * 30,
    "straight-through": lambda k: k.x + (k.x.round() - k.x).detach(),
    "normalize": lambda k: F.normalize(k.x, dim=1),
    "normalize-first": lambda k: F.normalize(k.x, dim=0),
    "softmax": lambda k: k.x.softmax(-1),
    "softmax-first": lambda k: k.x.softmax(0),
    "log_softmax": lambda k: k.x.log_softmax(-1),
    "log_softmax-first": lambda k: k.x.log_softmax(0),
    "softmin": lambda k: F.softmin(k.x, -1),
    "softmax-single": lambda k: k.x.softmax(-1, dtype=torch.float32),
    "gumbel": lambda k: F.gumbel_softmax(k.x),
    "gumbel-hard": lambda k: F.gumbel_softmax(k.x, hard=True),
    "dropout": lambda k: F.dropout(k.x, 0.2),
    "alpha_dropout": lambda k: F.alpha_dropout(k.x, 0.2, True),
    "feature_alpha_dropout": lambda k: F.feature_alpha_dropout(k.x, 0.2, True),
}  # fmt: skip

_ALL_TYPES: dict[str, Any] = {
    "to-single": lambda k: k.x.to(torch.float32),
    "to-half": lambda k: k.x.to(torch.bfloat16),
    "to-integers": lambda k: k.x.to(torch.int64),
    "to-booleans": lambda k: k.x.bool(),
    "compare": lambda k: k.x > 0,
    "equal": lambda k: (k.x == k.tensor(*k.shape)).float().mean(),
    "isfinite": lambda k: torch.isfinite(k.x).all(),
    "isnan-any": lambda k: torch.isnan(k.x).any(),
    "clone": lambda k: k.x.clone(),
    "tril": lambda k: k.x.tril(),
    "triu": lambda k: k.x.triu(1),
    "flip": lambda k: k.x.flip(0),
    "roll": lambda k: k.x.roll(3, 1),
    "zeros_like": lambda k: torch.zeros_like(k.x),
    "any": lambda k: k.x.bool().any(1),
    "all-first": lambda k: k.x.bool().all(0),
    "where-constant": lambda k: torch.where(k.x.bool(), 1.0, 0.0),
    "one-hot": lambda k: F.one_hot(k.ints(20, *k.shape), 20),
    "one-hot-float": lambda k: F.one_hot(k.ints(20, *k.shape), 20).float(),
    "bitwise": lambda k: k.x.bool() & ~k.mask(*k.shape),
    "nonzero": lambda k: k.x.nonzero(),
    "masked_select": lambda k: k.x.masked_select(k.mask(*k.shape)),
    "mask-index": lambda k: k.x[k.mask(k.shape[0])],
    "isin": lambda k: torch.isin(k.x, k.x[0, :5]),
}

_SPECIAL: dict[str, Any] = {
    **{
        name: _each(getattr(torch.special, name))
        for name in (
            "entr", "erfcx", "erfinv", "i0", "i0e", "i1", "i1e", "log_ndtr", "ndtr", "ndtri", "spherical_bessel_j0",
        )
    },
    **{
        name: _each(getattr(torch, name))
        for name in ("acos", "asin", "acosh", "atanh", "cosh", "erfc", "exp2")
    },
    "polygamma": lambda k: torch.polygamma(1, k.x),
    "multigammaln": lambda k: torch.special.multigammaln(k.x.abs() + 5, 3),
    "zeta": lambda k: torch.special.zeta(k.x.detach().abs() + 2, k.tensor(*k.shape).abs() + 1),
    "igamma": lambda k: torch.igamma(k.plain(*k.shape, grad=False).abs(), k.x.abs()),
    "ldexp": lambda k: torch.ldexp(k.x, k.ints(5, *k.shape)),
    "frexp": lambda k: torch.frexp(k.x)[0],
    "fake_quantize": lambda k: torch.fake_quantize_per_tensor_affine(k.x, 0.1, 0, -128, 127),
    "cross": lambda k: torch.linalg.cross(k.plain(k.shape[0], 3), k.plain(k.shape[0], 3)),
    "heaviside": lambda k: torch.heaviside(k.x.detach(), k.plain(1)),
}  # fmt: skip


def _over(name: str, dim: Any) -> Any:
    return lambda k: getattr(torch, name)(k.x, dim)


_REDUCTIONS: dict[str, Any] = {
    **{
        f"{name}-{where}": _over(name, dim)
        for name in ("sum", "mean", "std", "var", "logsumexp", "amax", "prod", "nansum", "nanmean")
        for where, dim in (("first", 0), ("last", 1))
    },
    "sum": lambda k: k.x.sum(),
    "mean": lambda k: k.x.mean(),
    "mean-of-square": lambda k: (k.x**2).mean(),
    "std": lambda k: k.x.std(),
    "var_mean": lambda k: torch.var_mean(k.x, 1),
    "std_mean": lambda k: torch.std_mean(k.x, 0),
    "norm": lambda k: k.x.norm(),
    "norm-last": lambda k: k.x.norm(dim=1),
    "norm-first": lambda k: k.x.norm(dim=0),
    "norm-one": lambda k: k.x.norm(p=1, dim=1),
    "norm-three": lambda k: k.x.norm(p=3, dim=0),
    "norm-inf": lambda k: k.x.norm(p=float("inf"), dim=1),
    "norm-zero": lambda k: k.x.detach().norm(p=0, dim=1),
    "frobenius": lambda k: torch.linalg.norm(k.x),
    "max": lambda k: k.x.max(),
    "min": lambda k: k.x.min(),
    "max-first": lambda k: k.x.max(0)[0],
    "max-last": lambda k: k.x.max(1)[0],
    "min-last": lambda k: k.x.min(1)[0],
    "argmax": lambda k: k.x.argmax(),
    "argmax-last": lambda k: k.x.argmax(1),
    "argmin-first": lambda k: k.x.argmin(0),
    "aminmax": lambda k: torch.aminmax(k.x, dim=1),
    "amin": lambda k: k.x.amin((0, 1)),
    "dist": lambda k: torch.dist(k.x, k.tensor(*k.shape)),
    "trace-of-product": lambda k: (k.x * k.tensor(*k.shape)).sum(1),
    "bias-row": lambda k: k.x + k.plain(k.shape[1]),
    "scale-and-bias": lambda k: torch.addcmul(k.plain(k.shape[1]), k.x, k.plain(k.shape[1])),
    "count_nonzero": lambda k: k.x.count_nonzero(1),
    "cov": lambda k: torch.cov(k.x[:300, :2000]),
    "corrcoef": lambda k: torch.corrcoef(k.x[:300, :2000]),
}

_COUNTS: dict[str, Any] = {
    "sum-of-type": lambda k: k.x.sum(),
    "sum-of-type-first": lambda k: k.x.sum(0),
    "mean-as-float": lambda k: k.x.float().mean(1),
    "cumsum-of-type": lambda k: k.x.cumsum(1),
    "max-of-type": lambda k: k.x.amax(1),
    "argmax-of-type": lambda k: k.x.int().argmax(1),
    "any-of-type": lambda k: k.x.any(),
}

_SOLID: dict[str, Any] = {
    **{
        f"{name}-{where}": _over(name, dim)
        for name in ("sum", "mean", "amax", "logsumexp", "var")
        for where, dim in (("outer", 0), ("middle", 1), ("inner", 2), ("ends", (0, 2)), ("front", (0, 1)), ("back", (1, 2)))
    },
    "max-middle": lambda k: k.x.max(1)[0],
    "softmax-middle": lambda k: k.x.softmax(1),
    "log_softmax-middle": lambda k: k.x.log_softmax(1),
    "softmax-inner": lambda k: k.x.softmax(2),
    "cumsum-middle": lambda k: k.x.cumsum(1),
    "cumprod-middle": lambda k: k.x.cumprod(1),
    "norm-middle": lambda k: k.x.norm(dim=1),
    "norm-two": lambda k: torch.linalg.matrix_norm(k.x),
    "standardized": lambda k: (k.x - k.x.mean(1, keepdim=True)) / (k.x.std(1, keepdim=True) + 1e-5),
    "weighted-mean": lambda k: (k.x * k.plain(*k.shape[:2], 1).softmax(1)).sum(1),
    "masked-mean": lambda k: (k.x * k.mask(*k.shape[:2], 1)).sum(1) / k.mask(*k.shape[:2], 1).sum(1).clamp(min=1),
    "bias-cube": lambda k: k.x + k.plain(k.shape[2]),
    "bias-middle": lambda k: k.x + k.plain(k.shape[1], 1),
    "position": lambda k: k.x + k.plain(1, k.shape[1], k.shape[2]),
    "sort-middle": lambda k: k.x.sort(1)[0],
    "topk-inner": lambda k: k.x.topk(5, -1)[0],
    "unbind": lambda k: [part * 2 for part in k.x.unbind(0)[:4]],
    "mean-of-all": lambda k: k.x.mean(),
    "permuted": lambda k: k.x.permute(2, 0, 1).contiguous(),
    "reshape-turned": lambda k: k.x.transpose(0, 1).reshape(-1, k.shape[2]),
    "stack-of-steps": lambda k: torch.stack([k.x[:, step] * 2 for step in range(min(6, k.shape[1]))], 1),
    "diff": lambda k: k.x.diff(dim=1),
    "unfold-view": lambda k: k.x.unfold(1, 4, 2).mean(-1),
    "einsum-sum": lambda k: torch.einsum("abc->c", k.x),
}  # fmt: skip

_ORDERS: dict[str, Any] = {
    "sort": lambda k: k.x.sort(-1)[0],
    "sort-descending": lambda k: k.x.sort(-1, descending=True),
    "sort-stable": lambda k: torch.sort(k.x, dim=-1, stable=True)[0],
    "sort-first": lambda k: k.x.sort(0)[0],
    "argsort": lambda k: k.x.argsort(-1),
    "topk-one": lambda k: k.x.topk(1, -1)[0],
    "topk": lambda k: k.x.topk(min(10, k.shape[-1]), -1)[0],
    "topk-large": lambda k: k.x.topk(k.shape[-1] // 2, -1)[0],
    "topk-first": lambda k: k.x.topk(1, 0)[0],
    "kthvalue": lambda k: k.x.kthvalue(k.shape[-1] // 3 + 1, -1)[0],
    "median": lambda k: k.x.median(),
    "median-last": lambda k: k.x.median(-1)[0],
    "nanmedian": lambda k: k.x.nanmedian(-1)[0],
    "mode": lambda k: k.x[:64, :512].mode(-1)[0],
    "cumsum": lambda k: k.x.cumsum(-1),
    "cumsum-first": lambda k: k.x.cumsum(0),
    "cumprod": lambda k: k.x.cumprod(-1),
    "cummax": lambda k: k.x.cummax(-1)[0],
    "cummin-first": lambda k: k.x.cummin(0)[0],
    "logcumsumexp": lambda k: k.x.logcumsumexp(-1),
    "unique": lambda k: k.x.detach().float().mul(10).int().unique(),
    "unique-counts": lambda k: k.x.detach().float().mul(10).int().unique(return_counts=True, return_inverse=True),
    "msort": lambda k: torch.msort(k.x),
}  # fmt: skip

_ORDERS_IN_SINGLE: dict[str, Any] = {
    "quantile": lambda k: k.x.quantile(0.9),
    "quantile-last": lambda k: k.x.quantile(torch.tensor([0.1, 0.5], device="cuda"), dim=1),
    "nanquantile": lambda k: k.x.nanquantile(0.5, dim=1),
    "histc": lambda k: k.x.detach().histc(50),
    "bucketize": lambda k: torch.bucketize(k.x.detach(), torch.linspace(-3, 3, 50, device="cuda")),
    "searchsorted": lambda k: torch.searchsorted(k.x.detach().sort(-1)[0], k.tensor(*k.shape, grad=False)),
    "renorm": lambda k: torch.renorm(k.x, 2, 0, 1.0),
    "cosine": lambda k: F.cosine_similarity(k.x, k.tensor(*k.shape)),
    "pairwise": lambda k: F.pairwise_distance(k.x, k.tensor(*k.shape)),
    "pdist": lambda k: F.pdist(k.x[:700]),
    "cdist": lambda k: torch.cdist(k.x, k.plain(300, k.shape[1])),
    "cdist-one": lambda k: torch.cdist(k.x[:200], k.plain(100, k.shape[1]), p=1.0),
    "trapezoid": lambda k: torch.trapezoid(k.x, dim=1),
    "gradient": lambda k: torch.gradient(k.x, dim=1)[0],
    "vander": lambda k: torch.vander(k.x[0], 5),
}

_PLACES: dict[str, Any] = {
    "index-rows": lambda k: k.x[k.ints(k.shape[0], 3 * k.shape[0] // 2)],
    "index-columns": lambda k: k.x[:, k.ints(k.shape[1], 2 * k.shape[1])],
    "index-pairs": lambda k: k.x[k.ints(k.shape[0], 5000), k.ints(k.shape[1], 5000)],
    "index-grid": lambda k: k.x[k.ints(k.shape[0], 30, 1), k.ints(k.shape[1], 1, 40)],
    "index_select": lambda k: k.x.index_select(0, k.ints(k.shape[0], 2 * k.shape[0])),
    "index_select-columns": lambda k: k.x.index_select(1, k.ints(k.shape[1], k.shape[1])),
    "gather": lambda k: k.x.gather(1, k.ints(k.shape[1], k.shape[0], 7)),
    "gather-first": lambda k: k.x.gather(0, k.ints(k.shape[0], *k.shape)),
    "take": lambda k: k.x.take(k.ints(k.shape[0], 9000)),
    "take_along_dim": lambda k: torch.take_along_dim(k.x, k.ints(k.shape[1], k.shape[0], 3), 1),
    "scatter": lambda k: k.x.scatter(1, k.ints(k.shape[1], k.shape[0], 5), k.plain(k.shape[0], 5)),
    "scatter-value": lambda k: k.x.scatter(1, k.ints(k.shape[1], k.shape[0], 5), 0.0),
    "scatter_add": lambda k: k.x.scatter_add(0, k.ints(k.shape[0], *k.shape), k.plain(*k.shape)),
    **{
        f"scatter_reduce-{how}": lambda k, how=how: k.x.scatter_reduce(0, k.ints(k.shape[0], *k.shape), k.plain(*k.shape), how)
        for how in ("sum", "mean", "amax", "amin", "prod")
    },
    "index_add": lambda k: k.x.index_add(0, k.ints(k.shape[0], 2 * k.shape[0]), k.plain(2 * k.shape[0], k.shape[1])),
    "index_add-columns": lambda k: k.x.index_add(1, k.ints(k.shape[1], 20), k.plain(k.shape[0], 20)),
    "index_copy": lambda k: k.x.index_copy(0, k.ints(k.shape[0], 10), k.plain(10, k.shape[1])),
    "index_fill": lambda k: k.x.index_fill(0, k.ints(k.shape[0], 10), 0.0),
    "index_reduce": lambda k: k.x.index_reduce(0, k.ints(k.shape[0], k.shape[0]), k.plain(*k.shape), "amax"),
    "index_put": lambda k: k.x.index_put((k.ints(k.shape[0], 600),), k.plain(600, k.shape[1])),
    "index_put-add": lambda k: k.x.index_put((k.ints(k.shape[0], 2 * k.shape[0]),), k.plain(2 * k.shape[0], k.shape[1]), accumulate=True),
    "index_put-pairs": lambda k: k.x.index_put((k.ints(k.shape[0], 9000), k.ints(k.shape[1], 9000)), k.plain(9000), accumulate=True),
    "masked_scatter": lambda k: k.x.masked_scatter(k.mask(*k.shape), k.plain(*k.shape)),
    "select-one": lambda k: k.x[:, 0],
    "narrow": lambda k: k.x[:, 1:-1] * 2,
    "strided": lambda k: k.x[::2, ::3] * 2,
    "diagonal": lambda k: k.x.diagonal() * 2,
    "embedding": lambda k: F.embedding(k.ints(k.shape[0], 64, 100), k.x),
    "embedding-padded": lambda k: F.embedding(k.ints(k.shape[0], 64, 100), k.x, padding_idx=0),
    "embedding-many": lambda k: F.embedding(k.ints(k.shape[0], 256, 300), k.x),
    "embedding-scaled": lambda k: F.embedding(k.ints(k.shape[0], 64, 100), k.x, scale_grad_by_freq=True),
    "embedding-sparse": lambda k: F.embedding(k.ints(k.shape[0], 64, 100), k.x, sparse=True),
    "bincount": lambda k: k.ints(k.shape[0], 5 * k.shape[0]).bincount(),
    "repeat_interleave": lambda k: k.x.repeat_interleave(3, 0),
    "repeat_interleave-each": lambda k: k.x.repeat_interleave(k.ints(3, k.shape[0]) + 1, 0),
    "segment_reduce": lambda k: torch.segment_reduce(k.x, "mean", lengths=torch.full((k.shape[0] // 37,), 37, device="cuda"), unsafe=True) if k.shape[0] % 37 == 0 else None,
}  # fmt: skip

_SHAPES: dict[str, Any] = {
    "cat-first": lambda k: torch.cat([k.x, k.tensor(*k.shape)]),
    "cat-last": lambda k: torch.cat([k.x, k.tensor(*k.shape)], 1),
    "cat-itself": lambda k: torch.cat([k.x, k.x * 2, k.x], 1),
    "stack": lambda k: torch.stack([k.x, k.tensor(*k.shape)]),
    "stack-last": lambda k: torch.stack([k.x, k.tensor(*k.shape)], -1),
    "split": lambda k: [part * 2 for part in k.x.split(max(1, k.shape[1] // 3), 1)],
    "chunk-cat": lambda k: torch.cat(k.x.chunk(2, 1)[::-1], 1),
    "rotate-half": lambda k: torch.cat((-k.x[..., k.shape[1] // 2 :], k.x[..., : k.shape[1] // 2]), -1),
    "repeat": lambda k: k.x.repeat(2, 3),
    "tile": lambda k: k.x.tile(2, 1),
    "expand": lambda k: k.x[None].expand(4, -1, -1) * 2,
    "expand-contiguous": lambda k: k.x[None].expand(4, -1, -1).contiguous(),
    "flatten": lambda k: k.x.t().flatten(),
    "reshape": lambda k: k.x.t().reshape(k.shape),
    "turned-copy": lambda k: k.x.t().contiguous(),
    "pad-zero": lambda k: F.pad(k.x, (1, 2, 3, 4)),
    "pad-value": lambda k: F.pad(k.x, (1, 2), value=1.0),
    "rot90": lambda k: k.x.rot90(),
    "meshgrid": lambda k: [part * 2 for part in torch.meshgrid(k.x[0], k.x[1], indexing="ij")],
    "cartesian_prod": lambda k: torch.cartesian_prod(k.x[0, :300], k.x[1, :300]),
    "diag_embed": lambda k: torch.diag_embed(k.x[:40]),
    "block_diag": lambda k: torch.block_diag(k.x, k.x),
    "hstack": lambda k: torch.hstack([k.x, k.x]),
    "tensor_split": lambda k: torch.tensor_split(k.x, 4),
    "movedim": lambda k: k.x.movedim(0, 1).contiguous(),
}

_COPIES: dict[str, Any] = {
    "contiguous": lambda k: k.x.contiguous(),
    "to-bf16": lambda k: k.x.to(torch.bfloat16) * 2,
    "to-fp16": lambda k: k.x.half() * 2,
    "to-double": lambda k: k.x.double(),
    "to-host": lambda k: k.x.detach().cpu(),
    "to-host-and-back": lambda k: k.x.cpu().cuda(),
    "pinned": lambda k: torch.empty(k.shape, pin_memory=True).to("cuda", non_blocking=True) + k.x,
    "copy_": lambda k: torch.empty_like(k.x).copy_(k.x),
    "copy-cast": lambda k: torch.empty(k.shape, device="cuda", dtype=torch.float32).copy_(k.x),
    "copy-turned": lambda k: torch.empty(k.shape[::-1], device="cuda", dtype=k.dtype).t().copy_(k.x),
    "full_like": lambda k: torch.full_like(k.x, 2.0) * k.x,
    "new_zeros": lambda k: k.x.new_zeros(k.shape) + k.x,
    "zero_": lambda k: torch.empty_like(k.x).zero_(),
    "checkpointed": lambda k: torch.utils.checkpoint.checkpoint(lambda x: (x * 2).sin().exp(), k.x, use_reentrant=False),
    "detach-clone": lambda k: k.x.detach().clone(),
    "item-scaled": lambda k: k.x / k.x.detach().abs().max(),
    "in-place-chain": lambda k: (k.x * 2).add_(1).mul_(2).exp_(),
    "view-in-place": lambda k: _changed(k),
}  # fmt: skip


def _changed(k: Kit) -> Any:
    x = k.x * 2
    x[:, : k.shape[1] // 2].mul_(3)
    return x


_OF_NUMBERS: dict[str, Any] = {
    "randn": lambda k: torch.randn(k.shape, device="cuda"),
    "rand": lambda k: torch.rand_like(k.x),
    "randint": lambda k: torch.randint(0, 9, k.shape, device="cuda"),
    "randperm": lambda k: torch.randperm(k.shape[0], device="cuda"),
    "arange": lambda k: torch.arange(k.shape[0], device="cuda"),
    "arange-float": lambda k: torch.arange(k.shape[0], device="cuda", dtype=torch.float32),
    "linspace": lambda k: torch.linspace(0, 1, k.shape[0], device="cuda"),
    "normal": lambda k: torch.normal(k.x.detach(), 1.0),
    "normal-each": lambda k: torch.normal(k.x.detach(), k.x.detach().abs()),
    "normal_": lambda k: torch.empty_like(k.x).normal_(),
    "uniform_": lambda k: torch.empty_like(k.x).uniform_(),
    "bernoulli": lambda k: k.x.detach().sigmoid().bernoulli(),
    "bernoulli_": lambda k: torch.empty_like(k.x).bernoulli_(0.3),
    "exponential_": lambda k: torch.empty_like(k.x).exponential_(),
    "cauchy_": lambda k: torch.empty_like(k.x).cauchy_(),
    "log_normal_": lambda k: torch.empty_like(k.x).log_normal_(),
    "geometric_": lambda k: torch.empty_like(k.x).geometric_(0.3),
    "random_": lambda k: torch.empty_like(k.x).random_(),
    "poisson": lambda k: torch.poisson(k.x.detach().abs()),
    "multinomial": lambda k: torch.multinomial(k.x.detach().abs().view(1000, -1) + 1, 1),
    "multinomial-many": lambda k: torch.multinomial(k.x.detach().abs().view(1000, -1) + 1, 900, replacement=True),
    "multinomial-without": lambda k: torch.multinomial(torch.rand(1000, 400, device="cuda") + 0.1, 30),
    "histogram": lambda k: k.x.detach().histc(100),
    "tril_indices": lambda k: torch.tril_indices(700, 700, device="cuda"),
    "combinations": lambda k: torch.combinations(torch.arange(300, device="cuda")),
    "shuffled": lambda k: k.x[torch.randperm(k.shape[0], device="cuda")],
}  # fmt: skip
