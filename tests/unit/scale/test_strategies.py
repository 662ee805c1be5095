"""Every strategy has the losses, weights and predictions of a single process."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from bench.lib.rank_pool import RankPool
from tests.unit.scale import parallel_tasks as tasks

import legroom

pytestmark = pytest.mark.ranks

TOLERANCE = 2e-6


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(2) as pool:
        yield pool


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    return tasks.train("ddp")


def assert_same(results: list[dict[str, Any]], reference: dict[str, Any]) -> None:
    seen: set[str] = set()
    for result in results:
        assert result["losses"] == pytest.approx(reference["losses"], abs=TOLERANCE)
        assert result["predicted"] == reference["predicted"]
        assert result["epoch"] == reference["epoch"]
        assert_weights([result], reference)
        seen |= set(result["weights"])
    assert seen >= {name for name in reference["weights"] if "unused" not in name}


def assert_weights(results: list[dict[str, Any]], reference: dict[str, Any]) -> None:
    for result in results:
        for name, weights in result["weights"].items():
            expected = reference["weights"].get(
                name, reference["weights"]["embed.weight"]
            )  # the tied head, under its own name
            torch.testing.assert_close(torch.tensor(weights), torch.tensor(expected), rtol=0, atol=TOLERANCE)


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
def test_two_ranks_have_the_results_of_one_process(
    pool: RankPool, reference: dict[str, Any], strategy: str, options: dict[str, Any]
) -> None:
    results = pool.run(tasks.train, strategy, options)
    assert {result["strategy"] for result in results} == {strategy}
    assert_same(results, reference)


@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize(
    ("strategy", "shares"), [("split", None), ("dp", None), ("dp", [0, 1, 1, 1]), ("dp", [1, 3, 2, 0])]
)
def test_one_process_with_several_gpus_has_the_results_of_the_cpu(
    reference: dict[str, Any], strategy: str, shares: list[float] | None, devices: int
) -> None:
    with legroom.VirtualGPU(*["64MiB"] * devices):
        result = tasks.train(strategy, {"shares": shares and shares[:devices]})
    assert result["strategy"] == strategy
    assert_same([result], reference)


@pytest.mark.parametrize(("strategy", "options"), [("ddp", {"shares": [3, 1]}), ("fsdp", {})])
def test_guarded_steps_have_the_same_weighting(
    pool: RankPool, reference: dict[str, Any], strategy: str, options: dict[str, Any]
) -> None:
    assert_same(pool.run(tasks.guarded, strategy, options), reference)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "pipeline"])
def test_a_mean_over_tokens_includes_the_tokens_of_all_ranks(pool: RankPool, strategy: str) -> None:
    assert_weights(pool.run(tasks.by_tokens, strategy), tasks.by_tokens("ddp"))


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "pipeline"])
def test_gradients_are_clipped_by_their_norm_over_all_ranks(pool: RankPool, strategy: str) -> None:
    options = {"clip_norm": 0.05}
    assert_same(pool.run(tasks.train, strategy, options), tasks.train("ddp", options))


def test_values_are_gathered_from_all_ranks(pool: RankPool) -> None:
    first, second = pool.run(tasks.gathered, "ddp")
    assert first["samples"] == second["samples"] == [[0, 1], [10, 11], [12, 13]]
    assert first["number"] == [0.0, 1.0]
    assert first["text"] == ["rank 0", "rank 1"]
    assert (first["is_main"], second["is_main"]) == (True, False)


def test_sharded_weights_and_state_load_in_a_pipeline(pool: RankPool, tmp_path: Path) -> None:
    for continued, resumed in pool.run(tasks.fsdp_to_pipeline, str(tmp_path / "saved")):
        assert resumed == pytest.approx(continued, abs=TOLERANCE)


@pytest.mark.parametrize(
    ("strategy", "options", "message"),
    [
        (
            "dp",
            {},
            "strategy='dp' requires a single process with several GPUs, but 2 processes were started. Use 'ddp'",
        ),
        (
            "split",
            {},
            "strategy='split' requires a single process with several GPUs, but 2 processes were started. Use 'pipeline'",
        ),
        ("pipeline", {}, "strategy='pipeline' needs one batch"),
        ("ddp", {"shares": [1, 1, 1]}, "shares= must contain one number per device: expected 2, got 3"),
        ("fsdp", {"precision": "fp16"}, "Use 'bf16'"),
        ("ddp", {"batch": (torch.randn(2, 1), torch.zeros(2))}, "Expected tensor for argument #1 'indices'"),
    ],
)
def test_invalid_options_are_rejected_on_every_rank(
    pool: RankPool, strategy: str, options: dict[str, Any], message: str
) -> None:
    for error in pool.run(tasks.rejected, strategy, options):
        assert message in error


def test_unused_parameters_are_explained_if_ddp_waits_for_them(pool: RankPool) -> None:
    assert pool.run(tasks.unused_without_batch, {"find_unused_parameters": True}) == ["", ""]
    for error in pool.run(tasks.unused_without_batch, {}):
        assert "left parameters without a gradient" in error
        assert "find_unused_parameters=True" in error


@pytest.fixture(scope="module")
def unequal_pool() -> Iterator[RankPool]:
    with RankPool(2, gpu="256MiB,128MiB") as pool:
        yield pool


def test_the_stages_of_a_pipeline_are_even_and_as_predicted(unequal_pool: RankPool) -> None:
    results = unequal_pool.run(tasks.peaks, "pipeline")
    measured = [peak for peak, *_ in results]
    assert max(measured) < 1.1 * min(measured)
    for peak, predicted, *_ in results:
        assert predicted == pytest.approx(peak, rel=0.05)


def test_the_smaller_gpu_gets_fewer_samples(unequal_pool: RankPool) -> None:
    (large, _, _, shares), (small, *_) = unequal_pool.run(tasks.peaks, "ddp")
    assert shares[1] < 0.6 * shares[0]
    assert small < large


def test_auto_selects_the_cheapest_strategy_that_fits(unequal_pool: RankPool) -> None:
    assert {strategy for _, _, strategy, _ in unequal_pool.run(tasks.peaks, "auto")} == {"ddp"}
