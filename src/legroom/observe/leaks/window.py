"""Observes growing memory with a series of heap scans, one after each iteration.

A scan looks for three kinds of leaks:

- `graph`: autograd nodes from several earlier iterations are still alive. PyTorch numbers these nodes, so one
  scan is enough.
- `tensor`: each recent scan found new storages, and these storages are still alive.
- `larger`: the tensor in a variable is larger in every scan, and the source code computes the variable from its
  old value.

If a scan finds growth of one of these kinds, a search finds the variables and lines that explain it (see
`search.window_search`). The modules of this search are imported only then.
"""

import sys
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from legroom.observe.leaks.created_objects import READ_AFTER_ITERATIONS, created_objects
from legroom.observe.leaks.graph_ages import (
    MIN_ITERATIONS,
    NodeNumbers,
    NodesByIteration,
    gradient_iterations,
    with_graph,
)
from legroom.observe.leaks.iterations import IterationTracker
from legroom.observe.leaks.live_objects import (
    LiveObjects,
    StorageTracker,
    bytes_of,
    gradients_and_optimizer_state,
    has_gradient_graph,
    other_views,
    storage_keys,
    trained_parameters_and_buffers,
)
from legroom.observe.leaks.named_sizes import NamedTensor, named_sizes
from legroom.observe.leaks.observations import (
    MAX_ENSEMBLE,
    MAX_SEARCHES,
    RARE_SCANS,
    UNROLLED_CALLS,
    Observations,
    Targets,
)
from legroom.observe.leaks.steady_growth import SteadyGrowth
from legroom.observe.tensor_reference import TensorReference

if TYPE_CHECKING:
    from legroom.memory.detected_leak import DetectedLeak, LeakKind
    from legroom.observe.leaks.search.suspects import Suspect
    from legroom.observe.leaks.search.window_search import WindowSearch

ITERATIONS_BEFORE_FIRST_STEP = 16
"""Before the first optimizer step, retained graphs indicate a leak only after this number of iterations. Until then,
the micro-batches of one accumulated step may share a graph.
"""
TENSOR_SCANS = 2
"""Tensors are reported as a leak only if each of this many recent scans found new storages that are still alive. The
first scan does not count.
"""
LARGER_SCANS = 4
RENEWED_SCANS = 3
"""A loop may replace its tensors in each iteration. These tensors are reported as a leak only if the number of new
storages rises in this many consecutive scans.
"""
_MAX_AGE = 10


