"""`legroom launch`: the ranks of one script, started together on one machine or many, each with its own GPU."""

import json
import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from legroom.cli.estimate import EXIT_CODES
from legroom.cli.options import Format, FormatOption, ModuleOption, ScriptWords
from legroom.errors import LegroomError, UsageError
from legroom.gpus.catalog import parse_gpus

if TYPE_CHECKING:
    from legroom.diagnose.report.run_report import RunReport
    from legroom.scale.launching.folder import RunFolder
    from legroom.scale.launching.outcome import Attempt, LaunchEnd
    from legroom.scale.launching.plan import LaunchPlan

SCHEMA = "legroom.launch/1"


class Strategy(StrEnum):
    """What `legroom.parallel` shall do in the script."""

    AUTO = "auto"
    DDP = "ddp"
    FSDP = "fsdp"
    PIPELINE = "pipeline"
    SPLIT = "split"
    DP = "dp"


class Engine(StrEnum):
    """What starts the ranks."""

    TORCHRUN = "torchrun"
    RAY = "ray"


def launch(
    script: ScriptWords = None,
    module: ModuleOption = None,
    nproc: Annotated[
        int | None,
        typer.Option(
            "--nproc", min=1, metavar="N", help="Ranks on this machine.", show_default="one per GPU"
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            "--gpu",
            metavar="NAME|SIZE[,...]",
            help="A virtual GPU of that size for each rank; several sizes: one each.",
            show_default=False,
        ),
    ] = None,
    strategy: Annotated[
        Strategy | None,
        typer.Option("--strategy", help="For legroom.parallel in the script.", show_default=False),
    ] = None,
    nodes: Annotated[
        str, typer.Option("--nodes", metavar="N|MIN:MAX", help="Machines that run this same command.")
    ] = "1",
    rendezvous: Annotated[
        str | None,
        typer.Option(
            "--rendezvous",
            metavar="HOST:PORT",
            help="Where they meet: one of them, a free port.",
            show_default=False,
        ),
    ] = None,
    wait: Annotated[
        float, typer.Option("--wait", min=1, metavar="SECONDS", help="How long they wait for one another.")
    ] = 600,
    max_restarts: Annotated[
        int, typer.Option("--max-restarts", min=0, metavar="N", help="Start all ranks again when one fails.")
    ] = 0,
    engine: Annotated[Engine, typer.Option("--engine", help="What starts the ranks.")] = Engine.TORCHRUN,
    logs: Annotated[
        Path | None,
        typer.Option(
            "--logs",
            metavar="FOLDER",
            help="Where output and captures go.",
            show_default="SCRIPT.launch, numbered",
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch/--no-watch", help="Record the memory of ranks that have a real GPU.")
    ] = True,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Start nothing: show the plan and the memory of each rank.")
    ] = False,
    format: FormatOption = Format.TEXT,
) -> int:
    """Start SCRIPT once per GPU, as ranks that work together.

    Their output is shown line by line with the rank in front, and kept in files. When one fails, all end: the first
    failure is shown, with its memory report. The exit code is that rank's.
    """
    words = list(script or ())
    if module is None and not words:
        raise UsageError("which script? write legroom launch --nproc 2 train.py")
    gpus = parse_gpus(gpu) if gpu is not None else []

    from legroom.gpus.machine import visible_gpus
    from legroom.observe.script import Script
    from legroom.scale.launching.plan import plan_launch

    target = (
        Script(module, tuple(words), is_module=True)
        if module is not None
        else Script(words[0], tuple(words[1:]))
    )
    plan = plan_launch(
        target,
        nproc=nproc,
        gpus=gpus,
        real_gpus=0 if gpus else len(visible_gpus()),
        nodes=nodes,
        rendezvous=rendezvous,
        wait=wait,
        strategy=strategy.value if strategy is not None else None,
        max_restarts=max_restarts,
        watch=watch,
        engine=engine.value,
    )
    as_json = format == Format.JSON
    return _foretell(plan, as_json=as_json) if dry_run else _run(plan, logs, as_json=as_json)


