"""What cuDNN takes for a recurrent layer: the reserve that it keeps for the backward pass, and its workspace.

Measured on an H200 with cuDNN 9.19: 285 layers (LSTM, GRU, RNN; one to four deep; both directions; dropout). The
reserve is equal to the byte in all of them; the workspace in most (a single layer of at most 320 units runs as one
persistent kernel with a workspace of its own, and differs).
"""

from dataclasses import dataclass

from legroom.observe.gpus import Gpu
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
    element: int
    """Bytes of one value."""
    training: bool
    dropout: bool

    @property
    def gates(self) -> int:
        return {"lstm": 4, "gru": 3}.get(RNN_MODES[self.mode], 1)

    @property
    def sequence(self) -> int:
        """Bytes of one layer's outputs in one direction: one hidden state for each step and example."""
        return self.steps * self.batch * self.hidden * self.element

    @property
    def weights(self) -> int:
        """Bytes of all weight matrices, without biases."""
        deeper = (self.layers - 1) * self.hidden * self.hidden * (self.directions + 1)
        first = self.hidden * (self.inputs + self.hidden)
        return self.gates * self.directions * (first + deeper) * self.element


def reserve(layer: Layer) -> int:
    """Gates and cells of every step of every layer, the outputs between layers, and dropout's masks, a bit each."""
    if not layer.training:
        return 0
    per_layer = {"lstm": 5, "gru": 6}.get(RNN_MODES[layer.mode], 1)
    between = layer.layers - 1
    sequences = (per_layer * layer.layers + between) * layer.directions
    masks = between * layer.directions * layer.sequence // layer.element // 8 if layer.dropout else 0
    return sequences * layer.sequence + 256 + -(-masks // 32) * 32


def workspace(layer: Layer) -> int:
    """Gates of one layer for all steps, the inputs and outputs laid out anew, the weights, and 8 MiB for each layer."""
    both = layer.directions == 2
    inputs = layer.steps * layer.batch * layer.inputs * layer.element
    state = layer.batch * layer.hidden * layer.element
    states = {"lstm": 24 if both else 10, "gru": 14 if both else 5}.get(RNN_MODES[layer.mode], 5)
    sequences = (layer.gates + 1) * layer.directions + (4 if both else 0)
    if layer.dropout and layer.layers > 1:
        sequences += layer.directions
    return (
        layer.weights
        + 8 * MiB * layer.layers * layer.directions
        + sequences * layer.sequence
        + inputs
        + states * layer.layers * state
        + 8 * layer.batch
        + 256
    )


def dropout_state(gpu: Gpu) -> int:
    """The generators of cuDNN's dropout: one of 24 bytes for each thread the GPU can run at once."""
    return gpu.multiprocessors * gpu.threads_per_multiprocessor * 24
