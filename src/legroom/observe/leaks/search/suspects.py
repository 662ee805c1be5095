"""Finds the variables that retain tensors that should have been freed, and checks whether the source code explains why.

A tensor is traced to the variable that retains it (`holders.paths`) and to the line that stores it
(`source.storing_lines`). A container is not a leak if it is bounded or emptied, or if it belongs to a call that will
end. A cache may stop growing if it checks whether a key exists before it stores a value.
"""

import gc
import re
import sys
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import nn

from legroom.memory.detected_leak import DetectedLeak, LeakKind
from legroom.memory.event_base import Frame
from legroom.observe.holders.descriptions import NO_HOLDER, HolderPath, StoredName
from legroom.observe.holders.paths import find_path, held_by_python
from legroom.observe.holders.variables import Variables
from legroom.observe.leaks.graph_ages import MIN_ITERATIONS, GraphPart
from legroom.observe.leaks.named_sizes import NamedTensor
from legroom.observe.leaks.observations import MAX_ENSEMBLE, MAX_SEARCHES, Targets
from legroom.observe.leaks.search.holder_source import (
    MANY_ITEMS,
    as_traced,
    created_with,
    leak_how,
    storing_statements,
    usage_of,
    with_source,
)
from legroom.observe.leaks.search.running_calls import is_local_to_call
from legroom.observe.source.calls import CONSTRUCTORS
from legroom.observe.source.files import (
    built_at,
    calls_in_loop,
    contains,
    function_at,
    is_in_loop,
    user_files,
)
from legroom.observe.source.passing_calls import find_partial_detach
from legroom.observe.source.statements import StoringStatement
from legroom.observe.source.storing_lines import (
    NO_USAGE,
    NameUsage,
    is_passed_in_loop,
    is_read_in,
    is_training_data,
)
from legroom.observe.source.user_files import is_user_file

MAX_SEARCH_SECONDS = 0.4
"""If a holder was found, no further search starts after this number of seconds. The limit applies to the CPU time of
this thread, so the machine load does not affect the result.
"""
MAX_FRUITLESS_SECONDS = 4.0
"""If no holder was found, no further search starts after this number of seconds, so that a huge heap does not block the
loop.
"""
COLLECTED_RESULTS = 48
"""Growth that ends within this many iterations is not a leak if the program reads the collected results, as an
evaluation does.
"""
_TRAINING_WORDS = ("backward", "autograd", "optim", "Trainer", ".fit(")


class Suspect(NamedTuple):
    """A result of a scan: a leak, or a cache that may stop growing (`may_be_warming_up`)."""

    leak: DetectedLeak
    may_be_warming_up: bool
    length: int
    container_to_trace: int = 0
    """The `id` of the container if its storing line must be found by tracing, otherwise 0."""
    replaced: bool = False
    """True if the items of the container are replaced by larger items, while their number stays the same."""
    key_to_trace: str = ""
    """The attribute to trace if the container is the dict of the attributes of an object, otherwise ""."""
    exceeds_limit: bool = False
    """True if the source limits the container, but the limit is too large for items of this kind."""
    min_rate: float = 0.9
    """During the warm-up time, a container that adds fewer items per iteration than this number is not a leak."""
    min_iterations: int = 0
    """Growth that ends before this number of iterations is not a leak. An example is a short evaluation that collects
    its results.
    """
    at_end: bool = False
    """True if the growth must continue until the end of the run to count as a leak."""
    retained: "weakref.ref[torch.Tensor] | None" = None
    """A retained tensor. If the loop frees this tensor later, the growth is not a leak. Graphs count
    only if the iterations were parts of a step that frees them.
    """
    is_scalar: bool = False
    """True if the retained tensor has one element, such as a loss."""


def holder_being_built() -> HolderPath:
    """Return the holder of a graph that no Python object references. A running statement retains such a graph, as in
    `total = sum(loss(x) for x in data)`.
    """
    for file, line, function in Variables(sys._getframe(1)).lines:
        name = built_at(file, line)
        if name is not None:
            function = function_at(file, line) if function.startswith("<") else function
            return NO_HOLDER._replace(
                name=name or function,
                how="variable",
                described="tensor",
                file=file,
                function=function,
                line=line,
            )
    return NO_HOLDER


