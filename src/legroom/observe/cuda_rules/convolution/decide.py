"""The workspace of a convolution: from cuDNN's library, the recorded table, the decision forest, or the rules, in this order.

The library that is installed knows best which kernels it will run. For the version that the table was recorded with, the table comes first:
it holds that library's choices as measured on a real H200, and the library without a GPU gets 1 to 2% of them wrong (partial sums, kernels that
only a GPU can compile). For any other version the table is an alternative. A crash of cuDNN leaves the table, the forest and the rules.
Only Hopper GPUs were measured. For other GPUs there is the library, or the rules.
"""

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from legroom.gpus.catalog import GpuSpec
from legroom.observe.cuda_rules.convolution import workspace as workspace
from legroom.observe.cuda_rules.convolution.cudnn_process import Answer, cudnn_process
from legroom.observe.cuda_rules.convolution.cudnn_query import HOPPER, OPERATIONS
from legroom.observe.cuda_rules.convolution.decision_forest import Voted, vote
from legroom.observe.cuda_rules.convolution.recorded_table import Question, look_up
from legroom.observe.cuda_rules.convolution.workspace import Convolution, Workspaces, whole


class Guess(NamedTuple):
    """The workspaces of a convolution, as far as they are known."""

    likely: Workspaces
    others: tuple[Workspaces, ...] = ()
    """Alternatives, likelier ones first. Empty if the sizes are certain."""
    crashed: bool = False
    """Whether cuDNN crashed when it was queried about this convolution."""


class _Sizes(NamedTuple):
    """The same for one operation."""

    likely: int
    others: tuple[int, ...]


@lru_cache(maxsize=4096)
def guess(question: Question, c: Convolution, gpu: GpuSpec) -> Guess:
    recorded = look_up(question.layer, c) if gpu.capability == HOPPER else None
    library = cudnn_process() if gpu.capability >= OLDEST else None
    if library is not None and library.version is None and not library.crashes:
        library = None
    if recorded is not None and (library is None or library.is_recorded_version):
        return Guess(recorded)
    answer = library.ask(question, c, gpu) if library else None
    crashed = library is not None and answer is None
    if recorded is not None and crashed:
        return Guess(recorded, crashed=True)
    by_rule = ruled(c, gpu)
    columns = [_of_operation(question, c, index, gpu, answer, recorded) for index in range(len(OPERATIONS))]
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
    return Guess(likely, tuple(others), crashed)


def _at(found: _Sizes | None, rank: int, likely: int) -> int:
    return found.others[rank] if found and rank < len(found.others) else likely


def _of_operation(
    question: Question,
    c: Convolution,
    index: int,
    gpu: GpuSpec,
    answer: Answer | None,
    recorded: Workspaces | None,
) -> _Sizes | None:
    """The workspace of one of `OPERATIONS`. None: only the rules have an answer."""
    said = answer.sizes[index] if answer and answer.sizes else ()
    if said and answer and answer.logs_skipped_kernels:
        sizes = said if recorded is None else (*said, recorded[index])
        return _Sizes(said[0], sizes if len(set(sizes)) > 1 else ())
    if recorded is not None:
        sizes = (*said, recorded[index])
        return _Sizes(recorded[index], sizes if len(set(sizes)) > 1 else ())
    is_learnt = gpu.capability == HOPPER and (c.channels_last or not c.depthwise)
    voted = vote(question, c, OPERATIONS[index]) if is_learnt else []
    votes = [one.size for one in voted]
    if said and not _may_be_hidden(c, voted, said[0]):
        is_larger = bool(voted) and voted[0].share > MOST and votes[0] > said[0] + whole(c) // 50
        return _Sizes(said[0], (votes[0] if is_larger else said[0], said[-1], *votes))
    if voted:
        sane = [one for one in voted if one.size <= GIANT * whole(c) or one.share > MOST] or voted[-1:]
        high = max(one.size for one in sane if one.share >= SOME or one is sane[0])
        return _Sizes(sane[0].size, (high, *votes))
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
