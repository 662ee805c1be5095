"""Out-of-memory errors on one rank: no rank hangs, and all ranks repeat the step with the same smaller
micro-batches."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from bench.lib.rank_pool import RankPool
from tests.unit.train import rank_tasks as tasks

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(2) as pool:
        yield pool


def checked_history(results: list[Any], tolerance: float = 0.0) -> list[tuple[int, int]]:
    """Check that all ranks have the same history and parameters, equal to those of a plain run. Returns the history."""
    histories = [history for history, *_ in results]
    assert histories[1:] == histories[:-1]
    assert_same_state(results, tolerance)
    return histories[0]


def assert_same_state(results: list[Any], tolerance: float = 0.0) -> None:
    assert all(parameters == results[0][1] for _, parameters, _, _ in results)
    for _, _, state, reference in results:
        for ours, plain in zip(state, reference, strict=True):
            torch.testing.assert_close(torch.tensor(ours), torch.tensor(plain), rtol=0, atol=tolerance)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
@pytest.mark.parametrize("phase", ["forward", "backward"])
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("step", [0, 1])
def test_a_failure_on_one_rank_changes_the_split_on_all_ranks_and_keeps_the_weights(
    pool: RankPool, kind: str, phase: str, rank: int, step: int
) -> None:
    history = checked_history(pool.run(tasks.with_failures, kind, {step: (rank, phase)}))
    assert history == [(1, 1), (1, 1)][:step] + [(2, 2)] + [(2, 1)] * (2 - step)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_failure_in_a_later_micro_batch_discards_the_earlier_ones(pool: RankPool, kind: str) -> None:
    history = checked_history(
        pool.run(tasks.with_failures, kind, {1: (1, "backward", 1, 1)}, tasks.BATCH_SIZE // 2)
    )
    assert history == [(2, 1), (4, 2), (4, 1)]


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
@pytest.mark.parametrize("phase", ["forward", "backward"])
@pytest.mark.parametrize("step", [0, 1])
def test_all_ranks_may_fail_at_once_in_different_blocks(
    pool: RankPool, kind: str, phase: str, step: int
) -> None:
    history = checked_history(pool.run(tasks.with_failures, kind, {step: (-1, phase)}))
    assert history[step] == (2, 2)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_retry_that_fails_is_split_further(pool: RankPool, kind: str) -> None:
    assert checked_history(pool.run(tasks.failing_twice, kind)) == [(4, 3), (4, 1)]


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_settled_step_has_one_exchange_and_no_announcements(pool: RankPool, kind: str) -> None:
    first, *settled = pool.run(tasks.exchanges_per_step, kind)[0]
    assert first[0] == 2
    assert first[1] > 0
    assert settled == [(1, 0)] * 3


def test_sharded_ranks_with_different_batch_sizes_run_the_same_number_of_passes(pool: RankPool) -> None:
    results = pool.run(tasks.uneven_batches, "fsdp")
    assert_same_state(results)
    assert [[passes for passes, _ in history] for history, *_ in results] == [[2, 4, 4, 4]] * 2


def test_replicas_with_different_batch_sizes_may_run_different_numbers_of_passes(pool: RankPool) -> None:
    results = pool.run(tasks.uneven_batches, "ddp")
    assert_same_state(results)
    assert [[passes for passes, _ in history] for history, *_ in results] == [[2, 2, 4, 4], [2, 4, 4, 4]]


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_another_error_stops_all_ranks_and_names_the_rank(pool: RankPool, kind: str) -> None:
    assert pool.run(tasks.another_error, kind, 1, False) == [
        "This rank stops because rank 1 stopped: ValueError: label 7 is out of range",
        "ValueError, None",
    ]


def test_another_error_during_an_oom_on_another_rank_leads_to_a_retry(pool: RankPool) -> None:
    assert pool.run(tasks.another_error, "fsdp", 0, True) == ["ValueError, 4", "agreed, 4"]


def test_a_rank_that_aborts_stops_the_others(pool: RankPool) -> None:
    assert pool.run(tasks.aborting) == [
        "aborted",
        "This rank stops because rank 0 stopped: GuardError: the optimizer does not fit",
    ]


def test_a_rank_that_does_not_take_part_is_named(pool: RankPool) -> None:
    message, _ = pool.run(tasks.absent)
    assert "rank 1 does not respond" in message


def test_unused_parameters_have_the_same_gradients_as_with_ddp(pool: RankPool) -> None:
    for ours, expected in pool.run(tasks.unused_parameters):
        assert ours == expected
        assert ours[-1] is None


def test_layers_that_communicate_are_supported(pool: RankPool) -> None:
    checked_history(pool.run(tasks.communicating_layers))


def test_a_gradient_that_changes_after_it_was_sent_is_averaged_again(pool: RankPool) -> None:
    assert checked_history(pool.run(tasks.recomputed_parameters)) == [(1, 2), (1, 1)]


def test_weights_are_summed_over_all_ranks(pool: RankPool) -> None:
    assert pool.run(tasks.shared_weights) == [6.0, 6.0]


def test_steps_whose_collectives_change_are_announced_again(pool: RankPool) -> None:
    first, second = pool.run(tasks.changing_collectives)
    assert first == second
    assert first[0][-1] == (2, 2)


def test_plain_ddp_works_after_a_failure(pool: RankPool) -> None:
    first, second = pool.run(tasks.plain_ddp_afterwards)
    assert first == second


def test_a_communication_hook_is_rejected(pool: RankPool) -> None:
    assert "Remove register_comm_hook()" in pool.run(tasks.rejected, "hook")[0]


def test_ddp_mixed_precision_is_rejected(pool: RankPool) -> None:
    assert "Use Guard(..., precision=...) instead" in pool.run(tasks.rejected, "precision")[0]


def test_sparse_gradients_are_rejected(pool: RankPool) -> None:
    assert "Use sparse=False" in pool.run(tasks.rejected, "sparse")[0]


@pytest.fixture(scope="module")
def three() -> Iterator[RankPool]:
    with RankPool(3) as pool:
        yield pool


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_three_ranks_agree_if_one_fails(three: RankPool, kind: str) -> None:
    failures = {0: (2, "backward"), 2: (0, "forward")}
    results = three.run(tasks.in_double_precision, tasks.with_failures, kind, failures)
    history = checked_history(results, tolerance=1e-9)
    assert history == [(2, 2), (2, 1), (4, 2)]


def test_a_rank_that_died_is_named() -> None:
    with RankPool(2) as pool:
        message, died = pool.run(tasks.dying, may_die=True)
    assert "rank 1 does not respond" in message
    assert died is None