class ScanWindow:
    def __init__(
        self,
        numbers: NodeNumbers,
        iterations: IterationTracker,
        *,
        on_device: Callable[[torch.Tensor], bool],
        rare: bool = False,
    ) -> None:
        self.scans = 0
        self.adds = False
        """True if storages that were first seen in the previous scan are still alive."""
        self.quiet = True
        self.found_holder = False
        self.reported: set[LeakKind] = set()
        """The kinds of leaks that were already reported. The scans search only for the other kinds."""
        self._numbers = numbers
        self._iterations = iterations
        self._rare = rare
        self.steady = SteadyGrowth(iterations, on_device)
        self._scanned_at: list[int] = []
        self._on_device = on_device
        self._returned: set[tuple[object, ...]] = set()
        self._storages = StorageTracker()
        self._sizes: dict[NamedTensor, list[int]] = {}
        self._search: WindowSearch | None = None

    def scan(self, iteration: int) -> "list[Suspect]":
        self.scans += 1
        self._scanned_at.append(iteration)
        suspects: list[Suspect] = []
        self.found_holder = False
        with torch._C.DisableTorchFunction():
            seen = self._observe(iteration)
            self._record_sizes()
            seen.enlarged = {
                named: series for named, series in self._sizes.items() if len(series) >= LARGER_SCANS
            }
            if seen.has_growth:
                suspects, self.found_holder = self._find_suspects(seen)
        # Growth that was traced to bounded holders is not a reason to scan again at once.
        self.quiet = not suspects and (not seen.suspicious or self.found_holder)
        return [each for each in suspects if each.may_be_warming_up or self._is_first(each.leak)]

    def _find_suspects(self, seen: Observations) -> "tuple[list[Suspect], bool]":
        from legroom.observe.leaks.search.window_search import WindowSearch  # not needed without a leak

        if self._search is None:
            self._search = WindowSearch(self._iterations, rare=self._rare)
        return self._search.find(seen, self.reported)

    def _is_first(self, leak: "DetectedLeak") -> bool:
        """Return whether this leak is reported for the first time. A list of tensors with graphs is both a `graph` and
        a `tensor` leak. The kind `graph` is reported first, because its numbers are more complete.
        """
        known = leak.identity in self._returned
        self._returned.add(leak.identity)
        return not known

    def _observe(self, iteration: int) -> Observations:
        live, graph, by_first_scan = self._read(iteration)
        if not created_objects.includes_earlier and (
            iteration >= READ_AFTER_ITERATIONS or self._may_grow(graph.iterations(iteration), by_first_scan)
        ):
            created_objects.read_earlier_objects()
            live, graph, by_first_scan = self._read(iteration)
        tensors, evaluating = live.tensors, live.has_model_in_eval_mode
        held = with_graph(tensors)
        if self._rare:
            self.steady.record(iteration, by_first_scan, tensors)
        retained, newest = graph.iterations(iteration), by_first_scan.get(self.scans - 1, [])
        self.adds = bool(newest) and self.scans > 2
        # An evaluation collects results on the host on purpose.
        relevant = self._is_conclusive(evaluating) and (
            self._iterations.trains or any(map(self._on_device, newest))
        )
        from_previous = self.scans == 3 or bool(by_first_scan.get(self.scans - 2))
        accumulating = relevant and self._count_rises(3) and bool(newest) and from_previous
        created_in = {
            id(tensor): self._scanned_at[scan - 1] for scan, new in by_first_scan.items() for tensor in new
        }
        created_in |= {
            id(tensor): created for tensor, node in held if (created := graph.iteration_of(node)) is not None
        }
        new_counts = self._storages.new_counts[1:]  # all storages are new in the first scan
        renews = relevant and _rises(new_counts, RENEWED_SCANS)
        may_renew = relevant and _rises(new_counts, 2) and self._count_rises(3)
        suspicious = len(retained) >= 2 or accumulating or may_renew
        seen = Observations(iteration, self.scans, created_in, suspicious=suspicious)
        if self._is_retained(retained, iteration, evaluating):
            when = [(tensor, graph.iteration_of(node)) for tensor, node in held]
            old = [
                tensor
                for tensor, created in when
                if created is not None and retained[0] <= created <= iteration - 2
            ]
            new = [
                (tensor, node)
                for (tensor, node), (_, created) in zip(held, when, strict=True)
                if created is not None and created >= iteration - 1
            ]
            old = _sample(old)
            carrying = [t for t, node in new[:200] if graph.iterations_below(node) >= min(len(retained), 3)]
            # An unrolled network: a single graph whose backward pass comes later.
            is_sequence = self._may_be_unrolled(iteration) and bool(carrying) and not evaluating
            if is_sequence:
                from legroom.observe.leaks.search.suspects import may_train  # not needed without a leak

                if may_train():
                    return seen
            gradients = [tensor for tensor in tensors if has_gradient_graph(tensor)]
            parts = graph.parts([*old, *carrying[:MAX_SEARCHES]], iteration)
            for tensor in filter(self._on_device, old):  # a tensor in a container is itself retained
                parts[id(tensor)].storages[id(tensor)] = bytes_of(tensor)
            seen.iterations_retained = len(retained)
            seen.nodes_per_iteration = len(graph.nodes[retained[-2]])
            seen.bytes_per_iteration = graph.bytes_saved_in(retained[-2], retained[-3])
            seen.parts = parts
            seen.old, seen.carrying = _weak(old), _weak(carrying)
            seen.only_sums = is_sequence
            seen.with_gradient_graph = _weak([*gradients[:1], *gradients[-1:]])
            seen.gradient_iterations = gradient_iterations(gradients, graph)
        generations = self._generations(by_first_scan)
        between = self._iterations_between(generations, by_first_scan)
        if not self._iterations.trains:
            generations = [[tensor for tensor in each if self._on_device(tensor)] for each in generations]
        if renews and not (generations and all(generations)):
            sample = _sample([each for each in by_first_scan[self.scans] if self._on_device(each)])
            added = sample[: new_counts[-1] - new_counts[-2]]
            seen.accumulated = _weak([*sample, *(view for view, _ in other_views(tensors, sample))])
            seen.accumulated_sizes = {id(tensor): bytes_of(tensor) for tensor in added}
            seen.renews = True
        if generations and all(generations) and relevant:
            sample = [tensor for generation in generations[1:] for tensor in _sample(generation)]
            views = other_views(tensors, sample)
            chosen = [*sample, *(view for view, _ in views)]
            seen.accumulated = _weak(chosen)
            if any(map(self._on_device, tensors)):
                seen.on_device = frozenset(id(tensor) for tensor in chosen if self._on_device(tensor))
                seen.on_host = frozenset(map(id, chosen)) - seen.on_device
            seen.accumulated_sizes = {id(tensor): bytes_of(tensor) for tensor in generations[1]}
            seen.iterations_between = between
            seen.views = {id(view): found for view, found in views}
            seen.created_in = {id(view): created_in[found] for view, found in views} | created_in
            seen.with_graph = frozenset(id(tensor) for tensor, _ in with_graph(chosen))
            seen.nodes_of_iteration = len(graph.nodes.get(iteration - 2, ()))
        return seen

    def _read(self, iteration: int) -> tuple[LiveObjects, NodesByIteration, dict[int, list[torch.Tensor]]]:
        """Return the live objects, the graph nodes that they keep alive, and one tensor per storage, grouped by the
        scan in which the storage was first seen. Storages of earlier objects are not included.
        """
        created, earlier = created_objects.find()
        live = LiveObjects(created.tensors + earlier.tensors, created.modules + earlier.modules)
        graph = NodesByIteration(self._numbers, oldest=iteration - _MAX_AGE)
        graph.follow(node for _, node in with_graph(live.tensors))
        expected = storage_keys(earlier.tensors)
        expected |= gradients_and_optimizer_state(live.tensors, self._iterations.optimizers)
        # A few trained models are kept on purpose, such as folds or members of an ensemble.
        if self._iterations.live_trained_models <= MAX_ENSEMBLE:
            expected |= trained_parameters_and_buffers(live.modules, self._iterations.trained)
        return live, graph, self._storages.update(live.tensors, expected, self.scans)

    def _may_grow(self, retained: list[int], by_first_scan: dict[int, list[torch.Tensor]]) -> bool:
        """Return whether the earlier objects are needed to decide if memory grows. An operation in place can add a graph
        to an earlier tensor without creating a tensor, so they are also read after some iterations.
        """
        survived = sum(1 < first < self.scans for first in by_first_scan)
        return len(retained) >= 2 or self._count_rises(3) or (self._rare and survived >= 2)

    def _generations(self, by_first_scan: dict[int, list[torch.Tensor]]) -> list[list[torch.Tensor]]:
        """Return one list for each of the last scans, newest first. Each list contains the tensors that were first
        seen in that scan and are still alive. The result is empty if there were not enough scans.
        """
        if self._rare:
            scans = [scan for scan in by_first_scan if 1 < scan < self.scans]
            return [
                by_first_scan[scan]
                for scan in sorted(scans, reverse=True)[:RARE_SCANS]
                if len(scans) >= RARE_SCANS
            ]
        if self.scans <= TENSOR_SCANS + 1 or not self._count_rises(TENSOR_SCANS + 2):
            return []
        return [by_first_scan.get(self.scans - back, []) for back in range(1, TENSOR_SCANS + 1)]

    def _iterations_between(
        self, generations: list[list[torch.Tensor]], by_first_scan: dict[int, list[torch.Tensor]]
    ) -> int:
        """Return the number of iterations between the scan in which the second generation was first seen and the scan
        before it. If scans are infrequent, they are many iterations apart.
        """
        if len(generations) < 2:
            return 1
        scan = next((first for first, new in by_first_scan.items() if new is generations[1]), 0)
        return max(self._scanned_at[scan - 1] - self._scanned_at[scan - 2], 1) if scan > 1 else 1

    def _is_retained(self, retained: list[int], iteration: int, evaluating: bool) -> bool:
        """Return whether graphs from enough iterations are alive, and whether the newest graph is recent. The newest
        graph must be from the last two iterations, or slightly older if a graph is retained only every few iterations.
        """
        if len(retained) < MIN_ITERATIONS:
            return False
        apart = max(after - before for before, after in pairwise(retained[-MIN_ITERATIONS:]))
        return iteration - retained[-1] <= 1.5 * apart + 1 and self._is_conclusive(evaluating)

    def _may_be_unrolled(self, iteration: int) -> bool:
        return self._iterations.by_model_calls and iteration < UNROLLED_CALLS

    def _is_conclusive(self, evaluating: bool) -> bool:
        # Before the first optimizer step, retained graphs may belong to the micro-batches of that step.
        if (
            self._iterations.has_stepped
            or self._iterations.without_optimizer
            or self._iterations.by_model_calls
            or evaluating
        ):
            return True
        return self._numbers.count >= ITERATIONS_BEFORE_FIRST_STEP

    def _count_rises(self, scans: int) -> bool:
        return _rises(self._storages.counts, scans)

    def _record_sizes(self) -> None:
        sizes = named_sizes(
            sys._getframe(1), self._on_device if self._iterations.by_model_calls else lambda tensor: True
        )
        before, self._sizes = self._sizes, {}
        for named, size in sizes.items():
            series = before.get(named, [])
            if series and size == series[-1] and self._rare:
                self._sizes[named] = series
            else:
                self._sizes[named] = [*series, size] if not series or size > series[-1] else [size]


def _rises(counts: list[int], scans: int) -> bool:
    last = counts[-scans:]
    return len(last) == scans and all(a < b for a, b in pairwise(last))


def _sample(tensors: list[torch.Tensor], most: int = 4 * MAX_SEARCHES) -> list[torch.Tensor]:
    # Tensors in the same container are often adjacent in the list.
    return tensors if len(tensors) <= most else [*tensors[: most // 2], *tensors[-most // 2 :]]


def _weak(tensors: list[torch.Tensor]) -> Targets:
    return [TensorReference(tensor) for tensor in tensors]
