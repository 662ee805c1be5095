"""Finds memory leaks with a series of heap scans, one after each iteration.

A scan looks for three kinds of leaks:

- `graph`: autograd nodes from several earlier iterations are still alive. PyTorch numbers these nodes, so one
  scan is enough.
- `tensor`: each recent scan found new storages, and these storages are still alive.
- `larger`: the tensor in a variable is larger in every scan, and the source code computes the variable from its
  old value.

For each kind of leak, the scan finds the variable that retains the tensors (`holders.paths`) and the line that stores
them (`source.storing_lines`). A container that the source code bounds or empties is not a leak.
"""

import sys
import weakref
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from legroom.observe.leaks.graph_ages import (
    NodeNumbers,
    NodesByIteration,
    gradient_iterations,
    with_graph,
)
from legroom.observe.leaks.holder_source import MIN_ITERATIONS
from legroom.observe.leaks.iterations import IterationTracker
from legroom.observe.leaks.live_objects import (
    StorageTracker,
    bytes_of,
    find_live_objects,
    gradients_and_optimizer_state,
    has_gradient_graph,
    other_views,
    trained_parameters_and_buffers,
)
from legroom.observe.leaks.named_sizes import NamedTensor, named_sizes
from legroom.observe.leaks.observations import Observations, retained_by
from legroom.observe.leaks.running_calls import is_local_to_call, is_owned_by_call
from legroom.observe.leaks.steady_growth import (
    MAX_ENSEMBLE,
    MIN_HOST_BYTES,
    NUMBER_BYTES,
    UNROLLED_CALLS,
    SteadyGrowth,
    is_ensemble,
)
from legroom.observe.leaks.suspects import (
    MAX_SEARCHES,
    FoundHolder,
    HolderFinder,
    Suspect,
    Targets,
    as_gradients,
    as_series,
    can_accumulate,
    holder_being_built,
    is_collectable,
    is_computed_from_itself,
    is_fed_back,
    is_prepared_for_training,
    is_read,
    is_sequence,
    is_temporary,
    make_suspects,
    may_train,
    min_length_at,
    one_per_statement,
    with_own_graphs,
)
from legroom.observe.source import storing_lines
from legroom.observe.source.storing_lines import find_usage

if TYPE_CHECKING:
    from legroom.memory.detected_leak import DetectedLeak, LeakKind

