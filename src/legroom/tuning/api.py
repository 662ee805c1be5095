"""Implements `legroom.tune`, a hyperparameter search that estimates the memory of each trial before it starts."""

import re
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from legroom.arguments import check_count, check_path
from legroom.errors import MissingExtra, UsageError
from legroom.observe.notes import COMMUNICATION_BYTES
from legroom.tuning.callbacks import FunctionOfStudy, as_callback
from legroom.tuning.engines.engine import TuneEngine
from legroom.tuning.job import StudyCallback, TuneJob
from legroom.tuning.memory.admission import Gate, TrialGpu, gpus_for
from legroom.tuning.memory.gate import MemoryGate, OpenGate
from legroom.tuning.memory.other_processes import OtherProcessUsage
from legroom.tuning.memory.suggested_space import suggested_space
from legroom.tuning.schedule.schedulers import SCHEDULERS, SchedulerOptions, make_scheduler
from legroom.tuning.search.searchers import check_search, make_searcher, optuna_sampler
from legroom.tuning.space.space import Space, read_space
from legroom.tuning.store import StudyStore
from legroom.tuning.study import Study
from legroom.tuning.study_runner import StudyRunner
from legroom.tuning.trial.function import TrainFunction, stop_if_imported
from legroom.tuning.trial.records import Mode, Objectives

ENGINES = ("auto", "local", "ray")
EVERY = 1 << 30
"""The default number of trials of a grid search, which is effectively unlimited."""

_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(h|min|m|s)?", re.IGNORECASE)
_SECONDS = {"h": 3600.0, "min": 60.0, "m": 60.0, "s": 1.0}


def tune(
    train_fn: Any,
    space: Any = None,
    *,
    metric: str | Sequence[str] | None = None,
    mode: Mode | Sequence[Mode] | None = None,
    search: Any = "random",
    scheduler: Any = None,
    trials: int | None = None,
    gpu: str | None = None,
    time_budget: float | str | None = None,
    resume: bool = False,
    storage: str | Path | None = None,
    engine: str = "auto",
    address: str | None = None,
    parallel: int | None = None,
    ranks: int = 1,
    seed: int = 0,
    grace_period: int = 1,
    reduction_factor: float = 2,
    max_steps: int | None = None,
    interval: int = 1,
    points_to_evaluate: Sequence[Mapping[str, Any]] = (),
    shape_parameters: Sequence[str] | None = None,
    callbacks: Sequence[StudyCallback | FunctionOfStudy] | None = None,
) -> Study:
    """Search for the configuration with which `train_fn(config, trial)` reports the best `metric`.

    `train_fn` is the training function, or a `ray.tune.Tuner`. `space` is a dict or a TOML file (see docs/tune.md).
    `metric` (default "loss", or a list of several metrics) and `mode` ("min" or "max", default "min") can also be set
    in Ray's scheduler or searcher. `search` is random, grid, bayes, hyperopt or optuna, an Optuna sampler, or a Ray
    searcher. `scheduler` is asha, median, pbt, None or a Ray scheduler. `points_to_evaluate` contains configurations
    to try first. The searcher chooses the parameters that a point does not set. `trials` is the number of trials to
    start (default 10, or the whole grid). Configurations that can never fit are not started and are not included in
    this number. By default, trials run on all GPUs in this machine, or on the CPU if there is no GPU. Set `gpu` to
    "8GiB,4GiB" for virtual GPUs or to "cpu" for the CPU. `time_budget` is a number of seconds, or text such as
    "20min". `storage` is the folder of the study. With `resume`, the study in this folder is continued. `engine` is
    local, ray or auto. `address` is the address of a Ray cluster. `parallel` is the maximum number of trials that run
    at the same time. `ranks` is the number of processes per trial. `grace_period`, `reduction_factor` and `max_steps`
    are ASHA options. `interval` is the number of steps between decisions in population-based training.
    `shape_parameters` lists the parameters that affect memory, if you know them. `callbacks` contains objects that
    show or log the study, or functions that are called with the study and each trial that ends. By default, a live
    table is shown. `callbacks=[]` disables the table.
    """
    stop_if_imported()
    for name, given in (("search", search), ("scheduler", scheduler)):
        if isinstance(given, type):
            raise UsageError(
                f"{name}= is the class {given.__name__}. Pass an instance: `{given.__name__}(...)`."
            )
    options: dict[str, Any] = {
        "search": search, "scheduler": scheduler, "metric": "loss", "mode": "min", "grace_period": grace_period,
        "reduction_factor": reduction_factor, "max_steps": max_steps, "interval": interval,
        "points_to_evaluate": points_to_evaluate,
    }  # fmt: skip
    if "ray.tune" in sys.modules:  # otherwise it cannot be an object of Ray, and importing Ray takes seconds
        from legroom.tuning.engines.ray import tuner

        if tuner.is_tuner(train_fn):
            plain, arguments = tuner.tuner_arguments(train_fn)
            return tune(
                plain, gpu=gpu, resume=resume, storage=storage, engine=engine, address=address, ranks=ranks, seed=seed,
                shape_parameters=shape_parameters, callbacks=callbacks, **arguments,
            )  # fmt: skip
        if not isinstance(search, str) and optuna_sampler(search) is None:
            options |= tuner.search_arguments(search, space)
        if not isinstance(scheduler, str | None):
            options |= tuner.scheduler_arguments(scheduler)
    options |= {name: value for name, value in (("metric", metric), ("mode", mode)) if value is not None}
    sampler = optuna_sampler(options["search"])
    search = options["search"] if sampler is None else "optuna"
    objectives = _objectives(options["metric"], options["mode"])
    (metric, mode), *more = objectives
    scheduler = (
        None if options["scheduler"] == "none" else options["scheduler"]
    )  # the command line has no None
    function = TrainFunction.of(train_fn)
    gpus = gpus_for(gpu)
    read = suggested_space(function, gpus) if space is None else read_any_space(space)
    _check(
        metric=metric, mode=mode, search=search, space=read, scheduler=scheduler, engine=engine, address=address,
        seed=seed, trials=trials, parallel=parallel, ranks=ranks,
    )  # fmt: skip
    if more and (scheduler is not None or search in ("bayes", "hyperopt")):
        raise UsageError(
            "Several metrics require the search `optuna`, `random` or `grid`, without a scheduler."
        )
    points = tuple(options["points_to_evaluate"])
    read.check_points(points)
    if points and search == "grid":
        raise UsageError("A grid search tries every point of the grid. Omit `points_to_evaluate`.")
    trial_engine, reason = _engine(engine, address)
    if address is not None and gpu is None:  # use the GPUs of the cluster
        gpus = trial_engine.gpus()  # type: ignore[attr-defined]
    if ranks > 1:
        gpus = _for_ranks(gpus, ranks)
    job = TuneJob(
        function=function,
        space=read,
        metric=metric,
        mode=mode,
        more_objectives=tuple(more),
        search=search,
        sampler=sampler,
        scheduler=scheduler,
        scheduler_options=SchedulerOptions(
            **{name: options[name] for name in ("grace_period", "reduction_factor", "max_steps", "interval")}
        ),
        trials=trials if trials is not None else EVERY if search == "grid" else 10,
        gpus=gpus,
        parallel=parallel,
        ranks=ranks,
        time_budget=None if time_budget is None else parse_seconds(time_budget),
        seed=seed,
        folder=check_path("storage", storage) if storage is not None else Path(f"{function.name}-study"),
        shape_parameters=None if shape_parameters is None else frozenset(shape_parameters),
        points=points,
    )
    return run_job(
        job,
        trial_engine,
        resume=resume,
        callbacks=[as_callback(each) for each in callbacks or ()],
        reason=reason,
    )


