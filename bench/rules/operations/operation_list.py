"""Operations of ordinary training code, each as a small forward and backward pass.

`OPERATIONS()` yields names and functions in a fixed order. `measure.py` runs the functions on a real GPU, and
`compare.py` runs them on a traced GPU. The list covers losses, distances, sorting, scattering, recurrent cells,
sampling, and layers over strided tensors. `bench.sweep` covers more operations in fewer shapes.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.rules.operations.fourier_list import transforms

TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
Operation = tuple[str, Callable[[], Any]]


def OPERATIONS() -> Iterator[Operation]:  # noqa: N802  (a constant list, built on demand)
    for part in (_distances, _norms, _losses, _sorting, _indexing, _pictures, _cells, _attention, _algebra, _sampling, _reductions):  # fmt: skip
        yield from part()
    yield from (_both(name, make) for name, make in transforms())


def _both(name: str, make: Callable[[], Any]) -> Operation:
    """Return an operation that runs the forward pass `make` and a backward pass from its first result."""

    def run() -> None:
        out = make()
        while isinstance(out, tuple | list):
            out = out[0]
        if isinstance(out, Tensor) and out.requires_grad:
            out.backward(torch.ones_like(out))

    return name, run


def _x(*shape: int, dtype: str = "fp32", grad: bool = True) -> Tensor:
    return torch.randn(*shape, device="cuda").to(TYPES[dtype]).requires_grad_(grad)


def _ints(high: int, *shape: int) -> Tensor:
    return torch.randint(0, high, shape, device="cuda")


def _distances() -> Iterator[Operation]:
    for rows, others, width, p in itertools.product(
        (20, 900, 4096, 40960), (16, 512, 2000), (3, 64), (1.0, 2.0)
    ):
        if rows * others <= 1 << 25:
            yield _both(f"cdist {rows}x{others}x{width} p{p:g}", lambda r=rows, o=others, w=width, p=p: torch.cdist(_x(r, w), _x(o, w), p=p))  # fmt: skip
            yield _both(f"cdist constant {rows}x{others}x{width} p{p:g}", lambda r=rows, o=others, w=width, p=p: torch.cdist(_x(r, w, grad=False), _x(o, w), p=p))  # fmt: skip
    for batch, rows, width in ((4, 300, 3), (16, 1024, 3), (8, 64, 128)):
        yield _both(
            f"cdist batch {batch}x{rows}x{width}",
            lambda b=batch, r=rows, w=width: torch.cdist(_x(b, r, w), _x(b, r, w)),
        )
        yield _both(
            f"cdist exact {batch}x{rows}x{width}",
            lambda b=batch, r=rows, w=width: torch.cdist(
                _x(b, r, w), _x(b, r, w), compute_mode="donot_use_mm_for_euclid_dist"
            ),
        )
    for rows, width in ((4096, 128), (500, 3000)):
        yield _both(
            f"pairwise {rows}x{width}", lambda r=rows, w=width: F.pairwise_distance(_x(r, w), _x(r, w))
        )
        yield _both(f"cosine {rows}x{width}", lambda r=rows, w=width: F.cosine_similarity(_x(r, w), _x(r, w)))
        yield _both(f"pdist {width}", lambda w=width: F.pdist(_x(400, w)))
        yield _both(
            f"triplet {rows}x{width}",
            lambda r=rows, w=width: F.triplet_margin_loss(_x(r, w), _x(r, w), _x(r, w)),
        )


def _norms() -> Iterator[Operation]:
    shapes = [
        (64, 10), (200, 64), (4096, 64), (50176, 96), (12544, 192), (3136, 384), (784, 768), (200704, 96), (1000, 1024),
        (8192, 512), (16384, 256), (1024, 4096), (300, 5000), (100000, 128), (40000, 33), (32, 20000), (25088, 128), (6272, 1024),
    ]  # fmt: skip
    for (rows, width), dtype in itertools.product(shapes, TYPES):
        yield _both(f"layer_norm {rows}x{width} {dtype}", lambda r=rows, w=width, d=dtype: nn.LayerNorm(w, device="cuda", dtype=TYPES[d])(_x(r, w, dtype=d)))  # fmt: skip
        if dtype != "fp16":
            yield _both(f"layer_norm bare {rows}x{width} {dtype}", lambda r=rows, w=width, d=dtype: F.layer_norm(_x(r, w, dtype=d), (w,)))  # fmt: skip
    for batch, width, side in ((16, 96, 56), (16, 384, 14), (32, 192, 28), (2, 48, 100)):

        def permuted(batch: int = batch, width: int = width, side: int = side) -> Tensor:
            x = _x(batch, width, side, side).permute(0, 2, 3, 1)
            y = nn.LayerNorm(width, device="cuda")(x)
            return y.permute(0, 3, 1, 2) * torch.ones(width, 1, 1, device="cuda", requires_grad=True)

        yield _both(f"layer_norm permuted {batch}x{width}x{side}", permuted)
    for count, channels, side, dtype in itertools.product((2, 32), (32, 96, 320), (8, 40), ("fp32", "bf16")):
        tag = f"{count}x{channels}x{side} {dtype}"

        def picture(n: int = count, c: int = channels, s: int = side, d: str = dtype) -> Tensor:
            return _x(n, c, s, s, dtype=d)

        yield _both(f"group_norm {tag}", lambda p=picture, c=channels, d=dtype: nn.GroupNorm(8, c, device="cuda", dtype=TYPES[d])(p()))  # fmt: skip
        yield _both(f"group_norm last {tag}", lambda p=picture, c=channels, d=dtype: nn.GroupNorm(8, c, device="cuda", dtype=TYPES[d])(p().to(memory_format=torch.channels_last)))  # fmt: skip
        yield _both(f"instance_norm {tag}", lambda p=picture, c=channels: nn.InstanceNorm2d(c, affine=True, device="cuda")(p()))  # fmt: skip
        yield _both(
            f"batch_norm eval {tag}",
            lambda p=picture, c=channels: nn.BatchNorm2d(c, device="cuda").eval()(p()),
        )
        yield _both(
            f"weight_norm {tag}",
            lambda p=picture, c=channels: nn.utils.parametrizations.weight_norm(
                nn.Conv2d(c, c, 1, device="cuda")
            )(p().float()),
        )
        yield _both(
            f"spectral_norm {tag}",
            lambda p=picture, c=channels: nn.utils.parametrizations.spectral_norm(
                nn.Conv2d(c, c, 1, device="cuda")
            )(p().float()),
        )
    for rows, width in ((32, 100), (4096, 256), (20000, 64)):
        yield _both(
            f"batch_norm rows {rows}x{width}",
            lambda r=rows, w=width: nn.BatchNorm1d(w, device="cuda")(_x(r, w)),
        )
        yield _both(
            f"batch_norm along {rows}x{width}",
            lambda r=rows, w=width: nn.BatchNorm1d(w, device="cuda")(_x(r // 16, w, 16)),
        )
        yield _both(
            f"batch_norm transposed {rows}x{width}",
            lambda r=rows, w=width: nn.BatchNorm1d(w, device="cuda")(_x(r // 16, 16, w).transpose(1, 2)),
        )


def _losses() -> Iterator[Operation]:
    for (rows, classes), dtype in itertools.product(
        ((128, 10), (4096, 1000), (2048, 30000)), ("fp32", "bf16")
    ):

        def scores(r: int = rows, c: int = classes, d: str = dtype) -> Tensor:
            return _x(r, c, dtype=d)

        tag = f"{rows}x{classes} {dtype}"
        yield _both(f"cross_entropy {tag}", lambda s=scores, r=rows, c=classes: F.cross_entropy(s(), _ints(c, r)))  # fmt: skip
        yield _both(f"cross_entropy smooth {tag}", lambda s=scores, r=rows, c=classes: F.cross_entropy(s(), _ints(c, r), label_smoothing=0.1))  # fmt: skip
        yield _both(f"cross_entropy soft {tag}", lambda s=scores, r=rows, c=classes, d=dtype: F.cross_entropy(s(), _x(r, c, dtype=d, grad=False).softmax(1)))  # fmt: skip
        yield _both(f"cross_entropy weighted {tag}", lambda s=scores, r=rows, c=classes, d=dtype: F.cross_entropy(s(), _ints(c, r), weight=torch.ones(c, device="cuda", dtype=TYPES[d])))  # fmt: skip
        yield _both(f"cross_entropy each {tag}", lambda s=scores, r=rows, c=classes: F.cross_entropy(s(), _ints(c, r), reduction="none"))  # fmt: skip
        yield _both(f"kl_div {tag}", lambda s=scores, r=rows, c=classes, d=dtype: F.kl_div(s().log_softmax(1), _x(r, c, dtype=d, grad=False).softmax(1), reduction="batchmean"))  # fmt: skip
        yield _both(
            f"focal {tag}",
            lambda s=scores, r=rows, c=classes, d=dtype: _focal(s(), _x(r, c, dtype=d, grad=False)),
        )
        for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy_with_logits", "soft_margin_loss", "poisson_nll_loss"):  # fmt: skip
            for reduction in ("mean", "none"):
                yield _both(f"{name} {reduction} {tag}", lambda s=scores, r=rows, c=classes, d=dtype, n=name, how=reduction: getattr(F, n)(s(), _x(r, c, dtype=d, grad=False), reduction=how))  # fmt: skip
        if dtype == "fp32":
            yield _both(f"binary_cross_entropy {tag}", lambda s=scores, r=rows, c=classes: F.binary_cross_entropy(s().sigmoid(), _x(r, c, grad=False).sigmoid()))  # fmt: skip
            yield _both(f"positive weight {tag}", lambda s=scores, r=rows, c=classes: F.binary_cross_entropy_with_logits(s(), _x(r, c, grad=False), pos_weight=torch.ones(c, device="cuda")))  # fmt: skip
    for classes, side in ((4, 128), (21, 64)):
        yield _both(
            f"cross_entropy pictures {classes}x{side}",
            lambda c=classes, s=side: F.cross_entropy(_x(8, c, s, s), _ints(c, 8, s, s)),
        )
        yield _both(
            f"dice {classes}x{side}", lambda c=classes, s=side: _dice(_x(8, c, s, s), _ints(c, 8, s, s))
        )
    yield _both("ctc", lambda: F.ctc_loss(_x(150, 24, 60).log_softmax(2), _ints(59, 24, 25) + 1, torch.full((24,), 150), torch.full((24,), 25)))  # fmt: skip


def _focal(scores: Tensor, target: Tensor) -> Tensor:
    each = F.binary_cross_entropy_with_logits(scores, target, reduction="none")
    return ((1 - scores.sigmoid()) ** 2 * each).mean()


def _dice(scores: Tensor, target: Tensor) -> Tensor:
    share = scores.softmax(1)
    wanted = F.one_hot(target, scores.shape[1]).permute(0, 3, 1, 2).float()
    return 1 - (2 * (share * wanted).sum((2, 3)) / (share + wanted).sum((2, 3))).mean()


def _sorting() -> Iterator[Operation]:
    for (rows, length), dtype in itertools.product(((1, 1000000), (64, 1000), (512, 5000), (16, 8400), (20000, 100), (4096, 16)), ("fp32", "bf16")):  # fmt: skip

        def values(r: int = rows, n: int = length, d: str = dtype) -> Tensor:
            return _x(r, n, dtype=d)

        tag = f"{rows}x{length} {dtype}"
        for name in ("sort", "argsort", "cumsum", "cummax", "logcumsumexp", "median", "max", "min", "argmax", "softmax", "logsumexp"):  # fmt: skip
            yield _both(f"{name} {tag}", lambda v=values, n=name: getattr(torch, n)(v(), -1))
        yield _both(f"cumsum first {tag}", lambda v=values: v().cumsum(0))
        yield _both(f"cumprod {tag}", lambda v=values: v().cumprod(-1))
        yield _both(f"sort stable {tag}", lambda v=values: torch.sort(v(), dim=-1, stable=True))
        for count in (1, 10, 100):
            if count < length:
                yield _both(f"topk {count} {tag}", lambda v=values, k=count: v().topk(k, -1))
                yield _both(f"kthvalue {count} {tag}", lambda v=values, k=count: v().kthvalue(k, -1))
        yield _both(f"nonzero {tag}", lambda v=values: v().detach().gt(1).nonzero())
        yield _both(f"unique {tag}", lambda v=values: v().detach().mul(100).int().unique())
        yield _both(f"bucketize {tag}", lambda v=values: torch.bucketize(v().detach().float(), torch.linspace(-3, 3, 50, device="cuda")))  # fmt: skip
        yield _both(f"where {tag}", lambda v=values: torch.where(v() > 0, v(), 0.0))
        yield _both(f"masked_select {tag}", lambda v=values: v()[v() > 1])


def _indexing() -> Iterator[Operation]:
    """Yield operations of graphs, tables and replay buffers, which gather and scatter rows by index."""
    for nodes, edges, width in (
        (1000, 5000, 64),
        (10000, 200000, 32),
        (2708, 10556, 256),
        (50000, 50000, 128),
    ):
        tag = f"{nodes} {edges}x{width}"

        def node(n: int = nodes, w: int = width) -> Tensor:
            return _x(n, w)

        def edge(e: int = edges, w: int = width) -> Tensor:
            return _x(e, w)

        def ends(n: int = nodes, e: int = edges) -> Tensor:
            return _ints(n, e)

        yield _both(f"index {tag}", lambda n=node, i=ends: n()[i()])
        yield _both(f"index_select {tag}", lambda n=node, i=ends: n().index_select(0, i()))
        yield _both(
            f"gather {tag}", lambda n=node, i=ends, w=width: n().gather(0, i()[:, None].expand(-1, w))
        )
        yield _both(f"index_add {tag}", lambda n=node, e=edge, i=ends: n().index_add(0, i(), e()))
        yield _both(
            f"scatter_add {tag}",
            lambda n=node, e=edge, i=ends, w=width: n().scatter_add(0, i()[:, None].expand(-1, w), e()),
        )
        for how in ("mean", "amax", "sum"):
            yield _both(f"scatter_reduce {how} {tag}", lambda n=node, e=edge, i=ends, w=width, how=how: torch.zeros_like(n()).scatter_reduce(0, i()[:, None].expand(-1, w), e(), how))  # fmt: skip
        yield _both(f"index_put {tag}", lambda n=node, e=edge, i=ends: n().index_put((i(),), e(), accumulate=True))  # fmt: skip
        yield _both(f"embedding {tag}", lambda n=nodes, w=width, i=ends: nn.Embedding(n, w, device="cuda")(i()))  # fmt: skip
        yield _both(f"embedding bf16 {tag}", lambda n=nodes, w=width, i=ends: nn.Embedding(n, w, device="cuda", dtype=torch.bfloat16)(i()))  # fmt: skip
        yield _both(f"embedding padded {tag}", lambda n=nodes, w=width, i=ends: nn.Embedding(n, w, padding_idx=0, device="cuda")(i()))  # fmt: skip
        for mode in ("sum", "mean", "max"):
            yield _both(f"embedding_bag {mode} {tag}", lambda n=nodes, w=width, e=edges, mode=mode: nn.EmbeddingBag(n, w, mode=mode, device="cuda")(_ints(n, e // 4, 4)))  # fmt: skip
        yield _both(
            f"sparse product {tag}",
            lambda n=node, i=ends, count=nodes, e=edges: torch.sparse.mm(
                torch.sparse_coo_tensor(
                    torch.stack([i(), i()]), torch.ones(e, device="cuda"), (count, count)
                ),
                n(),
            ),
        )
        yield _both(f"bincount {tag}", lambda i=ends: i().bincount())
        yield _both(f"one_hot {tag}", lambda i=ends: F.one_hot(i() % 32, 32).float())
        yield _both(
            f"repeat_interleave {tag}",
            lambda n=node, count=nodes: n().repeat_interleave(_ints(3, count) + 1, 0),
        )


def _pictures() -> Iterator[Operation]:
    for (count, channels, side), dtype, last in itertools.product(((8, 16, 64), (2, 96, 100), (32, 256, 14)), ("fp32", "bf16"), (False, True)):  # fmt: skip

        def picture(n: int = count, c: int = channels, s: int = side, d: str = dtype, last: bool = last) -> Tensor:  # fmt: skip
            x = _x(n, c, s, s, dtype=d, grad=False)
            return (x.to(memory_format=torch.channels_last) if last else x).requires_grad_()

        tag = f"{count}x{channels}x{side} {dtype}{' last' if last else ''}"
        for name, action in {
            "max_pool": lambda x: F.max_pool2d(x, 2),
            "max_pool overlapping": lambda x: F.max_pool2d(x, 3, 2, 1),
            "avg_pool": lambda x: F.avg_pool2d(x, 3, 1, 1),
            "adaptive_avg": lambda x: F.adaptive_avg_pool2d(x, 5),
            "adaptive_avg one": lambda x: F.adaptive_avg_pool2d(x, 1),
            "adaptive_max": lambda x: F.adaptive_max_pool2d(x, 4),
            "lp_pool": lambda x: F.lp_pool2d(x, 2, 2),
            "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
            "pixel_unshuffle": lambda x: F.pixel_unshuffle(x, 2),
            "channel_shuffle": lambda x: F.channel_shuffle(x, 4),
            "nearest": lambda x: F.interpolate(x, scale_factor=2),
            "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
            "bilinear corners": lambda x: F.interpolate(x, size=37, mode="bilinear", align_corners=True),
            "antialias": lambda x: F.interpolate(x, size=20, mode="bilinear", antialias=True),
            "bicubic": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
            "area": lambda x: F.interpolate(x, scale_factor=0.5, mode="area"),
            "pad zero": lambda x: F.pad(x, (1, 2, 1, 2)),
            "pad reflect": lambda x: F.pad(x, (2, 2, 2, 2), mode="reflect"),
            "pad replicate": lambda x: F.pad(x, (2, 2, 2, 2), mode="replicate"),
            "pad circular": lambda x: F.pad(x, (2, 2, 2, 2), mode="circular"),
            "mean": lambda x: x.mean((2, 3)),
            "max channels": lambda x: x.amax(1),
            "var": lambda x: x.var((2, 3)),
            "softmax channels": lambda x: x.softmax(1),
            "prelu": lambda x: F.prelu(x, torch.full((x.shape[1],), 0.2, device="cuda", dtype=x.dtype, requires_grad=True)),
            "prelu one": lambda x: F.prelu(x, torch.full((1,), 0.2, device="cuda", dtype=x.dtype, requires_grad=True)),
            "dropout2d": lambda x: F.dropout2d(x, 0.2),
            "scale": lambda x: x * x.mean((2, 3), keepdim=True).sigmoid(),
            "gram": lambda x: x.flatten(2) @ x.flatten(2).transpose(1, 2),
            "total variation": lambda x: (x[..., 1:] - x[..., :-1]).abs().mean(),
            "roll": lambda x: x.roll((2, 2), (2, 3)),
            "flip": lambda x: x.flip(3),
            "cat": lambda x: torch.cat([x, x.relu()], 1),
            "split": lambda x: torch.cat([part.sigmoid() for part in x.chunk(2, 1)], 1),
            "flatten": lambda x: x.permute(0, 2, 3, 1).reshape(-1, x.shape[1]),
            "fft": lambda x: torch.fft.rfft2(x.float()).abs(),
        }.items():  # fmt: skip
            yield _both(f"{name} {tag}", lambda p=picture, a=action: a(p()))
        yield _both(
            f"grid_sample {tag}",
            lambda p=picture, n=count, d=dtype: F.grid_sample(
                p(), _x(n, 48, 48, 2, dtype=d), align_corners=False
            ),
        )
        yield _both(
            f"affine {tag}",
            lambda p=picture, n=count, d=dtype: F.grid_sample(
                p(), F.affine_grid(_x(n, 2, 3, dtype=d), list(p().shape), False), align_corners=False
            ),
        )
        if dtype == "fp32":
            yield _both(f"unfold {tag}", lambda p=picture: F.unfold(p(), 3, padding=1))
            yield _both(f"roi_align {tag}", lambda p=picture, s=side: _roi_align(p(), s))
    yield _both(
        "nms",
        lambda: _vision_ops().nms(
            _x(3000, 2, grad=False).repeat(1, 2).abs()
            + torch.tensor([0.0, 0.0, 1.0, 1.0], device="cuda"), _x(3000, grad=False), 0.5
        ),
    )  # fmt: skip
    for channels, length in ((64, 500), (512, 100)):
        for name, action in {
            "avg_pool1d": lambda x: F.avg_pool1d(x, 2),
            "max_pool1d": lambda x: F.max_pool1d(x, 2),
            "max over time": lambda x: x.max(2)[0],
            "adaptive_max1d": lambda x: F.adaptive_max_pool1d(x, 1),
            "linear1d": lambda x: F.interpolate(x, scale_factor=2, mode="linear"),
            "pad1d": lambda x: F.pad(x, (3, 0)),
            "transpose": lambda x: x.transpose(1, 2).contiguous(),
        }.items():
            yield _both(f"{name} {channels}x{length}", lambda c=channels, n=length, a=action: a(_x(32, c, n)))
    for sound in (8000, 32000):
        yield _both(f"stft {sound}", lambda n=sound: torch.stft(_x(16, n), 512, 128, window=torch.hann_window(512, device="cuda"), return_complex=True).abs())  # fmt: skip


def _vision_ops() -> Any:
    from torchvision import ops

    return ops


def _roi_align(picture: Tensor, side: int) -> Tensor:
    corners = torch.rand(40, 2, device="cuda") * side / 2
    boxes = torch.cat([_ints(2, 40)[:, None].float(), corners, corners + side / 3], 1)
    out: Tensor = _vision_ops().roi_align(picture, boxes, 7, 1.0, 2)
    return out


def _cells() -> Iterator[Operation]:
    """Yield recurrent cells in a loop, as in decoders and agents."""
    for batch, inputs, hidden, dtype in ((32, 64, 128, "fp32"), (256, 512, 512, "fp32"), (64, 300, 1024, "fp32"), (64, 256, 256, "bf16")):  # fmt: skip

        def along(kind: str, b: int = batch, i: int = inputs, h: int = hidden, d: str = dtype) -> Tensor:
            cell = getattr(nn, kind)(i, h, device="cuda", dtype=TYPES[d])
            state: Any = None
            for _ in range(4):
                state = cell(_x(b, i, dtype=d), state)
            out: Tensor = state[0] if kind == "LSTMCell" else state
            return out

        for kind in ("LSTMCell", "GRUCell", "RNNCell"):
            yield _both(f"{kind} {batch} {inputs}->{hidden} {dtype}", lambda a=along, k=kind: a(k))


def _attention() -> Iterator[Operation]:
    for (batch, length, width, heads), dtype in itertools.product(((8, 100, 256, 8), (4, 333, 384, 6), (32, 49, 96, 3)), TYPES):  # fmt: skip
        tag = f"{batch}x{length}x{width} {dtype}"

        def attend(b: int = batch, n: int = length, w: int = width, h: int = heads, d: str = dtype, **options: Any) -> Any:  # fmt: skip
            needed = options.pop("weights", False)
            dropout = options.pop("dropout", 0.0)
            layer = nn.MultiheadAttention(
                w, h, dropout, batch_first=True, device="cuda", dtype=TYPES[d]
            ).train()
            x = _x(b, n, w, dtype=d)
            return layer(x, x, x, need_weights=needed, **options)

        def padding(b: int = batch, n: int = length) -> Tensor:
            return torch.arange(n, device="cuda")[None] >= torch.full((b, 1), n - 3, device="cuda")

        yield _both(f"heads {tag}", attend)
        yield _both(f"heads dropout {tag}", lambda a=attend: a(dropout=0.1))
        yield _both(f"heads weights {tag}", lambda a=attend: a(weights=True))
        yield _both(f"heads padded {tag}", lambda a=attend, p=padding: a(key_padding_mask=p()))
        yield _both(f"heads causal {tag}", lambda a=attend, n=length, d=dtype: a(attn_mask=nn.Transformer.generate_square_subsequent_mask(n, device="cuda", dtype=TYPES[d]), is_causal=True))  # fmt: skip
        yield _both(
            f"layer {tag}",
            lambda b=batch, n=length, w=width, h=heads, d=dtype: nn.TransformerEncoderLayer(
                w, h, 4 * w, batch_first=True, device="cuda", dtype=TYPES[d]
            )(_x(b, n, w, dtype=d)),
        )
        yield _both(
            f"decoder layer {tag}",
            lambda b=batch, n=length, w=width, h=heads, d=dtype: nn.TransformerDecoderLayer(
                w, h, 4 * w, batch_first=True, device="cuda", dtype=TYPES[d]
            )(_x(b, n, w, dtype=d), _x(b, n // 2, w, dtype=d)),
        )
        yield _both(
            f"by hand {tag}",
            lambda b=batch, n=length, w=width, h=heads, d=dtype: _by_hand(
                *(_x(b, h, n, w // h, dtype=d) for _ in "qkv")
            ),
        )
        yield _both(
            f"rotary {tag}",
            lambda b=batch, n=length, w=width, h=heads, d=dtype: _rotary(_x(b, h, n, w // h, dtype=d)),
        )


def _by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    future = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device="cuda").triu(1)
    return F.dropout(scores.masked_fill(future, float("-inf")).softmax(-1), 0.1) @ v


def _rotary(q: Tensor) -> Tensor:
    places = torch.arange(q.shape[-2], device="cuda").float()
    speeds = 10000.0 ** (-torch.arange(0, q.shape[-1], 2, device="cuda").float() / q.shape[-1])
    angles = torch.polar(torch.ones(q.shape[-2], q.shape[-1] // 2, device="cuda"), places[:, None] * speeds)
    turned = torch.view_as_complex(q.float().reshape(*q.shape[:-1], -1, 2)) * angles
    return torch.view_as_real(turned).flatten(-2).to(q.dtype)


def _algebra() -> Iterator[Operation]:
    for dtype in ("fp32", "bf16"):
        for name, action in {
            "einsum attention": lambda d: torch.einsum("bqhd,bkhd->bhqk", _x(4, 100, 8, 32, dtype=d), _x(4, 100, 8, 32, dtype=d)),
            "einsum outer": lambda d: torch.einsum("bi,bj->bij", _x(64, 128, dtype=d), _x(64, 200, dtype=d)),
            "einsum graph": lambda d: torch.einsum("nctv,vw->nctw", _x(8, 64, 50, 25, dtype=d), _x(25, 25, dtype=d)),
            "einsum experts": lambda d: torch.einsum("ebd,edf->ebf", _x(8, 256, 128, dtype=d), _x(8, 128, 512, dtype=d)),
            "bmm": lambda d: torch.bmm(_x(32, 100, 64, dtype=d), _x(32, 64, 200, dtype=d)),
            "matmul broadcast": lambda d: _x(16, 8, 50, 64, dtype=d) @ _x(64, 96, dtype=d),
            "matmul vector": lambda d: _x(2000, 300, dtype=d) @ _x(300, dtype=d),
            "bilinear": lambda d: F.bilinear(_x(256, 64, dtype=d), _x(256, 64, dtype=d), _x(32, 64, 64, dtype=d)),
            "linear transposed": lambda d: F.linear(_x(32, 64, 100, dtype=d).transpose(1, 2), _x(96, 64, dtype=d), _x(96, dtype=d)),
            "linear one": lambda d: F.linear(_x(5000, 256, dtype=d), _x(1, 256, dtype=d), _x(1, dtype=d)),
            "linear wide": lambda d: F.linear(_x(64, 20, 512, dtype=d), _x(10000, 512, dtype=d), _x(10000, dtype=d)),
            "linear two": lambda d: F.linear(_x(100000, 2, dtype=d), _x(64, 2, dtype=d), _x(64, dtype=d)),
            "outer": lambda d: torch.outer(_x(1000, dtype=d), _x(2000, dtype=d)),
            "kron": lambda d: torch.kron(_x(32, 32, dtype=d), _x(20, 20, dtype=d)),
            "addmm": lambda d: torch.addmm(_x(300, dtype=d), _x(500, 200, dtype=d), _x(200, 300, dtype=d)),
            "relative": lambda d: _x(8, 60, 1, 32, dtype=d) - _x(8, 1, 60, 32, dtype=d),
            "broadcast sum": lambda d: (_x(64, 1, 256, dtype=d) * _x(1, 100, 256, dtype=d)).sum(-1),
            "tril": lambda d: _x(8, 200, 200, dtype=d).tril(),
            "diag": lambda d: torch.diag_embed(_x(64, 100, dtype=d)),
            "glu": lambda d: F.glu(_x(64, 100, 256, dtype=d)),
            "repeat": lambda d: _x(16, 1, 64, dtype=d).repeat(1, 50, 2),
            "expand": lambda d: _x(1, 50, 64, dtype=d).expand(32, -1, -1).contiguous(),
            "stack": lambda d: torch.stack([_x(64, 100, dtype=d) for _ in range(6)]),
            "pow": lambda d: _x(300, 1000, dtype=d).abs() ** 2.5,
            "exp": lambda d: _x(300, 1000, dtype=d).exp(),
            "clamp": lambda d: _x(300, 1000, dtype=d).clamp(-1, 1),
            "atan2": lambda d: torch.atan2(_x(300, 1000, dtype=d), _x(300, 1000, dtype=d)),
            "softplus": lambda d: F.softplus(_x(300, 1000, dtype=d)),
            "gelu tanh": lambda d: F.gelu(_x(300, 1000, dtype=d), approximate="tanh"),
            "rrelu": lambda d: F.rrelu(_x(300, 1000, dtype=d), training=True),
            "hardtanh": lambda d: F.relu6(_x(300, 1000, dtype=d)),
            "alpha_dropout": lambda d: F.alpha_dropout(_x(300, 1000, dtype=d), 0.1, True),
            "gumbel": lambda d: F.gumbel_softmax(_x(300, 1000, dtype=d), hard=True),
        }.items():  # fmt: skip
            yield _both(f"{name} {dtype}", lambda a=action, d=dtype: a(d))
    for size in (16, 100, 300):
        for name in ("inv", "cholesky", "det", "slogdet", "eigvalsh", "svdvals"):
            yield _both(
                f"{name} {size}",
                lambda n=name, s=size: getattr(torch.linalg, n)(
                    _x(4, s, s) @ _x(4, s, s).mT + 9 * s * torch.eye(s, device="cuda")
                ),
            )
        yield _both(f"solve {size}", lambda s=size: torch.linalg.solve(_x(4, s, s), _x(4, s, 3)))


def _sampling() -> Iterator[Operation]:
    for rows, width in ((64, 6), (2048, 18), (512, 5000)):
        yield _both(
            f"categorical {rows}x{width}",
            lambda r=rows, w=width: _log_probability(torch.distributions.Categorical(logits=_x(r, w))),
        )
        yield _both(
            f"normal {rows}x{width}",
            lambda r=rows, w=width: _log_probability(
                torch.distributions.Normal(_x(r, w), _x(r, w).exp())
            ).sum(-1),
        )
        yield _both(
            f"multinomial {rows}x{width}", lambda r=rows, w=width: _x(r, w, grad=False).softmax(1).multinomial(1)
        )  # fmt: skip
        yield _both(
            f"bernoulli {rows}x{width}", lambda r=rows, w=width: _x(r, w, grad=False).sigmoid().bernoulli()
        )
        yield _both(f"huber of chosen {rows}x{width}", lambda r=rows, w=width: F.smooth_l1_loss(_x(r, w).gather(1, _ints(w, r, 1)), _x(r, 1, grad=False)))  # fmt: skip
    for count in (1000, 300000, 4000000):
        yield _both(f"randperm {count}", lambda n=count: torch.randperm(n, device="cuda"))


def _log_probability(distribution: Any) -> Tensor:
    out: Tensor = distribution.log_prob(distribution.sample()) + 0.01 * distribution.entropy()
    return out


def _reductions() -> Iterator[Operation]:
    for (rows, columns), dtype in itertools.product(((100, 100), (4096, 300), (70000, 17), (9, 500000), (1, 3000000), (600000, 3)), ("fp32", "bf16")):  # fmt: skip

        def values(r: int = rows, c: int = columns, d: str = dtype) -> Tensor:
            return _x(r, c, dtype=d)

        for name, action in {
            "sum": lambda x: x.sum(),
            "sum first": lambda x: x.sum(0),
            "sum last": lambda x: x.sum(1),
            "mean": lambda x: x.mean(),
            "std": lambda x: x.std(),
            "std first": lambda x: x.std(0),
            "norm": lambda x: x.norm(),
            "norm 1": lambda x: x.norm(p=1, dim=1),
            "amax": lambda x: x.amax(0),
            "max": lambda x: x.max(),
            "all finite": lambda x: x.detach().isfinite().all(),
            "equal": lambda x: (x.detach() == x.detach()).float().mean(),
            "normalize": lambda x: F.normalize(x, dim=1),
            "bias": lambda x: x + torch.zeros(x.shape[1], device="cuda", dtype=x.dtype, requires_grad=True),
            "transposed sum": lambda x: x.t().contiguous().sum(0),
            "logsumexp first": lambda x: x.logsumexp(0),
            "prod": lambda x: x.prod(0),
        }.items():
            yield _both(f"{name} {rows}x{columns} {dtype}", lambda v=values, a=action: a(v()))
