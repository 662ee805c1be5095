"""A launch as text: the ranks that are started, the outcome of each rank, and the next steps for the user.

The error of the rank that failed first is shown in full. Each rank that failed as a consequence is shown in one line.
"""

import re
from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from legroom.diagnose.report.run_report import RunReport
from legroom.scale.launching.folder import LaunchFolder
from legroom.scale.launching.hints import hint
from legroom.scale.launching.outcome import LaunchAttempt, LaunchResult, RankResult, shared_gpus
from legroom.scale.launching.plan import LaunchPlan
from legroom.show.common.formatting import clean, format_count, format_duration
from legroom.show.common.one_screen import Cropped, FirstThatFits
from legroom.show.common.terminal import verbatim
from legroom.show.report.run_report import render_footer, render_oom
from legroom.show.report.short_report import ShortFooter, ShortReport
from legroom.units import format_size

MAX_RANKS = 16
MAX_RANKS_ON_SCREEN = 8


def render_launch_start(plan: LaunchPlan, folder: LaunchFolder | None) -> RenderableType:
    output = f", output in {folder.path}" if folder is not None else ""
    return Group(
        Text(f"legroom: starting {_format_plan(plan)}{output}. Equivalent torchrun command:"),
        verbatim(f"  {plan.torchrun}", style="cyan"),
    )


def _format_plan(plan: LaunchPlan) -> str:
    ranks = f"{format_count(plan.nproc, 'rank')}{_format_gpus(plan)}"
    fewest, most = plan.nodes
    if plan.rendezvous is not None:
        nodes = format_count(most, "node") if fewest == most else f"{fewest} to {most} nodes"
        return f"{ranks} on each of {nodes} (rendezvous at {plan.rendezvous})"
    return f"{ranks} on each of {most} nodes" if most > 1 else ranks


def _format_gpus(plan: LaunchPlan) -> str:
    each = " each" if plan.nproc > 1 else ""
    if plan.gpus:
        sizes = [format_size(gpu.total) for gpu in plan.gpus]
        if len(set(sizes)) > 1 or len(sizes) > plan.nproc:
            return f" with virtual GPUs of {_join(sizes)}"
        return f" with a virtual GPU of {sizes[0]}{each}"
    if plan.real_gpus:
        return f" with a GPU{each}"
    return " on the CPU, because no GPU was found (use --gpu 8GiB for virtual GPUs)"


def render_restart(attempt: LaunchAttempt, allowed: int) -> RenderableType:
    cause = attempt.cause
    reason = "a node joined or left" if cause is None else _what_happened(cause, attempt)
    return Text(
        f"legroom: {reason}. Restarting all ranks ({attempt.number + 1} of {allowed}).", style="yellow"
    )


def render_launch_end(
    end: LaunchResult,
    plan: LaunchPlan,
    folder: LaunchFolder,
    report: RunReport | None,
    *,
    verbose: bool = False,
) -> RenderableType:
    """Render the outcome of the launch. `report` is the report of the rank that ran out of memory first, if any.
    Without `verbose`, the outcome fits on one screen, except for the traceback.
    """
    return Group(*_end_parts(end, plan, folder, report, verbose))


def _end_parts(
    end: LaunchResult, plan: LaunchPlan, folder: LaunchFolder, report: RunReport | None, verbose: bool
) -> Iterator[RenderableType]:
    yield Text("")
    last = end.last
    if last is None or end.interrupted:
        ended = "were stopped" if last is not None else "were not started"
        if plan.nproc == 1:
            ended = ended.replace("were", "was")
        how = "Interrupted" if end.interrupted == "SIGINT" else f"Stopped by {end.interrupted}"
        yield Text(f"{how}: {_all_ranks(plan.nproc, plan)} {ended}.", style="bold")
        yield Text(f"Output in {folder.path}.")
        return
    cause = last.cause
    if cause is None:
        yield from _success_parts(end, last, plan, folder, verbose)
        return
    advice = hint(cause, end.host_oom_kills)
    advised = [Text(f"\n{advice}", style="yellow")] if advice else []
    shared = list(_shared_gpu_parts(last))
    below = Group(*advised, *_follower_parts(last), *shared)
    if verbose:
        yield from _cause_parts(cause, last, plan, report, None)
        yield below
    else:
        # If several ranks use one GPU, this may be the reason for the failure.
        versions = [below, Group(*advised, *shared)] if shared else [below]
        below_on_screen = FirstThatFits(versions, 12 if report is None else 4)
        yield from _cause_parts(cause, last, plan, report, below_on_screen)
        yield below_on_screen
    if report is not None:
        yield render_footer(report) if verbose else ShortFooter(report)
        return
    yield Text("")
    yield Text(f"Complete output of rank {cause.rank}:")
    yield verbatim(f"  {cause.files.out}  {cause.files.err}")