class FoundHolder(NamedTuple):
    path: HolderPath
    usage: NameUsage
    target: int
    reference: "weakref.ref[torch.Tensor] | None" = None


class HolderFinder:
    def __init__(self) -> None:
        self._variables: Variables | None = None
        self._explained: set[int] = set()
        self.found = False

    def find(
        self,
        targets: Targets,
        created_in: dict[int, int],
        min_length: int = 0,
        *,
        carry_graph: bool = False,
    ) -> list[FoundHolder]:
        """Return the holders of the targets. `carry_graph` means that the targets are new tensors whose graphs include
        the graphs of earlier iterations.
        """
        if not targets:
            return []
        if self._variables is None:
            self._variables = Variables(sys._getframe(1))
        held = self._held(targets, self._variables)
        found: dict[tuple[str, str | None], FoundHolder] = {}
        searches, started, useful = 0, time.thread_time(), False
        for reference in targets:
            tensor = reference()
            if tensor is None or id(tensor) not in held or id(tensor) in self._explained:
                continue
            limit = MAX_SEARCH_SECONDS if useful else MAX_FRUITLESS_SECONDS
            if searches >= MAX_SEARCHES or time.thread_time() - started > limit:
                break
            searches += 1
            path, usage = with_source(
                find_path(tensor, self._variables, min_length=min_length, created_in=created_in),
                carries_graph=carry_graph,
            )
            is_argument = path.filled_by_iterator and not usage.statements
            # `average = meter.update(loss)`, `batch = memory.sample(4)`, or an argument whose iterator is created under
            # another name
            if is_argument or _is_overwritten(path, usage, "container" if min_length else "variable"):
                other = find_path(
                    tensor,
                    self._variables,
                    min_length=min_length,
                    created_in=created_in,
                    other_than=path.name,
                )
                if other.how != "unknown":
                    path, usage = with_source(other, carries_graph=carry_graph)
            holder = FoundHolder(path, usage, id(tensor), reference)
            self._explained |= {id(tensor), *path.contents}
            del tensor
            useful = useful or can_accumulate(holder)
            found.setdefault((without_indices(path.name), path.file), holder)
        if carry_graph and found and not any(map(is_computed_from_itself, found.values())):
            (key, holder), *_ = found.items()
            found[key] = self._carrying(holder, created_in) or holder
        self.found = self.found or any(each.path.how != "unknown" for each in found.values())
        return list(found.values())

    def _carrying(self, holder: FoundHolder, created_in: dict[int, int]) -> FoundHolder | None:
        """Return the holder that carries a state from one iteration to the next, if the variable that was found does
        not. The variable may be an argument, and the caller stores the state in an attribute (`self.state =
        integrate(self.state)`). If no variable carries the state, the calls that create the object are returned.
        """
        tensor = holder.reference() if holder.reference is not None else None
        if tensor is None or self._variables is None or not holder.path.names:
            return None
        root = holder.path.names[-1].name
        other = find_path(tensor, self._variables, created_in=created_in, other_than=root)
        if other.how != "unknown":
            path, usage = with_source(other, carries_graph=True)
            if any(each.uses_itself for each in usage.statements):
                return holder._replace(path=path, usage=usage)
        if holder.path.how != "variable" or not all(each.replaces for each in holder.usage.statements):
            return None
        owner = holder.path.names[0].owner
        is_layer = owner is not None and issubclass(owner, nn.Module)  # created once, before the loop
        if not is_layer and (created := created_with(holder.path)).statements:
            return holder._replace(usage=created)
        if any(each.function not in CONSTRUCTORS for each in usage_of(holder.path.names[0]).statements):
            return None
        return holder._replace(path=as_traced(holder.path), usage=NO_USAGE)

    @staticmethod
    def _held(targets: Targets, variables: Variables) -> set[int]:
        tensors = [tensor for tensor in (reference() for reference in targets) if tensor is not None]
        return held_by_python(tensors, variables)


