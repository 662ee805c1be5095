"""What a trial asks Ray for, and what is not asked of Ray at all."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from legroom.errors import UsageError
from legroom.tuning.admission import Place
from legroom.tuning.ray_adapters import Exchange
from legroom.tuning.ray_engine import LEAST, RayEngine, _resources, _tuner
from legroom.tuning.ray_trial import ORDER
from legroom.units import GiB

GPU = Place(index=1, memory=8 * GiB, context=1 * GiB)


def asked(place: Place | None, cap: int | None, machines: dict[int, str]) -> dict[str, float]:
    order = SimpleNamespace(place=place, cap=cap)
    factory: Any = _resources(machines)({ORDER: order})
    (bundle,) = factory.bundles
    return bundle  # type: ignore[no-any-return]


def test_on_a_cluster_a_trial_asks_for_the_share_that_was_foretold_on_a_machine_with_such_a_gpu() -> None:
    assert asked(GPU, 1 * GiB, {1: "10.0.0.7"}) == {"CPU": 1, "GPU": 0.25, "node:10.0.0.7": 0.001}


def test_a_share_is_rounded_up_to_what_ray_can_count() -> None:
    assert asked(GPU, 1 * GiB + 1, {1: "10.0.0.7"})["GPU"] == 0.2501


def test_a_trial_whose_memory_is_unknown_asks_for_the_whole_gpu() -> None:
    assert asked(GPU, None, {1: "10.0.0.7"})["GPU"] == 1.0


@pytest.mark.parametrize("place", [None, GPU, Place(index=0, memory=GiB, virtual=True)])
def test_where_the_stage_packs_ray_counts_nothing(place: Place | None) -> None:
    assert asked(place, GiB, {}) == {"CPU": LEAST}


def test_what_is_left_of_the_time_budget_is_rays(tmp_path: Path) -> None:
    tuner = _tuner(Exchange(None, SimpleNamespace(seconds_left=90.0)), tmp_path, _resources({}))  # type: ignore[arg-type]
    assert tuner._local_tuner._tune_config.time_budget_s == 90.0


def test_a_trial_of_several_ranks_is_refused_with_the_engine_that_can() -> None:
    with pytest.raises(
        UsageError, match="a trial of 2 ranks runs on one machine, without Ray: use engine='local'"
    ):
        RayEngine().run(SimpleNamespace(ranks=2), None)  # type: ignore[arg-type]
