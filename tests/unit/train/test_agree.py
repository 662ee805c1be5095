"""Out of memory on one rank: nobody hangs, and all do the same step again, smaller."""

from collections.abc import Iterator
from typing import Any

import pytest
import rank_tasks as tasks
from bench.rank_pool import RankPool


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(2) as pool:
        yield pool


def same_and_true(results: list[Any]) -> list[tuple[int, int]]:
    """All ranks tell the same story and hold the same parameters, and each has what a plain run would have."""
    stories = [story for story, *_ in results]
    assert stories[1:] == stories[:-1]
    assert all(held == results[0][1] for _, held, _, _ in results)
    for _, _, state, truth in results:
        assert state == truth
    return stories[0]


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
