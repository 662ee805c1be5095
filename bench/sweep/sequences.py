"""Sweep cases: recurrent layers, cells, attention and transformers with masks, packing, autocast and evaluation."""

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

from bench.sweep.kit import Case, Kit, Variant, case, custom_case, table

BATCHES = ((4, 7, 16), (32, 100, 128), (16, 300, 256))
HEADS = ((2, 4, 9, 16), (8, 6, 197, 64), (4, 8, 512, 64), (2, 16, 300, 80))
PRECISIONS = (("fp32", ""), ("bf16", ""), ("fp16", ""), ("fp32", "bf16"), ("fp32", "fp16"))


def cases() -> Iterator[Case]:
    yield from _recurrent()
    yield from _cells()
    yield from table(_ATTENTION, HEADS)
    yield from _chosen_kernels()
    yield from table(_MODULES, BATCHES)
    yield from _evaluated()


def _recurrent() -> Iterator[Case]:
    kinds: dict[str, dict[str, Any]] = {
        "": {},
        "-first": {"batch_first": True},
        "-both": {"bidirectional": True},
        "-deep": {"num_layers": 3},
        "-dropout": {"num_layers": 2, "dropout": 0.3},
        "-both-deep-first": {"num_layers": 2, "bidirectional": True, "batch_first": True},
        "-bare": {"bias": False},
    }
    for (ending, options), kind, (dtype, autocast) in itertools.product(
        kinds.items(), ("LSTM", "GRU", "RNN"), PRECISIONS
    ):
        for shape, hidden in ((BATCHES[0], 20), (BATCHES[1], 200), (BATCHES[2], 512)):
            yield case(f"{kind}{ending}", Variant(shape, dtype, autocast), lambda k, n=kind, o=options, h=hidden: k.layer(getattr(nn, n), k.shape[-1], h, **o)(k.x)[0])  # fmt: skip
    for dtype, autocast in PRECISIONS:
        shape = BATCHES[1]
        for name, action in {
            "LSTM-projected": lambda k: k.layer(nn.LSTM, k.shape[-1], 256, proj_size=64)(k.x)[0],
            "LSTM-projected-both": lambda k: k.layer(nn.LSTM, k.shape[-1], 256, 2, proj_size=64, bidirectional=True)(k.x)[0],
            "RNN-relu": lambda k: k.layer(nn.RNN, k.shape[-1], 256, nonlinearity="relu")(k.x)[0],
            "LSTM-last-state": lambda k: k.layer(nn.LSTM, k.shape[-1], 256)(k.x)[1][0],
            "LSTM-last-output": lambda k: k.layer(nn.LSTM, k.shape[-1], 256, batch_first=True)(k.x)[0][:, -1],
            "LSTM-given-state": lambda k: k.layer(nn.LSTM, k.shape[-1], 256)(k.x, (k.plain(1, k.shape[1], 256), k.plain(1, k.shape[1], 256)))[0],
            "LSTM-eval": lambda k: k.layer(nn.LSTM, k.shape[-1], 256).eval()(k.x.detach())[0].sum(),
            "LSTM-no-grad": lambda k: _without_gradients(k.layer(nn.LSTM, k.shape[-1], 256, 2), k.x),
            "GRU-no-grad": lambda k: _without_gradients(k.layer(nn.GRU, k.shape[-1], 256, 2), k.x),
            "LSTM-constant-input": lambda k: k.layer(nn.LSTM, k.shape[-1], 256)(k.x.detach())[0],
            "LSTM-frozen": lambda k: k.layer(nn.LSTM, k.shape[-1], 256).requires_grad_(False)(k.x)[0],
            "LSTM-one-by-one": lambda k: _stepwise(k.layer(nn.LSTM, k.shape[-1], 256), k.x),
            "GRU-one-by-one": lambda k: _stepwise(k.layer(nn.GRU, k.shape[-1], 256), k.x),
            "LSTM-packed": lambda k: _packed(k, nn.LSTM),
            "LSTM-packed-both": lambda k: _packed(k, nn.LSTM, bidirectional=True, num_layers=2),
            "GRU-packed": lambda k: _packed(k, nn.GRU, num_layers=2, dropout=0.2),
            "RNN-packed": lambda k: _packed(k, nn.RNN),
        }.items():  # fmt: skip
            yield case(name, Variant(shape, dtype, autocast), action)
    yield custom_case("pad_sequence", "", lambda: pad_sequence([torch.randn(n, 64, device="cuda") for n in (100, 70, 31)], batch_first=True))  # fmt: skip


