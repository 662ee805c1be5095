"""Guard with several ranks, on virtual GPUs of different sizes."""

from collections.abc import Iterator

import pytest
from bench.guard.rank_failures import fail_many
from bench.lib.rank_pool import RankPool
from tests.unit.train import guarded_rank_tasks as tasks

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(2, gpu="96MiB,256MiB") as pool:
        yield pool


@pytest.mark.parametrize("kind", ["DDP", "FSDP2"])
@pytest.mark.parametrize(("phase", "rank"), [("forward", 0), ("backward", 1), ("optimizer", 0)])
def test_a_failed_allocation_on_one_rank_does_not_change_the_result(
    pool: RankPool, kind: str, phase: str, rank: int
) -> None:
    """`python -m bench.guard.rank_failures` prints the whole table."""
    first, second = pool.run(fail_many, kind, phase, rank, 4)
    assert first.failures == first.equal == second.equal == 4
    assert first.splits == second.splits
    assert first.weights == second.weights


@pytest.mark.parametrize("kind", ["DDP", "FSDP2"])
def test_an_optimizer_step_that_runs_out_of_memory_on_one_rank_needs_the_recovery(
    pool: RankPool, kind: str
) -> None:
    plain = pool.run(tasks.optimizer_failure, kind, False, False)
    recovered = pool.run(tasks.optimizer_failure, kind, True, True)
    assert [error for error, _ in recovered] == ["", ""]
    assert recovered == plain
    unhandled = pool.run(tasks.optimizer_failure, kind, True, False)
    assert unhandled[0][0] == "OutOfMemoryError"
    assert unhandled[0][1] != plain[0][1]


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_batch_that_does_not_fit_the_smaller_gpu_is_split_on_both(pool: RankPool, kind: str) -> None:
    first, second = pool.run(tasks.small_and_large_gpu, kind)
    assert first == second
    (split, attempts), *later = first[0]
    assert len(split) > 1
    assert attempts > 1
    assert all(attempts == 1 for _, attempts in later)


def test_a_rank_with_fewer_samples_than_passes_contributes_its_own_gradient(pool: RankPool) -> None:
    for split, difference in pool.run(tasks.fewer_samples_than_passes):
        assert len(split) == 8
        assert difference < 1e-5


def test_weights_are_summed_over_all_ranks_of_a_guard(pool: RankPool) -> None:
    mean_over_tokens = (3 * 1.0 + 9 * 5.0) / 12
    for (gradient,) in pool.run(tasks.tokens_counted_over_ranks):
        assert gradient == pytest.approx(mean_over_tokens)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_all_ranks_stop_if_a_single_sample_does_not_fit_one_of_them(pool: RankPool, kind: str) -> None:
    assert "fitted" not in pool.run(tasks.nothing_fits, kind)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_rank_with_fewer_batches_continues_with_weight_zero(pool: RankPool, kind: str) -> None:
    (steps, _, first), (also_steps, losses, second) = pool.run(tasks.unequal_loaders, kind)
    assert steps == also_steps == 3
    assert losses == [0.0, 0.0]
    assert first == second


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_an_odd_batch_leaves_no_single_sample_for_batch_norm(pool: RankPool, kind: str) -> None:
    (first, finite), (second, also_finite) = pool.run(tasks.odd_batch_with_batch_norm, kind)
    assert finite
    assert also_finite
    assert first == (2, 2, 2)
    assert second == ((3, 2) if kind == "ddp" else (3, 2, 0))


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_an_evaluation_that_fits_only_one_rank_succeeds_on_both(pool: RankPool, kind: str) -> None:
    """Accumulated gradients are kept, and training continues."""
    assert pool.run(tasks.evaluated, kind) == [(0, True, True), (1, True, True)]


def test_a_sharded_model_is_evaluated_from_loaders_of_different_lengths(pool: RankPool) -> None:
    assert pool.run(tasks.evaluated_from_loaders) == [(True, 9, True), (True, 6, True)]


def test_a_single_rank_can_evaluate_a_replica(pool: RankPool) -> None:
    assert pool.run(tasks.evaluated_by_one_rank) == [None, pytest.approx(1.0, rel=1e-4)]


def test_all_ranks_stop_if_a_single_sample_cannot_be_evaluated_on_one_of_them(pool: RankPool) -> None:
    for message in pool.run(tasks.evaluation_that_does_not_fit):
        assert message.startswith("A single sample does not fit during evaluation on at least one rank")


def test_an_error_in_an_evaluation_stops_all_ranks_and_names_the_rank(pool: RankPool) -> None:
    first, second = pool.run(tasks.evaluated_with_an_error)
    assert second == "ValueError: label 7 is out of range"
    assert first.endswith("This rank stops because rank 1 stopped: ValueError: label 7 is out of range")
