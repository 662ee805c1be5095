"""Runs trials with Ray Tune. The trials run either on a cluster, or on this machine in a Ray instance that is started
for the study.

On this machine, the dispatcher places trials on GPUs, as in the local engine. On a cluster, Ray places trials on GPUs.
Each trial then requests its predicted fraction of a GPU (Ray's `GPU` resource) on a machine where the trial fits.
"""

import contextlib
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from legroom.errors import MissingExtra, UsageError
from legroom.gpus.machine import processors
from legroom.processes import can_fork
from legroom.tuning.engines.engine import interrupt_on_sigterm
from legroom.tuning.engines.fork_server import fork_server
from legroom.tuning.engines.ray.cluster import connected
from legroom.tuning.engines.ray.resources import (
    Resources,
    cluster_gpus,
    processors_of_cluster,
    resources,
    strategy_for,
)
from legroom.tuning.engines.ray.trial import run_in_ray
from legroom.tuning.job import TuneJob
from legroom.tuning.memory.admission import TrialGpu
from legroom.tuning.trial_dispatch import TrialDispatcher

if TYPE_CHECKING:
    from legroom.tuning.engines.ray.adapters import SharedState
    from legroom.tuning.study_runner import StudyRunner

MAX_STARTUP_WORKERS = 4
"""The maximum number of workers that Ray starts in advance if trials are forked."""


class RayEngine:
    """Runs the trials of a study with Ray Tune. `address` is the address of a cluster. Without an address, Ray is
    started on this machine and stopped after the study."""

    name = "ray"

    def __init__(self, address: str | None = None) -> None:
        self._address = address
        self._server: str | None = None
        """The socket path of the fork server, or None if each trial has its own Ray worker."""

    def gpus(self) -> list[TrialGpu]:
        with connected(self._address, processors=processors()):
            return cluster_gpus()

    def prepare(self, job: TuneJob) -> None:
        if self._address is None and _can_fork(job):
            self._server = fork_server(job.function)

    def run(self, job: TuneJob, runner: "StudyRunner") -> None:
        if self._address is None:
            dispatcher = TrialDispatcher(job, runner)
            dispatcher.prepare_trials()  # the first estimates run while Ray starts
            # Ray starts a worker per CPU, and each worker imports all modules. If trials are forked, fewer workers
            # are needed at first.
            few = min(MAX_STARTUP_WORKERS, max(1, dispatcher.slots // 2))
            with connected(None, processors=processors() if self._server is None else few):
                self._fit(job, resources(on_cluster=False), dispatcher, runner)
            return
        with connected(self._address, processors=processors()):
            if job.parallel is None:
                job = replace(job, parallel=max(1, processors_of_cluster() // job.ranks))
            request = resources(on_cluster=True, strategy=strategy_for(job.ranks))
            self._fit(job, request, TrialDispatcher(job, runner), runner)

    def _fit(
        self, job: TuneJob, request: Resources, dispatcher: TrialDispatcher, runner: "StudyRunner"
    ) -> None:
        try:
            from legroom.tuning.engines.ray import workers
            from legroom.tuning.engines.ray.adapters import SharedState
        except ImportError as error:  # this version of Ray Tune needs another package
            raise _missing(error) from None

        shared = SharedState(dispatcher, runner, self._server)
        ray_folder = job.folder / "ray"
        try:
            with (
                interrupt_on_sigterm(),
                contextlib.nullcontext() if self._server is None else workers.reused(),
            ):
                _tuner(shared, ray_folder, request).fit()
        except (KeyboardInterrupt, SystemExit):
            dispatcher.interrupt()
            raise
        except OSError as error:
            raise UsageError(
                f"Ray cannot write to {ray_folder}: {error.strerror or error}. Completed trials are saved. If the disk is full, free some space. Then resume the study."
            ) from None
        except Exception:
            if shared.error is not None:
                raise shared.error from None
            raise
        finally:
            shutil.rmtree(
                ray_folder, ignore_errors=True
            )  # Ray's own results, which are also in the study's storage
        if runner.seconds_left == 0.0:
            dispatcher.stop_on_timeout()
        elif not dispatcher.is_over:  # Ray handled Ctrl-C and stopped its trials
            dispatcher.interrupt()
            raise KeyboardInterrupt


def _missing(error: ImportError) -> MissingExtra:
    """Return an error that names the package that Ray Tune could not import. Ray wraps the original error in its own
    message."""
    first = error.__cause__ if isinstance(error.__cause__, ImportError) else error
    return MissingExtra(f"A dependency of Ray Tune ({first.name or first})", "tune")


def _can_fork(job: TuneJob) -> bool:
    return can_fork() and job.ranks == 1


def _tuner(shared: "SharedState", folder: Path, request: Resources) -> Any:
    from ray import tune

    from legroom.tuning.engines.ray.adapters import DispatchScheduler, DispatchSearcher

    numbers = shared.numbers
    folder.mkdir(parents=True, exist_ok=True)
    return tune.Tuner(
        tune.with_resources(partial(run_in_ray, server=shared.server), request),
        tune_config=tune.TuneConfig(
            search_alg=DispatchSearcher(shared),
            scheduler=DispatchScheduler(shared),
            num_samples=-1,  # until the searcher returns FINISHED
            time_budget_s=shared.runner.seconds_left,
            reuse_actors=shared.server is not None,
            trial_name_creator=lambda trial: f"trial-{numbers[trial.trial_id]}",
            trial_dirname_creator=lambda trial: f"trial-{numbers[trial.trial_id]}-{trial.trial_id}",
        ),
        run_config=tune.RunConfig(name="trials", storage_path=str(folder.resolve()), verbose=0),
    )
