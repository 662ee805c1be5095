"""`legroom launch`: runs a script on several GPUs or machines, one rank per GPU."""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from legroom import schemas
from legroom.cli.estimate import EXIT_CODES
from legroom.cli.options import (
    Format,
    FormatOption,
    ModuleOption,
    ScriptArguments,
    VerboseOption,
    script_to_run,
)
from legroom.errors import LegroomError
from legroom.gpus.catalog import parse_gpus

if TYPE_CHECKING:
    from legroom.diagnose.report.run_report import RunReport
    from legroom.scale.launching.folder import LaunchFolder
    from legroom.scale.launching.outcome import LaunchAttempt, LaunchResult
    from legroom.scale.launching.plan import LaunchPlan


class Strategy(StrEnum):
    AUTO = "auto"
    DDP = "ddp"
    FSDP = "fsdp"
    PIPELINE = "pipeline"
    SPLIT = "split"
    DP = "dp"


class LaunchEngine(StrEnum):
    TORCHRUN = "torchrun"
    RAY = "ray"


def launch(
    script: ScriptArguments = None,
    module: ModuleOption = None,
    nproc: Annotated[
        int | None,
        typer.Option(
            "--nproc", min=1, metavar="N", help="Number of ranks on this machine.", show_default="one per GPU"
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            "--gpu",
            metavar="NAME|SIZE[,...]",
            help="Run each rank on a virtual GPU, for example 8GiB or rtx4090. With several values, each "
            "rank gets one value.",
            show_default=False,
        ),
    ] = None,
    strategy: Annotated[
        Strategy | None,
        typer.Option(
            "--strategy", help="Strategy that legroom.parallel uses in the script.", show_default=False
        ),
    ] = None,
    nodes: Annotated[
        str, typer.Option("--nodes", metavar="N|MIN:MAX", help="Number of machines that run this command.")
    ] = "1",
    rendezvous: Annotated[
        str | None,
        typer.Option(
            "--rendezvous",
            metavar="HOST:PORT",
            help="Host name of one machine, and a free port on it. All machines connect to this address.",
            show_default=False,
        ),
    ] = None,
    wait: Annotated[
        float,
        typer.Option("--wait", min=1, metavar="SECONDS", help="Time to wait for the other machines."),
    ] = 600,
    max_restarts: Annotated[
        int,
        typer.Option(
            "--max-restarts", min=0, metavar="N", help="Restart all ranks up to N times after a failure."
        ),
    ] = 0,
    engine: Annotated[
        LaunchEngine, typer.Option("--engine", help="Launcher that starts the ranks.")
    ] = LaunchEngine.TORCHRUN,
    logs: Annotated[
        Path | None,
        typer.Option(
            "--logs",
            metavar="DIR",
            help="Directory for output and captures.",
            show_default="SCRIPT.launch",
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch/--no-watch", help="Record the memory use of each rank (real GPUs only).")
    ] = True,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Show the plan and the predicted memory of each rank without starting the ranks.",
        ),
    ] = False,
    verbose: VerboseOption = False,
    format: FormatOption = Format.TEXT,
) -> int:
    """Run SCRIPT on several GPUs or machines, with one process (rank) per GPU.

    The output of every rank is shown with its number, and saved to files. If a rank fails, all ranks are stopped, and
    the first error is shown with its memory report.

    The exit code is that of the rank that failed first.
    """
    target = script_to_run("legroom launch --nproc 2", script, module)
    gpus = parse_gpus(gpu) if gpu is not None else []

    from legroom.gpus.machine import visible_gpus
    from legroom.scale.launching.plan import plan_launch

    with _without_torch_warnings():
        real_gpus = 0 if gpus else len(visible_gpus())
    plan = plan_launch(
        target,
        nproc=nproc,
        gpus=gpus,
        real_gpus=real_gpus,
        nodes=nodes,
        rendezvous=rendezvous,
        wait=wait,
        strategy=strategy.value if strategy is not None else None,
        max_restarts=max_restarts,
        watch=watch,
        engine=engine.value,
    )
    as_json = format == Format.JSON
    if dry_run:
        return _predict(plan, as_json=as_json, verbose=verbose)
    return _run(plan, logs, as_json=as_json, verbose=verbose)


