"""What the figures of an error say about its cause: how much memory was where, which sizes do not fit."""

import re
from collections.abc import Iterator

from legroom.diagnose.oom.sizes import ReportedSizes
from legroom.units import GiB, format_size

_CONTEXT = 3 * GiB // 2
"""What CUDA's context and libraries take at most; more than that, beside PyTorch's own, is another process."""


def sentence_of_figures(figures: ReportedSizes) -> str:
    """`GPU 1 ran out of memory: 546.0 MiB were asked for and 514.2 MiB of 15.77 GiB were free.`"""
    if figures.requested is None:
        return ""
    which = "A GPU" if figures.device is None else f"GPU {figures.device}"
    asked = f"{which} ran out of memory: {format_size(figures.requested)} were asked for"
    if figures.free is None or figures.capacity is None:
        return f"{asked}."
    return f"{asked} and {format_size(figures.free)} of {format_size(figures.capacity)} were free."


def causes_from_figures(figures: ReportedSizes) -> Iterator[dict[str, str]]:
    """Causes that the figures show, the plainest first, as cause, check and fix."""
    room = figures.allowed if figures.allowed is not None else figures.capacity
    if room is None or figures.requested is None:
        return
    if figures.requested > room:
        yield {
            "cause": f"One operation asks for more than the whole GPU: {format_size(figures.requested)} of {format_size(room)} (LG601).",
            "check": "print the shapes on the line of the traceback.",
            "fix": "nothing that frees memory can help: mend the shape, or compute in parts.",
        }
        return
    others = _others(figures)
    if others is not None and others > room // 10:
        yield {
            "cause": f"Other processes hold {format_size(others)} of this GPU.",
            "check": "`nvidia-smi`, or `legroom doctor`, names them; an earlier run of yours may not have ended.",
            "fix": "end them, or choose another GPU with `CUDA_VISIBLE_DEVICES`.",
        }
    if figures.allowed is not None and figures.capacity is not None and figures.allowed < figures.capacity:
        yield {
            "cause": f"This process may use only {format_size(figures.allowed)} of {format_size(figures.capacity)}.",
            "check": "look for `set_per_process_memory_fraction` or `per_process_memory_fraction`.",
            "fix": "raise the fraction, if the GPU is yours alone.",
        }
    cached = _unused(figures)
    if cached is not None and cached >= max(figures.requested, room // 20):
        yield {
            "cause": f"{format_size(cached)} are reserved by PyTorch but lie in pieces too small for {format_size(figures.requested)}: fragmentation.",
            "check": "again with `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`; if it goes on, this is it.",
            "fix": "keep that setting; sizes that vary less from step to step (padding to few lengths) help too.",
        }
    if figures.allocated is not None and figures.allocated > room // 2:
        yield {
            "cause": f"Tensors alive hold {format_size(figures.allocated)} of {format_size(room)}.",
            "check": "`legroom run train.py` names them by line and variable; `legroom estimate` says whether the step can fit at all.",
            "fix": "a smaller batch with accumulated gradients (`legroom.Guard`), bf16, `legroom.Spill` or checkpointing.",
        }


def _others(figures: ReportedSizes) -> int | None:
    if figures.others is not None:
        return figures.others
    if figures.capacity is None or figures.free is None:
        return None
    mine = figures.in_use if figures.in_use is not None else figures.reserved
    if mine is None:
        return None
    rest = figures.capacity - figures.free - mine - (0 if figures.in_use is not None else _CONTEXT)
    return rest if rest > 0 else None


def _unused(figures: ReportedSizes) -> int | None:
    if figures.reserved is None or figures.allocated is None:
        return None
    return figures.reserved - figures.allocated


def sentence_of_sizes(message: str) -> str:
    """`A linear layer wants 256 features and got 512.`; "" where the error tells no sizes."""
    for pattern, sentence in _SIZES:
        match = pattern.search(message)
        if match is not None:
            return sentence.format(**match.groupdict())
    return ""


_SIZES = tuple(
    (re.compile(pattern), sentence)
    for pattern, sentence in (
        (
            r"mat1 and mat2 shapes cannot be multiplied \(\d+x(?P<got>\d+) and (?P<wants>\d+)x\d+\)",
            "A linear layer or matrix product wants {wants} features and got {got}.",
        ),
        (
            r"size mismatch, m1: \[\d+ x (?P<got>\d+)\], m2: \[(?P<wants>\d+) x \d+\]",
            "A linear layer or matrix product wants {wants} features and got {got}.",
        ),
        (
            r"expected input\[(?P<shape>[\d, ]+)\] to have (?P<wants>\d+) channels, but got (?P<got>\d+) channels",
            "A convolution wants {wants} channels and got {got}: the input is [{shape}].",
        ),
        (
            r"size of tensor a \((?P<a>\d+)\) must match the size of tensor b \((?P<b>\d+)\) at non-singleton dimension (?P<dim>\d+)",
            "Two tensors do not fit together: dimension {dim} is {a} in one and {b} in the other.",
        ),
        (
            r"size mismatch for (?P<name>[\w.]+): copying a param with shape torch\.Size\(\[(?P<there>[\d, ]*)\]\) from checkpoint, "
            r"the shape in current model is torch\.Size\(\[(?P<here>[\d, ]*)\]\)",
            "The checkpoint does not fit the model: `{name}` is [{there}] in the checkpoint and [{here}] in the model.",
        ),
        (
            r"Target (?P<label>-?\d+) is out of bounds",
            "The label {label} is outside the classes that the model's output has.",
        ),
    )
)
