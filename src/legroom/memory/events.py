"""Memory events: a stream of small tuples that describes the memory operations of a running program.

The events come from a dispatch mode over CPU or fake tensors, or from the history of the CUDA allocator. A long run
has millions of events, so the frequent events are tuples.

The category of a storage (gradient, activation) is often known only after its allocation, so a `Tag` may follow an
`Alloc`. The last tag applies to the whole lifetime of the storage.
"""

from collections.abc import Callable
from typing import NamedTuple

from legroom.memory.event_base import Annotation, Category, Frame, Phase


class Alloc(NamedTuple):
    """A storage was allocated."""

    time: float
    """Seconds since the run started."""
    id: int
    bytes: int
    block_bytes: int
    """The size of the block: the rounded request, and any remainder that is too small to split off."""
    device: int
    stream: int
    category: Category
    phase: Phase
    step: int
    """The number of completed optimizer steps, or of batches if there is no optimizer."""
    module: str
    """The dotted path of the innermost running module, or "".

    For a backward operation, this is the path of the forward operation's module.
    """
    frame: Frame | None
    """The line of the user's code. For a backward operation, this is the line of the forward operation."""
    op: str
    """The operation (`aten.convolution`, `aten.addmm`), or "" if unknown."""


class Free(NamedTuple):
    """A storage was freed."""

    time: float
    id: int


class Tag(NamedTuple):
    """The category of a storage became known."""

    id: int
    category: Category


class SegmentChange(NamedTuple):
    """The allocator reserved device memory, or released it if `bytes` is negative."""

    time: float
    device: int
    bytes: int


class Step(NamedTuple):
    """A training step ended."""

    time: float
    step: int
    seconds: float
    device: int
    allocated: int
    reserved: int
    peak_allocated: int
    peak_reserved: int


class Oom(NamedTuple):
    """An allocation failed. All sizes are in bytes and refer to the device on which the allocation failed."""

    time: float
    device: int
    requested: int
    capacity: int
    limit: int
    """The maximum number of bytes that this process can allocate. The limit is below `capacity` if a per-process
    memory fraction is set.
    """
    allocated: int
    """The total size of the blocks of live storages."""
    reserved: int
    cached: int
    """The reserved memory in completely free segments."""
    fragmented: int
    """The free memory in reserved segments that are partly in use."""
    largest_free_block: int
    other: int
    """Device memory outside PyTorch: the CUDA context and other processes."""
    step: int
    phase: Phase
    module: str
    frame: Frame | None
    op: str
    message: str


class Holder(NamedTuple):
    """A variable that retains memory at the preceding `Oom`."""

    path: str
    """The variable with its type, for example `losses (list, 412 items)`, `model (ResNet)` or `self.history (dict, 8
    items)`.
    """
    bytes: int
    """The device bytes that can be reached through the variable.

    If two variables refer to the same tensor, its bytes are included for both variables.
    """
    storages: int
    frame: Frame | None
    """The line that was running in the function that contains this variable."""
    shared_bytes: int = 0
    """The part of `bytes` that tensor variables and optimizers retain as well, for example `loss` through its autograd
    graph, or an optimizer that has loaded its state from a checkpoint.

    Clearing the variable does not free these bytes.
    """
    unused_bytes: int = 0
    """The part of `bytes` that no tensor in the container uses. The tensors are views, such as rows, of larger tensors,
    which stay in memory as a whole.
    """


Event = Alloc | Free | Tag | SegmentChange | Step | Oom | Holder | Annotation
Sink = Callable[[Event], None]
"""A function that receives events, such as a capture writer, a ledger or the `append` method of a list."""


def discard(event: Event) -> None:
    """Discard an event. Use this function as a sink if no events are needed."""