# --- a failed launch -------------------------------------------------------------------------------------------


def _cause_parts(
    cause: RankResult,
    last: LaunchAttempt,
    plan: LaunchPlan,
    report: RunReport | None,
    below: RenderableType | None,
) -> Iterator[RenderableType]:
    """Yield the error of the rank that failed first. The report of an out-of-memory error and `below` together fit on
    one screen.
    """
    if report is not None and report.oom is not None:
        yield render_oom(report) if below is None else ShortReport(report, below=below)
    elif last.exited_early:
        exited = _format_ranks([rank.rank for rank in last.exited_early])
        yield Text(
            _sentence(
                f"{exited} exited without an error while other ranks were waiting. Every rank must take part "
                "in every collective operation"
            ),
            style="bold red",
        )
        yield Text(_sentence(f"then {_what_happened(cause, last)}"))
    elif cause.lost_connection and plan.nodes[1] > 1:
        yield Text(
            f"The connection to other nodes was lost{_after(cause, last)}, probably because a rank on another "
            "node failed first. See the launch output on the other nodes.",
            style="bold red",
        )
    else:
        yield Text(_sentence(_what_happened(cause, last)), style="bold red")
    if cause.failure is not None and cause.failure.traceback:
        yield verbatim(f"\n{cause.failure.traceback.rstrip()}")


def _what_happened(rank: RankResult, attempt: LaunchAttempt) -> str:
    after = _after(rank, attempt)
    if rank.failure is None:
        if rank.signal:
            return f"rank {rank.rank} was killed by {rank.signal}{after}"
        return f"rank {rank.rank} exited{after} with code {rank.code}, without a Python error"
    if rank.failure.error:
        return f"rank {rank.rank} failed first{after}: {_shortened(rank.failure.error)}"
    return f"rank {rank.rank} exited first{after}, with code {rank.code}"


def _after(rank: RankResult, attempt: LaunchAttempt) -> str:
    return f" after {format_duration(rank.failure.seconds if rank.failure else attempt.seconds)}"


def _follower_parts(last: LaunchAttempt) -> Iterator[RenderableType]:
    groups: dict[str, list[int]] = {}
    for rank in last.followers:
        groups.setdefault(_follower_reason(rank, last.cause), []).append(rank.rank)
    if not groups:
        return
    yield Text(
        "\nOther ranks that failed afterwards"
        if len(last.followers) > 1
        else "\nThe other rank failed afterwards",
        style="bold",
    )
    for reason, ranks in groups.items():
        yield Text(f"  {_format_ranks(ranks)}: {reason}", no_wrap=True, overflow="ellipsis")


def _follower_reason(rank: RankResult, cause: RankResult | None) -> str:
    if rank.was_terminated:
        return "stopped by the launcher"
    if rank.failure is None:
        return f"killed by {rank.signal}" if rank.signal else f"exit code {rank.code}"
    if rank.lost_connection:
        return f"connection lost ({_error_class(rank.failure.error)})"
    if cause is not None and cause.failure is not None and _same(cause.failure.error, rank.failure.error):
        return "the same error"
    return _shortened(rank.failure.error) or f"exit code {rank.code}"


def _shared_gpu_parts(last: LaunchAttempt) -> Iterator[RenderableType]:
    for device, ranks in shared_gpus(last.ranks).items():
        yield Text(
            f"\nRanks {_join([str(rank) for rank in ranks])} {'both' if len(ranks) == 2 else 'all'} used GPU {device}. Give each rank its own GPU: "
            'call torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) at the start of the script.',
            style="yellow",
        )


