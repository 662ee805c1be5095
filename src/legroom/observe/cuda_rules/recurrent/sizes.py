"""Sizes of cuDNN's memory for a recurrent layer: the reserve that is saved for the backward pass, and the workspace.

The sizes were fitted to 6,566 layers measured on an H200 with cuDNN 9.19 by `bench/rules/recurrent/survey.py`. The
survey covers LSTM, GRU and RNN, one to four layers, both directions, projections, dropout, packed sequences and three
dtypes. Reserves are exact to the byte, except for dropout masks.

Workspaces are not documented. A workspace consists of a whole number of output sequences, input sequences and states,
plus 8 MiB per layer. The tables below contain the numbers of sequences and states. `bench/rules/recurrent/compare.py`
prints the remaining differences between rules and measurements. `get_algo` in ATen/native/cudnn/RNN.cpp selects cuDNN's
algorithm.
"""

from dataclasses import dataclass
from typing import NamedTuple

from legroom.gpus.catalog import GpuSpec
from legroom.units import MiB

RNN_MODES = ("rnn_relu", "rnn_tanh", "lstm", "gru")
"""Cell types, in the order in which cuDNN numbers them."""
LSTM = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentLayer:
    """One call to cuDNN, which computes all layers of a module."""

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
    """The value of `proj_size`, or 0 without projections."""
    rows: int = 0
    """The total number of time steps in all packed sequences, or 0 if the sequences are not packed."""

    @property
    def element(self) -> int:
        return 4 if self.dtype == "float32" else 2

    @property
    def kind(self) -> str:
        name = RNN_MODES[self.mode]
        return name if name in ("lstm", "gru") else "rnn"

    @property
    def gates(self) -> int:
        return {"lstm": 4, "gru": 3, "rnn": 1}[self.kind]

    @property
    def outputs(self) -> int:
        """The number of outputs of a layer in one direction: one per sample and time step."""
        return self.rows or self.steps * self.batch

    @property
    def weights(self) -> int:
        """The size of all weight matrices in bytes, without biases."""
        state = self.projected or self.hidden
        first = self.gates * self.hidden * (self.inputs + state)
        deeper = self.gates * self.hidden * (self.directions * state + state)
        projections = self.layers * self.hidden * self.projected
        return self.directions * (first + (self.layers - 1) * deeper + projections) * self.element


