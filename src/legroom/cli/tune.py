"""`legroom tune`: runs a hyperparameter search within the available memory."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from legroom.cli.options import Format, FormatOption
from legroom.errors import UsageError

if TYPE_CHECKING:
    from legroom.tuning.job import StudyCallback

Text = str | None


def tune(
    function: Annotated[str, typer.Argument(metavar="FILE.py:FUNCTION", help="The training function, or a script that calls ray.tune.run or Tuner.fit.", show_default=False)],
    space: Annotated[Path | None, typer.Argument(metavar="[SPACE.toml]", help="The search space. The [study] table may set the options below. Omit it for a script, or for a function that calls trial.suggest_float().", show_default=False)] = None,
    metric: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Metric to optimize, as passed to trial.report(). Repeat the option for several metrics.", show_default=False)] = None,
    mode: Annotated[list[str] | None, typer.Option(metavar="min|max", help="Whether to minimize or maximize the metric. With several metrics, specify one mode for all metrics, or one mode per metric.", show_default="min")] = None,
    search: Annotated[Text, typer.Option(metavar="NAME", help="Search algorithm: random, grid, bayes, hyperopt or optuna.", show_default="random")] = None,
    scheduler: Annotated[Text, typer.Option(metavar="NAME", help="Scheduler that stops poor trials early: asha, median, pbt or none.", show_default=False)] = None,
    trials: Annotated[int | None, typer.Option(min=1, metavar="N", help="Number of trials.", show_default="10, or the whole grid")] = None,
    gpu: Annotated[Text, typer.Option(metavar="NAME|SIZE[,...]", help="Virtual GPUs, for example 8GiB,4GiB or t4. Use cpu to run without a GPU. By default, the GPUs in this machine are used.", show_default=False)] = None,
    time_budget: Annotated[Text, typer.Option(metavar="TIME", help="Stop the search after this time, for example 20min or 2h.", show_default=False)] = None,
    storage: Annotated[Path | None, typer.Option(metavar="DIR", help="Study directory.", show_default="FUNCTION-study")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the study in the storage directory.")] = False,
    engine: Annotated[Text, typer.Option(metavar="NAME", help="Engine that runs the trials: ray, or local (processes on this machine).", show_default="ray if installed")] = None,
    address: Annotated[Text, typer.Option(metavar="ADDRESS", help="Address of a Ray cluster.", show_default=False)] = None,
    parallel: Annotated[int | None, typer.Option(min=1, metavar="N", help="Maximum number of trials that run at the same time.", show_default=False)] = None,
    ranks: Annotated[int | None, typer.Option(min=1, metavar="N", help="Number of processes per trial.", show_default="1")] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Random seed for the search algorithm.", show_default="0")] = None,
    grace_period: Annotated[int | None, typer.Option(min=1, metavar="N", help="Minimum number of steps before a trial may be stopped early.", show_default="1")] = None,
    reduction_factor: Annotated[float | None, typer.Option(metavar="X", help="ASHA continues the best 1/X of the trials.", show_default="2")] = None,
    max_steps: Annotated[int | None, typer.Option(min=1, metavar="N", help="Maximum number of steps per trial with ASHA.", show_default=False)] = None,
    interval: Annotated[int | None, typer.Option(min=1, metavar="N", help="Number of steps between PBT decisions.", show_default="1")] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard logs to the study directory.")] = False,
    wandb: Annotated[Text, typer.Option(metavar="PROJECT", help="Also log to Weights & Biases in offline mode.", show_default=False)] = None,
    format: FormatOption = Format.TEXT,
) -> int:  # fmt: skip
    """Search for the best configuration of FUNCTION(config, trial) within the available memory.

    The memory of each trial is estimated before it starts. A trial that does not fit runs with a smaller micro-batch
    and the same effective batch size. A configuration that can never fit is not started, and the search avoids it.

    Exit code: 0 if a trial succeeded, 1 if none did, 3 if a trial ran out of memory.
    """
    from legroom.tuning.space.space import read_toml

    given = {
        "metric": _one_or_several(metric), "mode": _one_or_several(mode), "search": search, "scheduler": scheduler, "trials": trials, "gpu": gpu,
        "time_budget": time_budget, "engine": engine, "address": address, "parallel": parallel, "ranks": ranks,
        "points_to_evaluate": None, "seed": seed, "grace_period": grace_period, "reduction_factor": reduction_factor, "max_steps": max_steps, "interval": interval,
    }  # fmt: skip
    if space is None and ":" not in function:
        return _script(function, given | {"storage": storage, "resume": resume or None})
    parameters, study_options = (None, {}) if space is None else read_toml(space)
    options = _merged(space or Path(), study_options, given)
    if "metric" not in options:
        raise UsageError(
            'No metric given. Add `--metric loss`, or `metric = "loss"` under [study] in the space file.'
        )

    from legroom.show.common.terminal import print_to
    from legroom.show.tune.live_table import LiveTable
    from legroom.show.tune.study_summary import summary
    from legroom.show.tune.tune import write_files
    from legroom.tuning.api import tune as search_best
    from legroom.tuning.trial.records import TrialState

    folder = storage or Path(f"{function.rpartition(':')[2]}-study")
    table = LiveTable(quiet=format == Format.JSON)
    study = search_best(
        function, parameters, storage=folder, resume=resume,
        callbacks=[table, *_logs(folder, tensorboard, wandb)], **options,
    )  # fmt: skip
    written = write_files(study)
    if format == Format.JSON:
        print(json.dumps(study.as_json(), indent=2))
    else:
        command = ["legroom", "tune", *(word for word in sys.argv[2:] if word != "--resume")]
        print_to(sys.stdout, *summary(study, command, written))
    if study.interrupted:
        return 130
    if not study.ranked:
        return 1
    return 3 if TrialState.OUT_OF_MEMORY in study.state_counts() else 0


def _one_or_several(values: list[str] | None) -> str | list[str] | None:
    return values[0] if values is not None and len(values) == 1 else values or None


def _script(path: str, given: dict[str, Any]) -> int:
    if not Path(path).is_file():
        raise UsageError(
            f"`{path}` is not a script. Pass the path to a script, or a function and a search space: `legroom tune train.py:train space.toml`."
        )
    from legroom.run.ray_script import run_ray_script
    from legroom.tuning.trial.records import TrialState

    studies = run_ray_script(Path(path), {name: value for name, value in given.items() if value is not None})
    if not all(study.ranked for study in studies):
        return 1
    return 3 if any(TrialState.OUT_OF_MEMORY in study.state_counts() for study in studies) else 0


def _merged(path: Path, written: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    unknown = sorted(set(written) - set(given))
    if unknown:
        raise UsageError(f"{path}: unknown option `{unknown[0]}` in [study]. Options: {', '.join(given)}.")
    return written | {name: value for name, value in given.items() if value is not None}


def _logs(folder: Path, tensorboard: bool, wandb: str | None) -> "list[StudyCallback]":
    logs: list[StudyCallback] = []
    if tensorboard:
        from legroom.tuning.loggers.tensorboard import TensorBoardLog

        logs.append(TensorBoardLog(folder / "tensorboard"))
    if wandb is not None:
        from legroom.tuning.loggers.wandb import WandbLog

        logs.append(WandbLog(wandb, folder))
    return logs
