"""Records the number of live storages, and chooses tensors to search for if this number grows steadily over most of the
run (see `survivors`).

Some containers that are not leaks are filled slowly. The result of the search (`search.steady_search`) is therefore
reported only at the end of the run, if no other leak was found.
"""

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

import torch

from legroom.observe.leaks.graph_ages import with_graph
from legroom.observe.leaks.iterations import IterationTracker
from legroom.observe.leaks.live_objects import bytes_of, other_views
from legroom.observe.leaks.observations import NUMBER_BYTES, Targets
from legroom.observe.leaks.survivors import ALL_SIZES, SurvivorHistory
from legroom.observe.tensor_reference import TensorReference

if TYPE_CHECKING:
    from legroom.observe.leaks.search.suspects import Suspect


class SteadyGrowth:
    def __init__(self, iterations: IterationTracker, on_device: Callable[[torch.Tensor], bool]) -> None:
        self.suspects: list[Suspect] = []
        """The suspects that the search after the last scan found. They are reported if the run ends before the next
        scan.
        """
        self.history = SurvivorHistory()
        self._iterations = iterations
        self._on_device = on_device
        self.targets: dict[int, Targets] = {}
        """Survivors of each group of storages that grows steadily, by the size of the storages."""
        self.with_graph: set[int] = set()
        """The `id`s of the tensors in `targets` that have a graph."""
        self.is_on_host = False
        """Whether only storages on the host grow, although the program has tensors on a device."""
        self.created_in: dict[int, int] = {}
        self._iterations_of_scans: list[int] = []

    @property
    def grows(self) -> bool:
        return bool(self.targets)

    def bytes_per_iteration(self, group: int) -> float:
        """Return the growth of a group of storages. If their sizes differ, the largest chosen storage is used."""
        size = group
        if group == ALL_SIZES:
            live = (tensor for reference in self.targets[group] if (tensor := reference()) is not None)
            size = max(map(bytes_of, live), default=0)
        return self.history.growth_per_iteration(group) * size

    def record(
        self,
        iteration: int,
        by_first_scan: Mapping[int, list[torch.Tensor]],
        tensors: Collection[torch.Tensor] = (),
    ) -> None:
        """Record the live storages of a scan, and choose the survivors whose holders a search will find. If storages that
        were first seen in different scans are on a device, storages on the host are ignored. `tensors` contains all live
        tensors, including several views of the same storage.
        """
        relevant = {
            first: [each for each in tensors if self._on_device(each)]
            for first, tensors in by_first_scan.items()
        }
        self.is_on_host = False
        survivors = [first for first, found in relevant.items() if first > 1 and found]
        if len(survivors) < 2 and self._iterations.trains:
            relevant = {
                first: [each for each in tensors if bytes_of(each) > NUMBER_BYTES]
                for first, tensors in by_first_scan.items()
            }
            self.is_on_host = any(map(self._on_device, tensors))
        self.history.record(iteration, relevant)
        self._iterations_of_scans.append(iteration)
        self.targets, self.with_graph = {}, set()
        allowed = [id(each) for found in relevant.values() for each in found]
        views: list[tuple[torch.Tensor, int]] = []
        for size in self.history.steady_sizes():
            chosen = self.history.sample(size, relevant, allowed)
            of_chosen = other_views(tensors, chosen)
            views += of_chosen
            chosen += [view for view, _ in of_chosen]
            self.with_graph |= {id(each) for each, _ in with_graph(chosen)}
            self.targets[size] = [TensorReference(each) for each in chosen]
        self.created_in = {
            id(each): self._iterations_of_scans[first - 1]
            for first, found in (relevant.items() if self.targets else ())
            for each in found
        }
        self.created_in |= {id(view): self.created_in[of] for view, of in views}
        if not self.targets:
            self.suspects = []
