"""The facts about one out-of-memory error that the advice rules use."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from legroom.diagnose.oom.recognize import classify
from legroom.diagnose.report.device_memory import budget_of, free_at
from legroom.diagnose.report.growing_lines import Leak
from legroom.findings import Finding
from legroom.memory.events import Alloc, Category, Frame, Holder, Oom, Phase
from legroom.memory.state import State
from legroom.observe.source.batch_argument import BatchArgument


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """All known facts about one out-of-memory error."""

    oom: Oom
    state: State
    """The live memory at the failure."""
    allocations: Callable[[], Iterator[Alloc]]
    """Allocations on the full device before the failure, newest first, with their final categories."""
    holders: Sequence[Holder] = ()
    leaks: Sequence[Leak] = ()
    """Leaks on the full device."""
    progress: float | None = None
    """The approximate completed fraction of the forward pass, estimated from the modules that had started."""
    batch: BatchArgument | None = None
    """The script's batch size argument, if one is recognized."""

    def live_bytes(self, *categories: Category) -> int:
        """Return the number of live bytes of these categories."""
        return sum(self._by_category.get(category, 0) for category in categories)

    def live(self, *categories: Category) -> list[Alloc]:
        """Return the live storages of these categories."""
        return [each for each in self.state.live if each.category in categories]

    @property
    def budget(self) -> int:
        """The number of bytes that PyTorch may reserve on the device."""
        return budget_of(self.oom)

    @property
    def shortfall(self) -> int:
        """The minimum number of additional free bytes that the request needs, or that its block needs if the request
        itself fits."""
        free = free_at(self.oom)
        needed = self.oom.requested if self.oom.requested > free else block_of(self.oom)
        return max(needed - free, 0)

    @property
    def in_first_forward(self) -> bool:
        """True if the failure was in the first forward pass. In that case, the memory needed for the rest of the pass
        is unknown."""
        return self.oom.step == 0 and self.oom.phase is Phase.FORWARD

    def retained_by(self, leak: Leak) -> int:
        """Return the number of bytes that a leak retains. If its holder is unknown, return the measured growth."""
        retained = [
            holder.bytes for holder in self.holders if stem_of(holder.path) == stem_of(leak.name) != ""
        ]
        transient = self.live_bytes(Category.ACTIVATION, Category.RESULT, Category.TEMPORARY, Category.INPUT)
        return max(leak.bytes, min(max(retained, default=0), transient))

    @cached_property
    def fixed(self) -> int:
        """The number of bytes that do not depend on the batch size, including bytes that the first step will still
        allocate."""
        parameters = self.live_bytes(Category.PARAMETER)
        gradients = self.live_bytes(Category.GRADIENT)
        optimizer = self.live_bytes(Category.OPTIMIZER_STATE)
        if self.live_bytes(Category.ACTIVATION) or gradients:  # training, not inference
            gradients = max(gradients, parameters)
            if self.oom.step == 0:  # assume Adam: two copies of the parameters
                optimizer = max(optimizer, 2 * parameters)
        return parameters + gradients + optimizer + self.live_bytes(Category.BUFFER, Category.WORKSPACE)

    @cached_property
    def _by_category(self) -> dict[Category, int]:
        return self.state.by_category()


Rule = Callable[[Evidence], Iterator[Finding]]
"""A rule checks the evidence for one cause, and yields a finding if the cause applies."""


def block_of(oom: Oom) -> int:
    """Return the size of the block that PyTorch tried to allocate, according to its message. PyTorch allocates device
    memory in large blocks."""
    return max(classify(oom.message).requested or 0, oom.requested)


def stem_of(name: str) -> str:
    """Return `history` for `self.history["loss"]` and for `trainer.history (dict, 2 items)`."""
    return name.partition(" ")[0].partition("[")[0].rpartition(".")[2]


def bytes_of(allocations: Sequence[Alloc]) -> int:
    return sum(each.block_bytes for each in allocations)


def heaviest_frame(allocations: Sequence[Alloc]) -> Frame | None:
    """Return the line that allocated the most bytes."""
    sizes: Counter[Frame] = Counter()
    for each in allocations:
        if each.frame is not None:
            sizes[each.frame] += each.block_bytes
    return sizes.most_common(1)[0][0] if sizes else None


def location(frame: Frame | None) -> dict[str, Any]:
    """Return the `file` and `line` arguments of a finding."""
    return {"file": frame.file, "line": frame.line} if frame else {}
