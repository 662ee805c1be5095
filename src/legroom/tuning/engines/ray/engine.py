"""Trials on Ray Tune: on this machine with Ray started for the study, or on a cluster.

On this machine the stage packs trials onto GPUs, as it does without Ray, and Ray starts what it is given. On a cluster Ray places
them, by what each was foretold to need: a share of one GPU (Ray's `GPU` resource) on a machine whose GPUs it fits.
"""

import contextlib
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from legroom.errors import MissingExtra, UsageError
from legroom.gpus.machine import processors
from legroom.tuning.engines.engine import Job, ended_politely
from legroom.tuning.engines.fork_server import fork_server
from legroom.tuning.engines.ray.cluster import connected
from legroom.tuning.engines.ray.resources import (
    Resources,
    places_of_cluster,
    processors_of_cluster,
    resources,
    strategy_for,
)
from legroom.tuning.engines.ray.trial import run_in_ray
from legroom.tuning.memory.admission import Place
from legroom.tuning.trial_dispatch import Stage

if TYPE_CHECKING:
    from legroom.tuning.engines.ray.adapters import Exchange
    from legroom.tuning.study_runner import Conductor

MOST_WAITING = 4
"""Workers that Ray starts with itself, before trials come, where these are apart."""


class RayEngine:
    """Runs trials with Ray Tune. `address`: of a cluster; None: Ray is started here and stopped again."""

    name = "ray"

    def __init__(self, address: str | None = None) -> None:
        self._address = address
        self._server: str | None = None
        """Where trials are forked; None: each has a worker of Ray's to itself."""

    def places(self) -> list[Place]:
        """The cluster's GPUs."""
        with connected(self._address, processors=processors()):
            return places_of_cluster()

    def prepare(self, job: Job) -> None:
        if self._address is None and _can_be_apart(job):
            self._server = fork_server(job.function)

    def run(self, job: Job, conductor: "Conductor") -> None:
        if self._address is None:
            stage = Stage(job, conductor)
            stage.look_ahead()  # the first estimates are made while Ray starts
            # Ray starts a worker for each processor, with as much to import; where trials are apart, fewer are needed at first, and others when they are.
            few = min(MOST_WAITING, max(1, stage.slots // 2))
            with connected(None, processors=processors() if self._server is None else few):
                self._fit(job, resources(on_cluster=False), stage, conductor)
            return
        with connected(self._address, processors=processors()):
            if job.parallel is None:
                job = replace(job, parallel=max(1, processors_of_cluster() // job.ranks))
            asked = resources(on_cluster=True, strategy=strategy_for(job.ranks))
            self._fit(job, asked, Stage(job, conductor), conductor)

    def _fit(self, job: Job, asked: Resources, stage: Stage, conductor: "Conductor") -> None:
        try:
            from legroom.tuning.engines.ray import workers
            from legroom.tuning.engines.ray.adapters import Exchange
        except ImportError as error:  # a part that this release of Ray Tune needs
            raise _missing(error) from None

        exchange = Exchange(stage, conductor, self._server)
        account = job.folder / "ray"
        try:
            with ended_politely(), contextlib.nullcontext() if self._server is None else workers.spared():
                _tuner(exchange, account, asked).fit()
        except KeyboardInterrupt:
            stage.interrupt()
            raise
        except OSError as error:
            raise UsageError(
                f"Ray cannot write to {account}: {error.strerror or error}. What had ended is kept: make room and go on with resume"
            ) from None
        except Exception:
            if exchange.refusal is not None:
                raise exchange.refusal from None
            raise
        finally:
            shutil.rmtree(account, ignore_errors=True)  # Ray's account of the study: the store has all of it
        if conductor.seconds_left == 0.0:
            stage.time_is_up()
        elif not stage.is_over:  # Ray took Ctrl-C for itself and ended its trials
            stage.interrupt()
            raise KeyboardInterrupt


def _missing(error: ImportError) -> MissingExtra:
    """What was not found when Ray Tune was imported: Ray puts a sentence of its own in front of that."""
    first = error.__cause__ if isinstance(error.__cause__, ImportError) else error
    return MissingExtra(f"what Ray Tune needs ({first.name or first})", "tune")


def _can_be_apart(job: Job) -> bool:
    """Whether workers may stay while each trial is a process beside one: not with a plain Ray function, which reports from within its worker."""
    return job.ranks == 1 and job.function.takes_trial


def _tuner(exchange: "Exchange", folder: Path, asked: Resources) -> Any:
    from ray import tune

    from legroom.tuning.engines.ray.adapters import StagedScheduler, StagedSearch

    numbers = exchange.numbers
    folder.mkdir(parents=True, exist_ok=True)
    return tune.Tuner(
        tune.with_resources(partial(run_in_ray, server=exchange.server), asked),
        tune_config=tune.TuneConfig(
            search_alg=StagedSearch(exchange),
            scheduler=StagedScheduler(exchange),
            num_samples=-1,  # as many as the search gives
            time_budget_s=exchange.conductor.seconds_left,
            reuse_actors=exchange.server is not None,
            trial_name_creator=lambda trial: f"trial-{numbers[trial.trial_id]}",
            trial_dirname_creator=lambda trial: f"trial-{numbers[trial.trial_id]}-{trial.trial_id}",
        ),
        run_config=tune.RunConfig(name="trials", storage_path=str(folder.resolve()), verbose=0),
    )
