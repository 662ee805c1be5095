"""`legroom.tune`: a search over configurations that never loses a trial to memory."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from legroom.errors import MissingExtra, UsageError
from legroom.observe.notes import COMMUNICATION_BYTES
from legroom.tuning.durations import parse_seconds
from legroom.tuning.engines.engine import Engine, Job, Watcher
from legroom.tuning.memory.admission import Gate, Place, places_for
from legroom.tuning.memory.gate import MemoryGate, OpenGate
from legroom.tuning.memory.other_processes import Neighbours
from legroom.tuning.schedule.schedulers import SCHEDULERS, SchedulerOptions, make_scheduler
from legroom.tuning.search.searchers import check_search, make_searcher
from legroom.tuning.space.space import Space, read_space
from legroom.tuning.store import Store
from legroom.tuning.study import Study
from legroom.tuning.study_runner import Conductor
from legroom.tuning.trial.function import TrainFunction, leave_if_imported
from legroom.tuning.trial.records import Mode

ENGINES = ("auto", "local", "ray")
EVERY = 1 << 30
"""Trials: as many as a grid has points."""


def tune(
    train_fn: Any,
    space: Any = None,
    *,
    metric: str = "loss",
    mode: Mode = "min",
    search: str = "random",
    scheduler: str | None = None,
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
    grace: int = 1,
    reduction: float = 2,
    most_steps: int | None = None,
    interval: int = 1,
    shape_parameters: Sequence[str] | None = None,
    watchers: Sequence[Watcher] | None = None,
) -> Study:
    """Search the configuration for which `train_fn(config, trial)` reports the best `metric`.

    `train_fn` may also be a `ray.tune.Tuner`. `space`: a dict or a TOML file (see docs/tune.md). `search`: random, grid, bayes, hyperopt or optuna. `scheduler`: asha,
    median, pbt or None. `trials`: how many are started (10, or all of a grid); what can never fit is rejected before and does not count.
    `gpu`: None is every GPU here, or the host where there is none; "8GiB,4GiB" are virtual ones; "cpu" is the host.
    `time_budget`: seconds, or "20min". `storage`: the study's folder; `resume`: go on with what is there. `engine`: local, ray or
    auto. `parallel`: trials at once at most. `ranks`: processes of one trial. `grace`, `reduction`, `most_steps`: ASHA's.
    `interval`: population-based training's. `shape_parameters`: those that memory depends on, if you know. `watchers`: who shows or logs it;
    None is the live table, `[]` is silence.
    """
    leave_if_imported()
    if "ray.tune" in sys.modules:  # else it cannot be a Tuner, and Ray takes seconds to load
        from legroom.tuning.engines.ray.tuner import is_tuner, unpacked

        if is_tuner(train_fn):
            plain, asked = unpacked(train_fn)
            return tune(
                plain, gpu=gpu, resume=resume, storage=storage, engine=engine, address=address, ranks=ranks, seed=seed,
                shape_parameters=shape_parameters, watchers=watchers, **asked,
            )  # fmt: skip
    function = TrainFunction.of(train_fn)
    read = _read(space)
    scheduler = None if scheduler == "none" else scheduler  # as a command line says it
    _check(
        metric=metric, mode=mode, search=search, space=read, scheduler=scheduler, engine=engine, address=address,
        seed=seed, trials=trials, parallel=parallel, ranks=ranks,
    )  # fmt: skip
    runner, reason = _engine(engine, address)
    places = places_for(gpu)
    if address is not None and gpu is None:  # the GPUs are the cluster's
        places = runner.places()  # type: ignore[attr-defined]
    if ranks > 1:
        places = _for_ranks(places, ranks)
    job = Job(
        function=function,
        space=read,
        metric=metric,
        mode=mode,
        search=search,
        scheduler=scheduler,
        scheduler_options=SchedulerOptions(
            grace=grace, reduction=reduction, most_steps=most_steps, interval=interval
        ),
        trials=trials if trials is not None else EVERY if search == "grid" else 10,
        places=places,
        parallel=parallel,
        ranks=ranks,
        time_budget=None if time_budget is None else parse_seconds(time_budget),
        seed=seed,
        folder=Path(storage) if storage is not None else Path(f"{function.name}-study"),
        shape_parameters=None if shape_parameters is None else frozenset(shape_parameters),
    )
    return run_job(job, runner, resume=resume, watchers=watchers or (), reason=reason)


def _for_ranks(places: Sequence[Place], ranks: int) -> list[Place]:
    """The same GPUs, for processes that talk: on real ones NCCL holds memory beside PyTorch's."""
    if places and len(places) < ranks:
        there = f"{'is' if len(places) == 1 else 'are'} {len(places)}"
        raise UsageError(f"a trial of {ranks} ranks needs {ranks} GPUs, and there {there}")
    return [
        place if place.virtual else replace(place, context=place.context + COMMUNICATION_BYTES)
        for place in places
    ]


