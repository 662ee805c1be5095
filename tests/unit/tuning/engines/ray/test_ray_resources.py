"""The Ray resources that a trial requests."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray.tune")

from legroom.tuning.engines.ray.channel import TASKS
from legroom.tuning.engines.ray.resources import MIN_CPUS, resources
from legroom.tuning.memory.admission import TrialGpu
from legroom.units import GiB

REMOTE = TrialGpu(index=1, memory=8 * GiB, context=1 * GiB, machine="10.0.0.7")
OTHER_REMOTE = TrialGpu(index=2, memory=8 * GiB, context=1 * GiB, machine="10.0.0.8")
LOCAL = TrialGpu(index=0, memory=8 * GiB, context=1 * GiB)


def factory(*gpus: TrialGpu | None, cap: int | None = None, on_cluster: bool = True) -> Any:
    tasks = [SimpleNamespace(gpu=gpu, cap=cap, ranks=len(gpus)) for gpu in gpus]
    return resources(on_cluster=on_cluster)({TASKS: tasks})


def test_on_a_cluster_a_trial_requests_its_predicted_fraction_of_a_gpu() -> None:
    assert factory(REMOTE, cap=1 * GiB).bundles == [{"CPU": 1, "GPU": 0.25, "node:10.0.0.7": 0.001}]


def test_a_fraction_is_rounded_up_to_rays_precision() -> None:
    assert factory(REMOTE, cap=1 * GiB + 1).bundles[0]["GPU"] == 0.2501


def test_a_trial_of_unknown_size_requests_a_full_gpu() -> None:
    assert factory(REMOTE).bundles[0]["GPU"] == 1.0


@pytest.mark.parametrize("gpu", [None, LOCAL, TrialGpu(index=0, memory=GiB, virtual=True)])
def test_a_local_trial_requests_almost_nothing(gpu: TrialGpu | None) -> None:
    assert factory(gpu, cap=GiB, on_cluster=False).bundles == [{"CPU": MIN_CPUS}]


def test_on_a_cluster_a_trial_without_a_gpu_requests_a_cpu() -> None:
    assert factory(None).bundles == [{"CPU": 1}]


def test_each_rank_has_a_bundle_with_a_full_gpu_on_one_machine() -> None:
    request = factory(REMOTE, REMOTE, cap=1 * GiB)
    assert request.bundles == [{"CPU": 1, "GPU": 1.0, "node:10.0.0.7": 0.001}] * 2
    assert request.strategy == "STRICT_PACK"
    assert request.head_bundle_is_empty


def test_ranks_on_two_machines_are_not_strictly_packed() -> None:
    assert factory(REMOTE, OTHER_REMOTE).strategy == "PACK"
