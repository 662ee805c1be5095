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
    reported in the outermost of the user's functions that has both variables, because it may pass them to several
    functions.
    """
    found: dict[tuple[int, int], BroadcastTensors] = {}
    inner: dict[tuple[int, int], tuple[str, str, int, int]] = {}
    for _ in range(MAX_FRAMES):
        if frame is None or len(found) >= MAX_PAIRS:
            break
        pairs = _pairs(frame)
        inner.update(pairs)
        code = frame.f_code
        if kind_of(code.co_filename) == USER:
            for key, pair in inner.items():
                if key in pairs or key not in found:
                    found[key] = BroadcastTensors(
                        seconds, *pair, code.co_filename, frame.f_lineno or 0, code.co_name
                    )
            inner.clear()
        frame = frame.f_back
    yield from found.values()


def _pairs(frame: FrameType) -> dict[tuple[int, int], tuple[str, str, int, int]]:
    """Return the names of the variables, the number of samples and the size of the result for each pair of tensors."""
    columns: dict[int, tuple[str, int, int]] = {}
    rows: dict[int, tuple[str, int, int]] = {}
    for name, value in locals_of(frame):
        if isinstance(value, torch.Tensor):
            shape, size = value.shape, value.element_size() * value.is_floating_point()
            if len(shape) == 1 and shape[0] >= MIN_SAMPLES:
                rows[shape[0]] = name, size, id(value)
            elif len(shape) == 2 and shape[1] == 1 and shape[0] >= MIN_SAMPLES:
                columns[shape[0]] = name, size, id(value)
        del value
    pairs = {}
    for samples in columns.keys() & rows.keys():
        (column, size, first), (row, other, second) = columns[samples], rows[samples]
        pairs[first, second] = column, row, samples, samples * samples * max(size, other, 1)
    return pairs
