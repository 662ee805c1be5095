"""What a trial asks Ray for."""

from types import SimpleNamespace
from typing import Any

import pytest

from legroom.tuning.engines.ray.resources import LEAST, resources
from legroom.tuning.engines.ray.trial import ORDERS
from legroom.tuning.memory.admission import Place
from legroom.units import GiB

FAR = Place(index=1, memory=8 * GiB, context=1 * GiB, machine="10.0.0.7")
FARTHER = Place(index=2, memory=8 * GiB, context=1 * GiB, machine="10.0.0.8")
HERE = Place(index=0, memory=8 * GiB, context=1 * GiB)


def factory(*places: Place | None, cap: int | None = None, on_cluster: bool = True) -> Any:
    orders = [SimpleNamespace(place=place, cap=cap, ranks=len(places)) for place in places]
    return resources(on_cluster=on_cluster)({ORDERS: orders})


def test_on_a_cluster_a_trial_asks_for_the_share_that_was_foretold_on_a_machine_with_such_a_gpu() -> None:
    assert factory(FAR, cap=1 * GiB).bundles == [{"CPU": 1, "GPU": 0.25, "node:10.0.0.7": 0.001}]


def test_a_share_is_rounded_up_to_what_ray_can_count() -> None:
    assert factory(FAR, cap=1 * GiB + 1).bundles[0]["GPU"] == 0.2501


def test_a_trial_whose_memory_is_unknown_asks_for_the_whole_gpu() -> None:
    assert factory(FAR).bundles[0]["GPU"] == 1.0


@pytest.mark.parametrize("place", [None, HERE, Place(index=0, memory=GiB, virtual=True)])
def test_where_the_stage_packs_ray_counts_nothing(place: Place | None) -> None:
    assert factory(place, cap=GiB, on_cluster=False).bundles == [{"CPU": LEAST}]


def test_on_a_cluster_a_trial_without_a_gpu_asks_for_a_processor() -> None:
    assert factory(None).bundles == [{"CPU": 1}]


def test_ranks_have_a_bundle_each_on_one_machine_and_whole_gpus() -> None:
    asked = factory(FAR, FAR, cap=1 * GiB)
    assert asked.bundles == [{"CPU": 1, "GPU": 1.0, "node:10.0.0.7": 0.001}] * 2
    assert asked.strategy == "STRICT_PACK"
    assert asked.head_bundle_is_empty


def test_ranks_on_two_machines_are_not_asked_to_be_on_one() -> None:
    assert factory(FAR, FARTHER).strategy == "PACK"
