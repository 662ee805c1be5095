"""Trials on Ray Tune: on this machine with Ray started for the study, or on a cluster.

On this machine the stage packs trials onto GPUs, as it does without Ray, and Ray starts what it is given. On a cluster Ray places
them, by what each was foretold to need: a share of one GPU (Ray's `GPU` resource) on a machine whose GPUs it fits.
"""

import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from legroom.errors import UsageError
from legroom.observe.devices import processors
from legroom.tuning.admission import Place, real_places
from legroom.tuning.engine import Job
from legroom.tuning.ray_cluster import connected
from legroom.tuning.ray_trial import ORDER, run_in_ray
from legroom.tuning.staging import Stage
from legroom.tuning.trial_process import Order

if TYPE_CHECKING:
    from legroom.tuning.conductor import Conductor
    from legroom.tuning.ray_adapters import Exchange

LEAST = 0.01
"""Processors that a trial asks Ray for where the stage packs: it hands out no more than there is room for, and Ray need not
count again."""
Resources = Callable[[dict[str, Any]], Any]


class RayEngine:
    """Runs trials with Ray Tune. `address`: of a cluster; None: Ray is started here and stopped again."""

    name = "ray"

    def __init__(self, address: str | None = None) -> None:
        self._address = address
        self._machines: dict[int, str] = {}
        """Place's index → the address of its machine in the cluster."""

    def places(self) -> list[Place]:
        """The cluster's GPUs, numbered through."""
        found: list[Place] = []
        with connected(self._address, processors=processors()):
            for machine, gpus in _gpus_of_cluster().items():
                for gpu in gpus:
                    self._machines[len(found)] = machine
                    found.append(replace(gpu, index=len(found)))
        return found

    def run(self, job: Job, conductor: "Conductor") -> None:
        if job.ranks > 1:
            raise UsageError(
                f"a trial of {job.ranks} ranks runs on one machine, without Ray: use engine='local' for it"
            )
        with connected(self._address, processors=processors()):
            if self._address is not None and job.parallel is None:
                job = replace(job, parallel=_processors_of_cluster())
            self._fit(job, Stage(job, conductor), conductor)

    def _fit(self, job: Job, stage: Stage, conductor: "Conductor") -> None:
        from legroom.tuning.ray_adapters import Exchange

        exchange = Exchange(stage, conductor)
        account = job.folder / "ray"
        try:
            _tuner(exchange, account, _resources(self._machines)).fit()
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


def _tuner(exchange: "Exchange", folder: Path, resources: Resources) -> Any:
    from ray import tune

    from legroom.tuning.ray_adapters import StagedScheduler, StagedSearch

    numbers = exchange.numbers
    folder.mkdir(parents=True, exist_ok=True)
    return tune.Tuner(
        tune.with_resources(run_in_ray, resources),
        tune_config=tune.TuneConfig(
            search_alg=StagedSearch(exchange),
            scheduler=StagedScheduler(exchange),
            num_samples=-1,  # as many as the search gives
            time_budget_s=exchange.conductor.seconds_left,
            reuse_actors=False,
            trial_name_creator=lambda trial: f"trial-{numbers[trial.trial_id]}",
            trial_dirname_creator=lambda trial: f"trial-{numbers[trial.trial_id]}-{trial.trial_id}",
        ),
        run_config=tune.RunConfig(name="trials", storage_path=str(folder.resolve()), verbose=0),
    )


def _resources(machines: Mapping[int, str]) -> Resources:
    """What a trial asks Ray for, by its order: on a cluster's GPU the share that was foretold, on a machine with such a GPU."""

    def asked(config: dict[str, Any]) -> Any:
        from ray.tune import PlacementGroupFactory

        order: Order = config[ORDER]
        place = order.place
        if place is None or place.index not in machines:
            return PlacementGroupFactory([{"CPU": LEAST}])
        share = 1.0 if order.cap is None else min(1.0, (order.cap + place.context) / place.memory)
        return PlacementGroupFactory(
            [{"CPU": 1, "GPU": math.ceil(share * 1e4) / 1e4, f"node:{machines[place.index]}": 0.001}]
        )

    return asked


def _gpus_of_cluster() -> dict[str, list[Place]]:
    """Each machine's GPUs, as it sees them itself."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    look = ray.remote(num_cpus=0)(_gpus_here)
    asked = {
        node["NodeManagerAddress"]: look.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        ).remote()
        for node in ray.nodes()  # type: ignore[no-untyped-call]
        if node["Alive"] and node["Resources"].get("GPU")
    }
    return {machine: ray.get(answer) for machine, answer in asked.items()}


def _processors_of_cluster() -> int:
    import ray

    return max(1, int(ray.cluster_resources().get("CPU", 1)))  # type: ignore[no-untyped-call]


def _gpus_here() -> list[Place]:
    """On a machine of the cluster; Ray hides the GPUs from a task that asked for none."""
    import os

    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    return real_places()
