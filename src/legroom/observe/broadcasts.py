"""Finds pairs of variables whose shapes broadcast by mistake, such as the predictions `(n, 1)` and the targets `(n,)` of a
loss. An operation on both compares each element of one with all elements of the other.
"""

from collections.abc import Iterator
from types import FrameType

import torch

from legroom.memory.annotations import BroadcastTensors
from legroom.observe.holders.python_names import locals_of
from legroom.observe.source.user_files import USER, kind_of

MAX_FRAMES, MAX_PAIRS = 100, 8
MIN_SAMPLES = 64


def broadcast_tensors(seconds: float, frame: FrameType | None) -> Iterator[BroadcastTensors]:
    """Yield the pairs of variables in running functions, including the arguments of torch's functions. Each pair is
    reported with the user's function that is running. The innermost function comes first.
    """
    found: dict[tuple[int, int], BroadcastTensors] = {}
    inner: list[tuple[str, str, int, int]] = []
    for _ in range(MAX_FRAMES):
        if frame is None or len(found) >= MAX_PAIRS:
            break
        inner.extend(_pairs(frame))
        code = frame.f_code
        if kind_of(code.co_filename) == USER:
            for column, row, samples, size in inner:
                found.setdefault(
                    (samples, size),
                    BroadcastTensors(seconds, column, row, samples, size, code.co_filename, code.co_name),
                )
            inner.clear()
        frame = frame.f_back
    yield from found.values()


def _pairs(frame: FrameType) -> Iterator[tuple[str, str, int, int]]:
    columns: dict[int, tuple[str, int]] = {}
    rows: dict[int, tuple[str, int]] = {}
    for name, value in locals_of(frame):
        if isinstance(value, torch.Tensor):
            shape = value.shape
            if len(shape) == 1 and shape[0] >= MIN_SAMPLES:
                rows[shape[0]] = name, value.element_size() * value.is_floating_point()
            elif len(shape) == 2 and shape[1] == 1 and shape[0] >= MIN_SAMPLES:
                columns[shape[0]] = name, value.element_size() * value.is_floating_point()
        del value
    for samples in columns.keys() & rows.keys():
        (column, size), (row, other) = columns[samples], rows[samples]
        yield column, row, samples, samples * samples * max(size, other, 1)
