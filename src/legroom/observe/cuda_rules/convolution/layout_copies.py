"""Sizes of the copies that cuDNN kernels make of their tensors to change the layout or to pad the channels.

Kernels use a few combinations of copies, each named by a letter (`LAYOUTS`). The sizes were derived from 424,000
queries to cuDNN 9.19 on an H200. Nearly all sizes are exact to the byte.
"""

from legroom.observe.cuda_rules.convolution.workspace_rules import Convolution, group_width, round_up


def copy_bytes(layout: str, c: Convolution) -> int:
    """Return the size in bytes of all copies that a kernel with this layout makes."""
    inputs, outputs, weights = tuple(LAYOUTS[layout][c.channels_last])
    near, far = (c.inputs, c.batch * c.input_area), (c.outputs, c.batch * c.output_area)
    if c.transposed:
        near, far = far, near
    values = _values(*near, c, inputs) + _values(*far, c, outputs) + copied_weights(c, weights)
    return values * (4 if layout == "L" else c.element)


def _values(channels: int, pixels: int, c: Convolution, rule: str) -> int:
    """Return the number of copied elements of one tensor. `pixels` counts the pixels of the whole batch."""
    padded = _padded(channels, c)
    match rule:
        case "A":
            return padded * pixels if pixels > c.batch else 0
        case "O":
            return padded * pixels if padded > channels else 0
        case "U":
            return channels * pixels if pixels > c.batch and channels > 1 else 0
        case "G":
            return channels * pixels if c.batch > 1 else 0
        case "F":
            return channels * pixels
    return 0


def _padded(channels: int, c: Convolution) -> int:
    if c.groups == 1:
        return round_up(channels, 16 // c.element)
    return c.groups * group_width(c)


def copied_weights(c: Convolution, rule: str) -> int:
    """Return the number of weights that are copied according to a rule in `LAYOUTS`."""
    inputs, outputs = (c.outputs, c.inputs) if c.transposed else (c.inputs, c.outputs)
    padded = _padded(inputs, c) // c.groups * _padded(outputs, c) * c.kernel_area
    is_padded = padded > c.weights
    match rule:
        case "A":
            return padded if is_padded or not c.pointwise else 0
        case "O":
            return padded if is_padded else 0
        case "P":
            return padded
        case "F":
            return c.weights
    return 0


LAYOUTS = {
    "P": ("AAA", "OOO"),
    "N": ("...", "UUF"),
    "M": ("...", "UUF"),
    "Q": ("...", "..."),
    "U": ("UUF", "..."),
    "V": ("FUF", "F.F"),
    "H": ("AOP", "AAP"),
    "I": ("AAA", "AOA"),
    "J": ("AAA", "AAO"),
    "K": ("AAA", "OAA"),
    "L": ("UUF", "FU."),
    "p": ("AAA", "AAO"),
    "i": ("AAA", "AAA"),
    "j": ("AAA", "AAO"),
    "k": ("AAA", "AAA"),
    "n": ("...", "UUF"),
    "m": ("GG.", "UUF"),
    "q": ("...", "UU."),
    "0": ("...", "..."),
}
"""Maps each layout to its rules for input, output and weights. The first string applies to contiguous tensors, and the
second to channels-last tensors. Each letter is a rule:

- `A` copies a tensor and pads its channels to 16 bytes. Rule `A` does not copy images of one pixel, and copies the
  weights of pointwise convolutions only if they need padding.
- `O` copies a tensor only if it needs padding.
- `P` always copies and pads a tensor.
- `F` copies a tensor without padding.
- `U` is like `F`, but does not copy a tensor with a single pixel or channel, because both memory formats are then equal.
- `G` is like `F`, but does not copy a single image, because its groups are contiguous.
- `.` copies nothing.

Layout `L` also converts the copies to float32. A lower-case layout describes the copies of one group, for a convolution
with groups and a kernel that does not support groups. For convolutions without groups, the same kernel has the
upper-case layout.
"""