def is_computed_from_itself(holder: FoundHolder) -> bool:
    return any(each.uses_itself for each in holder.usage.statements)


def _is_overwritten(path: HolderPath, usage: NameUsage, how: str) -> bool:
    return path.how == how and not path.is_attribute and _is_reassigned(path, usage)


def _is_reassigned(path: HolderPath, usage: NameUsage) -> bool:
    """Return whether each iteration replaces the value of a variable, in the loop or in a function that it calls."""
    if usage.is_reassigned_in_loop:
        return True
    replaces = bool(usage.statements) and all(each.replaces for each in usage.statements)
    return replaces and not path.is_attribute and bool(path.names) and is_local_to_call(path.names[-1])


def make_suspects(holder: FoundHolder, *, kind: LeakKind, **figures: Any) -> Iterator[Suspect]:
    """Yield a `Suspect` for a variable that retains tensors, unless the source code shows that the variable is not a
    leak.
    """
    path, usage = holder.path, holder.usage.with_graphs() if kind == "graph" else holder.usage
    # A container may have only four states, but each state may have the graph of all earlier states.
    carries_graph = kind == "graph" and path.length > 0 and figures["steps"] > path.length + 2
    # One tensor that is truncated, or written slot by slot, has the graph of all values that were ever stored in it.
    carries_graph |= kind == "graph" and not path.length
    limited = path.bounded or (usage.limited and path.how not in ("cache", "exception"))
    # A replay buffer for thousands of items is too large for items with graphs.
    is_large = path.length >= MANY_ITEMS and not path.has_small_limit
    exceeds_limit = limited and is_large and kind == "graph" and not figures["evaluation"]
    limited = limited and not exceeds_limit
    # A list whose items are only replaced keeps its length.
    by_index = path.described.startswith("list") and any(each.at_index for each in usage.statements)
    if kind != "graph" and by_index and all(each.at_index or each.replaces for each in usage.statements):
        return
    if kind != "graph" and any(each.repeats_keys for each in usage.statements):
        return
    outgrows = usage.drains and not path.bounded and path.length >= MANY_ITEMS
    if ((limited and not carries_graph) or (usage.emptied and kind != "graph")) and not outgrows:
        return
    how = leak_how(path, usage)
    candidates = storing_statements(path, usage)
    statement = candidates[0] if candidates else None
    if kind == "graph" and how == "carried":
        statement = next(filter(None, map(find_partial_detach, candidates)), statement)
    # Trace the loop if the source shows several lines. Also trace it if no line could fill the container or extend the
    # graph of an item (`totals[name].add_(loss)`).
    small = kind == "graph" and path.length < MIN_ITERATIONS
    uncertain = statement is None or (
        path.container
        and (
            (statement.replaces and not path.filled_by_iterator)
            or (small and not statement.uses_itself)
            or len({each.line for each in candidates}) > 1
        )
    )
    traceable = path.container and path.how in (
        "container",
        "variable",
        "closure",
        "generator",
        "exception",
        "hook",
    )
    leak = DetectedLeak(
        kind=kind,
        how=how,
        name=path.name,
        described=path.described,
        file=statement.file if statement else path.file,
        line=statement.line if statement else None if traceable else path.line or None,
        function=statement.function if statement else path.function,
        **figures,
    )
    is_cache = path.how == "cache" or (usage.checks_membership and how in ("container", "closure"))
    if is_cache and path.fills_slots and kind != "graph":
        return
    # A dict of bounded queues grows up to the number of its keys.
    filling = (is_cache and path.is_mapping) or path.inside_bounded
    stops = statement is not None and statement.below_limit and bool(path.container)
    if stops and kind != "graph":
        return
    yield Suspect(
        leak,
        filling or stops or usage.emptied or (usage.limited and outgrows),
        path.length,
        path.container if uncertain and traceable else 0,
        replaced=path.length < MIN_ITERATIONS,
        key_to_trace=path.traced_attribute,
        exceeds_limit=exceeds_limit or outgrows or usage.misses_limit,
        retained=holder.reference if kind != "larger" else None,
        is_scalar=_is_scalar(holder),
    )


