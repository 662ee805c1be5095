"""A detected leak.

`legroom.watch` imports this module only when it finds a leak, because creating a dataclass with many fields takes
milliseconds.
"""

from dataclasses import dataclass
from typing import Literal

from legroom.memory.event_base import Annotation

LeakKind = Literal["graph", "tensor", "larger"]
"""The kind of leak: `graph` is a growing autograd graph, `tensor` is a growing number of tensors, and `larger` is a
tensor that grows with each iteration.
"""
LeakHolder = Literal[
    "container", "variable", "carried", "linked", "cache", "exception", "closure", "generator", "hook", "thread",
    "cycle", "gradient", "unknown",
]  # fmt: skip
"""The kind of object that retains the memory. `variable` is a variable that is computed from its own previous value.
`carried` is a recurrent state. `linked` is an attribute that refers to another object of the same class. `gradient` is
the gradient of a backward pass with `create_graph=True`.
"""


@dataclass(frozen=True, kw_only=True)
class DetectedLeak(Annotation):
    """Memory that a training loop retains and that grows in each iteration."""

    time: float = 0.0
    kind: LeakKind
    how: LeakHolder
    name: str
    """The variable as written in the user's code (`losses`, `trainer.history`), or "" if unknown."""
    described: str
    """The type and size of the variable, for example `list, 412 items`."""
    file: str | None
    line: int | None
    """The line that stores the tensors or, if it is unknown, the line that creates them. If a function of the user's
    code stores its argument, this line may be the call of this function.
    """
    function: str
    bytes_per_step: int
    nodes_per_step: int
    storages_per_step: int
    step: int
    steps: int
    """The number of steps over which the leak had grown when it was detected."""
    evaluation: bool = False
    """True if the loop ran no backward pass."""
    on_host: bool = False
    """True if host memory grows while the computation runs on a GPU."""
    ended: bool = False
    """True if the growth stopped before the end of the run, which means that it was not a leak."""

    stored_file: str | None = None
    stored_line: int | None = None
    """The line that stores the tensors, if `caller_line` is known."""
    caller_file: str | None = None
    caller_line: int | None = None
    """The line that calls the function that stores the tensors, if this function is called on only one line."""

    @property
    def identity(self) -> tuple[str, str | None, int | None]:
        """A key that stays the same if the same leak is detected again with updated sizes."""
        if self.stored_line is not None:
            return self.name, self.stored_file, self.stored_line
        return self.name, self.file, self.line
