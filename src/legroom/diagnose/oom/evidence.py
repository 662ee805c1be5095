"""All that is known of one out-of-memory error, for the rules that look for its cause."""

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
    """All that is known of one failure."""

    oom: Oom
    state: State
    """At the failure."""
    births: Callable[[], Iterator[Alloc]]
    """Storages born on the full device, the newest first, with what they turned out to be."""
    holders: Sequence[Holder] = ()
    leaks: Sequence[Leak] = ()
    """Of the device that is full."""
    progress: float | None = None
    """Which part of its forward pass was over, about, by the modules that had begun."""
    batch: BatchArgument | None = None
    """The script's own argument for its batch size, where one is recognised."""

    def held(self, *categories: Category) -> int:
        """Live bytes of these categories."""
        return sum(self._by_category.get(category, 0) for category in categories)

    def live(self, *categories: Category) -> list[Alloc]:
        """Live storages of these categories."""
        return [each for each in self.state.live if each.category in categories]

    @property
    def budget(self) -> int:
        """What PyTorch may take of the device in all."""
        return budget_of(self.oom)

    @property
    def shortfall(self) -> int:
        """How much more had to be free, at least: for what was asked for, or where that was there, for the block it takes."""
        free = free_at(self.oom)
        wanted = self.oom.requested if self.oom.requested > free else block_of(self.oom)
        return max(wanted - free, 0)

    @property
    def in_first_forward(self) -> bool:
        """Whether the first forward pass was not over: nobody knows yet how much the rest of it needs."""
        return self.oom.step == 0 and self.oom.phase is Phase.FORWARD

    def kept_by(self, leak: Leak) -> int:
        """What a leak has come to: what its holder reaches, where that is known; else what it was seen to grow."""
        reached = [
            holder.bytes for holder in self.holders if stem_of(holder.path) == stem_of(leak.name) != ""
        ]
        passing = self.held(Category.ACTIVATION, Category.RESULT, Category.TEMPORARY, Category.INPUT)
        return max(leak.bytes, min(max(reached, default=0), passing))

    @cached_property
    def trained(self) -> int:
        """Bytes that do not shrink with the batch, those that a first step has yet to make included."""
        parameters = self.held(Category.PARAMETER)
        gradients = self.held(Category.GRADIENT)
        optimizer = self.held(Category.OPTIMIZER_STATE)
        if self.held(Category.ACTIVATION) or gradients:  # it trains
            gradients = max(gradients, parameters)
            if self.oom.step == 0:  # two copies, as Adam keeps them: the usual choice, and the larger one
                optimizer = max(optimizer, 2 * parameters)
        return parameters + gradients + optimizer + self.held(Category.BUFFER, Category.WORKSPACE)

    @cached_property
    def _by_category(self) -> dict[Category, int]:
        return self.state.by_category()


Rule = Callable[[Evidence], Iterator[Finding]]
"""Looks for one cause, and yields a finding where it sees its signs."""


def block_of(oom: Oom) -> int:
    """What PyTorch wanted to take from the device: memory is taken in large blocks. Read off its message."""
    return max(classify(oom.message).requested or 0, oom.requested)


def stem_of(name: str) -> str:
    """`history` of `self.history["loss"]` and of `trainer.history (dict, 2 items)`."""
    return name.partition(" ")[0].partition("[")[0].rpartition(".")[2]


def bytes_of(allocations: Sequence[Alloc]) -> int:
    return sum(each.block_bytes for each in allocations)


def heaviest_frame(allocations: Sequence[Alloc]) -> Frame | None:
    """The line that most of the bytes come from."""
    sizes: Counter[Frame] = Counter()
    for each in allocations:
        if each.frame is not None:
            sizes[each.frame] += each.block_bytes
    return sizes.most_common(1)[0][0] if sizes else None


def at(frame: Frame | None) -> dict[str, Any]:
    """A finding's place."""
    return {"file": frame.file, "line": frame.line} if frame else {}
