"""What a convolution takes: as measured, as cuDNN's library says, as the forest votes, or by rule, in this order.

Where a layer was measured at its batch size, and where the library names the kernel, there is no doubt but for partial sums. Where it does not, because it
is not there or the kernel's size is not known, the forest is asked, which has learnt from a real H200.
Hopper alone was measured; for other GPUs there is the library, or the rules.
"""

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from legroom.gpus.catalog import GpuSpec
from legroom.observe.cuda_rules.convolution import workspace as workspace
from legroom.observe.cuda_rules.convolution.cudnn_library import Kind, find_library
from legroom.observe.cuda_rules.convolution.cudnn_query import HOPPER, OPERATIONS, Cudnn, tells_all
from legroom.observe.cuda_rules.convolution.decision_forest import Voted, vote
from legroom.observe.cuda_rules.convolution.recorded_table import Question, look_up
from legroom.observe.cuda_rules.convolution.workspace import Convolution, Workspaces, whole


class Guess(NamedTuple):
    """What a convolution may take."""

    likely: Workspaces
    others: tuple[Workspaces, ...] = ()
    """What it may take instead, likelier ones first; none where it was measured."""


class _Sizes(NamedTuple):
    """The same for one operation."""

    likely: int
    others: tuple[int, ...]


@lru_cache(maxsize=4096)
def guess(question: Question, c: Convolution, gpu: GpuSpec) -> Guess:
    is_measured_kind = gpu.capability == HOPPER
    if is_measured_kind and (measured := look_up(question.layer, c)) is not None:
        return Guess(measured)
    by_rule = ruled(c, gpu)
    columns = [
        _of_operation(question, c, operation, gpu, rule)
        for operation, rule in zip(OPERATIONS, by_rule.likely, strict=True)
    ]
    likely = Workspaces(
        *(found.likely if found else rule for found, rule in zip(columns, by_rule.likely, strict=True))
    )
    ranks = max((len(found.others) for found in columns if found), default=0)
    others = [
        Workspaces(*(_at(found, rank, size) for found, size in zip(columns, likely, strict=True)))
        for rank in range(ranks)
    ]
    if not all(columns):
        others += by_rule.others
    return Guess(likely, tuple(others))


def _at(found: _Sizes | None, rank: int, likely: int) -> int:
    return found.others[rank] if found and rank < len(found.others) else likely


def _of_operation(
    question: Question, c: Convolution, operation: Kind, gpu: GpuSpec, rule: int
) -> _Sizes | None:
    """None: only the rules know anything."""
    functions = find_library() if gpu.capability >= OLDEST else None
    said = Cudnn(functions, gpu).workspaces(question, operation, c) if functions else ()
    if said and tells_all(functions):
        return _Sizes(said[0], said if len(set(said)) > 1 else ())
    is_learnt = gpu.capability == HOPPER and (c.channels_last or not c.depthwise)
    voted = vote(question, c, operation) if is_learnt else []
    sizes = [one.size for one in voted]
    if said and not _may_be_hidden(c, voted, said[0]):
        is_larger = bool(voted) and voted[0].share > MOST and sizes[0] > said[0] + whole(c) // 50
        return _Sizes(said[0], (sizes[0] if is_larger else said[0], said[-1], *sizes))
    if voted:
        sane = [one for one in voted if one.size <= GIANT * whole(c) or one.share > MOST] or voted[-1:]
        high = max(one.size for one in sane if one.share >= SOME or one is sane[0])
        return _Sizes(sane[0].size, (high, *sizes))
    return None


SOME = 0.3
"""Share of the trees whose larger size the estimate reckons with: memory that is foreseen too low costs a run, too high only room."""
MOST = 0.5
"""Share of the trees whose larger size the estimate reckons with where cuDNN's library says otherwise."""
GIANT = 4
"""Times what a convolution reads and writes: so much is believed only if nearly all trees say so."""


def _may_be_hidden(c: Convolution, voted: list[Voted], said: int) -> bool:
    """Whether a kernel is likely that a library which does not tell all leaves out where there is no GPU."""
    return c.pointwise or any(
        one.share > MOST and one.recipe[0] in UNSEEN and one.size > said for one in voted[:1]
    )


UNSEEN = "=R"
"""Recipes of kernels that cuDNN's library leaves out where there is no GPU: Winograd's way, and those by way of frequencies."""
OLDEST = (7, 5)
"""Compute capability: of older GPUs the present cuDNN knows only its general kernels."""


def ruled(c: Convolution, gpu: GpuSpec) -> Guess:
    """By rules that were read off a few thousand convolutions: for what neither library nor forest knows."""
    sizes = Workspaces(workspace.forward(c), workspace.input_gradient(c), workspace.weight_gradient(c, gpu))
    if not c.depthwise:
        return Guess(sizes, (workspace.most(c, gpu),))
    if c.channels_last or c.element == 4:
        return Guess(sizes)
    # As much as the kernels that read so.
    last = workspace.weight_gradient(replace(c, channels_last=True), gpu)
    return Guess(sizes, (sizes._replace(weight_gradient=last),))
