"""Derives summaries and causes from the memory sizes and tensor shapes in an error message."""

import re
from collections.abc import Iterator

from legroom.diagnose.oom.sizes import ReportedSizes
from legroom.units import GiB, format_size

_CONTEXT = 3 * GiB // 2
"""The assumed maximum size of the CUDA context and the loaded libraries.

If non-PyTorch memory is larger, another process probably uses the GPU.
"""


def summarize_sizes(sizes: ReportedSizes) -> str:
    if sizes.requested is None:
        return ""
    which = "A GPU" if sizes.device is None else f"GPU {sizes.device}"
    request = f"{which} ran out of memory. Tried to allocate {format_size(sizes.requested)}"
    if sizes.free is None or sizes.capacity is None:
        return f"{request}."
    return f"{request}; {format_size(sizes.free)} of {format_size(sizes.capacity)} free."


def causes_from_sizes(sizes: ReportedSizes) -> Iterator[dict[str, str]]:
    """Yield the causes that the sizes indicate, most likely first."""
    limit = sizes.allowed if sizes.allowed is not None else sizes.capacity
    if limit is None or sizes.requested is None:
        return
    if sizes.requested > limit:
        yield {
            "cause": f"One operation requires {format_size(sizes.requested)}, but the whole GPU has only {format_size(limit)} (LG601).",
            "check": "Print the tensor shapes on the line that the traceback shows.",
            "fix": "Correct the shape, or compute the result in chunks. Freeing memory does not help.",
        }
        return
    others = _others(sizes)
    if others is not None and others > limit // 10:
        yield {
            "cause": f"Other processes use {format_size(others)} of memory on this GPU.",
            "check": "List the processes with `nvidia-smi` or `legroom doctor`. An earlier run may not have "
            "exited.",
            "fix": "Stop these processes, or select another GPU with `CUDA_VISIBLE_DEVICES`.",
        }
    if sizes.allowed is not None and sizes.capacity is not None and sizes.allowed < sizes.capacity:
        yield {
            "cause": f"This process can use only {format_size(sizes.allowed)} of {format_size(sizes.capacity)}.",
            "check": "Search the code for `set_per_process_memory_fraction` or `per_process_memory_fraction`.",
            "fix": "Raise the fraction if no other process uses the GPU.",
        }
    elif sizes.free is not None and sizes.free > max(4 * sizes.requested, limit // 4):
        yield {
            "cause": f"The GPU is not full: {format_size(sizes.free)} is free. Another limit stopped the allocation.",
            "check": "On Windows, look at the committed memory in the task manager. In a container or a virtual machine, "
            "look for a limit on GPU memory.",
            "fix": "On Windows, close other programs or use a larger page file. Otherwise, raise the limit.",
        }
    cached = _unused(sizes)
    if cached is not None and cached >= max(sizes.requested, limit // 20):
        yield {
            "cause": (
                f"PyTorch reserves {format_size(cached)} in free blocks, but these blocks are too small for "
                f"{format_size(sizes.requested)} (fragmentation)."
            ),
            "check": "Run again with `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`. If the run "
            "succeeds, fragmentation is the cause.",
            "fix": (
                "Keep `expandable_segments:True`, and use fewer different tensor sizes. For example, pad "
                "batches to a few fixed lengths."
            ),
        }
    if sizes.allocated is not None and sizes.allocated > limit // 2:
        yield {
            "cause": f"Live tensors use {format_size(sizes.allocated)} of {format_size(limit)}.",
            "check": "`legroom run train.py` lists the tensors by line and variable. `legroom estimate "
            "train.py` shows whether a step can fit.",
            "fix": "Use a smaller batch with gradient accumulation (`legroom.Guard`), bfloat16, checkpointing or `legroom.Spill`.",
        }


def _others(sizes: ReportedSizes) -> int | None:
    if sizes.others is not None:
        return sizes.others
    if sizes.capacity is None or sizes.free is None:
        return None
    own = sizes.in_use if sizes.in_use is not None else sizes.reserved
    if own is None:
        return None
    rest = sizes.capacity - sizes.free - own - (0 if sizes.in_use is not None else _CONTEXT)
    return rest if rest > 0 else None


def _unused(sizes: ReportedSizes) -> int | None:
    if sizes.reserved is None or sizes.allocated is None:
        return None
    return sizes.reserved - sizes.allocated


def summarize_shapes(message: str) -> str:
    """Return a sentence such as `A linear layer expects a last dimension of 256 but got 512.`, or "" if the message has no
    shapes.
    """
    for pattern, sentence in _SHAPES:
        match = pattern.search(message)
        if match is not None:
            return sentence.format(**match.groupdict())
    return ""


_SHAPES = tuple(
    (re.compile(pattern), sentence)
    for pattern, sentence in (
        (
            r"mat1 and mat2 shapes cannot be multiplied \(\d+x(?P<got>\d+) and (?P<expected>\d+)x\d+\)",
            "A linear layer or matrix product expects a last dimension of {expected} but got {got}.",
        ),
        (
            r"size mismatch, m1: \[\d+ x (?P<got>\d+)\], m2: \[(?P<expected>\d+) x \d+\]",
            "A linear layer or matrix product expects a last dimension of {expected} but got {got}.",
        ),
        (
            r"expected input\[(?P<shape>[\d, ]+)\] to have (?P<expected>\d+) channels, but got (?P<got>\d+) channels",
            "A convolution received the wrong number of input channels: expected {expected}, got {got}. The input shape is [{shape}].",
        ),
        (
            r"size of tensor a \((?P<a>\d+)\) must match the size of tensor b \((?P<b>\d+)\) at non-singleton dimension (?P<dim>\d+)",
            "The shapes of two tensors do not match: dimension {dim} has size {a} in one tensor and "
            "size {b} in the other tensor.",
        ),
        (
            r"size mismatch for (?P<name>[\w.]+): copying a param with shape torch\.Size\(\[(?P<there>[\d, ]*)\]\) from checkpoint, "
            r"the shape in current model is torch\.Size\(\[(?P<here>[\d, ]*)\]\)",
            "The checkpoint does not match the model: `{name}` has shape [{there}] in the checkpoint and [{here}] in the model.",
        ),
        (
            r"Target (?P<label>-?\d+) is out of bounds",
            "The label {label} is out of range for the number of classes in the model's output.",
        ),
        (
            r"invalid index of a 0-dim tensor",
            "The code indexes a tensor without dimensions, such as a loss. Use `.item()` to get its value.",
        ),
    )
)
