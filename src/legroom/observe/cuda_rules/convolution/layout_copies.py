"""What cuDNN's kernels copy before they begin, because they read or write pictures in another layout or with other channels.

Kernels are alike in few ways of reading, each named by a letter. Read off 424,000 answers of an H200's cuDNN 9.19: the bytes are exact for nearly all.
"""

from legroom.observe.cuda_rules.convolution.workspace import Convolution, up, width_of_groups


def converted(reading: str, c: Convolution) -> int:
    """Bytes of all copies that a kernel makes which reads so."""
    inputs, outputs, weights = tuple(READINGS[reading][c.channels_last])
    near, far = (c.inputs, c.batch * c.input_area), (c.outputs, c.batch * c.output_area)
    if c.transposed:
        near, far = far, near
    values = _values(*near, c, inputs) + _values(*far, c, outputs) + copied_weights(c, weights)
    return values * (4 if reading == "L" else c.element)


def _values(channels: int, pixels: int, c: Convolution, how: str) -> int:
    """How many numbers of one tensor are copied; `pixels` are those of the whole batch."""
    padded = _padded(channels, c)
    match how:
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
    """Channels as these kernels read them: 16 bytes at a time; in groups that are of one width for input and output."""
    if c.groups == 1:
        return up(channels, 16 // c.element)
    return c.groups * width_of_groups(c)


def copied_weights(c: Convolution, how: str) -> int:
    """How many weights are copied, as `READINGS` tells it."""
    inputs, outputs = (c.outputs, c.inputs) if c.transposed else (c.inputs, c.outputs)
    padded = _padded(inputs, c) // c.groups * _padded(outputs, c) * c.kernel_area
    is_odd = padded > c.weights
    match how:
        case "A":
            return padded if is_odd or not c.pointwise else 0
        case "O":
            return padded if is_odd else 0
        case "P":
            return padded
        case "F":
            return c.weights
    return 0


READINGS = {
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
"""What is converted of input, output and weights: for pictures in the usual layout, and channels last.

`A`: all, channels padded to 16 bytes, but for pictures of one pixel (of kernels of one pixel the weights only where they are padded). `O`: only what must be padded. `P`: padded in any case.
`F`: all, as it is. `U`: the same, but for a single pixel or channel, which looks the same in either layout. `G`: the same, but for a single picture, whose groups lie in one piece. `.`: nothing.
`L` converts to single precision too. Small letters: kernels that know no groups read one like this; without groups they read as the large letter says.
"""