def _is_scalar(holder: FoundHolder) -> bool:
    tensor = holder.reference() if holder.reference is not None else None
    return tensor is not None and tensor.numel() == 1


def as_series(suspect: Suspect, *, collects: bool) -> Suspect:
    """Mark the suspect as a short series of outputs that the program may collect on purpose, such as several samples of
    one prediction. `collects` means that the program reads the outputs, as an evaluation reads its results.
    """
    return suspect._replace(
        may_be_warming_up=True, min_rate=0.0, min_iterations=COLLECTED_RESULTS if collects else 0
    )


def can_accumulate(holder: FoundHolder) -> bool:
    """Return whether the found variable can retain tensors from many iterations. A plain variable retains the tensors
    of one iteration, unless it is computed from itself. A container that is reassigned in every iteration, such as a
    sample from a buffer, also retains the tensors of only one iteration.
    """
    path, usage = holder.path, holder.usage
    if _is_reassigned(path, usage):
        return False
    if path.how in ("variable", "unknown") or (path.how == "container" and path.length < MIN_ITERATIONS - 1):
        return any(each.uses_itself for each in usage.statements)
    return True


def as_gradients(
    holders: Sequence[FoundHolder], line: Frame, *, only_gradients: bool = False
) -> list[FoundHolder]:
    """Return the holders of parameters whose gradients have an autograd graph as the holders of these gradients. The
    storing line is the line of the backward pass with `create_graph=True`. With `only_gradients`, a parameter counts
    even if no variable refers to it, because its own gradient keeps it alive.
    """
    statement = StoringStatement(
        line.file, line.line, line.function, uses_itself=True, adds=False, concatenates=False,
        stores_number=False, in_loop=True,
    )  # fmt: skip
    usage = NO_USAGE._replace(statements=(statement,))
    found = [
        each._replace(path=each.path._replace(name=f"{each.path.name}.grad"), usage=usage)
        for each in holders
        if each.path.how != "unknown"
    ]
    if not found and only_gradients:
        found = [FoundHolder(NO_HOLDER._replace(name="parameter.grad"), usage, 0)]
    return [
        each._replace(path=each.path._replace(how="gradient", described="tensor", container=0, length=0))
        for each in found
    ]


def with_own_graphs(holders: Sequence[FoundHolder], parts: Mapping[int, GraphPart]) -> list[FoundHolder]:
    """Return the first holder, and each later holder whose graph shares no node with the graphs of the holders before
    it. `parts` maps the `id` of each tensor to the nodes of its graph that were created in one iteration.
    """
    chosen: list[FoundHolder] = []
    nodes: set[int] = set()
    for holder in holders:
        own = parts[holder.target].nodes if holder.target in parts else frozenset()
        if not chosen or (own and nodes.isdisjoint(own)):
            chosen.append(holder)
            nodes |= own
    return chosen


def one_per_statement(holders: Sequence[FoundHolder]) -> list[FoundHolder]:
    """Return one holder for each statement. A statement in a layer stores a tensor in every instance of the layer
    (`net.layers.0.mean`, `net.layers.1.mean`).
    """
    chosen: dict[object, FoundHolder] = {}
    for holder in holders:
        statement = next(iter(storing_statements(holder.path, holder.usage)), None)
        place = (statement.file, statement.line) if statement is not None else None
        chosen.setdefault((without_indices(holder.path.name), place), holder)
    return list(chosen.values())


def without_indices(name: str) -> str:
    """Return a name without indices: `net.layers.mean` for `net.layers.0.mean` and `net.layers[0].mean`."""
    return re.sub(r"\.\d+(?=[.[]|$)|\[\d+\]", "", name)


def is_part_of(name: str, other: str) -> bool:
    """Return whether two names are equal without the indices of layers, or one is an attribute of the other."""
    shorter, longer = sorted(map(without_indices, (name, other)), key=len)
    return f"{longer}.".startswith(f"{shorter}.")


def min_length_at(iteration: int) -> int:
    """Return the minimum length at which a container that grows in every iteration is reported. The minimum is smaller
    early in a run.
    """
    return min(max(iteration - 1, 3), 64)


