"""The most balanced cut of a model, from costs per position and from predicted stages."""

from collections.abc import Sequence

import pytest
import torch
from torch import nn

from legroom.gpus.catalog import find_gpu
from legroom.scale.cutting.balance import MicroBatchFlow, PositionCosts, WeightCost, balance_stages
from legroom.scale.cutting.forward_graph import CannotSplitModel, record_forward
from legroom.scale.cutting.planning import plan_pipeline, plan_split
from legroom.scale.cutting.stage_memory import micro_batch_flow, pass_order
from legroom.scale.cutting.stages import GraphPartitioner
from legroom.scale.prediction.step_trace import DeviceModel

DEVICE = DeviceModel(find_gpu("8GiB"), kernels=False)


def layers(count: int) -> GraphPartitioner:
    model = nn.Sequential(*[nn.Linear(2, 2) for _ in range(count)])
    return GraphPartitioner(record_forward(model, (torch.zeros(1, 2),), {}))


def saved_costs(*saved: int) -> PositionCosts:
    return PositionCosts(list(saved), [[] for _ in saved])


def sums(saved: Sequence[int], in_flight: Sequence[int]):  # type: ignore[no-untyped-def]
    return lambda boundaries: tuple(
        sum(saved[begin:end]) * count + 1
        for begin, end, count in zip(boundaries, boundaries[1:], in_flight, strict=False)
    )


def test_stages_are_balanced_by_saved_bytes() -> None:
    saved = [600, 100, 100, 100, 100, 200]
    cut = balance_stages(layers(6), saved_costs(*saved), MicroBatchFlow((1, 1), 0), sums(saved, (1, 1)))
    assert cut.boundaries == (0, 1, 6)


def test_the_first_stage_of_a_pipeline_is_smaller_because_it_has_more_micro_batches_in_flight() -> None:
    saved = [1000] * 6
    cut = balance_stages(layers(6), saved_costs(*saved), MicroBatchFlow((2, 1), 0), sums(saved, (2, 1)))
    assert cut.boundaries == (0, 2, 6)


def test_a_weight_that_two_stages_use_counts_in_both() -> None:
    partitioner = layers(4)
    weights = [
        [WeightCost(1, 1000, 0)],
        [WeightCost(2, 400, 0)],
        [WeightCost(3, 400, 0)],
        [WeightCost(1, 1000, 0)],
    ]
    cut = balance_stages(
        partitioner,
        PositionCosts([0] * 4, weights),
        MicroBatchFlow((1, 1), 0),
        lambda boundaries: (100,) * (len(boundaries) - 1),
    )
    assert cut.boundaries == (0, 2, 4)


def test_differences_between_sums_and_predictions_move_the_cut() -> None:
    saved = [1000] * 8

    def predict_peaks(boundaries: Sequence[int]) -> tuple[int, ...]:
        first, second = sums(saved, (1, 1))(boundaries)
        return first + 2000, second

    cut = balance_stages(layers(8), saved_costs(*saved), MicroBatchFlow((1, 1), 0), predict_peaks)
    assert cut.boundaries == (0, 3, 8)
    assert cut.spread == pytest.approx(1.0, abs=0.01)


def test_more_stages_than_cut_positions_are_rejected() -> None:
    with pytest.raises(
        CannotSplitModel,
        match=r"too few split positions where gradients can pass: 2 \(a model with 4 stages requires 3\)",
    ):
        balance_stages(
            layers(3), saved_costs(1, 1, 1), MicroBatchFlow((1,) * 4, 0), lambda boundaries: (1,) * 4
        )


def test_1f1b_has_one_micro_batch_in_flight_per_remaining_stage() -> None:
    assert micro_batch_flow("1f1b", 4, 8).in_flight == (4, 3, 2, 1)
    assert micro_batch_flow("gpipe", 4, 8).in_flight == (8, 8, 8, 8)
    assert micro_batch_flow("1f1b", 4, 3).in_flight == (3, 3, 3, 3)


def test_a_stage_alternates_after_its_first_forward_passes() -> None:
    forward, backward = True, False
    assert pass_order(2, 3) == [
        (forward, 0),
        (forward, 1),
        (backward, 0),
        (forward, 2),
        (backward, 1),
        (backward, 2),
    ]


def wide() -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    modules: list[nn.Module] = [nn.Linear(64, 2048), nn.ReLU()]
    for _ in range(6):
        modules += [nn.Linear(2048, 2048), nn.ReLU()]
    return nn.Sequential(*modules, nn.Linear(2048, 8)), (
        torch.zeros(512, 64),
        torch.zeros(512, dtype=torch.long),
    )


@pytest.mark.slow
def test_the_predicted_stages_of_a_pipeline_are_even() -> None:
    model, batch = wide()
    plan = plan_pipeline(
        model, torch.optim.AdamW(model.parameters()), batch, 2, DEVICE, schedule="1f1b", micro_batches=4
    )
    assert plan.balance.spread < 1.1
    weights = sum(parameter.nbytes for parameter in model.parameters())
    assert max(plan.balance.peaks) > weights * 4 / 2


@pytest.mark.slow
def test_the_predicted_devices_of_a_split_model_are_even() -> None:
    model, batch = wide()
    placement, balance = plan_split(model, torch.optim.AdamW(model.parameters()), batch, 2, DEVICE)
    assert set(placement.values()) == {0, 1}
    assert balance.spread < 1.15
    assert list(placement.values()) == sorted(placement.values())
