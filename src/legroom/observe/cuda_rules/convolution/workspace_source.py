"""Selects the source of the workspace size of a convolution: cuDNN's library, the recorded table, the decision forest,
or the rules.

The table contains cuDNN's choices on a real H200, so it is used first if it was recorded with the installed version of
cuDNN. For any other version, the installed library is the most reliable source, because it chooses the kernels that
will run. Without a GPU, cuDNN reports a wrong size for 1 to 2% of the convolutions, because it omits partial sums and
kernels that only a GPU can compile. If the table was recorded with another version, its size is only an alternative. If
cuDNN crashes, the table, the forest and the rules are used. Only Hopper GPUs were measured. For other GPUs, the library
or the rules are used.
"""

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from legroom.gpus.catalog import GpuSpec
from legroom.observe.cuda_rules.convolution import workspace_rules
from legroom.observe.cuda_rules.convolution.cudnn_process import Answer, cudnn_process
from legroom.observe.cuda_rules.convolution.cudnn_query import HOPPER, OPERATIONS
from legroom.observe.cuda_rules.convolution.decision_forest import Vote, vote
from legroom.observe.cuda_rules.convolution.recorded_table import ConvQuery, look_up
from legroom.observe.cuda_rules.convolution.workspace_rules import Convolution, ConvWorkspaces, tensor_bytes


class WorkspaceGuess(NamedTuple):
    likely: ConvWorkspaces
    others: tuple[ConvWorkspaces, ...] = ()
    """Alternative sizes, most likely first. The tuple is empty if the sizes are certain."""
    crashed: bool = False


class _Sizes(NamedTuple):
    likely: int
    others: tuple[int, ...]


@lru_cache(maxsize=4096)
def guess_workspaces(query: ConvQuery, c: Convolution, gpu: GpuSpec) -> WorkspaceGuess:
    recorded = look_up(query.layer, c) if gpu.capability == HOPPER else None
    library = cudnn_process() if gpu.capability >= OLDEST_CAPABILITY else None
    if library is not None and library.version is None and not library.crashes:
        library = None
    if recorded is not None and (library is None or library.is_recorded_version):
        return WorkspaceGuess(recorded)
    answer = library.ask(query, c, gpu) if library else None
    crashed = library is not None and answer is None
    if recorded is not None and crashed:
        return WorkspaceGuess(recorded, crashed=True)
    by_rule = by_rules(c, gpu)
    columns = [_operation_sizes(query, c, index, gpu, answer, recorded) for index in range(len(OPERATIONS))]
    likely = ConvWorkspaces(
        *(found.likely if found else rule for found, rule in zip(columns, by_rule.likely, strict=True))
    )
    count = max((len(found.others) for found in columns if found), default=0)
    others = [
        ConvWorkspaces(
            *(_alternative(found, rank, size) for found, size in zip(columns, likely, strict=True))
        )
        for rank in range(count)
    ]
    if not all(columns):
        others += by_rule.others
    return WorkspaceGuess(likely, tuple(others), crashed)


def _alternative(found: _Sizes | None, rank: int, likely: int) -> int:
    return found.others[rank] if found and rank < len(found.others) else likely


def _operation_sizes(
    query: ConvQuery,
    c: Convolution,
    index: int,
    gpu: GpuSpec,
    answer: Answer | None,
    recorded: ConvWorkspaces | None,
) -> _Sizes | None:
    """Return the workspace sizes of one operation in `OPERATIONS`, or None if only the rules provide a size."""
    answered = answer.sizes[index] if answer and answer.sizes else ()
    if answered and answer and answer.logs_skipped_kernels:
        sizes = answered if recorded is None else (*answered, recorded[index])
        return _Sizes(answered[0], sizes if len(set(sizes)) > 1 else ())
    if recorded is not None:
        sizes = (*answered, recorded[index])
        return _Sizes(recorded[index], sizes if len(set(sizes)) > 1 else ())
    is_covered = gpu.capability == HOPPER and (c.channels_last or not c.depthwise)
    candidates = vote(query, c, OPERATIONS[index]) if is_covered else []
    votes = [one.size for one in candidates]
    if answered and not _may_be_gpu_only(c, candidates, answered[0]):
        is_larger = (
            bool(candidates)
            and candidates[0].share > MAJORITY
            and votes[0] > answered[0] + tensor_bytes(c) // 50
        )
        return _Sizes(answered[0], (votes[0] if is_larger else answered[0], answered[-1], *votes))
    if candidates:
        plausible = [
            one for one in candidates if one.size <= HUGE * tensor_bytes(c) or one.share > MAJORITY
        ] or candidates[-1:]
        high = max(one.size for one in plausible if one.share >= MIN_SHARE or one is plausible[0])
        return _Sizes(plausible[0].size, (high, *votes))
    return None


MIN_SHARE = 0.3
"""A size above the most likely size becomes an alternative if at least this fraction of the trees votes for it. An
estimate that is too low can make a run fail, but an estimate that is too high costs little.
"""
MAJORITY = 0.5
"""A size above cuDNN's size becomes an alternative if more than this fraction of the trees votes for it."""
HUGE = 4
"""If a workspace is more than this many times as large as input, weights and output together, it is plausible only if
a majority of the trees votes for it.
"""


def _may_be_gpu_only(c: Convolution, candidates: list[Vote], answered: int) -> bool:
    """Return whether the convolution probably uses a kernel that cuDNN skips without a GPU. If cuDNN does not log the
    kernels that it skips, its results do not include such kernels.
    """
    return c.pointwise or any(
        one.share > MAJORITY and one.formula[0] in GPU_ONLY and one.size > answered for one in candidates[:1]
    )


GPU_ONLY = "=R"
"""The first letters of formulas for unknown kernels and for kernels that cuDNN skips without a GPU (Winograd and FFT).
"""
OLDEST_CAPABILITY = (7, 5)
"""The oldest compute capability for which cuDNN 9 has specialized kernels. Older GPUs have only generic kernels."""


def by_rules(c: Convolution, gpu: GpuSpec) -> WorkspaceGuess:
    sizes = ConvWorkspaces(
        workspace_rules.forward(c), workspace_rules.input_gradient(c), workspace_rules.weight_gradient(c, gpu)
    )
    if not c.depthwise:
        return WorkspaceGuess(sizes, (workspace_rules.upper_bound(c, gpu),))
    if c.channels_last or c.element == 4:
        return WorkspaceGuess(sizes)
    # cuDNN may use the channels-last kernels.
    last = workspace_rules.weight_gradient(replace(c, channels_last=True), gpu)
    return WorkspaceGuess(sizes, (sizes._replace(weight_gradient=last),))
