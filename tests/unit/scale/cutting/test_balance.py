"""The most even cut, from costs by position and from rehearsed stages."""

from collections.abc import Sequence

import pytest
import torch
from torch import nn

from legroom.gpus.catalog import find_gpu
from legroom.scale.cutting.balance import Costs, Traffic, Weight, balanced
from legroom.scale.cutting.forward_graph import CannotCut, record
from legroom.scale.cutting.planning import plan_pipeline, plan_split
from legroom.scale.cutting.stage_memory import order, traffic
from legroom.scale.cutting.stages import Sheet
from legroom.scale.prediction.step_trace import Likeness

LIKE = Likeness(find_gpu("8GiB"), kernels=False)


def layers(count: int) -> Sheet:
    model = nn.Sequential(*[nn.Linear(2, 2) for _ in range(count)])
    return Sheet(record(model, (torch.zeros(1, 2),), {}))


def costs(*kept: int) -> Costs:
    return Costs(list(kept), [[] for _ in kept])


def sums(kept: Sequence[int], in_flight: Sequence[int]):  # type: ignore[no-untyped-def]
    return lambda boundaries: tuple(
        sum(kept[begin:end]) * many + 1
        for begin, end, many in zip(boundaries, boundaries[1:], in_flight, strict=False)
    )


def test_stages_are_evened_out_by_what_they_keep() -> None:
    kept = [600, 100, 100, 100, 100, 200]
    found = balanced(layers(6), costs(*kept), Traffic((1, 1), 0), sums(kept, (1, 1)))
    assert found.boundaries == (0, 1, 6)


def test_the_first_stage_of_a_pipeline_gets_less_since_more_is_in_flight_there() -> None:
    kept = [1000] * 6
    found = balanced(layers(6), costs(*kept), Traffic((2, 1), 0), sums(kept, (2, 1)))
    assert found.boundaries == (0, 2, 6)


def test_a_weight_that_two_stages_use_is_counted_in_both() -> None:
    sheet = layers(4)
    weights = [[Weight(1, 1000, 0)], [Weight(2, 400, 0)], [Weight(3, 400, 0)], [Weight(1, 1000, 0)]]
    found = balanced(
        sheet, Costs([0] * 4, weights), Traffic((1, 1), 0), lambda boundaries: (100,) * (len(boundaries) - 1)
    )
    assert found.boundaries == (0, 2, 4)


def test_what_sums_had_missed_is_added_and_the_cut_moves() -> None:
    kept = [1000] * 8

    def rehearsed(boundaries: Sequence[int]) -> tuple[int, ...]:
        first, second = sums(kept, (1, 1))(boundaries)
        return first + 2000, second

    found = balanced(layers(8), costs(*kept), Traffic((1, 1), 0), rehearsed)
    assert found.boundaries == (0, 3, 8)
    assert found.spread == pytest.approx(1.0, abs=0.01)


def test_more_stages_than_places_to_cut_are_refused() -> None:
    with pytest.raises(CannotCut, match="2 places to cut for 4 stages"):
        balanced(layers(3), costs(1, 1, 1), Traffic((1,) * 4, 0), lambda boundaries: (1,) * 4)


def test_one_forward_one_backward_holds_as_many_micro_batches_as_stages_are_left() -> None:
    assert traffic("1f1b", 4, 8).in_flight == (4, 3, 2, 1)
    assert traffic("gpipe", 4, 8).in_flight == (8, 8, 8, 8)
    assert traffic("1f1b", 4, 3).in_flight == (3, 3, 3, 3)


def test_a_stage_alternates_once_it_is_ahead() -> None:
    forward, backward = True, False
    assert order(2, 3) == [
        (forward, 0),
        (forward, 1),
        (backward, 0),
        (forward, 2),
        (backward, 1),
        (backward, 2),
    ]


def wide() -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    parts: list[nn.Module] = [nn.Linear(64, 2048), nn.ReLU()]
    for _ in range(6):
        parts += [nn.Linear(2048, 2048), nn.ReLU()]
    return nn.Sequential(*parts, nn.Linear(2048, 8)), (
        torch.zeros(512, 64),
        torch.zeros(512, dtype=torch.long),
    )


def test_a_pipelines_stages_are_foreseen_to_be_even() -> None:
    model, batch = wide()
    plan = plan_pipeline(
        model, torch.optim.AdamW(model.parameters()), batch, 2, LIKE, schedule="1f1b", micro_batches=4
    )
    assert plan.balance.spread < 1.1
    weights = sum(parameter.nbytes for parameter in model.parameters())
    assert max(plan.balance.peaks) > weights * 4 / 2


def test_a_split_model_is_cut_by_the_same_rules() -> None:
    model, batch = wide()
    homes, balance = plan_split(model, torch.optim.AdamW(model.parameters()), batch, 2, LIKE)
    assert set(homes.values()) == {0, 1}
    assert balance.spread < 1.15
    assert [homes[name] for name in homes] == sorted(homes.values())