def reserve(layer: RecurrentLayer) -> int:
    """Return the size of the reserve in bytes. The reserve contains the gates and cells of every step and layer, the
    outputs between layers, and dropout masks of one bit per value.
    """
    if not layer.training:
        return 0
    per_layer = {"lstm": 5, "gru": 6, "rnn": 1}[layer.kind] * layer.hidden
    if layer.projected:  # outputs are saved before and after the projection
        per_layer += layer.hidden + layer.projected
    between = layer.layers - 1
    width = (per_layer * layer.layers + between * layer.hidden) * layer.directions
    masks = 0
    if layer.dropout:
        masks = between * layer.directions * layer.steps * layer.batch * layer.hidden // 8
    return width * layer.outputs * layer.element + 256 + -(-masks // 32) * 32


class WorkspaceParts(NamedTuple):
    """The size of a workspace as numbers of output sequences (`hidden`), input sequences and states."""

    hidden: int
    inputs: int
    states: int
    wider: tuple[tuple[float, float], ...] = ()
    """Each pair (a, b) adds a × (inputs - b × hidden) values for further buffers of inputs or outputs, if this number
    is positive.
    """


_STANDARD: dict[tuple[str, int, bool], WorkspaceParts] = {
    ("lstm", 1, False): WorkspaceParts(5, 1, 10, ((2, 1),)),
    ("lstm", 1, True): WorkspaceParts(5, 1, 10, ((2, 1),)),
    ("lstm", 2, False): WorkspaceParts(14, 1, 24, ((2, 1), (3, 2))),
    ("lstm", 2, True): WorkspaceParts(14, 1, 24, ((4, 1), (1, 2))),
    ("gru", 1, False): WorkspaceParts(4, 2, 5, ((1, 1),)),
    ("gru", 1, True): WorkspaceParts(4, 1, 5, ((2, 1),)),
    ("gru", 2, False): WorkspaceParts(12, 1, 14, ((4, 1), (1, 2))),
    ("gru", 2, True): WorkspaceParts(12, 2, 14, ((4, 1),)),
    ("rnn", 1, False): WorkspaceParts(4, 2, 5, ((1, 1),)),
    ("rnn", 1, True): WorkspaceParts(3, 2, 9, ((1, 1),)),
    ("rnn", 2, False): WorkspaceParts(10, 2, 14, ((4, 1),)),
    ("rnn", 2, True): WorkspaceParts(12, 2, 14, ((4, 1),)),
}
"""The workspaces for training. A key contains the cell type, the number of directions, and whether there are several
layers.
"""

_PERSISTENT: dict[tuple[str, int, bool], WorkspaceParts] = {
    ("lstm", 1, False): WorkspaceParts(21, 1, 8, ((2, 3),)),
    ("lstm", 1, True): WorkspaceParts(21, 1, 8, ((2, 2.42),)),
    ("lstm", 2, False): WorkspaceParts(30, 1, 18, ((5, 2.37),)),
    ("lstm", 2, True): WorkspaceParts(30, 1, 18, ((5, 1.93),)),
    ("gru", 1, False): WorkspaceParts(18, 2, 6, ((1, 1),)),
    ("gru", 1, True): WorkspaceParts(19, 2, 6, ((1, 1),)),
    ("gru", 2, False): WorkspaceParts(24, 2, 14, ((4, 1),)),
    ("gru", 2, True): WorkspaceParts(26, 2, 14, ((4, 1),)),
    ("rnn", 1, False): WorkspaceParts(13, 2, 6, ((1, 1),)),
    ("rnn", 1, True): WorkspaceParts(14, 2, 6, ((1, 1),)),
    ("rnn", 2, False): WorkspaceParts(19, 2, 14, ((4, 1),)),
    ("rnn", 2, True): WorkspaceParts(21, 2, 14, ((4, 1),)),
}
"""The workspaces for persistent algorithms, which keep the weights in registers and copy the gates of all steps."""

_PACKED: dict[tuple[str, int], WorkspaceParts] = {
    ("lstm", 1): WorkspaceParts(4, 0, 6, ((1, 3),)),
    ("lstm", 2): WorkspaceParts(12, 0, 16, ((4, 2),)),
    ("gru", 1): WorkspaceParts(3, 0, 3, ((1, 3),)),
    ("gru", 2): WorkspaceParts(10, 0, 10, ((4, 2),)),
    ("rnn", 1): WorkspaceParts(2, 0, 1, ((1, 1),)),
    ("rnn", 2): WorkspaceParts(8, 0, 6, ((4, 1),)),
}
"""The workspaces for packed sequences, which cuDNN does not copy to another layout."""

_EVALUATION: dict[tuple[str, int, bool], WorkspaceParts] = {
    ("lstm", 1, False): WorkspaceParts(5, 1, 10),
    ("lstm", 2, False): WorkspaceParts(14, 1, 24),
    ("gru", 1, False): WorkspaceParts(4, 1, 5),
    ("gru", 2, False): WorkspaceParts(12, 1, 14),
    ("rnn", 1, False): WorkspaceParts(2, 1, 3),
    ("rnn", 2, False): WorkspaceParts(8, 1, 10),
    ("lstm", 1, True): WorkspaceParts(21, 1, 8),
    ("lstm", 2, True): WorkspaceParts(30, 1, 18),
    ("gru", 1, True): WorkspaceParts(16, 1, 4),
    ("gru", 2, True): WorkspaceParts(24, 1, 10),
    ("rnn", 1, True): WorkspaceParts(6, 1, 4),
    ("rnn", 2, True): WorkspaceParts(12, 1, 10),
}
"""The workspaces for evaluation. A key contains the cell type, the number of directions, and whether the algorithm is
persistent.
"""

CHUNK = 256
"""The maximum number of steps whose gates are copied at once."""


def workspace(layer: RecurrentLayer, *, backward: bool = False) -> int:
    is_persistent = persistent(layer, backward=backward)
    parts = _parts(layer, is_persistent)
    width = parts.hidden * layer.hidden + parts.inputs * layer.inputs + layer.directions * layer.projected
    wider = round(sum(a * max(0.0, layer.inputs - b * layer.hidden) for a, b in parts.wider))
    masked = (
        layer.hidden if layer.training and layer.dropout and _has_dropout_buffer(layer, is_persistent) else 0
    )
    if _shares_buffer(layer, is_persistent):  # without the states
        width += max(masked, wider - round(32 * layer.hidden / layer.steps))
    else:
        width += wider + masked
    values = width * layer.outputs
    if _in_chunks(layer, is_persistent):
        values = _values_in_chunks(layer, masked)
    states = parts.states * layer.layers * layer.hidden
    return (
        layer.weights
        + 8 * MiB * layer.layers * layer.directions
        + (values + states * layer.batch) * layer.element
        + 8 * layer.batch
        + 256
    )


def _parts(layer: RecurrentLayer, is_persistent: bool) -> WorkspaceParts:
    if layer.rows:
        return _PACKED[layer.kind, layer.directions]
    if not layer.training:
        return _EVALUATION[layer.kind, layer.directions, is_persistent]
    return (_PERSISTENT if is_persistent else _STANDARD)[layer.kind, layer.directions, layer.layers > 1]


def _has_dropout_buffer(layer: RecurrentLayer, is_persistent: bool) -> bool:
    if layer.layers == 1 or layer.directions == 2:
        return False
    return layer.kind == "lstm" or (layer.kind == "gru" and not is_persistent)


def _shares_buffer(layer: RecurrentLayer, is_persistent: bool) -> bool:
    is_standard = layer.training and not (is_persistent or layer.rows or layer.projected)
    return is_standard and layer.kind == "lstm" and layer.directions == 1 and layer.layers > 1


def _in_chunks(layer: RecurrentLayer, is_persistent: bool) -> bool:
    """Return whether gates are copied in chunks, as in an LSTM with long sequences and in a GRU with several layers."""
    if layer.directions == 2 or is_persistent or layer.rows:
        return False
    if layer.projected and layer.training and layer.inputs > layer.hidden:
        return False
    return layer.steps > CHUNK if layer.kind == "lstm" else layer.kind == "gru" and layer.layers > 1


def _values_in_chunks(layer: RecurrentLayer, masked: int) -> int:
    """Return the number of values in the workspace if gates are copied in chunks. The workspace of the forward pass
    includes the gates of one chunk. The workspace of the backward pass includes more values per step, but no gates.
    Training runs both passes, so the larger number is returned.
    """
    hidden, inputs, projected = layer.hidden, layer.inputs, layer.projected
    gates = layer.gates * min(layer.steps, CHUNK) * hidden * layer.batch
    forward = (hidden + inputs + projected + masked) * layer.outputs + gates
    if not layer.training or projected:
        return forward
    if layer.kind == "gru":
        width, states = 2 * hidden + 2 * inputs + max(hidden, inputs), min(layer.steps, 4 * layer.layers + 8)
    elif layer.layers == 1:
        width, states = 3 * hidden + 2 * inputs + max(hidden, inputs), 1
    elif inputs > hidden:
        width, states = 3 * hidden + 3 * inputs, 0
    else:
        width, states = 3 * hidden + 2 * inputs, 9 * layer.layers + 8
    return max(forward, width * layer.outputs + states * hidden * layer.batch)


def persistent(layer: RecurrentLayer, *, backward: bool = False) -> bool:
    """Return whether torch selects a persistent algorithm, which keeps the weights in registers. PyTorch always selects
    a persistent algorithm for small layers. On Ampere and newer GPUs, PyTorch also selects a persistent algorithm for a
    single wide layer in float16, at some batch sizes.
    """
    if layer.projected or layer.rows or layer.dtype == "bfloat16":
        return False
    small = {False: {"rnn": 384}, True: {"rnn": 256}}[backward].get(layer.kind, 128 if backward else 192)
    if layer.hidden <= small:
        return True
    if layer.dtype != "float16" or layer.kind == "gru" or layer.layers > 1 or layer.directions > 1:
        return False
    if layer.hidden > 1024 or layer.hidden % 128 or layer.inputs % 128:
        return False
    is_supported_batch = layer.batch % 8 == 0 and layer.batch <= 128
    return is_supported_batch and (layer.kind == "lstm" or layer.batch < 96 or layer.hidden < 896)


def dropout_state(gpu: GpuSpec) -> int:
    """Return the size in bytes of the random states of cuDNN's dropout: 24 bytes for each thread that the GPU runs at
    once.
    """
    return gpu.sm_count * gpu.threads_per_sm * 24