def _predict(plan: "LaunchPlan", *, as_json: bool, verbose: bool) -> int:
    from legroom.scale.launching.memory_prediction import predict_ranks
    from legroom.show.common.progress import progress_line
    from legroom.show.common.terminal import print_to
    from legroom.show.launch.launch_report import render_launch_start
    from legroom.show.launch.memory_table import render_predictions

    if not as_json:
        print_to(sys.stdout, render_launch_start(plan, None))
    with progress_line(sys.stderr, quiet=as_json) as say:
        predictions = predict_ranks(plan, say)
    if as_json:
        document = {"world_size": plan.world_size, "torchrun": plan.torchrun}
        ranks = [prediction.as_json() for prediction in predictions]
        print(json.dumps({"schema": schemas.LAUNCH_PLAN, **document, "ranks": ranks}, indent=2))
    else:
        print_to(sys.stdout, render_predictions(predictions, verbose=verbose))
    verdicts = [
        prediction.estimate.verdict if prediction.estimate else "uncertain" for prediction in predictions
    ]
    return max((EXIT_CODES[verdict] for verdict in verdicts), key=_WORST.index, default=0)


_WORST = (0, 3, 1)
"""Exit codes from best to worst: fits, uncertain, does not fit."""


def _run(plan: "LaunchPlan", logs: Path | None, *, as_json: bool, verbose: bool) -> int:
    with _without_torch_warnings():
        from legroom.scale.launching.elastic import run_elastic
    from legroom.scale.launching.folder import make_folder
    from legroom.scale.launching.ray_engine import run_ray
    from legroom.scale.launching.rendezvous import check_rendezvous
    from legroom.show.common.terminal import print_to
    from legroom.show.launch.launch_report import render_launch_end, render_launch_start, render_restart
    from legroom.show.launch.output_lines import RankLines

    if plan.rendezvous is not None:
        check_rendezvous(plan.rendezvous)
    folder = make_folder(logs, plan.script.stem)
    if not as_json:
        print_to(sys.stderr, render_launch_start(plan, folder))
    lines = RankLines(sys.stderr if as_json else sys.stdout, sys.stderr)

    def on_start(attempt: int, ranks: Mapping[int, int]) -> None:
        for rank in ranks.values():
            lines.follow(rank, folder.files(rank, attempt))

    def on_end(attempt: "LaunchAttempt") -> None:
        lines.drain()
        if not as_json and attempt.number < plan.max_restarts and attempt.cause is not None:
            print_to(sys.stderr, render_restart(attempt, plan.max_restarts))

    lines.start()
    try:
        if plan.engine == "ray":
            end = run_ray(plan, folder, on_start=on_start, on_end=on_end)
        else:
            end = run_elastic(plan, folder, on_start=on_start, on_end=on_end)
    except LegroomError:
        folder.discard()
        raise
    finally:
        lines.stop()
    if as_json:
        print(json.dumps(_as_json(end, plan, folder), indent=2))
    else:
        print_to(sys.stderr, render_launch_end(end, plan, folder, _memory_report(end), verbose=verbose))
    return end.exit_code


@contextmanager
def _without_torch_warnings() -> Iterator[None]:
    """Disable the warnings of torch's C++ code, which contain several stack traces if another node fails.

    The environment of the ranks stays unchanged.
    """
    name = "TORCH_CPP_LOG_LEVEL"
    if name in os.environ:
        yield
        return
    os.environ[name] = "ERROR"
    try:
        yield
    finally:
        del os.environ[name]


def _memory_report(end: "LaunchResult") -> "RunReport | None":
    cause = end.last.cause if end.last is not None else None
    if cause is None or not cause.files.capture.exists():
        return None
    from legroom.diagnose.report.run_report import report_from_capture
    from legroom.memory.capture.capture import read_capture

    report = report_from_capture(read_capture(cause.files.capture), path=str(cause.files.capture))
    return report if report.failed_with_oom else None


def _as_json(end: "LaunchResult", plan: "LaunchPlan", folder: "LaunchFolder") -> dict[str, object]:
    report = _memory_report(end)
    return {
        "schema": schemas.LAUNCH,
        **end.as_json(),
        "world_size": plan.world_size,
        "torchrun": plan.torchrun,
        "logs": str(folder.path),
        "oom": report.as_json() if report is not None else None,
    }
