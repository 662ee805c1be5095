"""The recipes with several GPUs, hyperparameter searches and logs. If possible, ranks run one after another in this
process."""

import inspect
from typing import Any

import pytest
import torch
from ray import tune as ray_tune
from tests.system.conftest import free_port

from legroom.tuning.trial.records import TrialState
from legroom.units import MiB
from recipe_runs import RecipeRunner


@pytest.fixture
def programs(tmp_path, monkeypatch, capfd, caplog) -> RecipeRunner:
    return RecipeRunner(tmp_path, monkeypatch, capfd, caplog)


def peaks(run: Any) -> list[float]:
    return [device.peak_allocated / MiB for device in run.report.devices]


# --- several GPUs


def test_the_coordinator_of_data_parallel_runs_out_of_memory_and_ddp_has_none(programs):
    original = programs.run("data_parallel", "original")
    assert original.report.oom is not None
    first, second = peaks(original)
    assert first > 2 * second
    ranks = programs.in_turn("data_parallel", "improved")
    assert [rank.exit_code for rank in ranks] == [0, 0]
    assert max(peaks(ranks[0])) == max(peaks(ranks[1])) < 64


def test_the_distributed_sampler_repeats_a_sample_and_the_order_and_the_loader_does_not(programs):
    pattern = r"rank \d: (\d+) of 1797 samples"
    original = programs.in_turn("distributed_data_parallel", "original")
    assert sum(rank.number(pattern) for rank in original) == 1798
    assert all("the same order in the second epoch" in rank.output for rank in original)
    improved = programs.in_turn("distributed_data_parallel", "improved")
    assert sum(rank.number(pattern) for rank in improved) == 1797
    assert all("another order in the second epoch" in rank.output for rank in improved)


def test_a_split_that_legroom_plans_fits_where_a_split_by_hand_does_not(programs):
    original, improved = programs("model_parallel")
    assert original.report.oom is not None
    assert peaks(original)[1] < 2
    assert improved.exit_code == 0
    assert max(peaks(improved)) < 1.2 * min(peaks(improved))


@pytest.mark.ranks
def test_a_pipeline_keeps_fewer_activations_than_a_split_batch(programs):
    original = programs.run("pipeline_parallel", "original")
    assert original.report.oom is not None
    ranks = programs.launch("pipeline_parallel", "improved")
    assert [rank.exit_code for rank in ranks] == [0, 0]
    assert [rank.report.steps for rank in ranks] == [2, 2]
    assert min(rank.peak for rank in ranks) > 4 << 20  # the peak of a rank is that of its own GPU
    assert max(rank.peak for rank in ranks) < original.peak / 2


def test_a_missing_machine_is_reported(programs):
    """The test uses free ports, because another test run may use the ports in the programs."""
    address = f"127.0.0.1:{free_port()}"
    assert programs.run("several_machines", "original", "--init-method", f"tcp://{address}").exit_code == 0
    assert not programs.launch("several_machines", "improved", "--rendezvous", f"localhost:{free_port()}")


# --- hyperparameter searches


def states(result: Any) -> list[TrialState]:
    return [trial.state for trial in result.study.trials]


def test_a_grid_loses_no_combination_to_memory(programs):
    original = programs.tune("grid_search", "original")
    assert states(original).count(TrialState.NEVER_FITS) == 2
    improved = programs.tune("grid_search", "improved")
    assert states(improved) == [TrialState.FINISHED] * 4
    assert sum(trial.memory.micro_batch is not None for trial in improved.study.trials) == 2


def test_a_random_search_on_a_logarithmic_scale_tries_small_learning_rates(programs):
    original = programs.tune("random_search", "original")
    improved = programs.tune("random_search", "improved")
    rates = [[trial.config["lr"] for trial in result.study.trials] for result in (original, improved)]
    small = [sum(rate < 0.01 for rate in each) for each in rates]
    assert small[0] < small[1]


def test_a_bayesian_search_on_a_logarithmic_scale_tries_small_learning_rates(programs):
    original = programs.tune("bayesian_search", "original")
    improved = programs.tune("bayesian_search", "improved")
    rates = [[trial.config["lr"] for trial in result.study.trials] for result in (original, improved)]
    small = [sum(rate < 0.01 for rate in each) for each in rates]
    assert small[0] < small[1]
    assert all(isinstance(trial.config["l1"], float) for trial in original.study.trials)
    assert all(isinstance(trial.config["l1"], int) for trial in improved.study.trials)


def test_only_trials_that_use_a_momentum_have_one(programs):
    original = programs.tune("hyperopt_search", "original")
    assert all("momentum" in trial.config for trial in original.study.trials)
    for trial in programs.tune("hyperopt_search", "improved").study.trials:
        assert ("momentum" in trial.config) == (trial.config["optimizer"] == "sgd")


def test_asha_stops_trials_with_the_old_and_the_new_interface(programs):
    assert "loss" not in inspect.signature(ray_tune.report).parameters, "Ray itself rejects the original"
    for program in ("original", "improved"):
        study = programs.tune("asha_scheduler", program).study
        assert study.scheduler == "asha"
        assert max(trial.step for trial in study.trials) == 8
        assert sum(trial.step for trial in study.trials) < 6 * 8
    assert torch.load(study.best_checkpoint)["net"].keys() >= {"0.weight"}


# --- logs


def test_the_log_of_legroom_has_the_peak_inside_a_step(programs, tmp_path):
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    programs("logging")

    def logged(program: str, name: str) -> float:
        events = accumulators.EventAccumulator(str(tmp_path / "runs" / program))
        events.Reload()
        return max(event.value for event in events.Scalars(name))

    assert logged("original", "memory") == pytest.approx(logged("improved", "memory/allocated_mib"), abs=0.1)
    assert logged("improved", "memory/peak_allocated_mib") > 5 * logged("original", "memory")
