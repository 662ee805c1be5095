"""Finds the variables that explain the growth that a series of heap scans observed.

For each kind of leak (see `ScanWindow`), the search finds the variable that retains the tensors (`holders.paths`) and
the line that stores them (`source.storing_lines`). A container that the source code bounds or empties is not a leak.
"""

from collections.abc import Collection

from legroom.memory.detected_leak import DetectedLeak, LeakKind
from legroom.observe.leaks.graph_ages import MIN_ITERATIONS
from legroom.observe.leaks.iterations import IterationTracker
from legroom.observe.leaks.observations import (
    MAX_SCANS,
    MIN_HOST_BYTES,
    NUMBER_BYTES,
    RARE_SCANS,
    Observations,
)
from legroom.observe.leaks.search.running_calls import is_local_to_call, is_owned_by_call
from legroom.observe.leaks.search.suspects import (
    FoundHolder,
    HolderFinder,
    Suspect,
    as_gradients,
    as_series,
    can_accumulate,
    holder_being_built,
    is_collectable,
    is_computed_from_itself,
    is_ensemble,
    is_fed_back,
    is_prepared_for_training,
    is_read,
    is_sequence,
    is_temporary,
    make_suspects,
    min_length_at,
    one_per_statement,
    with_own_graphs,
)
from legroom.observe.source import storing_lines
from legroom.observe.source.storing_lines import find_usage


