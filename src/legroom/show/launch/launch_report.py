"""A launch as text: what is started, what happened to which rank, and what to do next.

The rank that failed first is shown in full; those that fell with it are folded into a line each.
"""

import re
from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from legroom.diagnose.report.run_report import RunReport
from legroom.scale.launching.folder import RunFolder
from legroom.scale.launching.hints import hint
from legroom.scale.launching.outcome import Attempt, LaunchEnd, RankResult, crowded
from legroom.scale.launching.plan import LaunchPlan
from legroom.show.common.formatting import clean, format_count, format_duration
from legroom.show.common.terminal import verbatim
from legroom.show.report.run_report import render_footer, render_oom
from legroom.units import format_size

MOST_RANKS = 16
"""More are not listed one by one."""


def render_launch_start(plan: LaunchPlan, folder: RunFolder | None) -> RenderableType:
    """What is about to start, and the same as a torchrun command."""
    whose = "its" if plan.world_size == 1 else "their"
    kept = f"; {whose} output is kept in {folder.path}" if folder is not None else ""
    return Group(
        Text(f"legroom: {_ranks_words(plan)}{kept}. The same with torchrun:"),
        verbatim(f"  {plan.torchrun}", style="cyan"),
    )


def _ranks_words(plan: LaunchPlan) -> str:
    words = f"{format_count(plan.nproc, 'rank')}{_gpu_words(plan)}"
    fewest, most = plan.nodes
    if plan.rendezvous is not None:
        nodes = format_count(most, "node") if fewest == most else f"{fewest} to {most} nodes"
        return f"{words}; {nodes} meet at {plan.rendezvous}"
    return f"{words} on each of {most} nodes" if most > 1 else words


def _gpu_words(plan: LaunchPlan) -> str:
    each = " each" if plan.nproc > 1 else ""
    if plan.gpus:
        sizes = [format_size(gpu.total) for gpu in plan.gpus]
        if len(set(sizes)) > 1 or len(sizes) > plan.nproc:
            return f", virtual GPUs of {_listed(sizes)}"
        return f", a virtual GPU of {sizes[0]}{each}"
    if plan.real_gpus:
        return f", a GPU{each}"
    return " on the CPU (no GPU here; --gpu 8GiB gives virtual ones)"


def render_restart(attempt: Attempt, allowed: int) -> RenderableType:
    """An attempt failed and another begins."""
    cause = attempt.cause
    why = "another node came or went" if cause is None else _what_happened(cause, attempt)
    return Text(f"legroom: {why}; all ranks start again ({attempt.number + 1} of {allowed}).", style="yellow")


def render_launch_end(
    end: LaunchEnd, plan: LaunchPlan, folder: RunFolder, report: RunReport | None
) -> RenderableType:
    """How it ended. `report`: of the rank that ran out of memory first, where one did."""
    return Group(*_ending_parts(end, plan, folder, report))


def _ending_parts(
    end: LaunchEnd, plan: LaunchPlan, folder: RunFolder, report: RunReport | None
) -> Iterator[RenderableType]:
    yield Text("")
    last = end.last
    if last is None or end.interrupted:
        ended = "ended" if last is not None else "not started"
        how = "Interrupted" if end.interrupted == "SIGINT" else f"Ended by {end.interrupted}"
        yield Text(f"{how}: {_all_ranks(plan.nproc, plan)} {ended}.", style="bold")
        yield Text(f"Output in {folder.path}.")
        return
    cause = last.cause
    if cause is None:
        yield from _success_parts(end, last, plan, folder)
        return
    yield from _cause_parts(cause, last, plan, end, report)
    yield from _follower_parts(last)
    yield from _crowd_parts(last)
    if report is not None:
        yield render_footer(report)
        return
    yield Text("")
    yield Text("The whole output of that rank is in")
    yield verbatim(f"  {cause.files.out}  {cause.files.err}")


# --- a launch that failed ----------------------------------------------------------------------------------------


def _cause_parts(
    cause: RankResult, last: Attempt, plan: LaunchPlan, end: LaunchEnd, report: RunReport | None
) -> Iterator[RenderableType]:
    if report is not None and report.oom is not None:
        yield render_oom(report)
    elif last.left_early:
        gone = _rank_words([rank.rank for rank in last.left_early])
        yield Text(
            _sentence(
                f"{gone} ended without an error while others still waited for it: "
                "every rank must come to every collective operation"
            ),
            style="bold red",
        )
        yield Text(_sentence(f"then {_what_happened(cause, last)}"))
    elif cause.lost_peer and plan.nodes[1] > 1:
        yield Text(
            f"The connection to other nodes was lost{_after(cause, last)}: the first failure was on one of them, and the launch there "
            "says which.",
            style="bold red",
        )
    else:
        yield Text(_sentence(_what_happened(cause, last)), style="bold red")
    if cause.failure is not None and cause.failure.traceback:
        yield verbatim(f"\n{cause.failure.traceback.rstrip()}")
    advice = hint(cause, end.kernel_kills)
    if advice:
        yield Text(f"\n{advice}", style="yellow")


def _what_happened(rank: RankResult, attempt: Attempt) -> str:
    after = _after(rank, attempt)
    if rank.failure is None:
        if rank.signal:
            return f"rank {rank.rank} was killed by {rank.signal}{after}"
        return f"rank {rank.rank} ended{after} with exit code {rank.code}, without a Python error"
    if rank.failure.error:
        return f"rank {rank.rank} failed first{after}: {_shortened(rank.failure.error)}"
    return f"rank {rank.rank} ended first{after}, with exit code {rank.code}"


