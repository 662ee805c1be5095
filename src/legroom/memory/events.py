"""The vocabulary: a running program as a stream of events.

Two producers speak it (a dispatch mode over CPU or fake tensors, and the CUDA allocator's own history) and
everything that reasons about memory reads it. An event is a small tuple: millions are made in a long run.

What a storage *is* (a gradient, an activation) is often known only after it was born, so a `Tag` may follow an
`Alloc`; the last tag wins for the whole life of the storage. See `ledger` for the folding.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from legroom.memory.annotations import Annotation


class Category(StrEnum):
    """What a piece of memory is for."""

    PARAMETER = "parameter"
    GRADIENT = "gradient"
    OPTIMIZER_STATE = "optimizer state"
    ACTIVATION = "activation"
    """What autograd saved for the backward pass."""
    INPUT = "input"
    """What the data loader, or the script itself, brought to the device."""
    BUFFER = "buffer"
    WORKSPACE = "workspace"
    """What a library (cuBLAS, cuDNN) holds for itself."""
    RESULT = "result"
    """What the forward pass made and a variable of the program's holds, saved for no backward pass, or not any more: an output or a loss of
    the step before."""
    TEMPORARY = "temporary"
    """What an operation made and nothing above claims: a call at work has it in hand, or it is about to die."""


class Phase(StrEnum):
    """What the training loop was doing."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    OTHER = "other"


class Frame(NamedTuple):
    """A line of the user's own code."""

    file: str
    line: int
    function: str


class Alloc(NamedTuple):
    """A storage was born."""

    time: float
    """Seconds since the run began."""
    id: int
    """Unique in the run, never reused."""
    bytes: int
    """As the program asked for."""
    block_bytes: int
    """As the allocator charged: rounded up, with a rest too small to split off."""
    device: int
    stream: int
    category: Category
    phase: Phase
    step: int
    """Optimizer steps completed so far (loader batches, where no optimizer steps)."""
    module: str
    """Dotted path of the innermost module at work (for a backward operation, of the forward one); "" for none."""
    frame: Frame | None
    """The user's line; for a backward operation, the line of the forward operation it undoes."""
    op: str
    """`aten.convolution`, `aten.addmm`, ...; "" where unknown."""


class Free(NamedTuple):
    """A storage died."""

    time: float
    id: int


class Tag(NamedTuple):
    """It became known what a storage is."""

    id: int
    category: Category


class Segment(NamedTuple):
    """The allocator took memory from the device (`bytes` > 0) or gave it back (`bytes` < 0)."""

    time: float
    device: int
    bytes: int


class Step(NamedTuple):
    """A training step ended. The figures are of that step."""

    time: float
    step: int
    """The number of the step that ended, from 0."""
    seconds: float
    device: int
    allocated: int
    """At its end."""
    reserved: int
    """At its end."""
    peak_allocated: int
    """The highest within it."""
    peak_reserved: int


class Oom(NamedTuple):
    """An allocation failed. Every figure is of the failing device at that moment, in bytes."""

    time: float
    device: int
    requested: int
    """What the operation asked for."""
    capacity: int
    """The device's total memory."""
    limit: int
    """What this process may take of it: below `capacity` under a per-process fraction."""
    allocated: int
    """In live storages, as charged."""
    reserved: int
    """Taken from the device by PyTorch's allocator."""
    cached: int
    """Part of `reserved` in wholly free segments."""
    fragmented: int
    """Part of `reserved` that is free inside segments in use."""
    largest_free_block: int
    other: int
    """Device memory that is not PyTorch's: CUDA context, other processes."""
    step: int
    phase: Phase
    module: str
    frame: Frame | None
    op: str
    message: str
    """torch's own wording."""


class Holder(NamedTuple):
    """Who keeps memory alive at the `Oom` just before it: a path through the user's variables."""

    path: str
    """`losses (list, 412 items)`, `model (ResNet)`, `self.history (dict, 8 items)`."""
    bytes: int
    """Device bytes reachable through it (two holders may reach the same bytes)."""
    storages: int
    """How many storages that is."""
    frame: Frame | None
    """Where the variable lives: the frame's current line."""


Event = Alloc | Free | Tag | Segment | Step | Oom | Holder | Annotation
Sink = Callable[[Event], None]
"""Where a producer puts events: a capture writer, a ledger, a list's `append`."""
