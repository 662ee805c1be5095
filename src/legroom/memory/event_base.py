"""Types that the events and annotations share. Modules that need only these types import this module, because creating
the classes of all events takes milliseconds.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Category(StrEnum):
    """The purpose for which memory is used."""

    PARAMETER = "parameter"
    GRADIENT = "gradient"
    OPTIMIZER_STATE = "optimizer state"
    ACTIVATION = "activation"
    """Saved by autograd for the backward pass."""
    INPUT = "input"
    """Copied to the device by the data loader or the script."""
    BUFFER = "buffer"
    WORKSPACE = "workspace"
    """Used internally by a library (cuBLAS, cuDNN)."""
    RESULT = "result"
    """Computed by the forward pass, retained by a variable, and not saved for a backward pass. Examples are an output
    and the loss of the previous step.
    """
    TEMPORARY = "temporary"
    """All other memory, mostly intermediate results that are freed soon."""

    __hash__ = str.__hash__  # `Enum` computes the hash in Python, and sites are looked up for every event


class Phase(StrEnum):
    """The phase of the training step in which an event occurs."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    OTHER = "other"

    __hash__ = str.__hash__


class Frame(NamedTuple):
    """A line of the user's code."""

    file: str
    line: int
    function: str


BEFORE_RECORDING = Frame("<before the recording>", 0, "")
"""The line that is reported for storages that existed before the recording started. Like other names in angle
brackets, this name does not refer to a file.
"""


@dataclass(frozen=True)
class Annotation:
    """The base class of all rare events."""

    time: float
    """Seconds since the run started."""
