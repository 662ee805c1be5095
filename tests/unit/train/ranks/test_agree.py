"""Out of memory on one rank: nobody hangs, and all do the same step again, smaller."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from bench.lib.rank_pool import RankPool
from tests.unit.train import rank_tasks as tasks


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(2) as pool:
        yield pool


def same_and_true(results: list[Any], tolerance: float = 0.0) -> list[tuple[int, int]]:
    """All ranks tell the same story and hold the same parameters, and each has what a plain run would have."""
    stories = [story for story, *_ in results]
    assert stories[1:] == stories[:-1]
    assert_same_and_true(results, tolerance)
    return stories[0]


def assert_same_and_true(results: list[Any], tolerance: float = 0.0) -> None:
    assert all(held == results[0][1] for _, held, _, _ in results)
    for _, _, state, truth in results:
        for ours, plain in zip(state, truth, strict=True):
            torch.testing.assert_close(torch.tensor(ours), torch.tensor(plain), rtol=0, atol=tolerance)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
@pytest.mark.parametrize("phase", ["forward", "backward"])
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("step", [0, 1])
def test_a_failure_on_one_rank_gives_all_the_same_split_and_weights(
    pool: RankPool, kind: str, phase: str, rank: int, step: int
) -> None:
    story = same_and_true(pool.run(tasks.with_failures, kind, {step: (rank, phase)}))
    assert story == [(1, 1), (1, 1)][:step] + [(2, 2)] + [(2, 1)] * (2 - step)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_failure_in_a_later_chunk_leaves_nothing_of_the_earlier_ones(pool: RankPool, kind: str) -> None:
    story = same_and_true(pool.run(tasks.with_failures, kind, {1: (1, "backward", 1, 1)}, tasks.ROWS // 2))
    assert story == [(2, 1), (4, 2), (4, 1)]


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
@pytest.mark.parametrize("phase", ["forward", "backward"])
@pytest.mark.parametrize("step", [0, 1])
def test_all_ranks_may_fail_at_once_at_different_places(
    pool: RankPool, kind: str, phase: str, step: int
) -> None:
    story = same_and_true(pool.run(tasks.with_failures, kind, {step: (-1, phase)}))
    assert story[step] == (2, 2)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_retry_that_fails_is_split_further(pool: RankPool, kind: str) -> None:
    assert same_and_true(pool.run(tasks.failing_twice, kind)) == [(4, 3), (4, 1)]


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_settled_step_exchanges_one_message_and_pins_up_nothing(pool: RankPool, kind: str) -> None:
    first, *settled = pool.run(tasks.exchanges_per_step, kind)[0]
    assert first[0] == 2
    assert first[1] > 0
    assert settled == [(1, 0)] * 3


def test_sharded_ranks_with_unequal_batches_make_the_same_number_of_passes(pool: RankPool) -> None:
    results = pool.run(tasks.uneven_batches, "fsdp")
    assert_same_and_true(results)
    assert [[chunks for chunks, _ in story] for story, *_ in results] == [[2, 4, 4, 4]] * 2


def test_replicas_with_unequal_batches_need_not_make_the_same_number_of_passes(pool: RankPool) -> None:
    results = pool.run(tasks.uneven_batches, "ddp")
    assert_same_and_true(results)
    assert [[chunks for chunks, _ in story] for story, *_ in results] == [[2, 2, 4, 4], [2, 4, 4, 4]]


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_another_error_stops_all_ranks_and_says_whose_it_was(pool: RankPool, kind: str) -> None:
    assert pool.run(tasks.another_error, kind, 1, False) == [
        "Rank 1 stopped, so this rank stops too: ValueError: label 7 is out of range",
        "ValueError, None",
    ]


def test_another_error_beside_a_full_rank_is_put_down_to_it(pool: RankPool) -> None:
    assert pool.run(tasks.another_error, "fsdp", 0, True) == ["ValueError, 4", "settled, 4"]


def test_a_rank_that_gives_up_tells_the_others(pool: RankPool) -> None:
    assert pool.run(tasks.giving_up) == [
        "gave up",
        "Rank 0 stopped, so this rank stops too: GuardError: the optimizer does not fit",
    ]


def test_a_rank_that_does_not_come_is_named(pool: RankPool) -> None:
    told, _ = pool.run(tasks.absent)
    assert "rank 1 does not answer" in told


def test_unused_parameters_have_the_gradients_that_ddp_gives_them(pool: RankPool) -> None:
    for ours, ddps in pool.run(tasks.unused_parameters):
        assert ours == ddps
        assert ours[-1] is None


def test_layers_that_communicate_themselves_are_followed(pool: RankPool) -> None:
    same_and_true(pool.run(tasks.talking_layers))


def test_a_gradient_that_grows_after_it_was_sent_is_averaged_again(pool: RankPool) -> None:
    assert same_and_true(pool.run(tasks.recomputed_parameters)) == [(1, 2), (1, 1)]


def test_weights_count_over_all_ranks(pool: RankPool) -> None:
    assert pool.run(tasks.shared_weights) == [6.0, 6.0]


def test_steps_whose_collectives_have_changed_are_followed_again(pool: RankPool) -> None:
    first, second = pool.run(tasks.changing_collectives)
    assert first == second
    assert first[0][-1] == (2, 2)


def test_after_a_failure_ddp_works_by_itself(pool: RankPool) -> None:
    first, second = pool.run(tasks.then_without_us)
    assert first == second


def test_a_communication_hook_is_refused_with_the_remedy(pool: RankPool) -> None:
    assert "build the model without register_comm_hook()" in pool.run(tasks.refusal, "hook")[0]


def test_ddps_own_mixed_precision_is_refused_with_the_remedy(pool: RankPool) -> None:
    assert "use Guard's precision= instead" in pool.run(tasks.refusal, "precision")[0]


def test_sparse_gradients_are_refused_with_the_remedy(pool: RankPool) -> None:
    assert "use sparse=False" in pool.run(tasks.refusal, "sparse")[0]


@pytest.fixture(scope="module")
def three() -> Iterator[RankPool]:
    with RankPool(3) as pool:
        yield pool


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_three_ranks_of_which_one_fails_agree(three: RankPool, kind: str) -> None:
    failures = {0: (2, "backward"), 2: (0, "forward")}
    results = three.run(tasks.in_double_precision, tasks.with_failures, kind, failures)
    story = same_and_true(results, tolerance=1e-9)
    assert story == [(2, 2), (2, 1), (4, 2)]


def test_a_rank_that_died_is_named() -> None:
    with RankPool(2) as pool:
        told, gone = pool.run(tasks.dying, may_die=True)
    assert "rank 1 does not answer" in told
    assert gone is None