def run_job(
    job: Job, engine: Engine, *, resume: bool, watchers: Sequence[Watcher] = (), reason: str = ""
) -> Study:
    """One study, from what was asked to what was found."""
    engine.prepare(job)
    conductor = _conductor(job, resume, watchers)
    interrupted = False
    try:
        if reason:
            conductor.say(reason)
        engine.run(job, conductor)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        conductor.close()
    return Study(
        metric=job.metric,
        mode=job.mode,
        trials=conductor.records,
        folder=job.folder,
        name=job.function.name,
        search=job.search,
        scheduler=job.scheduler,
        engine=engine.name,
        space=job.space,
        places=job.places,
        seconds=conductor.seconds,
        interrupted=interrupted,
    )


def _conductor(job: Job, resume: bool, watchers: Sequence[Watcher]) -> Conductor:
    neighbours = Neighbours(job.places)
    gate: Gate = OpenGate()
    if job.places:  # first of all: its process imports while the rest is made
        gate = MemoryGate(
            job.function, job.places, job.space,
            ranks=job.ranks, shape_parameters=job.shape_parameters, neighbours=neighbours,
        )  # fmt: skip
    facts = {
        "metric": job.metric, "mode": job.mode, "space": job.space.written(), "search": job.search,
        "scheduler": job.scheduler, "function": job.function.name,
    }  # fmt: skip
    try:
        searcher = make_searcher(job.search, job.space, job.mode, job.seed)
        scheduler = make_scheduler(job.scheduler, job.space, job.mode, job.seed, job.scheduler_options)
        store = Store(job.folder.absolute(), resume=resume, mode=job.mode, facts=facts)
        return Conductor(job, searcher, scheduler, gate, store, watchers, neighbours)
    except BaseException:
        gate.close()
        raise


def _read(space: Any) -> Space:
    """A space of ours, or one written with Ray's domains: those are there only where Ray has been imported."""
    if "ray.tune" in sys.modules:
        from legroom.tuning.space.ray_spaces import is_ray_space, space_of

        if is_ray_space(space):
            return space_of(space)
    return read_space(space)


def _engine(named: str, address: str | None) -> tuple[Engine, str]:
    """The engine, and why it is this one where nobody chose it."""
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
        else f"{missing} is not installed, so trials run as processes of this machine (engine: local)",
    )


def _missing_of_ray() -> str | None:
    """What is not installed of what Ray Tune needs, found without importing it, which takes seconds. `pip install ray` brings Ray without Ray Tune's part."""
    if find_spec("ray") is None:
        return "Ray"
    without = [name for name in ("pandas", "pyarrow", "fsspec") if find_spec(name) is None]
    return f"what Ray Tune needs ({', '.join(without)})" if without else None


def _check(
    *,
    metric: str,
    mode: str,
    search: str,
    space: Space,
    scheduler: str | None,
    engine: str,
    address: str | None,
    seed: int,
    **counts: int | None,
) -> None:
    """What can be said before anything is started. `counts`: numbers of something, None where it is not limited."""
    if not isinstance(metric, str) or not metric:
        raise UsageError(f"metric={metric!r} is none: name what trial.report(...) reports, such as 'loss'")
    if mode not in ("min", "max"):
        raise UsageError(f"the mode '{mode}' is not known: the metric is to be 'min' or 'max'")
    check_search(search, space)
    if scheduler is not None and scheduler not in SCHEDULERS:
        raise UsageError(f"the scheduler '{scheduler}' is not known: choose {', '.join(SCHEDULERS)} or none")
    if engine not in ENGINES:
        raise UsageError(f"the engine '{engine}' is not known: choose {', '.join(ENGINES)}")
    if engine == "local" and address is not None:
        raise UsageError(
            "address= names a Ray cluster, and engine='local' runs on this machine: leave one out"
        )
    for name, count in counts.items():
        if count is not None and (not isinstance(count, int) or count < 1):
            raise UsageError(f"{name}={count} is none: a whole number, 1 or more")
    if not isinstance(seed, int) or not 0 <= seed < 1 << 32:
        raise UsageError(f"seed={seed} is none: a whole number from 0 to {(1 << 32) - 1}")
