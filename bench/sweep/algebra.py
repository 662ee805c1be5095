"""Sweep cases: products, decompositions, Fourier transforms, complex, sparse and nested tensors."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from bench.sweep.kit import Case, Kit, table

MATRICES = ((37, 50), (3000, 257), (60000, 64), (256, 20000))
BATCHES = ((3, 7, 9), (64, 100, 128), (16, 512, 256))
SQUARES = ((4, 5, 5), (16, 64, 64), (2, 300, 300), (1000, 8, 8))
SIGNALS = ((2, 400), (32, 4096), (16, 16000))


def cases() -> Iterator[Case]:
    yield from table(_PRODUCTS, MATRICES)
    yield from table(_BATCHED, BATCHES)
    yield from table(_DECOMPOSED, SQUARES, half=False, autocast=False)
    yield from table(_TRANSFORMED, SIGNALS, half=False)
    yield from table(_SPARSE, MATRICES[:3], half=False, autocast=False, layouts=False)
    yield from table(_NESTED, BATCHES, layouts=False)


def _complex(k: Kit) -> Any:
    return torch.view_as_complex(
        k.x[..., : k.shape[-1] // 2 * 2].float().reshape(*k.shape[:-1], -1, 2).contiguous()
    )


_PRODUCTS: dict[str, Any] = {
    "mm": lambda k: k.x @ k.plain(k.shape[1], 80),
    "mm-turned": lambda k: k.x.t() @ k.plain(k.shape[0], 80),
    "mm-odd": lambda k: k.x @ k.plain(k.shape[1], 33),
    "mv": lambda k: k.x @ k.plain(k.shape[1]),
    "vm": lambda k: k.plain(k.shape[0]) @ k.x,
    "dot": lambda k: k.x[0] @ k.plain(k.shape[1]),
    "outer": lambda k: torch.outer(k.x[:2000, 0], k.plain(3000)),
    "addmm": lambda k: torch.addmm(k.plain(80), k.x, k.plain(k.shape[1], 80)),
    "addmm-matrix": lambda k: torch.addmm(k.plain(k.shape[0], 80), k.x, k.plain(k.shape[1], 80)),
    "addmv": lambda k: torch.addmv(k.plain(k.shape[0]), k.x, k.plain(k.shape[1])),
    "addr": lambda k: torch.addr(k.x, k.plain(k.shape[0]), k.plain(k.shape[1])),
    "linear-turned-weight": lambda k: F.linear(k.x, k.plain(k.shape[1], 80).t()),
    "linear-expanded-bias": lambda k: k.x @ k.plain(k.shape[1], 80) + k.plain(80),
    "matmul-rows-by-batch": lambda k: k.x[:500] @ k.plain(4, k.shape[1], 80),
    "matmul-four": lambda k: k.x[None, None] @ k.plain(1, 3, k.shape[1], 20),
    "chain": lambda k: torch.linalg.multi_dot([k.x, k.plain(k.shape[1], 80), k.plain(80, 30)]),
    "kron": lambda k: torch.kron(k.x[:30, :30], k.plain(20, 20)),
    "einsum-product": lambda k: torch.einsum("ij,jk->ik", k.x, k.plain(k.shape[1], 80)),
    "einsum-rows": lambda k: torch.einsum("ij,ij->i", k.x, k.tensor(*k.shape)),
    "einsum-outer": lambda k: torch.einsum("ij,ik->ijk", k.x[:300, :200], k.plain(min(300, k.shape[0]), 100)),
    "einsum-turned": lambda k: torch.einsum("ij,kj->ki", k.x, k.plain(80, k.shape[1])),
    "bilinear-form": lambda k: torch.einsum("bi,oij,bj->bo", k.x[:200, :40], k.plain(12, 40, 40), k.plain(min(200, k.shape[0]), 40)) if k.shape[1] >= 40 else None,
    "tensordot": lambda k: torch.tensordot(k.x, k.plain(k.shape[1], 10, 8), dims=1),
    "inner": lambda k: torch.inner(k.x, k.plain(50, k.shape[1])),
    "vecdot": lambda k: torch.linalg.vecdot(k.x, k.tensor(*k.shape)),
    "gram-matrix": lambda k: k.x.t() @ k.x if k.shape[1] < 1000 else k.x @ k.x.t(),
    "tied": lambda k: (k.x @ k.plain(k.shape[1], 64)) @ k.plain(64, k.shape[1]),
    "square-distances": lambda k: (k.x[:300, None] - k.plain(40, k.shape[1])[None]).pow(2).sum(-1),
    "cdist": lambda k: torch.cdist(k.x.float(), k.plain(200, k.shape[1]).float()),
    "cdist-manhattan": lambda k: torch.cdist(k.x[:500].float(), k.plain(50, k.shape[1]).float(), p=1.0),
    "cosine-matrix": lambda k: F.normalize(k.x, dim=1) @ F.normalize(k.plain(100, k.shape[1]), dim=1).t(),
    "low-rank": lambda k: k.x @ k.plain(k.shape[1], 4) @ k.plain(4, k.shape[1]),
}  # fmt: skip

_BATCHED: dict[str, Any] = {
    "bmm": lambda k: torch.bmm(k.x, k.plain(k.shape[0], k.shape[2], 40)),
    "bmm-odd": lambda k: torch.bmm(k.x, k.plain(k.shape[0], k.shape[2], 33)),
    "bmm-itself": lambda k: torch.bmm(k.x, k.x.transpose(1, 2)),
    "baddbmm": lambda k: torch.baddbmm(k.plain(k.shape[0], k.shape[1], 40), k.x, k.plain(k.shape[0], k.shape[2], 40)),
    "baddbmm-bias": lambda k: torch.baddbmm(k.plain(1, 1, 40), k.x, k.plain(k.shape[0], k.shape[2], 40)),
    "addbmm": lambda k: torch.addbmm(k.plain(k.shape[1], 40), k.x, k.plain(k.shape[0], k.shape[2], 40)),
    "matmul-shared": lambda k: k.x @ k.plain(k.shape[2], 40),
    "matmul-shared-left": lambda k: k.plain(40, k.shape[1]) @ k.x,
    "matmul-vector": lambda k: k.x @ k.plain(k.shape[2]),
    "matmul-spread": lambda k: k.x[:, None] @ k.plain(1, 3, k.shape[2], 20),
    "einsum-heads": lambda k: torch.einsum("bqd,bkd->bqk", k.x, k.plain(k.shape[0], 50, k.shape[2])),
    "einsum-experts": lambda k: torch.einsum("bnd,edf->bnef", k.x, k.plain(4, k.shape[2], 32)),
    "einsum-mixing": lambda k: torch.einsum("bnd,nm->bmd", k.x, k.plain(k.shape[1], k.shape[1])),
    "mixing": lambda k: F.linear(k.x.transpose(1, 2), k.plain(k.shape[1], k.shape[1]), k.plain(k.shape[1])).transpose(1, 2),
    "linear-odd-width": lambda k: F.linear(k.x, k.plain(33, k.shape[2]), k.plain(33)),
    "product-of-slices": lambda k: k.x[:, ::2] @ k.plain(k.shape[2], 40),
    "batched-outer": lambda k: k.x[..., :30, None] * k.plain(*k.shape[:2], 1, 8),
    "complex-product": lambda k: (_complex(k) @ _complex(k).transpose(-1, -2)).abs() if k.dtype == torch.float32 else None,
    "complex-rotation": lambda k: torch.view_as_real(_complex(k) * torch.polar(torch.ones(1, device="cuda"), torch.ones(1, device="cuda"))).flatten(-2),
    "complex-angle": lambda k: _complex(k).angle(),
    "complex-sum": lambda k: _complex(k).sum(1).abs(),
    "complex-parts": lambda k: torch.complex(k.x.float(), k.x.float()).real,
    "checked-product": lambda k: torch.utils.checkpoint.checkpoint(lambda x, w: F.gelu(x @ w), k.x, k.plain(k.shape[2], 64), use_reentrant=False),
    "cumulative-product": lambda k: torch.cumprod(k.x.sigmoid(), 1),
    "scan": lambda k: torch.cumsum(k.x * 0.9, 1),
}  # fmt: skip


def _positive(k: Kit) -> Any:
    return k.x @ k.x.mT + 3 * k.shape[-1] * torch.eye(k.shape[-1], device="cuda")


def _regular(k: Kit) -> Any:
    return k.x + 3 * k.shape[-1] * torch.eye(k.shape[-1], device="cuda")


_DECOMPOSED: dict[str, Any] = {
    "cholesky": lambda k: torch.linalg.cholesky(_positive(k)),
    "cholesky-one": lambda k: torch.linalg.cholesky(_positive(k)[0]),
    "cholesky_solve": lambda k: torch.cholesky_solve(k.plain(*k.shape[:-1], 3), torch.linalg.cholesky(_positive(k))),
    "cholesky_inverse": lambda k: torch.cholesky_inverse(torch.linalg.cholesky(_positive(k))),
    "qr": lambda k: torch.linalg.qr(k.x)[0],
    "qr-one": lambda k: torch.linalg.qr(k.x[0])[0],
    "svd": lambda k: torch.linalg.svd(k.x[:20], full_matrices=False)[1],
    "svd-one": lambda k: torch.linalg.svd(k.x[0], full_matrices=False)[1],
    "svdvals": lambda k: torch.linalg.svdvals(k.x[:20]),
    "eigh": lambda k: torch.linalg.eigh(_positive(k)[:20])[0],
    "eigh-one": lambda k: torch.linalg.eigh(_positive(k)[0])[0],
    "eigvalsh": lambda k: torch.linalg.eigvalsh(_positive(k)[:20]),
    "eig": lambda k: torch.linalg.eig(k.x[0])[0].abs(),
    "inv": lambda k: torch.linalg.inv(_regular(k)),
    "inv-one": lambda k: torch.linalg.inv(_regular(k)[0]),
    "pinv": lambda k: torch.linalg.pinv(k.x[:4]),
    "solve": lambda k: torch.linalg.solve(_regular(k), k.plain(*k.shape[:-1], 3)),
    "solve-one": lambda k: torch.linalg.solve(_regular(k)[0], k.plain(k.shape[-1], 3)),
    "solve_triangular": lambda k: torch.linalg.solve_triangular(_regular(k).tril(), k.plain(*k.shape[:-1], 3), upper=False),
    "lstsq": lambda k: torch.linalg.lstsq(k.x, k.plain(*k.shape[:-1], 3)).solution,
    "lu": lambda k: torch.linalg.lu(_regular(k))[1],
    "lu_factor": lambda k: torch.linalg.lu_factor(_regular(k))[0],
    "det": lambda k: torch.linalg.det(_regular(k)),
    "slogdet": lambda k: torch.linalg.slogdet(_regular(k))[1],
    "slogdet-one": lambda k: torch.linalg.slogdet(_regular(k)[0])[1],
    "matrix_exp": lambda k: torch.linalg.matrix_exp(k.x * 0.01),
    "matrix_power": lambda k: torch.linalg.matrix_power(k.x, 3),
    "matrix_rank": lambda k: torch.linalg.matrix_rank(k.x[:4].detach()),
    "matrix_norm-two": lambda k: torch.linalg.matrix_norm(k.x[:4], 2),
    "nuclear": lambda k: torch.linalg.matrix_norm(k.x[:4], "nuc"),
    "cond": lambda k: torch.linalg.cond(k.x[:4]),
    "householder_product": lambda k: torch.linalg.householder_product(k.x, k.plain(*k.shape[:-1])),
    "trace": lambda k: k.x.diagonal(dim1=-2, dim2=-1).sum(-1),
    "log-density": lambda k: torch.distributions.MultivariateNormal(k.plain(*k.shape[:-1]), scale_tril=_regular(k).tril()).log_prob(k.plain(*k.shape[:-1])),
    "power-iteration": lambda k: (k.x @ (k.x.mT @ (k.x @ k.plain(k.shape[0], k.shape[1], 1)))).norm(),
    "newton-schulz": lambda k: k.x @ (1.5 * torch.eye(k.shape[-1], device="cuda") - 0.5 * k.x.mT @ k.x),
}  # fmt: skip


def _spectrum(k: Kit, size: int = 256) -> Any:
    return torch.stft(
        k.x.float(), size, size // 4, window=torch.hann_window(size, device="cuda"), return_complex=True
    )


_TRANSFORMED: dict[str, Any] = {
    "fft": lambda k: torch.fft.fft(k.x.float()).abs(),
    "rfft": lambda k: torch.fft.rfft(k.x.float()).abs(),
    "irfft": lambda k: torch.fft.irfft(torch.fft.rfft(k.x.float())),
    "ifft": lambda k: torch.fft.ifft(torch.fft.fft(k.x.float())).real,
    "rfft-first": lambda k: torch.fft.rfft(k.x.float(), dim=0).abs(),
    "hfft": lambda k: torch.fft.hfft(k.x.float()),
    "rfft-padded": lambda k: torch.fft.irfft(torch.fft.rfft(k.x.float(), n=2 * k.shape[1]) * torch.fft.rfft(k.plain(k.shape[1]).float(), n=2 * k.shape[1])),
    "fftshift": lambda k: torch.fft.fftshift(k.x),
    "fft2": lambda k: torch.fft.fft2(k.x.float()).real,
    "stft": lambda k: _spectrum(k).abs(),
    "stft-power": lambda k: _spectrum(k).abs().pow(2),
    "stft-log-mel": lambda k: torch.log(_spectrum(k).abs().pow(2).transpose(1, 2) @ k.plain(129, 40).abs().float() + 1e-6),
    "istft": lambda k: torch.istft(_spectrum(k), 256, 64, window=torch.hann_window(256, device="cuda")),
    "unfold-frames": lambda k: k.x.unfold(1, 128, 64) * torch.hann_window(128, device="cuda"),
    "convolve-by-fft": lambda k: torch.fft.irfft(torch.fft.rfft(k.x.float()) * torch.fft.rfft(k.plain(k.shape[1]).float())),
}  # fmt: skip


def _sparse(k: Kit, per_row: int = 4) -> Any:
    rows = k.shape[0]
    places = torch.stack([k.ints(rows, per_row * rows), k.ints(rows, per_row * rows)])
    return torch.sparse_coo_tensor(places, torch.ones(per_row * rows, device="cuda"), (rows, rows))


_SPARSE: dict[str, Any] = {
    "sparse-mm": lambda k: torch.sparse.mm(_sparse(k), k.x),
    "sparse-mm-coalesced": lambda k: torch.sparse.mm(_sparse(k).coalesce(), k.x),
    "sparse-matmul": lambda k: _sparse(k) @ k.x,
    "sparse-learnt": lambda k: torch.sparse.mm(torch.sparse_coo_tensor(k.ints(k.shape[0], 2, 3000), k.plain(3000), (k.shape[0], k.shape[0])), k.x),
    "csr-mm": lambda k: _sparse(k).coalesce().to_sparse_csr() @ k.x.detach(),
    "sparse-sum": lambda k: torch.sparse.sum(_sparse(k)),
    "sparse-softmax": lambda k: torch.sparse.softmax(_sparse(k).coalesce(), 1),
    "to-dense": lambda k: _sparse(k).to_dense() if k.shape[0] < 5000 else None,
    "to-sparse": lambda k: k.x.relu().to_sparse(),
    "sampled": lambda k: torch.sparse.addmm(k.x, _sparse(k), k.x),
}  # fmt: skip


def _jagged(k: Kit) -> Any:
    parts = [k.plain(max(1, k.shape[1] - 3 * index % k.shape[1]), k.shape[2]) for index in range(k.shape[0])]
    return torch.nested.as_nested_tensor(parts, layout=torch.jagged)


_NESTED: dict[str, Any] = {
    "nested-made": _jagged,
    "nested-padded": lambda k: torch.nested.to_padded_tensor(_jagged(k), 0.0),
    "nested-linear": lambda k: F.linear(_jagged(k), k.plain(40, k.shape[2]), k.plain(40)).values(),
    "nested-values": lambda k: (_jagged(k) * 2).values(),
}