def _without_gradients(layer: Any, x: Any) -> Any:
    with torch.no_grad():
        return layer(x)[0]


def _stepwise(layer: Any, x: Any) -> Any:
    state, outs = None, []
    for step in range(min(6, x.shape[0])):
        out, state = layer(x[step : step + 1], state)
        outs.append(out)
    return torch.cat(outs)


def _packed(k: Kit, kind: Any, **options: Any) -> Any:
    lengths = torch.linspace(k.shape[1], max(1, k.shape[1] // 3), k.shape[0]).long()
    packed = pack_padded_sequence(k.x, lengths, batch_first=True)
    out, _ = k.layer(kind, k.shape[-1], 256, batch_first=True, **options)(packed)
    return pad_packed_sequence(out, batch_first=True)[0]


def _cells() -> Iterator[Case]:
    sizes = ((5, 16, 20), (64, 300, 512), (2000, 64, 128), (20000, 32, 33), (4096, 128, 256))
    for kind, (batch, inputs, hidden), (dtype, autocast) in itertools.product(("LSTMCell", "GRUCell", "RNNCell"), sizes, PRECISIONS):  # fmt: skip
        for ending, options in (("", {}), ("-bare", {"bias": False})):
            yield case(f"{kind}{ending}", Variant((batch, inputs), dtype, autocast), lambda k, n=kind, h=hidden, o=options: _steps(k, getattr(nn, n), h, o))  # fmt: skip


def _steps(k: Kit, kind: Any, hidden: int, options: dict[str, Any]) -> Any:
    cell, state = k.layer(kind, k.shape[1], hidden, **options), None
    for _ in range(3):
        state = cell(k.x, state)
    return state[0] if isinstance(state, tuple) else state


def _heads(k: Kit, **options: Any) -> Any:
    return F.scaled_dot_product_attention(k.x, k.tensor(*k.shape), k.tensor(*k.shape), **options)


def _fewer_keys(k: Kit, **options: Any) -> Any:
    shape = (*k.shape[:2], k.shape[2] // 2 + 1, k.shape[3])
    return F.scaled_dot_product_attention(k.x, k.tensor(*shape), k.tensor(*shape), **options)


def _grouped(k: Kit) -> Any:
    shape = (k.shape[0], 2, *k.shape[2:])
    return F.scaled_dot_product_attention(
        k.x, k.tensor(*shape), k.tensor(*shape), is_causal=True, enable_gqa=True
    )


def _from_one(k: Kit) -> Any:
    batch, heads, length, width = k.shape
    joined = k.layer(nn.Linear, heads * width, 3 * heads * width)(k.plain(batch, length, heads * width))
    q, key, v = joined.view(batch, length, 3, heads, width).permute(2, 0, 3, 1, 4)
    return F.scaled_dot_product_attention(q, key, v).transpose(1, 2).reshape(batch, length, -1)


def _rotary(k: Kit) -> Any:
    places = torch.arange(k.shape[2], device="cuda").float()
    speeds = 10000.0 ** (-torch.arange(0, k.shape[3], 2, device="cuda").float() / k.shape[3])
    angles = (places[:, None] * speeds).repeat(1, 2)
    turned = torch.cat((-k.x[..., k.shape[3] // 2 :], k.x[..., : k.shape[3] // 2]), -1)
    return (k.x * angles.cos() + turned * angles.sin()).to(k.dtype)


def _flex(k: Kit) -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention(
        k.x,
        k.tensor(*k.shape),
        k.tensor(*k.shape),
        score_mod=lambda score, b, h, q, kv: score - (q - kv).abs(),
    )


_ATTENTION: dict[str, Any] = {
    "sdpa": _heads,
    "sdpa-causal": lambda k: _heads(k, is_causal=True),
    "sdpa-dropout": lambda k: _heads(k, dropout_p=0.1),
    "sdpa-mask": lambda k: _heads(k, attn_mask=k.mask(k.shape[2], k.shape[2])),
    "sdpa-padding": lambda k: _heads(k, attn_mask=k.mask(k.shape[0], 1, 1, k.shape[2])),
    "sdpa-bias": lambda k: _heads(k, attn_mask=k.plain(1, k.shape[1], k.shape[2], k.shape[2], grad=False)),
    "sdpa-learnt-bias": lambda k: _heads(k, attn_mask=k.plain(1, k.shape[1], k.shape[2], k.shape[2])),
    "sdpa-scaled": lambda k: _heads(k, scale=1.0),
    "sdpa-fewer-keys": _fewer_keys,
    "sdpa-one-query": lambda k: F.scaled_dot_product_attention(k.x[:, :, :1], k.tensor(*k.shape), k.tensor(*k.shape)),
    "sdpa-grouped": _grouped,
    "sdpa-from-one": _from_one,
    "sdpa-turned": lambda k: F.scaled_dot_product_attention(*(k.plain(k.shape[0], k.shape[2], k.shape[1], k.shape[3]).transpose(1, 2) for _ in "qkv")),
    "sdpa-no-grad": lambda k: F.scaled_dot_product_attention(*(k.plain(*k.shape, grad=False) for _ in "qkv")),
    "sdpa-three": lambda k: F.scaled_dot_product_attention(*(k.plain(k.shape[0], *k.shape[2:]) for _ in "qkv")),
    "flex": _flex,
    "rotary": _rotary,
    "by-hand": lambda k: F.dropout((k.x @ k.tensor(*k.shape).transpose(-1, -2) / 8).softmax(-1), 0.1) @ k.tensor(*k.shape),
    "by-hand-masked": lambda k: (k.x @ k.tensor(*k.shape).transpose(-1, -2)).masked_fill(torch.ones(k.shape[2], k.shape[2], dtype=torch.bool, device="cuda").triu(1), float("-inf")).softmax(-1) @ k.tensor(*k.shape),
    "by-hand-biased": lambda k: (k.x @ k.tensor(*k.shape).transpose(-1, -2) + k.plain(k.shape[1], k.shape[2], k.shape[2])).softmax(-1) @ k.tensor(*k.shape),
    "linear-attention": lambda k: F.elu(k.x).add(1) @ (F.elu(k.tensor(*k.shape)).add(1).transpose(-1, -2) @ k.tensor(*k.shape)),
    "relative-bias": lambda k: (k.x @ k.tensor(*k.shape).transpose(-1, -2) + F.embedding(k.ints(63, k.shape[2], k.shape[2]), k.plain(63, k.shape[1])).permute(2, 0, 1)).softmax(-1),
}  # fmt: skip


def _chosen_kernels() -> Iterator[Case]:
    for backend, shape, (dtype, autocast), causal in itertools.product(
        ("MATH", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION"), HEADS[1:3], PRECISIONS[:4], (False, True)
    ):  # fmt: skip
        if backend in ("FLASH_ATTENTION", "CUDNN_ATTENTION") and dtype == "fp32" and not autocast:
            continue

        def action(k: Kit, backend: str = backend, causal: bool = causal) -> Any:
            with sdpa_kernel(getattr(SDPBackend, backend)):
                return _heads(k, is_causal=causal)

        yield case(
            f"sdpa-{backend.lower()}{'-causal' if causal else ''}", Variant(shape, dtype, autocast), action
        )


def _attended(k: Kit, dropout: float = 0.0, **options: Any) -> Any:
    return k.layer(nn.MultiheadAttention, k.shape[2], 4, dropout, batch_first=True)(k.x, k.x, k.x, **options)


def _causal(k: Kit) -> Any:
    return nn.Transformer.generate_square_subsequent_mask(k.shape[1], device="cuda", dtype=k.dtype)


def _block(k: Kit, kind: Any = nn.TransformerEncoderLayer, **options: Any) -> Any:
    return k.layer(kind, k.shape[2], 4, 2 * k.shape[2], batch_first=True, **options)


_MODULES: dict[str, Any] = {
    "MultiheadAttention": lambda k: _attended(k)[0],
    "MultiheadAttention-no-weights": lambda k: _attended(k, need_weights=False)[0],
    "MultiheadAttention-each-head": lambda k: _attended(k, average_attn_weights=False)[0],
    "MultiheadAttention-dropout": lambda k: _attended(k, 0.2, need_weights=False)[0],
    "MultiheadAttention-dropout-weights": lambda k: _attended(k, 0.2)[0],
    "MultiheadAttention-padded": lambda k: _attended(k, key_padding_mask=k.mask(*k.shape[:2]), need_weights=False)[0],
    "MultiheadAttention-causal": lambda k: _attended(k, attn_mask=_causal(k), is_causal=True, need_weights=False)[0],
    "MultiheadAttention-masked": lambda k: _attended(k, attn_mask=_causal(k))[0],
    "MultiheadAttention-sequence-first": lambda k: k.layer(nn.MultiheadAttention, k.shape[2], 4)(k.x, k.x, k.x)[0],
    "MultiheadAttention-other": lambda k: k.layer(nn.MultiheadAttention, k.shape[2], 4, batch_first=True)(k.x, k.plain(k.shape[0], 30, k.shape[2]), k.plain(k.shape[0], 30, k.shape[2]), need_weights=False)[0],
    "MultiheadAttention-sizes": lambda k: k.layer(nn.MultiheadAttention, k.shape[2], 4, batch_first=True, kdim=24, vdim=40)(k.x, k.plain(k.shape[0], 30, 24), k.plain(k.shape[0], 30, 40))[0],
    "MultiheadAttention-bias-kv": lambda k: k.layer(nn.MultiheadAttention, k.shape[2], 4, batch_first=True, add_bias_kv=True, add_zero_attn=True)(k.x, k.x, k.x)[0],
    "MultiheadAttention-bare": lambda k: k.layer(nn.MultiheadAttention, k.shape[2], 4, batch_first=True, bias=False)(k.x, k.x, k.x, need_weights=False)[0],
    "TransformerEncoderLayer": lambda k: _block(k)(k.x),
    "TransformerEncoderLayer-first-norm": lambda k: _block(k, norm_first=True, activation="gelu")(k.x),
    "TransformerEncoderLayer-padded": lambda k: _block(k)(k.x, src_key_padding_mask=k.mask(*k.shape[:2])),
    "TransformerEncoderLayer-causal": lambda k: _block(k)(k.x, src_mask=_causal(k), is_causal=True),
    "TransformerEncoder": lambda k: nn.TransformerEncoder(_block(k), 2, enable_nested_tensor=False)(k.x),
    "TransformerDecoderLayer": lambda k: _block(k, nn.TransformerDecoderLayer)(k.x, k.plain(k.shape[0], 20, k.shape[2])),
    "TransformerDecoder-causal": lambda k: nn.TransformerDecoder(_block(k, nn.TransformerDecoderLayer), 2)(k.x, k.plain(k.shape[0], 20, k.shape[2]), tgt_mask=_causal(k), tgt_is_causal=True),
    "Transformer": lambda k: k.layer(nn.Transformer, k.shape[2], 4, 1, 1, 2 * k.shape[2], batch_first=True)(k.x, k.plain(k.shape[0], 20, k.shape[2])),
}  # fmt: skip


def _evaluated() -> Iterator[Case]:
    """Yield evaluation without gradients, which uses the fast paths of attention and transformer layers."""
    actions: dict[str, Any] = {
        "TransformerEncoderLayer-eval": lambda k: _block(k).eval()(k.x),
        "TransformerEncoderLayer-eval-padded": lambda k: _block(k).eval()(k.x, src_key_padding_mask=_tails(k)),
        "TransformerEncoder-eval-nested": lambda k: nn.TransformerEncoder(_block(k), 2).eval()(k.x, src_key_padding_mask=_tails(k)),
        "TransformerDecoderLayer-eval": lambda k: _block(k, nn.TransformerDecoderLayer).eval()(k.x, k.x),
        "MultiheadAttention-eval": lambda k: k.layer(nn.MultiheadAttention, k.shape[2], 4, batch_first=True).eval()(k.x, k.x, k.x)[0],
        "MultiheadAttention-eval-no-weights": lambda k: k.layer(nn.MultiheadAttention, k.shape[2], 4, batch_first=True).eval()(k.x, k.x, k.x, need_weights=False)[0],
    }  # fmt: skip
    for (name, action), shape, (dtype, autocast), how in itertools.product(
        actions.items(), BATCHES, PRECISIONS[:4], ("no_grad", "inference_mode", "with-gradients")
    ):

        def run(k: Kit, action: Any = action, how: str = how) -> Any:
            quiet = contextlib.nullcontext() if how == "with-gradients" else getattr(torch, how)()
            with quiet:
                return action(k)

        yield case(f"{name}-{how}", Variant(shape, dtype, autocast), run)


def _tails(k: Kit) -> Any:
    lengths = torch.linspace(k.shape[1], k.shape[1] // 2, k.shape[0], device="cuda").long()
    return torch.arange(k.shape[1], device="cuda")[None] >= lengths[:, None]