MAX_SCANS = 7
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
RARE_SCANS = 3
"""If scans are infrequent, tensors are reported as a leak only if each of this many scans found new storages. These
storages must still be alive in a single container.
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
        self._counts: list[int] = []
        self._new_counts: list[int] = []
        self._sizes: dict[NamedTensor, list[int]] = {}
        self._lengths: dict[tuple[str, str | None], int] = {}

    def scan(self, iteration: int) -> list[Suspect]:
        self.scans += 1
        self._scanned_at.append(iteration)
        with torch._C.DisableTorchFunction():
            seen = self._observe(iteration)
            self._record_sizes()
            holders = HolderFinder()
            suspects = []
            by_lines = self._iterations.by_lines
            if "graph" not in self.reported and self._iterations.numbers_nodes:
                suspects += self._find_graphs(seen, holders, iteration)
            if "tensor" not in self.reported:
                suspects += self._find_tensors(seen, holders, iteration)
            if "larger" not in self.reported and not by_lines:
                suspects += self._find_larger(seen, iteration)
            # Growth that was traced to bounded holders is not a reason to scan again at once.
            self.quiet = not suspects and (not seen.suspicious or holders.found)
            self.found_holder = holders.found
        return [each for each in suspects if each.may_be_warming_up or self._is_first(each.leak)]

    def _is_first(self, leak: "DetectedLeak") -> bool:
        """Return whether this leak is reported for the first time. A list of tensors with graphs is both a `graph` and
        a `tensor` leak. The kind `graph` is reported first, because its numbers are more complete.
        """
        known = leak.identity in self._returned
        self._returned.add(leak.identity)
        return not known

    # --- observing

    def _observe(self, iteration: int) -> Observations:
        live = find_live_objects()
        tensors, evaluating = live.tensors, live.has_model_in_eval_mode
        graph = NodesByIteration(self._numbers, oldest=iteration - _MAX_AGE)
        held = with_graph(tensors)
        graph.follow(node for _, node in held)
        expected = gradients_and_optimizer_state(tensors, self._iterations.optimizers)
        # A few trained models are kept on purpose, such as folds or members of an ensemble.
        if self._iterations.live_trained_models <= MAX_ENSEMBLE:
            expected |= trained_parameters_and_buffers(live.modules, self._iterations.trained)
        by_first_scan = self._storages.update(tensors, expected, self.scans)
        if self._rare:
            self.steady.record(iteration, by_first_scan, tensors)
        self._counts.append(self._storages.count)
        self._new_counts.append(len(by_first_scan.get(self.scans, [])))
        retained, newest = graph.iterations(iteration), by_first_scan.get(self.scans - 1, [])
        self.adds = bool(newest) and self.scans > 2
        # An evaluation collects results on the host on purpose.
        relevant = self._is_conclusive(evaluating) and (
            self._iterations.trains or any(map(self._on_device, newest))
        )
        accumulating = (
            relevant and self._count_rises(3) and bool(newest) and bool(by_first_scan.get(self.scans - 2))
        )
        created_in = {
            id(tensor): self._scanned_at[scan - 1] for scan, new in by_first_scan.items() for tensor in new
        }
        created_in |= {
            id(tensor): created for tensor, node in held if (created := graph.iteration_of(node)) is not None
        }
        new_counts = self._new_counts[1:]  # all storages are new in the first scan
        renews = relevant and _rises(new_counts, RENEWED_SCANS)
        may_renew = relevant and _rises(new_counts, 2) and self._count_rises(3)
        seen = Observations(suspicious=len(retained) >= 2 or accumulating or may_renew, created_in=created_in)
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
            if is_sequence and may_train():
                return seen
            gradients = [tensor for tensor in tensors if has_gradient_graph(tensor)]
            parts = graph.parts([*old, *carrying[:MAX_SEARCHES]], iteration)
            for tensor in filter(self._on_device, old):  # a tensor in a container is itself retained
                parts[id(tensor)].storages[id(tensor)] = bytes_of(tensor)
            seen = replace(
                seen,
                iterations_retained=len(retained),
                nodes_per_iteration=len(graph.nodes[retained[-2]]),
                bytes_per_iteration=graph.bytes_saved_in(retained[-2], retained[-3]),
                parts=parts,
                old=_weak(old),
                carrying=_weak(carrying),
                only_sums=is_sequence,
                with_gradient_graph=_weak([*gradients[:1], *gradients[-1:]]),
                gradient_iterations=gradient_iterations(gradients, graph),
            )
        generations = self._generations(by_first_scan)
        between = self._iterations_between(generations, by_first_scan)
        if not self._iterations.trains:
            generations = [[tensor for tensor in each if self._on_device(tensor)] for each in generations]
        if renews and not (generations and all(generations)):
            sample = _sample([each for each in by_first_scan[self.scans] if self._on_device(each)])
            added = sample[: new_counts[-1] - new_counts[-2]]
            seen = replace(
                seen,
                accumulated=_weak([*sample, *(view for view, _ in other_views(tensors, sample))]),
                accumulated_sizes={id(tensor): bytes_of(tensor) for tensor in added},
                renews=True,
            )
        if generations and all(generations):
            sample = [tensor for generation in generations[1:] for tensor in _sample(generation)]
            if relevant:
                views = other_views(tensors, sample)
                seen = replace(
                    seen,
                    accumulated=_weak([*sample, *(view for view, _ in views)]),
                    accumulates_on_host=any(map(self._on_device, tensors))
                    and not any(map(self._on_device, sample)),
                    accumulated_sizes={id(tensor): bytes_of(tensor) for tensor in generations[1]},
                    iterations_between=between,
                    views={id(view): found for view, found in views},
                    created_in={id(view): created_in[found] for view, found in views} | created_in,
                    with_graph=frozenset(
                        id(tensor) for tensor, _ in with_graph([*sample, *(view for view, _ in views)])
                    ),
                    nodes_of_iteration=len(graph.nodes.get(iteration - 2, ())),
                )
        return seen

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
        return _rises(self._counts, scans)

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

    # --- from observations to suspects

    def _find_graphs(self, seen: Observations, holders: HolderFinder, iteration: int) -> list[Suspect]:
        """Return the variables and containers that retain old tensors with a graph. If there are none, return the
        variable that retains a new tensor whose graph includes the old nodes.
        """
        if not seen.iterations_retained:
            return []
        min_length = MIN_ITERATIONS if self._rare else min_length_at(iteration)
        old = holders.find(seen.old, seen.created_in, min_length=min_length)
        found = [each for each in old if can_accumulate(each) and not is_collectable(each)]
        carrying = holders.find(seen.carrying, seen.created_in, carry_graph=True)
        carrying = [each for each in carrying if each.path.how != "unknown"]
        recursive = [each for each in carrying if is_computed_from_itself(each)]
        if seen.only_sums:
            found = []
            carrying = recursive = [
                each for each in recursive if any(one.adds for one in each.usage.statements)
            ]
            if not recursive:
                return []
        # Several sums may each carry their graph.
        found += one_per_statement(with_own_graphs(recursive, seen.parts))
        if not found:
            gradients = self._find_gradients(seen, holders)
            # Gradients with the graphs of many iterations explain the growth better than a variable that is replaced.
            by_gradients = seen.gradient_iterations >= MIN_ITERATIONS
            found = (gradients + carrying if by_gradients else carrying + gradients)[:1]
        if not found and self.scans >= MAX_SCANS - 1 and not any(map(is_collectable, old)):
            found = [FoundHolder(holder_being_built(), storing_lines.NO_USAGE, 0)]
        suspects: list[Suspect] = []
        for each in found:
            nodes, size = retained_by(each, seen)
            if len(found) == 1:  # a container may also retain its own tensors
                nodes = seen.nodes_per_iteration
                size = max(seen.bytes_per_iteration, size if size > NUMBER_BYTES else 0)
            suspects += make_suspects(
                each, kind="graph", step=iteration, steps=seen.iterations_retained, bytes_per_step=size,
                nodes_per_step=nodes, storages_per_step=0, evaluation=not self._iterations.trains,
            )  # fmt: skip
        return suspects

    def _find_gradients(self, seen: Observations, holders: HolderFinder) -> list[FoundHolder]:
        line = self._iterations.create_graph_line
        if line is None:
            return []
        found = holders.find(seen.with_gradient_graph, {})
        return as_gradients(found, line, only_gradients=seen.gradient_iterations >= MIN_ITERATIONS)

    def _find_tensors(self, seen: Observations, holders: HolderFinder, iteration: int) -> list[Suspect]:
        min_length = RARE_SCANS if self._rare else min_length_at(iteration)
        held = holders.find(seen.accumulated, seen.created_in, min_length=min_length)
        found = [each for each in held if each.path.how != "unknown" and not is_temporary(each)]
        found = [each for each in found if not is_collectable(each)]
        if seen.accumulates_on_host and _is_negligible_on_host(seen):
            return []
        if not self._iterations.trains:
            found = [each for each in found if not is_prepared_for_training(each)]
        if self._iterations.by_model_calls:
            found = [each for each in found if can_accumulate(each) and not is_sequence(each)]
        if self._iterations.by_lines:
            found = [each for each in found if not is_read(each)]
        if self._rare:
            found = [each for each in found if self._has_grown(each) and not is_ensemble(each)]
        if seen.renews:  # such as results of hooks that are registered again
            found = [each for each in found if self._is_longer(each) and not each.path.contains_models]
        suspects: list[Suspect] = []
        for each in found:
            sizes = seen.accumulated_sizes
            if len(found) > 1:  # count only the tensors in each holder
                within = {each.target, *each.path.contents}
                within |= {found for view, found in seen.views.items() if view in within}
                sizes = {key: size for key, size in sizes.items() if key in within}
            has_graph = each.target in seen.with_graph
            made = make_suspects(
                each, kind="graph" if has_graph else "tensor", step=iteration, steps=self.scans - 1,
                bytes_per_step=sum(sizes.values()) // seen.iterations_between, nodes_per_step=seen.nodes_of_iteration if has_graph else 0,
                storages_per_step=max(len(sizes) // seen.iterations_between, 1), evaluation=not self._iterations.trains,
                on_host=seen.accumulates_on_host,
            )  # fmt: skip
            if seen.renews:  # the loop frees each tensor, but creates more tensors instead
                made = (one._replace(retained=None) for one in made)
            collects = not self._iterations.trains and not has_graph and is_read(each, by_key=True)
            is_series = collects or self._iterations.by_model_calls
            suspects += [as_series(one, collects=collects) for one in made] if is_series else made
        return suspects

    def _has_grown(self, holder: FoundHolder) -> bool:
        """Return whether a container has tensors that were first seen in different scans. If its tensors are nested
        too deeply to be found, return whether the container has become longer.
        """
        path = holder.path
        before = self._lengths.setdefault((path.name, path.file), path.length)
        return path.iterations >= RARE_SCANS or (not path.iterations and path.length > before)

    def _is_longer(self, holder: FoundHolder) -> bool:
        """Return whether a container, or a chain of linked objects, is longer than when it was first found."""
        path = holder.path
        return (bool(path.container) or path.how == "linked") and path.length > self._lengths.setdefault(
            (path.name, path.file), path.length
        )

    def _find_larger(self, seen: Observations, iteration: int) -> list[Suspect]:
        suspects = []
        for named, series in self._sizes.items():
            # A tensor that grows with its graph is reported as a graph.
            if len(series) < LARGER_SCANS or seen.iterations_retained:
                continue
            usage = find_usage(
                named.stored_as, is_attribute=named.is_attribute, file=named.file, function=named.function
            )
            # `bank = torch.cat([bank, new])`, or a user's function that does the same. A sum does not enlarge the
            # tensor.
            enlarging = [
                each
                for each in usage.statements
                if (each.concatenates or (each.uses_itself and not each.adds)) and not each.truncates
            ]
            statement = next(iter(sorted(enlarging, key=lambda each: not each.concatenates)), None)
            restarts = usage.resets or any(
                each.replaces and each.in_loop and not each.only_if_missing for each in usage.statements
            )
            if is_owned_by_call(named.owner) if named.is_attribute else is_local_to_call(named):
                continue
            calls = self._iterations.by_model_calls
            if calls and statement is not None and is_fed_back(named, usage, statement):
                continue
            if statement is not None and not usage.shrinks and not restarts and not statement.below_limit:
                from legroom.memory.detected_leak import DetectedLeak  # slow to import

                leak = DetectedLeak(
                    kind="larger", how="variable", name=named.name, described="tensor", file=statement.file,
                    line=statement.line, function=statement.function, nodes_per_step=0, storages_per_step=0,
                    bytes_per_step=(series[-1] - series[0]) // (len(series) - 1), step=iteration,
                    steps=len(series),
                )  # fmt: skip
                # A user's function may limit the size internally. In that case, the growth ends soon.
                suspects.append(Suspect(leak, calls or not statement.concatenates, series[-1]))
        return suspects


def _is_negligible_on_host(seen: Observations) -> bool:
    """Return whether the tensors added on the host are negligible: each is a single number, or they add only a few
    bytes per iteration."""
    sizes = seen.accumulated_sizes.values()
    return max(sizes, default=0) <= NUMBER_BYTES or sum(sizes) < MIN_HOST_BYTES * seen.iterations_between


def _rises(counts: list[int], scans: int) -> bool:
    last = counts[-scans:]
    return len(last) == scans and all(a < b for a, b in pairwise(last))


def _sample(tensors: list[torch.Tensor], most: int = 4 * MAX_SEARCHES) -> list[torch.Tensor]:
    # Tensors in the same container are often adjacent in the list.
    return tensors if len(tensors) <= most else [*tensors[: most // 2], *tensors[-most // 2 :]]


def _weak(tensors: list[torch.Tensor]) -> Targets:
    return [weakref.ref(tensor) for tensor in tensors]
