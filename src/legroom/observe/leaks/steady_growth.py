"""Finds the objects that keep storages alive, if the number of live storages grows steadily over most of the run (see
`survivors`).

Some containers that are not leaks are filled slowly. The result is therefore reported only at the end of the run, if no
other leak was found.

In a short series of scans, a container is not a leak if the source contains code that empties it. If the growth is
steady, this code has evidently not emptied the container, so the container can be a leak. A container is excluded only
if it limits its own length, such as `deque(maxlen=...)`, or if the source checks its length.
"""

import weakref
from collections.abc import Callable, Iterable, Mapping

import torch

from legroom.observe.leaks.graph_ages import with_graph
from legroom.observe.leaks.holder_source import (
    as_linked,
    compiled_functions,
    leak_how,
    registered_at_exit,
    storing_statements,
)
from legroom.observe.leaks.iterations import IterationTracker
from legroom.observe.leaks.live_objects import bytes_of, other_views
from legroom.observe.leaks.running_calls import is_local_to_call
from legroom.observe.leaks.survivors import ALL_SIZES, SurvivorHistory
from legroom.observe.leaks.suspects import (
    COLLECTED_RESULTS,
    FoundHolder,
    HolderFinder,
    Suspect,
    Targets,
    is_collectable,
    is_prepared_for_training,
    is_read,
    is_sequence,
)
from legroom.observe.source.user_files import is_user_file

MAX_ENSEMBLE = 8
"""A program probably retains up to this many models in a container on purpose."""
MIN_LENGTH = 8
"""A container with fewer items than this is reported only if no container with more items is found."""
NUMBER_BYTES = 8
"""A host tensor of at most this many bytes is treated as a single number. A list of numbers is not reported as a leak.
"""
MIN_HOST_BYTES = 4096
"""Host memory that grows by fewer than this many bytes per iteration is not reported, because it takes more than
250,000 iterations to fill 1 GB.
"""
UNROLLED_CALLS = 100
"""The maximum number of calls to a model that may be the time steps of one graph."""
ABOVE_COUNTER = 64
"""If a container has this many items, a condition such as `if step < 10:` around the storing line does not limit its
length.
"""


