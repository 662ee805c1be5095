"""Memory events: a stream of small tuples that describes the memory operations of a running program.

There are two producers: a dispatch mode over CPU or fake tensors, and the history of the CUDA allocator. All analyses
use these events. A long run has millions of events, so the frequent events are tuples.

The category of a storage (gradient, activation) is often known only after its allocation, so a `Tag` may follow an
`Alloc`. The last tag applies to the whole lifetime of the storage. `ledger` combines events into totals.
"""

from collections.abc import Callable
from typing import NamedTuple

from legroom.memory.event_base import Annotation, Category, Frame, Phase


class Alloc(NamedTuple):
    """An event that records that a storage was allocated."""

    time: float
    """Seconds since the run started."""
    id: int
    """The id of the storage, which is unique within the run."""
    bytes: int
    """The requested size."""
    block_bytes: int
    """The size of the block, which is rounded up and includes a remainder that is too small to split off."""
    device: int
    stream: int
    category: Category
    phase: Phase
    step: int
    """The number of completed optimizer steps, or of loader batches if there is no optimizer."""
    module: str
    """The dotted path of the innermost running module, or "". For a backward operation, this is the path of the forward
    operation's module.
    """
    frame: Frame | None
    """The user's line. For a backward operation, this is the line of the forward operation."""
    op: str
    """The operation (`aten.convolution`, `aten.addmm`), or "" if unknown."""


class Free(NamedTuple):
    """An event that records that a storage was freed."""

    time: float
    id: int


class Tag(NamedTuple):
    """An event that records the category of a storage, once it is known."""

    id: int
    category: Category


class SegmentChange(NamedTuple):
    """An event that records that the allocator reserved device memory (`bytes` > 0) or released device memory
    (`bytes` < 0)."""

    time: float
    device: int
    bytes: int


class Step(NamedTuple):
    """An event that records that a training step ended."""

    time: float
    step: int
    """The step number, starting at 0."""
    seconds: float
    device: int
    allocated: int
    """Allocated bytes at the end of the step."""
    reserved: int
    """Reserved bytes at the end of the step."""
    peak_allocated: int
    """The peak during the step."""
    peak_reserved: int


class Oom(NamedTuple):
    """An event that records that an allocation failed. All sizes are in bytes and refer to the device on which the
    allocation failed."""

    time: float
    device: int
    requested: int
    """The size that the operation requested."""
    capacity: int
    """The device's total memory."""
    limit: int
    """The number of bytes that this process may use. This number is less than `capacity` with a per-process memory
    fraction.
    """
    allocated: int
    """The total size of the blocks of live storages."""
    reserved: int
    """The memory that PyTorch's allocator has reserved."""
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
    """The message of the exception."""


class Holder(NamedTuple):
    """A variable that retains memory at the preceding `Oom`."""

    path: str
    """The variable with its type, for example `losses (list, 412 items)`, `model (ResNet)` or `self.history (dict, 8
    items)`.
    """
    bytes: int
    """The number of device bytes that can be reached through the variable. If two variables refer to the same tensor,
    its bytes are included for both variables.
    """
    storages: int
    """The number of storages that can be reached through the variable."""
    frame: Frame | None
    """The line that the function with this variable was running."""


Event = Alloc | Free | Tag | SegmentChange | Step | Oom | Holder | Annotation
Sink = Callable[[Event], None]
"""A function that receives events: a capture writer, a ledger, the `append` of a list."""


def discard(event: Event) -> None:
    """Discard an event. This function is a Sink for events that are not needed."""
