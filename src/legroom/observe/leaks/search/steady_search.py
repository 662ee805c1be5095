"""Finds the objects that keep storages alive, if the number of live storages grows steadily (see `SteadyGrowth`).

In a short series of scans, a container is not a leak if the source contains code that empties it. If the growth is
steady, this code has evidently not emptied the container, so the container can be a leak. A container is excluded only
if it limits its own length, such as `deque(maxlen=...)`, or if the source checks its length.
"""

from legroom.memory.detected_leak import DetectedLeak
from legroom.observe.leaks.iterations import IterationTracker
from legroom.observe.leaks.observations import MIN_HOST_BYTES, UNROLLED_CALLS
from legroom.observe.leaks.search.holder_source import (
    as_linked,
    compiled_functions,
    leak_how,
    registered_at_exit,
    storing_statements,
)
from legroom.observe.leaks.search.running_calls import is_local_to_call
from legroom.observe.leaks.search.suspects import (
    COLLECTED_RESULTS,
    FoundHolder,
    HolderFinder,
    Suspect,
    is_collectable,
    is_ensemble,
    is_parameter_list,
    is_prepared_for_training,
    is_read,
    is_sequence,
)
from legroom.observe.leaks.steady_growth import SteadyGrowth
from legroom.observe.leaks.survivors import ALL_SIZES
from legroom.observe.source.user_files import is_user_file

MIN_LENGTH = 8
"""A container with fewer items than this is reported only if no container with more items is found."""
ABOVE_COUNTER = 64
"""If a container has this many items, a condition such as `if step < 10:` around the storing line does not limit its
length.
"""


def find_suspects(growth: SteadyGrowth, iterations: IterationTracker, iteration: int) -> list[Suspect]:
    """Return one suspect for each group of storages whose growth the source code does not explain."""
    suspects: list[Suspect] = []
    for size, targets in growth.targets.items():
        if growth.is_on_host and growth.bytes_per_iteration(size) < MIN_HOST_BYTES:
            continue
        found = HolderFinder().find(targets, growth.created_in, min_length=MIN_LENGTH)
        known = [_as_linked(each) for each in found if each.path.how != "unknown"]
        survivors = growth.history.survivors(size)
        # A full container with a fixed length frees an item for each new one, so it explains the growth only until it is
        # full. In that case, it still contains most of the survivors.
        known = [each for each in known if not each.path.is_full or each.path.length >= survivors / 2]
        leaks = [each for each in known if _is_leak(each, survivors, iterations)]
        if len(leaks) < len(known):
            continue  # the source code explains the growth
        if not leaks and iterations.by_model_calls and iteration < UNROLLED_CALLS:
            continue
        # Of several holders with the same length, the one that was found last retains the oldest tensor.
        holder = max(reversed(leaks), key=lambda each: each.path.length, default=None)
        if holder is None and (in_library := registered_at_exit() or compiled_functions()) is not None:
            holder = FoundHolder(*in_library, 0)
        suspects.append(_suspect(holder, growth, size, iteration, evaluation=not iterations.trains))
    return suspects


def _is_leak(holder: FoundHolder, survivors: int, iterations: IterationTracker) -> bool:
    path, usage = holder.path, holder.usage
    if path.bounded or path.inside_bounded or path.has_small_limit:
        return False
    if path.fills_slots and path.length >= survivors / 2:
        return False
    if is_collectable(holder) or is_ensemble(holder) or is_parameter_list(holder):
        return False
    if usage.has_limit and path.how not in ("cache", "exception"):
        return False
    if path.names and is_local_to_call(path.names[-1]):
        return False
    statement = next(iter(storing_statements(path, usage)), None)
    if statement is not None and statement.below_limit and 0 < path.length < ABOVE_COUNTER:
        return False
    if not iterations.trains and is_prepared_for_training(holder):
        return False
    is_short = 0 < path.length < COLLECTED_RESULTS and path.how != "linked"
    if not iterations.trains and is_short and is_read(holder, by_key=True):
        return False
    if iterations.by_lines and is_read(holder):
        return False
    return not (iterations.by_model_calls and is_sequence(holder))


def _suspect(
    holder: FoundHolder | None, growth: SteadyGrowth, size: int, iteration: int, *, evaluation: bool
) -> Suspect:
    path = holder.path if holder is not None else None
    has_graph = holder is not None and holder.target in growth.with_graph
    if holder is not None and has_graph:
        holder = holder._replace(usage=holder.usage.with_graphs())
    statements = storing_statements(path, holder.usage) if holder is not None and path is not None else []
    statement = statements[0] if statements else None
    by_user = path is not None and is_user_file(path.file or "")
    rate = growth.history.growth_per_iteration(size)
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
        evaluation=evaluation,
        on_host=growth.is_on_host,
    )  # fmt: skip
    uncertain = statement is None or statement.replaces or len({each.line for each in statements}) > 1
    traceable = path is not None and path.container and path.length > 1
    return Suspect(
        leak, False, path.length if path is not None else 0,
        path.container if path is not None and uncertain and traceable else 0, at_end=True,
        exceeds_limit=holder is not None and holder.usage.misses_limit,
    )  # fmt: skip


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
