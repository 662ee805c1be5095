"""Every strategy trains what one process would: the same losses, the same weights, the same predictions."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from bench.lib.rank_pool import RankPool
from tests.unit.scale import parallel_tasks as tasks

import legroom

NEAR = 2e-6


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(2) as pool:
        yield pool


@pytest.fixture(scope="module")
def truth() -> dict[str, Any]:
    return tasks.train("ddp")


def assert_same(results: list[dict[str, Any]], truth: dict[str, Any]) -> None:
    seen: set[str] = set()
    for result in results:
        assert result["losses"] == pytest.approx(truth["losses"], abs=NEAR)
        assert result["predicted"] == truth["predicted"]
        assert result["epoch"] == truth["epoch"]
        assert_weights([result], truth)
        seen |= set(result["weights"])
    assert seen >= {name for name in truth["weights"] if "unused" not in name}


def assert_weights(results: list[dict[str, Any]], truth: dict[str, Any]) -> None:
    for result in results:
        for name, weights in result["weights"].items():
            true = truth["weights"].get(
                name, truth["weights"]["embed.weight"]
            )  # the head's, under its own name
            torch.testing.assert_close(torch.tensor(weights), torch.tensor(true), rtol=0, atol=NEAR)


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("ddp", {}),
        ("ddp", {"shares": [3, 1]}),
        ("fsdp", {}),
        ("fsdp", {"shares": [1, 4]}),
        ("pipeline", {}),
        ("pipeline", {"schedule": "gpipe", "micro_batches": 4}),
        ("pipeline", {"micro_batches": 3}),
    ],
)
def test_two_ranks_train_what_one_process_does(
    pool: RankPool, truth: dict[str, Any], strategy: str, options: dict[str, Any]
) -> None:
    results = pool.run(tasks.train, strategy, options)
    assert {result["strategy"] for result in results} == {strategy}
    assert_same(results, truth)


@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize(
    ("strategy", "shares"), [("split", None), ("dp", None), ("dp", [0, 1, 1, 1]), ("dp", [1, 3, 2, 0])]
)
def test_one_process_with_several_gpus_trains_what_one_with_none_does(
    truth: dict[str, Any], strategy: str, shares: list[float] | None, devices: int
) -> None:
    with legroom.VirtualGPU(*["64MiB"] * devices):
        result = tasks.train(strategy, {"shares": shares and shares[:devices]})
    assert result["strategy"] == strategy
    assert_same([result], truth)


@pytest.mark.parametrize(("strategy", "options"), [("ddp", {"shares": [3, 1]}), ("fsdp", {})])
def test_guarded_steps_weigh_rows_as_plain_ones_do(
    pool: RankPool, truth: dict[str, Any], strategy: str, options: dict[str, Any]
) -> None:
    assert_same(pool.run(tasks.guarded, strategy, options), truth)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "pipeline"])
def test_a_mean_over_tokens_is_one_over_all_ranks_tokens(pool: RankPool, strategy: str) -> None:
    assert_weights(pool.run(tasks.by_tokens, strategy), tasks.by_tokens("ddp"))


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "pipeline"])
def test_gradients_are_clipped_by_their_norm_over_all_ranks(pool: RankPool, strategy: str) -> None:
    options = {"clip_norm": 0.05}
    assert_same(pool.run(tasks.train, strategy, options), tasks.train("ddp", options))


def test_what_every_rank_has_is_put_together(pool: RankPool) -> None:
    first, second = pool.run(tasks.gathered, "ddp")
    assert first["rows"] == second["rows"] == [[0, 1], [10, 11], [12, 13]]
    assert first["number"] == [0.0, 1.0]
    assert first["word"] == ["rank 0", "rank 1"]
    assert (first["main"], second["main"]) == (True, False)


def test_sharded_weights_and_state_go_over_to_a_pipeline(pool: RankPool, tmp_path: Path) -> None:
    for went_on, resumed in pool.run(tasks.moved_over, str(tmp_path / "saved")):
        assert resumed == pytest.approx(went_on, abs=NEAR)


@pytest.mark.parametrize(
    ("strategy", "options", "sentence"),
    [
        ("dp", {}, "strategy='dp' is for one process with several GPUs, and 2 were started: use 'ddp'"),
        (
            "split",
            {},
            "strategy='split' is for one process with several GPUs, and 2 were started: use 'pipeline'",
        ),
        ("pipeline", {}, "strategy='pipeline' needs batch="),
        ("ddp", {"shares": [1, 1, 1]}, "shares= has 3 numbers for 2 devices"),
        ("fsdp", {"precision": "fp16"}, "use 'bf16'"),
    ],
)
def test_what_cannot_be_is_refused_on_every_rank(
    pool: RankPool, strategy: str, options: dict[str, Any], sentence: str
) -> None:
    for told in pool.run(tasks.refused, strategy, options):
        assert sentence in told


@pytest.fixture(scope="module")
def unequal_pool() -> Iterator[RankPool]:
    with RankPool(2, gpu="256MiB,128MiB") as pool:
        yield pool


def test_a_pipelines_stages_are_even_and_as_foreseen(unequal_pool: RankPool) -> None:
    told = unequal_pool.run(tasks.peaks, "pipeline")
    measured = [peak for peak, *_ in told]
    assert max(measured) < 1.1 * min(measured)
    for peak, foreseen, *_ in told:
        assert foreseen == pytest.approx(peak, rel=0.05)


def test_the_smaller_gpu_gets_fewer_rows(unequal_pool: RankPool) -> None:
    (large, _, _, shares), (small, *_) = unequal_pool.run(tasks.peaks, "ddp")
    assert shares[1] < 0.6 * shares[0]
    assert small < large


def test_auto_takes_the_cheapest_strategy_that_fits(unequal_pool: RankPool) -> None:
    assert {strategy for _, _, strategy, _ in unequal_pool.run(tasks.peaks, "auto")} == {"ddp"}