# --- a launch that went well -------------------------------------------------------------------------------------


def _success_parts(
    end: LaunchResult, last: LaunchAttempt, plan: LaunchPlan, folder: LaunchFolder, verbose: bool
) -> Iterator[RenderableType]:
    restarts = len(end.attempts) - 1
    restarted = f" after {format_count(restarts, 'restart')}" if restarts else ""
    recorded = [
        rank for rank in last.ranks if rank.exit_record is not None and rank.exit_record.device is not None
    ]
    fullest = max(recorded, key=_fullness, default=None)
    peak = ""
    if fullest is not None and fullest.exit_record is not None and fullest.exit_record.peak_allocated:
        on = f" on rank {fullest.rank}" if len(recorded) > 1 else ""
        peak = (
            f" Peak memory: {format_size(fullest.exit_record.peak_allocated)} of "
            f"{format_size(fullest.exit_record.capacity)}{on}."
        )
    yield Text(
        f"{_sentence(_all_ranks(len(last.ranks), plan) + f' finished in {format_duration(last.seconds)}{restarted}')}{peak}",
        style="bold",
    )
    if len(recorded) > 1:
        yield _peak_table(recorded, MAX_RANKS if verbose else MAX_RANKS_ON_SCREEN)
    shared = Group(*_shared_gpu_parts(last))
    yield shared if verbose else Cropped(shared, 5)
    yield Text("")
    if fullest is None or not fullest.files.capture.exists():
        yield Text(f"Output in {folder.path}.")
        return
    yield Text(f"Recorded in {folder.path}. Next:")
    line = verbatim(f"  legroom report {fullest.files.capture}", style="bold cyan")
    line.append("   # the fullest rank", style="not bold dim")
    yield line


def _fullness(rank: RankResult) -> tuple[float, int]:
    """Return a sort key: the reserved memory as a fraction of the GPU's memory, then the allocated memory. PyTorch
    reserves memory in large blocks, so several ranks may have the same reserved memory.
    """
    exit_record = rank.exit_record
    return (
        (0.0, 0)
        if exit_record is None
        else (exit_record.peak_reserved / max(exit_record.capacity, 1), exit_record.peak_allocated)
    )


def _peak_table(ranks: Sequence[RankResult], number: int) -> RenderableType:
    table = Table(box=None, padding=(0, 2), show_edge=False, header_style="dim")
    for heading in ("rank", "steps", "peak allocated", "peak reserved", "of"):
        table.add_column(heading, justify="right", no_wrap=True)
    shown = sorted(sorted(ranks, key=_fullness, reverse=True)[:number], key=lambda rank: rank.rank)
    for rank in shown:
        assert rank.exit_record is not None
        table.add_row(
            str(rank.rank),
            f"{rank.exit_record.steps:,}",
            format_size(rank.exit_record.peak_allocated),
            format_size(rank.exit_record.peak_reserved),
            format_size(rank.exit_record.capacity),
        )
    if len(ranks) <= number:
        return table
    return Group(
        table, Text(f"  and {format_count(len(ranks) - number, 'rank')} with lower peaks", style="dim")
    )


# --- formatting --------------------------------------------------------------------------------------------------


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}{'' if text.endswith(('.', '…', '!', '?')) else '.'}"


def _all_ranks(number: int, plan: LaunchPlan) -> str:
    here = " on this node" if plan.rendezvous is not None else ""
    return {1: "the only rank", 2: "both ranks"}.get(number, f"all {number} ranks") + here


def _format_ranks(ranks: Sequence[int]) -> str:
    return f"rank{'' if len(ranks) == 1 else 's'} {_join([str(rank) for rank in ranks])}"


def _join(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def _error_class(error: str) -> str:
    return clean(error).partition(":")[0]


def _shortened(error: str) -> str:
    text = clean(error).splitlines()[0] if error else ""
    return text if len(text) <= 200 else f"{text[:199]}…"


def _same(one: str, other: str) -> bool:
    """Return True if two errors differ only in numbers such as ranks, addresses and sizes."""
    return re.sub(r"\d+", "0", one) == re.sub(r"\d+", "0", other)