class SteadyGrowth:
    def __init__(self, iterations: IterationTracker, on_device: Callable[[torch.Tensor], bool]) -> None:
        self.suspects: list[Suspect] = []
        """The suspects of the last scan, which are reported if the run ends before the next scan."""
        self.history = SurvivorHistory()
        self._iterations = iterations
        self._on_device = on_device
        self._targets: dict[int, Targets] = {}
        self._with_graph: set[int] = set()
        self._created_in: dict[int, int] = {}
        self._iterations_of_scans: list[int] = []

    @property
    def grows(self) -> bool:
        return bool(self._targets)

    def record(
        self,
        iteration: int,
        by_first_scan: Mapping[int, list[torch.Tensor]],
        tensors: Iterable[torch.Tensor] = (),
    ) -> None:
        """Record the live storages of a scan, and choose the survivors whose holders `search` will look for. If some
        storages are on a device, storages on the host are ignored. `tensors` contains all live tensors, including
        several views of the same storage.
        """
        relevant = {
            first: [each for each in tensors if self._on_device(each)]
            for first, tensors in by_first_scan.items()
        }
        if not any(relevant.values()) and self._iterations.trains:
            relevant = {
                first: [each for each in tensors if bytes_of(each) > NUMBER_BYTES]
                for first, tensors in by_first_scan.items()
            }
        self.history.record(iteration, relevant)
        self._iterations_of_scans.append(iteration)
        self._targets, self._with_graph = {}, set()
        allowed = [id(each) for found in relevant.values() for each in found]
        views: list[tuple[torch.Tensor, int]] = []
        for size in self.history.steady_sizes():
            chosen = self.history.sample(size, relevant, allowed)
            of_chosen = other_views(tensors, chosen)
            views += of_chosen
            chosen += [view for view, _ in of_chosen]
            self._with_graph |= {id(each) for each, _ in with_graph(chosen)}
            self._targets[size] = [weakref.ref(each) for each in chosen]
        self._created_in = {
            id(each): self._iterations_of_scans[first - 1]
            for first, found in (relevant.items() if self._targets else ())
            for each in found
        }
        self._created_in |= {id(view): self._created_in[of] for view, of in views}
        if not self._targets:
            self.suspects = []

    def search(self, iteration: int) -> None:
        self.suspects = []
        for size, targets in self._targets.items():
            found = HolderFinder().find(targets, self._created_in, min_length=MIN_LENGTH)
            known = [_as_linked(each) for each in found if each.path.how != "unknown"]
            survivors = self.history.survivors(size)
            # A full container with a fixed length frees an item for each new one, so it does not explain the growth.
            known = [each for each in known if not each.path.is_full]
            leaks = [each for each in known if self._is_leak(each, survivors)]
            if len(leaks) < len(known):
                continue  # the source code explains the growth
            if not leaks and self._iterations.by_model_calls and iteration < UNROLLED_CALLS:
                continue
            rate = self.history.growth_per_iteration(size)
            # Of several holders with the same length, the one that was found last retains the oldest tensor.
            holder = max(reversed(leaks), key=lambda each: each.path.length, default=None)
            if holder is None and (in_library := registered_at_exit() or compiled_functions()) is not None:
                holder = FoundHolder(*in_library, 0)
            self.suspects.append(self._suspect(holder, iteration, size, rate))

    def _is_leak(self, holder: FoundHolder, survivors: int) -> bool:
        path, usage = holder.path, holder.usage
        if path.bounded or path.inside_bounded or path.has_small_limit:
            return False
        if path.fills_slots and path.length >= survivors / 2:
            return False
        if is_collectable(holder) or is_ensemble(holder):
            return False
        if usage.has_limit and path.how not in ("cache", "exception"):
            return False
        if path.names and is_local_to_call(path.names[-1]):
            return False
        statement = next(iter(storing_statements(path, usage)), None)
        if statement is not None and statement.below_limit and 0 < path.length < ABOVE_COUNTER:
            return False
        if not self._iterations.trains and is_prepared_for_training(holder):
            return False
        is_short = 0 < path.length < COLLECTED_RESULTS and path.how != "linked"
        if not self._iterations.trains and is_short and is_read(holder, by_key=True):
            return False
        if self._iterations.by_lines and is_read(holder):
            return False
        return not (self._iterations.by_model_calls and is_sequence(holder))

    def _suspect(self, holder: FoundHolder | None, iteration: int, size: int, rate: float) -> Suspect:
        path = holder.path if holder is not None else None
        statements = storing_statements(path, holder.usage) if holder is not None and path is not None else []
        statement = statements[0] if statements else None
        by_user = path is not None and is_user_file(path.file or "")
        has_graph = holder is not None and holder.target in self._with_graph
        from legroom.memory.detected_leak import DetectedLeak  # slow to import

        leak = DetectedLeak(
            kind="graph" if has_graph else "tensor",
            how=leak_how(path, holder.usage) if holder is not None and path is not None else "unknown",
            name=path.name if path is not None else "",
            described=path.described if path is not None else "tensor",
            file=statement.file if statement is not None else path.file if path is not None and by_user else None,
            line=statement.line if statement is not None else (path.line or None) if path is not None and by_user else None,
            function=statement.function if statement is not None else path.function if path is not None else "",
            bytes_per_step=round(rate * size) if size != ALL_SIZES else 0,
            nodes_per_step=0,
            storages_per_step=max(round(rate), 1),
            step=iteration,
            steps=iteration,
            evaluation=not self._iterations.trains,
        )  # fmt: skip
        uncertain = statement is None or statement.replaces or len({each.line for each in statements}) > 1
        traceable = path is not None and path.container and path.length > 1
        return Suspect(
            leak, False, path.length if path is not None else 0,
            path.container if path is not None and uncertain and traceable else 0, at_end=True,
            exceeds_limit=holder is not None and holder.usage.misses_limit,
        )  # fmt: skip


def is_ensemble(holder: FoundHolder) -> bool:
    return holder.path.contains_models and holder.path.length < MAX_ENSEMBLE


def _as_linked(holder: FoundHolder) -> FoundHolder:
    """If linked objects (a tree, a list of states) retain the tensor, return a holder with the name of the attribute
    that links the objects. Otherwise, return `holder`. A path that is too long for the search is treated as a path
    through linked objects.
    """
    path, usage, target = holder.path, holder.usage, holder.target
    if path.is_truncated and path.how != "linked":
        name = f"{path.name.partition('.')[0]}.{path.stored_as}" if path.is_attribute else path.name
        path = path._replace(how="container") if path.container else path._replace(how="linked", name=name)
    path, usage = as_linked(path) or (path, usage)
    return FoundHolder(path, usage, target)