def _objectives(metric: Any, mode: Any) -> Objectives:
    if isinstance(metric, str) or not isinstance(metric, Sequence) or not metric:
        return cast("Objectives", ((metric, mode),))  # checked with the other arguments
    modes = [mode] * len(metric) if isinstance(mode, str) else list(mode)
    if len(modes) != len(metric) or len(set(metric)) != len(metric):
        raise UsageError(
            f"metric={list(metric)} and mode={mode!r} do not match. Pass each metric name once, with a single mode or one mode per metric."
        )
    if any(each not in ("min", "max") for each in modes):
        raise UsageError(f"Unknown mode in {modes}. Choose `min` or `max` for each metric.")
    return cast("Objectives", tuple(zip(metric, modes, strict=True)))


def _for_ranks(gpus: Sequence[TrialGpu], ranks: int) -> list[TrialGpu]:
    """Return the GPUs with the memory that NCCL uses outside PyTorch added to the `context` bytes of each real GPU."""
    if gpus and len(gpus) < ranks:
        raise UsageError(
            f"A trial with {ranks} ranks needs {ranks} GPUs, but only {len(gpus)} {'is' if len(gpus) == 1 else 'are'} available."
        )
    return [gpu if gpu.virtual else replace(gpu, context=gpu.context + COMMUNICATION_BYTES) for gpu in gpus]


def run_job(
    job: TuneJob,
    engine: TuneEngine,
    *,
    resume: bool,
    callbacks: Sequence[StudyCallback] = (),
    reason: str = "",
) -> Study:
    engine.prepare(job)
    runner = make_runner(job, resume, callbacks)
    interrupted = False
    try:
        if reason:
            runner.notify(reason)
        engine.run(job, runner)
    except KeyboardInterrupt:
        interrupted = True
    except SystemExit:  # SIGTERM; while Ray starts, its own handler exits with 1
        runner.notify(f"Terminated. Results are in {job.folder}. Resume the study to continue.")
        raise SystemExit(128 + signal.SIGTERM) from None
    finally:
        runner.close()
    return replace(Study.of(job, runner.records, runner.seconds), engine=engine.name, interrupted=interrupted)