def _after(rank: RankResult, attempt: Attempt) -> str:
    return f" after {format_duration(rank.failure.seconds if rank.failure else attempt.seconds)}"


def _follower_parts(last: Attempt) -> Iterator[RenderableType]:
    groups: dict[str, list[int]] = {}
    for rank in last.followers:
        groups.setdefault(_followed(rank, last.cause), []).append(rank.rank)
    if not groups:
        return
    yield Text(
        "\nThe other ranks fell with it" if len(last.followers) > 1 else "\nThe other fell with it",
        style="bold",
    )
    for how, ranks in groups.items():
        yield Text(f"  {_rank_words(ranks)}: {how}", no_wrap=True, overflow="ellipsis")


def _followed(rank: RankResult, cause: RankResult | None) -> str:
    if rank.was_ended:
        return "told to end by the launcher"
    if rank.failure is None:
        return f"killed by {rank.signal}" if rank.signal else f"exit code {rank.code}"
    if rank.lost_peer:
        return f"connection lost ({_kind(rank.failure.error)})"
    if cause is not None and cause.failure is not None and _same(cause.failure.error, rank.failure.error):
        return "the same error"
    return _shortened(rank.failure.error) or f"exit code {rank.code}"


def _crowd_parts(last: Attempt) -> Iterator[RenderableType]:
    for device, ranks in crowded(last.ranks).items():
        yield Text(
            f"\nRanks {_listed([str(rank) for rank in ranks])} {'both' if len(ranks) == 2 else 'all'} filled GPU {device}. Each should use its own: "
            'torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before anything else.',
            style="yellow",
        )


# --- a launch that went well -------------------------------------------------------------------------------------


def _success_parts(
    end: LaunchEnd, last: Attempt, plan: LaunchPlan, folder: RunFolder
) -> Iterator[RenderableType]:
    restarts = len(end.attempts) - 1
    again = f", after {format_count(restarts, 'restart')}" if restarts else ""
    watched = [rank for rank in last.ranks if rank.ending is not None and rank.ending.device is not None]
    fullest = max(watched, key=_fullness, default=None)
    peak = ""
    if fullest is not None and fullest.ending is not None and fullest.ending.peak_allocated:
        on = f", on rank {fullest.rank}" if len(watched) > 1 else ""
        peak = (
            f"; memory peaked at {format_size(fullest.ending.peak_allocated)} of "
            f"{format_size(fullest.ending.capacity)}{on}"
        )
    yield Text(
        f"Finished in {format_duration(last.seconds)}{again}: {_all_ranks(len(last.ranks), plan)}{peak}.",
        style="bold",
    )
    if len(watched) > 1:
        yield _peak_table(watched)
    yield from _crowd_parts(last)
    yield Text("")
    if fullest is None or not fullest.files.capture.exists():
        yield Text(f"Output in {folder.path}.")
        return
    yield Text(f"Recorded in {folder.path}. Next:")
    line = verbatim(f"  legroom report {fullest.files.capture}", style="bold cyan")
    line.append("   # the fullest rank", style="not bold dim")
    yield line


def _fullness(rank: RankResult) -> tuple[float, int]:
    """Of two that reserved alike, by what was allocated: PyTorch reserves in large pieces."""
    ending = rank.ending
    return (
        (0.0, 0)
        if ending is None
        else (ending.peak_reserved / max(ending.capacity, 1), ending.peak_allocated)
    )


def _peak_table(ranks: Sequence[RankResult]) -> RenderableType:
    table = Table(box=None, padding=(0, 2), show_edge=False, header_style="dim")
    for heading in ("rank", "steps", "peak allocated", "peak reserved", "of"):
        table.add_column(heading, justify="right", no_wrap=True)
    shown = sorted(sorted(ranks, key=_fullness, reverse=True)[:MOST_RANKS], key=lambda rank: rank.rank)
    for rank in shown:
        assert rank.ending is not None
        table.add_row(
            str(rank.rank),
            f"{rank.ending.steps:,}",
            format_size(rank.ending.peak_allocated),
            format_size(rank.ending.peak_reserved),
            format_size(rank.ending.capacity),
        )
    if len(ranks) <= MOST_RANKS:
        return table
    return Group(table, Text(f"  and {format_count(len(ranks) - MOST_RANKS, 'rank')} with less", style="dim"))


# --- words -------------------------------------------------------------------------------------------------------


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}{'' if words.endswith(('.', '…', '!', '?')) else '.'}"


def _all_ranks(number: int, plan: LaunchPlan) -> str:
    here = " of this node" if plan.rendezvous is not None else ""
    return {1: "the one rank", 2: "both ranks"}.get(number, f"all {number} ranks") + here


def _rank_words(ranks: Sequence[int]) -> str:
    return f"rank{'' if len(ranks) == 1 else 's'} {_listed([str(rank) for rank in ranks])}"


def _listed(words: Sequence[str]) -> str:
    """`0, 1 and 3`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _kind(error: str) -> str:
    return clean(error).partition(":")[0]


def _shortened(error: str) -> str:
    text = clean(error).splitlines()[0] if error else ""
    return text if len(text) <= 200 else f"{text[:199]}…"


def _same(one: str, other: str) -> bool:
    """Whether two errors differ in nothing but numbers: ranks, addresses, sizes."""
    return re.sub(r"\d+", "0", one) == re.sub(r"\d+", "0", other)
