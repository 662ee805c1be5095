"""The rare events of a run, for example gaps in the recording and the end of the run.

Each kind of event is a frozen dataclass with typed fields. A capture file stores the class name and the fields in
order (see `capture.lines`), so a changed class name or field requires a new capture version. The classes have no
`slots`, because slots create a second version of each class, which `Annotation.__subclasses__()` would list too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from legroom.memory.event_base import Annotation


@dataclass(frozen=True)
class GapStarted(Annotation):
    """Marks the start of a gap in the recording.

    Between this event and the next `GapEnded`, only the steps are known.
    """

    events: int | None = None
    """The number of missing events, or None if unknown."""
    every: int = 1
    """If `every` is 4, only every fourth step of the gap is stored."""


@dataclass(frozen=True)
class GapEnded(Annotation):
    """Marks the end of a gap in the recording."""


@dataclass(frozen=True)
class ForwardProgress(Annotation):
    """The progress of the forward pass at the preceding `Oom`."""

    fraction: float
    """The finished fraction of the forward pass, from 0 to 1."""


@dataclass(frozen=True)
class ProgramState(Annotation):
    """What the program was doing at the preceding `Oom`."""

    gradients_enabled: bool
    is_training: bool | None
    """True if the most recently called model is in training mode, False after `model.eval()`, and None if no model was
    called.
    """
    batch_size: int | None
    """The batch size of the loader that returned the last batch, or None if there is no loader."""
    samples: int | None = None
    """The number of samples in the last batch. It is below `batch_size` if the dataset has too few samples."""
    first_input_shape: tuple[int, ...] = ()
    """The shape of the first tensor argument, in the first call to the most recently called model."""
    input_shape: tuple[int, ...] = ()
    """The shape of the same argument, in the last call to this model."""
    is_evaluation: bool | None = None
    """True if the forward pass belongs to an evaluation, False if it belongs to a training step, and None if unknown."""
    calls: int = 0
    """How often the same line has called the model with gradients since the last backward pass."""
    file: str = ""
    line: int = 0
    """The line that called the model, or 0 if unknown."""
    function: str = ""


@dataclass(frozen=True)
class ModelCall(Annotation):
    """A forward pass of a model with gradients enabled, since the last backward pass before the preceding `Oom`."""

    started: float
    """Seconds since the run started."""
    model: str
    """The class of the model."""
    trainable_bytes: int
    """The size of the parameters that require gradients."""
    trained_bytes: int
    """The size of those parameters that belong to an optimizer."""
    untrained: tuple[str, ...]
    """The paths of the outermost modules with parameters that require gradients, but belong to no optimizer. The path
    of the model itself is empty."""
    others_are_trained: bool
    """Whether an optimizer updates parameters of other modules. Some libraries update copies of the parameters, which
    belong to no module."""
    input_requires_grad: bool | None
    """Whether an argument requires gradients, or None if no argument is known to be a tensor."""
    dtype: str
    """The dtype of most parameters, for example `float32`, or "" without parameters."""
    file: str = ""
    line: int = 0
    """The line that called the model, or 0 if unknown."""
    function: str = ""
    largest: str = ""
    """The path of the module with the largest trainable parameter."""
    largest_kind: str = ""
    """The class of that module."""
    largest_shape: tuple[int, ...] = ()
    largest_bytes: int = 0


@dataclass(frozen=True)
class HandledError(Annotation):
    """The preceding `Oom` occurred while an `except` block handled an earlier out-of-memory error. The earlier error
    retains the tensors of the functions that it stopped."""

    file: str
    line: int
    """The line of the `except` block that was running."""
    function: str


@dataclass(frozen=True)
class BroadcastTensors(Annotation):
    """Two variables with the shapes `(n, 1)` and `(n,)` in a function that was running at the preceding `Oom`. An
    operation on both creates a result of the shape `(n, n)`."""

    column: str
    """The variable with the shape `(n, 1)`."""
    row: str
    samples: int
    bytes: int
    """The size of the result."""
    file: str
    line: int
    """The line that the function was running."""
    function: str


@dataclass(frozen=True)
class EvaluatedWithGradients(Annotation):
    """A line evaluated a model with gradients enabled."""

    file: str
    line: int
    function: str
    steps: tuple[int, ...]
    """The numbers of completed steps when the evaluations ran."""


@dataclass(frozen=True)
class LiveOptimizer(Annotation):
    """An optimizer that existed at the preceding `Oom`."""

    name: str
    update: str
    """`fused`, `foreach` (all parameters at once), `single` (one parameter at a time) or `custom`."""
    supports_fused: bool
    trainable_bytes: int
    state_bytes: int
    """The size of the complete state, which may not be allocated yet."""
    temporary_bytes: int
    """The approximate size of the temporary tensors that a `foreach` step allocates, or 0 for other kinds of
    update.
    """
    file: str = ""
    line: int = 0
    """The line that created the optimizer. `file` is empty if the optimizer existed before the recording."""
    unused_bytes: int = 0
    """The size of the state on the device if a newer optimizer updates all of the parameters."""
    options_in_groups: bool = False
    """Whether `foreach` must be set in `param_groups`, because the constructor does not accept it, or because
    `load_state_dict` replaced the options of the constructor.
    """


@dataclass(frozen=True)
class FoundSetting(Annotation):
    """A setting of the script that may determine its batch size.

    An `Oom` may be followed by several of these events, with the most likely setting first.
    """

    name: str
    value: int
    rank: int
    text: str
    arguments: tuple[str, ...] | None
    is_given: bool
    variable: str
    file: str
    line: int


@dataclass(frozen=True)
class HolderCoverage(Annotation):
    """The total memory that the variables in the `Holder` events of an `Oom` retain."""

    bytes: int
    """The number of bytes. Each storage is counted once."""


@dataclass(frozen=True)
class OtherProcesses(Annotation):
    """Other processes used the GPU on which memory ran out."""

    description: str


@dataclass(frozen=True)
class HistoryUnavailable(Annotation):
    """The CUDA allocator cannot record its history, so only memory totals per step are known."""

    reason: str


@dataclass(frozen=True)
class LibraryRetries(Annotation):
    """Allocations failed inside a library, which continued with less memory."""

    count: int


@dataclass(frozen=True)
class RecordingFailed(Annotation):
    """Legroom stopped recording or searching for leaks, because of an error in Legroom or because several threads run
    training.
    """

    message: str


@dataclass(frozen=True)
class SnapshotImported(Annotation):
    """The events come from a PyTorch snapshot, which contains less information than a capture."""


@dataclass(frozen=True)
class LoopWatched(Annotation):
    """The leak detector watched the training loop to its end."""

    iterations: int


@dataclass(frozen=True)
class SpillTotals(Annotation):
    """The total memory that `legroom run --spill` moved to host memory."""

    moved_bytes: int
    moved_tensors: int
    peak_host_bytes: int
    skipped_bytes: int
    """The number of bytes that were not moved because host memory ran out."""
    budget_bytes: int
    """The allowed host memory in bytes, or 0 if there was no limit."""
    seconds: float
    """The seconds spent waiting for copies."""


@dataclass(frozen=True)
class SourceLines(Annotation):
    """Lines of one of the user's source files, as they were during the run."""

    file: str
    lines: tuple[tuple[int, str], ...]


class ExitReason(StrEnum):
    FINISHED = "finished"
    EXITED = "exited"
    """`sys.exit` or `SystemExit`, with any exit code."""
    RAISED = "raised"
    INTERRUPTED = "interrupted"
    """Ctrl-C that the script did not handle."""
    OS_EXIT = "os._exit"
    """`os._exit`, which runs no exit handlers."""
    UNKNOWN = "unknown"
    """The capture has no end mark, because the process was killed or is still running, or because the file
    was cut off or damaged."""


@dataclass(frozen=True)
class RunEnded(Annotation):
    """The end of the run."""

    exit_code: int | None
    reason: ExitReason
    error: str = ""
    traceback: str = ""


def find_ending(annotations: Sequence[Annotation]) -> RunEnded:
    """Return the last `RunEnded` event. If there is none, return a new event with an unknown reason."""
    for annotation in reversed(annotations):
        if isinstance(annotation, RunEnded):
            return annotation
    return RunEnded(annotations[-1].time if annotations else 0.0, None, ExitReason.UNKNOWN)