def is_temporary(holder: FoundHolder) -> bool:
    """Return whether tensors are retained only temporarily: until the next epoch, the end of a call, or the next
    sample.
    """
    path, usage = holder.path, holder.usage
    if path.described.startswith("tuple") and not any(each.uses_itself for each in usage.statements):
        return True
    if is_parameter_list(holder):
        return True
    if usage.resets or usage.is_reassigned_in_loop or (path.names and is_local_to_call(path.names[-1])):
        return True
    if not path.stored_as.isidentifier() and is_in_loop(path.file or "", path.line, itself=False):
        return True  # a list that a statement in a loop builds without assigning it
    return any(usage_of(name).is_recreated_in_loop for name in path.names if not name.is_attribute)


def is_collectable(holder: FoundHolder) -> bool:
    """Return whether the garbage collector will free the tensors, because a reference cycle without a name retains
    them. If the garbage collector is disabled, return whether the program calls `gc.collect()` in a loop.
    """
    if holder.path.how != "cycle":
        return False
    if gc.isenabled() and gc.get_threshold()[0] > 0:
        return True
    return calls_in_loop("gc.collect", {holder.path.file or "", *_running_files()})


def may_train() -> bool:
    """Return whether the source code mentions a backward pass, an optimizer or a trainer. Code in a notebook is not
    complete, because a later cell may call `backward()`.
    """
    files = {*user_files(), *_running_files()}
    if not files or not all(file.endswith(".py") for file in files):
        return True
    return any(contains(file, word) for file in files for word in _TRAINING_WORDS)


def _running_files() -> Iterator[str]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_user_file(frame.f_code.co_filename):
            yield frame.f_code.co_filename
        frame = frame.f_back


def is_prepared_for_training(holder: FoundHolder) -> bool:
    """Return whether the program later uses the tensors for training, for example as features that it computes only
    once.
    """
    path, usage = holder.path, holder.usage
    statement = next(iter(storing_statements(path, usage)), None)
    return statement is not None and is_training_data(path.stored_as, statement.file, statement.line)


def is_read(holder: FoundHolder, *, by_key: bool = False) -> bool:
    """Return whether the program uses the items of a container, such as the columns of a matrix that it computes. With
    `by_key`, looking up an item of a dict does not count as a use.
    """
    path = holder.path
    if path.file is not None and not is_user_file(path.file):
        return False  # a container of a library, such as the registry of `weakref.finalize`
    # Numbers may be the indices of a table that the program computes. Strings identify sessions or requests.
    by_key = path.is_mapping and (by_key or bool(path.keys))
    return path.file is None or is_read_in(
        path.stored_as, path.file, is_attribute=path.is_attribute, by_key=by_key
    )


def is_sequence(holder: FoundHolder) -> bool:
    """Return whether calls to a model extend the input of the next call, such as a generated text and its key-value
    cache. The growth of this sequence is not a leak, because the sequence ends.
    """
    path, usage = holder.path, holder.usage
    if path.contains_tokens:
        return True
    root = path.names[-1] if path.names else None
    statement = next(iter(storing_statements(path, usage)), None)
    return root is not None and is_fed_back(root, usage, statement)


def is_ensemble(holder: FoundHolder) -> bool:
    return holder.path.contains_models and holder.path.length < MAX_ENSEMBLE


def is_parameter_list(holder: FoundHolder) -> bool:
    """Return whether a container is the list of the parameters of an optimizer, and the program adds none to it."""
    name, usage = without_indices(holder.path.name), holder.usage
    return name.endswith('.param_groups["params"]') and not any(
        "params" in each.keys for each in usage.statements
    )


def is_fed_back(
    named: StoredName | NamedTensor, usage: NameUsage, statement: StoringStatement | None
) -> bool:
    """Return whether a loop passes a variable to the call that computes its next value. Also return True if a method
    empties an attribute before a new sequence.
    """
    if named.is_attribute and usage.may_reset:
        return True
    return statement is not None and is_passed_in_loop(named.stored_as, statement.file, statement.line)
