"""A detected leak, which is a rare event of a run. The class is not in `annotations`, because `legroom.watch` needs
only this class, and creating dataclasses takes time.
"""

from dataclasses import dataclass
from typing import Literal

from legroom.memory.event_base import Annotation

LeakKind = Literal["graph", "tensor", "larger"]
"""`graph` means that an autograd graph grows. `tensor` means that tensors accumulate. `larger` means that a tensor
grows with each iteration."""
LeakHolder = Literal[
    "container", "variable", "carried", "cache", "exception", "closure", "generator", "cycle", "unknown"
]
"""The kind of object that retains the memory. `variable` is a variable that is computed from its own previous value.
`carried` is a recurrent state.
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
    """The line that stores the tensors or, if unknown, the line that creates the tensors."""
    function: str
    bytes_per_step: int
    nodes_per_step: int
    storages_per_step: int
    step: int
    """The step in which the leak was detected."""
    steps: int
    """The number of steps over which the leak had grown when it was detected."""
    evaluation: bool = False
    """True if the loop ran no backward pass."""
    on_host: bool = False
    """True if host memory grows while the computation runs on a GPU."""
    ended: bool = False
    """True if the growth had stopped by the end of the run, so this is not a leak."""

    @property
    def identity(self) -> tuple[str, str | None, int | None]:
        """A key that stays the same when the same leak is detected again with newer numbers."""
        return self.name, self.file, self.line
