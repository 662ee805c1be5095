"""What cuDNN takes for a recurrent layer: the reserve that it keeps for the backward pass, and its workspace.

Read off 6,566 layers measured on an H200 with cuDNN 9.19 by `bench/rules/recurrent/survey.py` (LSTM, GRU, RNN; one to four deep; both
directions; projections; dropout; packed sequences; three dtypes). Reserves are equal to the byte but for dropout's masks. cuDNN does
not publish what its workspaces are for, but each is a whole number of sequences of outputs and of inputs, of states, and of
8 MiB for each layer: the tables below hold those numbers. `bench/rules/recurrent/compare.py` prints how near they come.

Which of cuDNN's algorithms runs is torch's choice, and published: `get_algo` in ATen/native/cudnn/RNN.cpp.
"""

from dataclasses import dataclass
from typing import NamedTuple

from legroom.gpus.catalog import GpuSpec
from legroom.units import MiB

RNN_MODES = ("rnn_relu", "rnn_tanh", "lstm", "gru")
"""cuDNN's numbers for the kinds of cell."""
LSTM = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One call of cuDNN: all layers of a module."""

    mode: int
    steps: int
    batch: int
    inputs: int
    hidden: int
    layers: int
    directions: int
    dtype: str
    training: bool
    dropout: bool
    projected: int = 0
    """Width that outputs are projected to; 0 where they are not."""
    rows: int = 0
    """Where sequences of different lengths are packed, how many steps they have together."""

    @property
    def element(self) -> int:
        """Bytes of one value."""
        return 4 if self.dtype == "float32" else 2

    @property
    def kind(self) -> str:
        name = RNN_MODES[self.mode]
        return name if name in ("lstm", "gru") else "rnn"

    @property
    def gates(self) -> int:
        return {"lstm": 4, "gru": 3, "rnn": 1}[self.kind]

    @property
    def places(self) -> int:
        """How many outputs a layer has in one direction: one for each step of each example."""
        return self.rows or self.steps * self.batch

    @property
    def weights(self) -> int:
        """Bytes of all weight matrices, without biases."""
        told = self.projected or self.hidden
        first = self.gates * self.hidden * (self.inputs + told)
        deeper = self.gates * self.hidden * (self.directions * told + told)
        projections = self.layers * self.hidden * self.projected
        return self.directions * (first + (self.layers - 1) * deeper + projections) * self.element


def reserve(layer: Layer) -> int:
    """Gates and cells of every step of every layer, the outputs between layers, and dropout's masks, a bit each."""
    if not layer.training:
        return 0
    per_layer = {"lstm": 5, "gru": 6, "rnn": 1}[layer.kind] * layer.hidden
    if layer.projected:  # what is projected is kept before and after
        per_layer += layer.hidden + layer.projected
    between = layer.layers - 1
    width = (per_layer * layer.layers + between * layer.hidden) * layer.directions
    masks = 0
    if layer.dropout:
        masks = between * layer.directions * layer.steps * layer.batch * layer.hidden // 8
    return width * layer.places * layer.element + 256 + -(-masks // 32) * 32


class Shares(NamedTuple):
    """What a workspace is made of, in sequences (as many values as there are outputs, or inputs) and states."""

    hidden: int
    inputs: int
    states: int
    """States of one step, for each layer."""
    wider: tuple[tuple[float, float], ...] = ()
    """(a, b): a times as much as the inputs are wider than b times the hidden width, if they are: buffers for either."""


_STANDARD: dict[tuple[str, int, bool], Shares] = {
    ("lstm", 1, False): Shares(5, 1, 10, ((2, 1),)),
    ("lstm", 1, True): Shares(5, 1, 10, ((2, 1),)),
    ("lstm", 2, False): Shares(14, 1, 24, ((2, 1), (3, 2))),
    ("lstm", 2, True): Shares(14, 1, 24, ((4, 1), (1, 2))),
    ("gru", 1, False): Shares(4, 2, 5, ((1, 1),)),
    ("gru", 1, True): Shares(4, 1, 5, ((2, 1),)),
    ("gru", 2, False): Shares(12, 1, 14, ((4, 1), (1, 2))),
    ("gru", 2, True): Shares(12, 2, 14, ((4, 1),)),
    ("rnn", 1, False): Shares(4, 2, 5, ((1, 1),)),
    ("rnn", 1, True): Shares(3, 2, 9, ((1, 1),)),
    ("rnn", 2, False): Shares(10, 2, 14, ((4, 1),)),
    ("rnn", 2, True): Shares(12, 2, 14, ((4, 1),)),
}
"""Training, by kind of cell, directions, and whether there is more than one layer."""

_PERSISTENT: dict[tuple[str, int, bool], Shares] = {
    ("lstm", 1, False): Shares(21, 1, 8, ((2, 3),)),
    ("lstm", 1, True): Shares(21, 1, 8, ((2, 2.42),)),
    ("lstm", 2, False): Shares(30, 1, 18, ((5, 2.37),)),
    ("lstm", 2, True): Shares(30, 1, 18, ((5, 1.93),)),
    ("gru", 1, False): Shares(18, 2, 6, ((1, 1),)),
    ("gru", 1, True): Shares(19, 2, 6, ((1, 1),)),
    ("gru", 2, False): Shares(24, 2, 14, ((4, 1),)),
    ("gru", 2, True): Shares(26, 2, 14, ((4, 1),)),
    ("rnn", 1, False): Shares(13, 2, 6, ((1, 1),)),
    ("rnn", 1, True): Shares(14, 2, 6, ((1, 1),)),
    ("rnn", 2, False): Shares(19, 2, 14, ((4, 1),)),
    ("rnn", 2, True): Shares(21, 2, 14, ((4, 1),)),
}
"""The same where weights stay in registers: gates of all steps are laid out once more."""

_PACKED: dict[tuple[str, int], Shares] = {
    ("lstm", 1): Shares(4, 0, 6, ((1, 3),)),
    ("lstm", 2): Shares(12, 0, 16, ((4, 2),)),
    ("gru", 1): Shares(3, 0, 3, ((1, 3),)),
    ("gru", 2): Shares(10, 0, 10, ((4, 2),)),
    ("rnn", 1): Shares(2, 0, 1, ((1, 1),)),
    ("rnn", 2): Shares(8, 0, 6, ((4, 1),)),
}
"""Packed sequences lie as cuDNN reads them: nothing is laid out anew."""

_EVALUATED: dict[tuple[str, int, bool], Shares] = {
    ("lstm", 1, False): Shares(5, 1, 10),
    ("lstm", 2, False): Shares(14, 1, 24),
    ("gru", 1, False): Shares(4, 1, 5),
    ("gru", 2, False): Shares(12, 1, 14),
    ("rnn", 1, False): Shares(2, 1, 3),
    ("rnn", 2, False): Shares(8, 1, 10),
    ("lstm", 1, True): Shares(21, 1, 8),
    ("lstm", 2, True): Shares(30, 1, 18),
    ("gru", 1, True): Shares(16, 1, 4),
    ("gru", 2, True): Shares(24, 1, 10),
    ("rnn", 1, True): Shares(6, 1, 4),
    ("rnn", 2, True): Shares(12, 1, 10),
}
"""Without a backward pass to come, by kind of cell, directions, and whether weights stay in registers."""

PIECE = 256
"""Gates of at most so many steps are laid out at once."""


def workspace(layer: Layer, *, backward: bool = False) -> int:
    """What one call of cuDNN takes beside its results."""
    kept = persistent(layer, backward=backward)
    shares = _shares(layer, kept)
    width = shares.hidden * layer.hidden + shares.inputs * layer.inputs + layer.directions * layer.projected
    wider = round(sum(a * max(0.0, layer.inputs - b * layer.hidden) for a, b in shares.wider))
    masked = layer.hidden if layer.training and layer.dropout and _masked_apart(layer, kept) else 0
    if _in_one_buffer(layer, kept):  # less what its states would have taken
        width += max(masked, wider - round(32 * layer.hidden / layer.steps))
    else:
        width += wider + masked
    values = width * layer.places
    if _in_pieces(layer, kept):
        values = _values_in_pieces(layer, masked)
    states = shares.states * layer.layers * layer.hidden
    return (
        layer.weights
        + 8 * MiB * layer.layers * layer.directions
        + (values + states * layer.batch) * layer.element
        + 8 * layer.batch
        + 256
    )


def _shares(layer: Layer, kept: bool) -> Shares:
    if layer.rows:
        return _PACKED[layer.kind, layer.directions]
    if not layer.training:
        return _EVALUATED[layer.kind, layer.directions, kept]
    return (_PERSISTENT if kept else _STANDARD)[layer.kind, layer.directions, layer.layers > 1]


def _masked_apart(layer: Layer, kept: bool) -> bool:
    """Whether what dropout leaves of a layer's outputs gets a buffer of its own."""
    if layer.layers == 1 or layer.directions == 2:
        return False
    return layer.kind == "lstm" or (layer.kind == "gru" and not kept)


def _in_one_buffer(layer: Layer, kept: bool) -> bool:
    """Whether what wide inputs need and what dropout leaves share a buffer."""
    plain = layer.training and not (kept or layer.rows or layer.projected)
    return plain and layer.kind == "lstm" and layer.directions == 1 and layer.layers > 1


def _in_pieces(layer: Layer, kept: bool) -> bool:
    """Whether gates are laid out piece by piece: an LSTM's of long sequences, a GRU's of several layers."""
    if layer.directions == 2 or kept or layer.rows:
        return False
    if layer.projected and layer.training and layer.inputs > layer.hidden:
        return False
    return layer.steps > PIECE if layer.kind == "lstm" else layer.kind == "gru" and layer.layers > 1


def _values_in_pieces(layer: Layer, masked: int) -> int:
    """What is laid out then: forwards the gates of one piece, backwards all steps, in fewer copies. A layer that is trained gets what either
    needs."""
    hidden, inputs, told = layer.hidden, layer.inputs, layer.projected
    gates = layer.gates * min(layer.steps, PIECE) * hidden * layer.batch
    forward = (hidden + inputs + told + masked) * layer.places + gates
    if not layer.training or told:
        return forward
    if layer.kind == "gru":
        width, states = 2 * hidden + 2 * inputs + max(hidden, inputs), min(layer.steps, 4 * layer.layers + 8)
    elif layer.layers == 1:
        width, states = 3 * hidden + 2 * inputs + max(hidden, inputs), 1
    elif inputs > hidden:
        width, states = 3 * hidden + 3 * inputs, 0
    else:
        width, states = 3 * hidden + 2 * inputs, 9 * layer.layers + 8
    return max(forward, width * layer.places + states * hidden * layer.batch)


def persistent(layer: Layer, *, backward: bool = False) -> bool:
    """Whether torch asks for an algorithm that keeps the weights in registers: small layers always, a single wide one in half
    precision at some batch sizes (as on GPUs from Ampere on)."""
    if layer.projected or layer.rows or layer.dtype == "bfloat16":
        return False
    small = {False: {"rnn": 384}, True: {"rnn": 256}}[backward].get(layer.kind, 128 if backward else 192)
    if layer.hidden <= small:
        return True
    if layer.dtype != "float16" or layer.kind == "gru" or layer.layers > 1 or layer.directions > 1:
        return False
    if layer.hidden > 1024 or layer.hidden % 128 or layer.inputs % 128:
        return False
    known = layer.batch % 8 == 0 and layer.batch <= 128
    return known and (layer.kind == "lstm" or layer.batch < 96 or layer.hidden < 896)


def dropout_state(gpu: GpuSpec) -> int:
    """The generators of cuDNN's dropout: one of 24 bytes for each thread the GPU can run at once."""
    return gpu.sm_count * gpu.threads_per_sm * 24