def make_runner(job: TuneJob, resume: bool, callbacks: Sequence[StudyCallback]) -> StudyRunner:
    other_processes = OtherProcessUsage(job.gpus)
    gate: Gate = OpenGate()
    if job.gpus:  # created first, because its process imports modules while the study is prepared
        gate = MemoryGate(
            job.function, job.gpus, job.space,
            ranks=job.ranks, shape_parameters=job.shape_parameters, other_processes=other_processes,
        )  # fmt: skip
    facts: dict[str, Any] = {
        "metric": job.metric, "mode": job.mode, "space": job.space.as_dict(), "search": job.search,
        "scheduler": job.scheduler, "function": job.function.name,
    }  # fmt: skip
    if job.more_objectives:
        facts["more_objectives"] = [list(each) for each in job.more_objectives]
    try:
        searcher = make_searcher(
            job.search, job.space, job.mode, job.seed, [mode for _, mode in job.more_objectives], job.sampler
        )
        scheduler = make_scheduler(job.scheduler, job.space, job.mode, job.seed, job.scheduler_options)
        store = StudyStore(
            job.folder.absolute(),
            resume=resume,
            mode=job.mode,
            facts=facts,
            more_objectives=job.more_objectives,
        )
        return StudyRunner(job, searcher, scheduler, gate, store, callbacks, other_processes)
    except BaseException:
        gate.close()
        raise


def read_any_space(space: Any) -> Space:
    """Read a space of Legroom or of Ray Tune. A space can contain Ray's domains only if Ray has been imported."""
    if "ray.tune" in sys.modules:
        from legroom.tuning.space.ray_spaces import is_ray_space, space_of

        if is_ray_space(space):
            return space_of(space)
    return read_space(space)


def _engine(named: str, address: str | None) -> tuple[TuneEngine, str]:
    missing = _missing_of_ray()
    if named == "ray" or address is not None or (named == "auto" and missing is None):
        if missing is not None:
            raise MissingExtra(missing, "tune")
        from legroom.tuning.engines.ray.engine import RayEngine

        return RayEngine(address), ""
    from legroom.tuning.engines.local import LocalEngine

    return (
        LocalEngine(),
        ""
        if named == "local"
        else f"{missing} is not installed. Trials run as processes on this machine (engine: local).",
    )


def _missing_of_ray() -> str | None:
    """Return a description of the missing dependencies of Ray Tune, or None if no dependency is missing. `pip install
    ray` does not install all packages that Ray Tune needs. The check does not import Ray, because the import takes
    seconds.
    """
    if find_spec("ray") is None:
        return "Ray"
    without = [name for name in ("pandas", "pyarrow", "fsspec") if find_spec(name) is None]
    return f"A dependency of Ray Tune ({', '.join(without)})" if without else None


def _check(
    *,
    metric: Any,
    mode: Any,
    search: Any,
    space: Space,
    scheduler: Any,
    engine: str,
    address: str | None,
    seed: int,
    **counts: int | None,
) -> None:
    """Check the arguments of `tune`. `counts` contains arguments that must be positive integers, or None for no
    limit."""
    if not isinstance(metric, str) or not metric:
        raise UsageError(
            f"metric={metric!r} is not valid. Use the name of a metric passed to `trial.report(...)`, such as 'loss'."
        )
    if mode not in ("min", "max"):
        raise UsageError(f"Unknown mode `{mode}`. Choose `min` or `max`.")
    check_search(search, space)
    if scheduler is not None and scheduler not in SCHEDULERS:
        raise UsageError(f"Unknown scheduler `{scheduler}`. Choose `asha`, `median`, `pbt` or `none`.")
    if engine not in ENGINES:
        raise UsageError(f"Unknown engine `{engine}`. Choose `auto`, `local` or `ray`.")
    if engine == "local" and address is not None:
        raise UsageError(
            "`address` specifies a Ray cluster, but engine='local' runs all trials on this machine. Omit "
            "`address`, or use engine='ray'."
        )
    for name, count in counts.items():
        if count is not None:
            check_count(name, count)
    if not isinstance(seed, int) or not 0 <= seed < 1 << 32:
        raise UsageError(f"seed={seed} is not valid. Use an integer from 0 to {(1 << 32) - 1}.")


def parse_seconds(written: float | str) -> float:
    """Convert `90`, `"90s"`, `"20min"` or `"1h 30min"` to seconds.

    >>> parse_seconds("1h 30min"), parse_seconds(90)
    (5400.0, 90.0)
    """
    if isinstance(written, int | float) and not isinstance(written, bool):
        seconds = float(written)
    else:
        parts = list(_DURATION_PART.finditer(str(written)))
        if not parts or "".join(part.group(0) for part in parts).replace(" ", "") != str(written).replace(
            " ", ""
        ):
            raise UsageError(f"`{written}` is not a valid duration. Examples: `90s`, `20min`, `1h30min`.")
        seconds = sum(float(part.group(1)) * _SECONDS[(part.group(2) or "s").lower()] for part in parts)
    if seconds <= 0:
        raise UsageError(f"A duration of {seconds:g} s is not valid. A duration must be positive.")
    return seconds
