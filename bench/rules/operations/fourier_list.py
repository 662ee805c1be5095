"""Fourier transforms for `operation_list`. The documentation of cuFFT does not specify the size of its workspaces.

The list includes one, two and three dimensions, lengths with small and with large prime factors, the last dimensions
and other dimensions, and two batch sizes each.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

Operation = tuple[str, Callable[[], Tensor]]

LENGTHS = (64, 100, 128, 197, 200, 256, 400, 441, 512, 768, 1000, 1024, 2000, 2048, 4096, 5000, 8192, 10000, 16000, 16384, 22050, 65536, 131, 997)  # fmt: skip
PLANES = (
    (8, 8), (14, 14), (16, 16), (28, 28), (32, 32), (48, 48), (64, 64), (80, 80), (85, 85), (96, 96), (100, 100), (128, 128), (224, 224),
    (256, 256), (512, 512), (64, 128), (128, 64), (37, 37), (128, 768), (421, 421),
)  # fmt: skip
VALUES = (1 << 19, 1 << 21)
"""The approximate number of values per transform."""


def transforms() -> Iterator[Operation]:
    """Yield the name and the forward pass of each transform."""
    for values in VALUES:
        for length in LENGTHS:
            yield from _kinds((max(1, values // length), length), (1,))
        for rows, columns in PLANES:
            yield from _kinds((max(1, values // (rows * columns)), rows, columns), (1, 2))
        for rows, columns, channels in ((14, 14, 384), (28, 28, 64), (32, 32, 32), (85, 85, 20)):
            yield from _kinds(
                (max(1, values // (rows * columns * channels)), rows, columns, channels), (1, 2)
            )
        for length, channels in ((128, 768), (197, 768), (1000, 12), (512, 64)):
            yield from _kinds((max(1, values // (length * channels)), length, channels), (1,))
        for side in (16, 20, 32, 64):
            yield from _kinds((max(1, values // side**3), side, side, side), (1, 2, 3))
        for length in (400, 512, 1024, 2048):
            yield (
                f"stft {length} {values}",
                lambda n=length, v=values: torch.stft(_real(v // 16000, 16000), n, n // 4, window=torch.hann_window(n, device="cuda"), return_complex=True).abs(),
            )  # fmt: skip


def _kinds(shape: tuple[int, ...], dims: tuple[int, ...]) -> Iterator[Operation]:
    tag = "x".join(map(str, shape)) + " over " + ",".join(map(str, dims))
    last = shape[dims[-1]]
    half = tuple(last // 2 + 1 if index == dims[-1] else size for index, size in enumerate(shape))
    many: Any = torch.fft
    yield f"rfft {tag}", lambda: many.rfftn(_real(*shape), dim=dims).abs()
    yield f"irfft {tag}", lambda: many.irfftn(_complex(*half), s=[shape[d] for d in dims], dim=dims)
    yield f"fft {tag}", lambda: many.fftn(_complex(*shape), dim=dims).abs()


def _real(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda", requires_grad=True)


def _complex(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.complex64, requires_grad=True)