class WindowSearch:
    """Searches after the scans of one `ScanWindow`. `rare` means that the scans are infrequent."""

    def __init__(self, iterations: IterationTracker, *, rare: bool) -> None:
        self._iterations = iterations
        self._rare = rare
        self._lengths: dict[tuple[str, str | None], int] = {}
        """The length of each container when it was first found."""

    def find(self, seen: Observations, reported: Collection[LeakKind]) -> tuple[list[Suspect], bool]:
        """Return the suspects, and whether any holder was found. The kinds of leaks in `reported` are not searched
        for.
        """
        holders = HolderFinder()
        suspects: list[Suspect] = []
        if "graph" not in reported and self._iterations.numbers_nodes:
            suspects += self._find_graphs(seen, holders)
        if "tensor" not in reported:
            suspects += self._find_tensors(seen, holders)
        if "larger" not in reported and not self._iterations.by_lines:
            suspects += self._find_larger(seen)
        return suspects, holders.found

    def _find_graphs(self, seen: Observations, holders: HolderFinder) -> list[Suspect]:
        """Return the variables and containers that retain old tensors with a graph. If there are none, return the
        variable that retains a new tensor whose graph includes the old nodes.
        """
        if not seen.iterations_retained:
            return []
        min_length = MIN_ITERATIONS if self._rare else min_length_at(seen.iteration)
        old = _with_graphs(holders.find(seen.old, seen.created_in, min_length=min_length))
        found = [each for each in old if can_accumulate(each) and not is_collectable(each)]
        carrying = _with_graphs(holders.find(seen.carrying, seen.created_in, carry_graph=True))
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
            # A variable that is only assigned, such as the loss, may be computed from the state that carries the graph.
            carrying.sort(key=lambda each: each.usage.is_reassigned_in_loop)
            gradients = self._find_gradients(seen, holders)
            # Gradients with the graphs of many iterations explain the growth better than a variable that is replaced.
            by_gradients = seen.gradient_iterations >= MIN_ITERATIONS
            found = (gradients + carrying if by_gradients else carrying + gradients)[:1]
        if not found and seen.scans >= MAX_SCANS - 1 and not any(map(is_collectable, old)):
            found = [FoundHolder(holder_being_built(), storing_lines.NO_USAGE, 0)]
        suspects: list[Suspect] = []
        for each in found:
            nodes, size = _retained_by(each, seen)
            if len(found) == 1:  # a container may also retain its own tensors
                nodes = seen.nodes_per_iteration
                size = max(seen.bytes_per_iteration, size if size > NUMBER_BYTES else 0)
            suspects += make_suspects(
                each, kind="graph", step=seen.iteration, steps=seen.iterations_retained, bytes_per_step=size,
                nodes_per_step=nodes, storages_per_step=0, evaluation=not self._iterations.trains,
            )  # fmt: skip
        return suspects

    def _find_gradients(self, seen: Observations, holders: HolderFinder) -> list[FoundHolder]:
        line = self._iterations.create_graph_line
        if line is None:
            return []
        found = holders.find(seen.with_gradient_graph, {})
        return as_gradients(found, line, only_gradients=seen.gradient_iterations >= MIN_ITERATIONS)

    def _find_tensors(self, seen: Observations, holders: HolderFinder) -> list[Suspect]:
        min_length = RARE_SCANS if self._rare else min_length_at(seen.iteration)
        held = holders.find(seen.accumulated, seen.created_in, min_length=min_length)
        found = [each for each in held if each.path.how != "unknown" and not is_temporary(each)]
        found = [each for each in found if not is_collectable(each)]
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
            within = {each.target, *each.path.contents}
            within |= {found for view, found in seen.views.items() if view in within}
            on_device = seen.on_device & within if each.target in each.path.contents else seen.on_device
            on_host = bool(seen.on_host) and not on_device
            if len(found) > 1 or on_host:  # count only the tensors in each holder
                sizes = {key: size for key, size in sizes.items() if key in within}
            if on_host and _is_negligible_on_host(sizes.values(), seen.iterations_between):
                continue
            has_graph = each.target in seen.with_graph
            made = make_suspects(
                each, kind="graph" if has_graph else "tensor", step=seen.iteration, steps=seen.scans - 1,
                bytes_per_step=sum(sizes.values()) // seen.iterations_between, nodes_per_step=seen.nodes_of_iteration if has_graph else 0,
                storages_per_step=max(len(sizes) // seen.iterations_between, 1), evaluation=not self._iterations.trains,
                on_host=on_host,
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

    def _find_larger(self, seen: Observations) -> list[Suspect]:
        suspects = []
        for named, series in seen.enlarged.items():
            # A tensor that grows with its graph is reported as a graph.
            if seen.iterations_retained:
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
                leak = DetectedLeak(
                    kind="larger", how="variable", name=named.name, described="tensor", file=statement.file,
                    line=statement.line, function=statement.function, nodes_per_step=0, storages_per_step=0,
                    bytes_per_step=(series[-1] - series[0]) // (len(series) - 1), step=seen.iteration,
                    steps=len(series),
                )  # fmt: skip
                # A user's function may limit the size internally. In that case, the growth ends soon.
                suspects.append(Suspect(leak, calls or not statement.concatenates, series[-1]))
        return suspects


def _with_graphs(holders: list[FoundHolder]) -> list[FoundHolder]:
    return [each._replace(usage=each.usage.with_graphs()) for each in holders]


def _retained_by(holder: FoundHolder, seen: Observations) -> tuple[int, int]:
    """Return the number of nodes and bytes that a variable retains from one iteration. The newest iteration is used,
    because some nodes of older iterations may already be freed.
    """
    within = {holder.target, *holder.path.contents}
    retained = [part for key, part in seen.parts.items() if key in within]
    newest = max((part.iteration for part in retained), default=-1)
    parts = [part for part in retained if part.iteration == newest]
    storages = {key: size for part in parts for key, size in part.storages.items()}
    return len({node for part in parts for node in part.nodes}), sum(storages.values())


def _is_negligible_on_host(sizes: Collection[int], iterations: int) -> bool:
    """Return whether the tensors added on the host are negligible: each is a single number, or they add only a few
    bytes per iteration."""
    return max(sizes, default=0) <= NUMBER_BYTES or sum(sizes) < MIN_HOST_BYTES * iterations