def _foretell(plan: "LaunchPlan", *, as_json: bool) -> int:
    from legroom.scale.launching.memory_prediction import foretell
    from legroom.show.common.progress import progress_line
    from legroom.show.common.terminal import print_to
    from legroom.show.launch.launch_report import render_launch_start
    from legroom.show.launch.memory_table import render_predictions

    if not as_json:
        print_to(sys.stdout, render_launch_start(plan, None))
    with progress_line(sys.stderr, quiet=as_json) as say:
        forecasts = foretell(plan, say)
    if as_json:
        document = {"world_size": plan.world_size, "torchrun": plan.torchrun}
        ranks = [forecast.as_json() for forecast in forecasts]
        print(json.dumps({"schema": SCHEMA, **document, "ranks": ranks}, indent=2))
    else:
        print_to(sys.stdout, render_predictions(forecasts))
    verdicts = [forecast.estimate.verdict if forecast.estimate else "uncertain" for forecast in forecasts]
    return max((EXIT_CODES[verdict] for verdict in verdicts), key=_WORST.index, default=0)


_WORST = (0, 3, 1)
"""Exit codes of verdicts: what fits, what may not, what does not."""


def _run(plan: "LaunchPlan", logs: Path | None, *, as_json: bool) -> int:
    from legroom.scale.launching.elastic import run_elastic
    from legroom.scale.launching.folder import make_folder
    from legroom.scale.launching.ray_engine import run_ray
    from legroom.scale.launching.rendezvous import check_place
    from legroom.show.common.terminal import print_to
    from legroom.show.launch.launch_report import render_launch_end, render_launch_start, render_restart
    from legroom.show.launch.output_lines import RankLines

    if plan.rendezvous is not None:
        check_place(plan.rendezvous)
    folder = make_folder(logs, plan.script.stem)
    if not as_json:
        print_to(sys.stderr, render_launch_start(plan, folder))
    lines = RankLines(sys.stderr if as_json else sys.stdout, sys.stderr)

    def starting(attempt: int, ranks: Mapping[int, int]) -> None:
        for rank in ranks.values():
            lines.follow(rank, folder.files(rank, attempt))

    def over(attempt: "Attempt") -> None:
        lines.drain()
        if not as_json and attempt.number < plan.max_restarts and attempt.cause is not None:
            print_to(sys.stderr, render_restart(attempt, plan.max_restarts))

    lines.start()
    try:
        if plan.engine == "ray":
            end = run_ray(plan, folder, starting=starting, over=over)
        else:
            end = run_elastic(plan, folder, starting=starting, over=over)
    except LegroomError:
        folder.discard()
        raise
    finally:
        lines.stop()
    if as_json:
        print(json.dumps(_as_json(end, plan, folder), indent=2))
    else:
        print_to(sys.stderr, render_launch_end(end, plan, folder, _memory_report(end)))
    return end.exit_code


def _memory_report(end: "LaunchEnd") -> "RunReport | None":
    """Of the rank that failed first, if it failed for want of memory."""
    cause = end.last.cause if end.last is not None else None
    if cause is None or not cause.files.capture.exists():
        return None
    from legroom.diagnose.report.run_report import run_report
    from legroom.memory.capture.capture import read_capture

    told = run_report(read_capture(cause.files.capture), path=str(cause.files.capture))
    return told if told.died_of_memory else None


def _as_json(end: "LaunchEnd", plan: "LaunchPlan", folder: "RunFolder") -> dict[str, object]:
    told = _memory_report(end)
    return {
        "schema": SCHEMA,
        **end.as_json(),
        "world_size": plan.world_size,
        "torchrun": plan.torchrun,
        "logs": str(folder.path),
        "oom": told.as_json() if told is not None else None,
    }
