"""`legroom tune`: a search over configurations that never loses a trial to memory."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from legroom.cli.options import Format, FormatOption
from legroom.errors import UsageError

if TYPE_CHECKING:
    from legroom.tuning.engines.engine import Watcher

Text = str | None


def tune(
    function: Annotated[str, typer.Argument(metavar="FILE.py:FUNCTION", help="The training function.", show_default=False)],
    space: Annotated[Path, typer.Argument(metavar="SPACE.toml", help="What is searched; [study] in it may hold these options.", show_default=False)],
    metric: Annotated[Text, typer.Option(metavar="NAME", help="What trial.report(...) reports and is to be best.", show_default=False)] = None,
    mode: Annotated[Text, typer.Option(metavar="min|max", help="Whether less or more is better.", show_default="min")] = None,
    search: Annotated[Text, typer.Option(metavar="NAME", help="random, grid, bayes, hyperopt or optuna.", show_default="random")] = None,
    scheduler: Annotated[Text, typer.Option(metavar="NAME", help="asha, median or pbt cut poor trials short; none does not.", show_default=False)] = None,
    trials: Annotated[int | None, typer.Option(min=1, metavar="N", help="How many to start.", show_default="10, a grid all")] = None,
    gpu: Annotated[Text, typer.Option(metavar="SIZES", help="Virtual GPUs, 8GiB,4GiB; cpu for none. Otherwise those of this machine.", show_default=False)] = None,
    time_budget: Annotated[Text, typer.Option(metavar="TIME", help="20min, 2h: then it ends.", show_default=False)] = None,
    storage: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where the study is kept.", show_default="FUNCTION-study")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the study that is there.")] = False,
    engine: Annotated[Text, typer.Option(metavar="NAME", help="ray, or local for processes of this machine.", show_default="ray if installed")] = None,
    address: Annotated[Text, typer.Option(metavar="ADDRESS", help="A Ray cluster.", show_default=False)] = None,
    parallel: Annotated[int | None, typer.Option(min=1, metavar="N", help="Trials at once at most.", show_default=False)] = None,
    ranks: Annotated[int | None, typer.Option(min=1, metavar="N", help="Processes of one trial.", show_default="1")] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="The same seed proposes the same.", show_default="0")] = None,
    grace: Annotated[int | None, typer.Option(min=1, metavar="N", help="Steps before a trial may be cut short.", show_default="1")] = None,
    reduction: Annotated[float | None, typer.Option(metavar="X", help="ASHA lets 1/X of the trials go on.", show_default="2")] = None,
    most_steps: Annotated[int | None, typer.Option(min=1, metavar="N", help="With ASHA a trial is done after so many reports.", show_default=False)] = None,
    interval: Annotated[int | None, typer.Option(min=1, metavar="N", help="Steps between two looks of pbt.", show_default="1")] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also log to TensorBoard, in the study's folder.")] = False,
    wandb: Annotated[Text, typer.Option(metavar="PROJECT", help="Also log to wandb, offline.", show_default=False)] = None,
    format: FormatOption = Format.TEXT,
) -> int:  # fmt: skip
    """Search the best configuration of FUNCTION(config, trial); no trial is lost to memory.

    Before a trial starts its memory is estimated: one that does not fit runs with a smaller micro-batch and the same
    effective batch, one that never fits is not started and the search learns of it. Exit code: 0 found, 1 nothing found.
    """
    from legroom.tuning.space.space import read_toml

    parameters, study_options = read_toml(space)
    given = {
        "metric": metric, "mode": mode, "search": search, "scheduler": scheduler, "trials": trials, "gpu": gpu,
        "time_budget": time_budget, "engine": engine, "address": address, "parallel": parallel, "ranks": ranks,
        "seed": seed, "grace": grace, "reduction": reduction, "most_steps": most_steps, "interval": interval,
    }  # fmt: skip
    options = _merged(space, study_options, given)
    if "metric" not in options:
        raise UsageError(
            'which metric? write --metric loss, or metric = "loss" under [study] in the space file'
        )

    from legroom.show.common.terminal import print_to
    from legroom.show.tune.live_table import LiveTable
    from legroom.show.tune.study_summary import summary
    from legroom.show.tune.tune import write_files
    from legroom.tuning.api import tune as search_best

    folder = storage or Path(f"{function.rpartition(':')[2]}-study")
    table = LiveTable(quiet=format == Format.JSON)
    study = search_best(
        function, parameters, storage=folder, resume=resume,
        watchers=[table, *_logs(folder, tensorboard, wandb)], **options,
    )  # fmt: skip
    written = write_files(study)
    if format == Format.JSON:
        print(json.dumps(study.as_json(), indent=2))
    else:
        command = ["legroom", "tune", *(word for word in sys.argv[2:] if word != "--resume")]
        print_to(sys.stdout, *summary(study, command, written))
    if study.interrupted:
        return 130
    return 0 if study.ranked else 1


def _merged(path: Path, written: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """What the file says, and the command line says otherwise."""
    unknown = sorted(set(written) - set(given))
    if unknown:
        raise UsageError(f"{path}: [study] knows {', '.join(given)}; '{unknown[0]}' is none of them")
    return written | {name: value for name, value in given.items() if value is not None}


def _logs(folder: Path, tensorboard: bool, wandb: str | None) -> "list[Watcher]":
    logs: list[Watcher] = []
    if tensorboard:
        from legroom.tuning.loggers.tensorboard import TensorBoardLog

        logs.append(TensorBoardLog(folder / "tensorboard"))
    if wandb is not None:
        from legroom.tuning.loggers.wandb import WandbLog

        logs.append(WandbLog(wandb, folder))
    return logs
