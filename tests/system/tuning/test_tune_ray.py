"""Studies on Ray Tune. All tests share one Ray instance, and most run one trial at a time, because each start of Ray or
of a worker takes seconds."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import tune as ray_tune

from legroom.cli import main
from legroom.errors import UsageError
from legroom.show.tune import html_report
from legroom.tuning.api import tune
from legroom.tuning.trial.records import TrialState
from legroom.units import MiB

pytestmark = [pytest.mark.ray, pytest.mark.slow]

FUNCTIONS = """
import os
import torch

def train(config, trial):
    if config["kind"] == "bad":
        raise ValueError("no luck")
    start = trial.load_checkpoint() or {"epoch": 0}
    for epoch in range(start["epoch"], 3):
        trial.report(loss=config["lr"] / (epoch + 1), checkpoint={"epoch": epoch + 1})

def processes(config, trial):
    if config["x"] == 2:
        os._exit(3)
    trial.report(loss=config["x"], process=os.getpid(), server=os.getppid())

def silent(config, trial):
    trial.report(accuracy=0.5)

def wide(config, trial):
    model = torch.nn.Linear(config["width"], config["width"]).to(trial.device)
    guard = trial.guard(model, torch.optim.SGD(model.parameters(), lr=0.1))
    rows = torch.ones(config["batch_size"], config["width"], device=trial.device)
    for _ in range(3):
        loss = guard.step(lambda x: torch.tanh(torch.tanh(model(x))).square().mean(), rows)
    trial.report(loss=float(loss))

def ranks(config, trial):
    total = torch.tensor([trial.rank + 1.0])
    torch.distributed.all_reduce(total)
    if config["kind"] == "dies" and trial.rank == 1:
        os.kill(os.getpid(), 9)
    for step in range(4):
        torch.distributed.all_reduce(total)
        trial.report(loss=total.item())

def population(config, trial):
    weight = trial.load_checkpoint() or 10.0
    for _ in range(trial.step, 4):
        weight *= config["factor"]
        trial.report(loss=weight, checkpoint=weight)
"""


@pytest.fixture(scope="module", autouse=True)
def running_ray() -> Iterator[None]:
    before = os.environ.get("RAY_USAGE_STATS_ENABLED")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()
    if before is None:
        del os.environ["RAY_USAGE_STATS_ENABLED"]


@pytest.fixture
def functions(tmp_path: Path) -> str:
    file = tmp_path / "functions.py"
    file.write_text(FUNCTIONS)
    return str(file)


def plain(config: dict[str, Any]) -> None:
    for step in range(2):
        ray_tune.report({"loss": config["lr"] / (step + 1)})


def test_a_worker_is_reused_and_every_trial_has_its_own_process(functions: str, tmp_path: Path) -> None:
    study = tune(
        f"{functions}:processes", {"x": {"int": [0, 3]}}, search="grid", parallel=1, engine="ray", gpu="cpu", storage=tmp_path / "study"
    )  # fmt: skip
    assert [trial.state for trial in study.trials] == [
        *[TrialState.FINISHED] * 2,
        TrialState.FAILED,
        TrialState.FINISHED,
    ]
    assert study.trials[2].reason == "The process exited without a result (exit code 3)"
    metrics = [trial.reports[0].metrics for trial in study.trials if trial.reports]
    assert len({each["process"] for each in metrics}) == 3
    assert len({each["server"] for each in metrics}) == 1


def test_a_trial_that_raises_fails_and_the_others_continue(functions: str, tmp_path: Path) -> None:
    study = tune(
        f"{functions}:train", {"lr": [0.5], "kind": ["bad", "good"]},
        metric="loss", search="grid", scheduler="asha", parallel=1, engine="ray", storage=tmp_path / "study",
    )  # fmt: skip
    bad, good = study.trials
    assert (bad.state, bad.reason) == (TrialState.FAILED, "ValueError: no luck, functions.py:7")
    assert (good.state, good.step) == (TrialState.FINISHED, 3)
    assert study.best_checkpoint is not None
    assert Path(study.best_checkpoint).exists()
    assert "no luck" in html_report.write(study, tmp_path / "report.html").read_text()
    assert ray.is_initialized(), "a Ray instance of the caller is not stopped"


def test_an_existing_tuner_runs_unchanged(tmp_path: Path) -> None:
    given = ray_tune.Tuner(
        plain,
        param_space={"lr": ray_tune.uniform(0.1, 1.0)},
        tune_config=ray_tune.TuneConfig(metric="loss", mode="min", num_samples=2),
    )
    study = tune(given, storage=tmp_path / "study")
    assert [trial.state for trial in study.trials] == [TrialState.FINISHED] * 2
    first = study.trials[0]
    assert [report.metrics for report in first.reports] == [
        {"loss": first.config["lr"]},
        {"loss": first.config["lr"] / 2},
    ]


def test_a_script_that_calls_fit_runs_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The script has no main guard, so loading its function must not import the script again."""
    script = tmp_path / "script.py"
    script.write_text(
        "from ray import tune\n"
        "def train(config):\n"
        "    tune.report({'loss': config['x'] ** 2})\n"
        "tuner = tune.Tuner(train, param_space={'x': tune.grid_search([1, 2, 3])},\n"
        "                   tune_config=tune.TuneConfig(metric='loss', mode='min'))\n"
        "results = tuner.fit()\n"
        "print(results.get_best_result().config, len(results), list(results.get_dataframe()['loss']), results.num_errors)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["tune", "script.py", "--gpu", "cpu"]) == 0
    assert "{'x': 1} 3 [1.0, 4.0, 9.0] 0" in capsys.readouterr().out


def test_a_metric_that_is_never_reported_is_an_error(functions: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        tune(
            f"{functions}:silent",
            {"lr": [0.1, 0.2]},
            metric="loss",
            trials=1,
            engine="ray",
            storage=tmp_path / "study",
        )
    assert "Never reported `loss`, only accuracy" in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_trials_are_split_or_rejected_on_a_small_gpu(functions: str, tmp_path: Path) -> None:
    space = {"width": [64, 4096], "batch_size": [16, 65536]}
    study = tune(
        f"{functions}:wide",
        space,
        metric="loss",
        search="grid",
        gpu="48MiB",
        parallel=1,
        engine="ray",
        storage=tmp_path / "study",
    )
    states = {(trial.config["width"], trial.config["batch_size"]): trial for trial in study.trials}
    assert states[64, 16].state is TrialState.FINISHED
    assert states[64, 16].memory.micro_batch is None
    split = states[64, 65536]
    assert split.state is TrialState.FINISHED
    assert split.memory.micro_batch is not None
    assert split.memory.actual is not None
    assert split.memory.actual <= 48 * MiB
    for too_wide in (states[4096, 16], states[4096, 65536]):
        assert too_wide.state is TrialState.NEVER_FITS
        assert too_wide.attempts == 0


def test_a_dying_rank_ends_the_trial(functions: str, tmp_path: Path) -> None:
    study = tune(
        f"{functions}:ranks", {"kind": ["dies", "lives"]},
        metric="loss", search="grid", ranks=2, gpu="cpu", engine="ray", storage=tmp_path / "study",
    )  # fmt: skip
    dead, alive = study.trials
    assert dead.state is TrialState.FAILED
    assert dead.reason.startswith("The process of rank 1 exited without a result")
    assert alive.state is TrialState.FINISHED
    assert [report.metrics["loss"] for report in alive.reports] == [6.0, 12.0, 24.0, 48.0]


def test_a_population_copies_weights_on_ray(functions: str, tmp_path: Path) -> None:
    """After two steps, the second trial is worse than the first trial after four steps, for any factors in the
    space."""
    study = tune(
        f"{functions}:population", {"factor": {"uniform": [0.5, 0.7]}},
        metric="loss", scheduler="pbt", interval=2, trials=2, parallel=1, engine="ray", storage=tmp_path / "study",
    )  # fmt: skip
    first, copy = study.trials
    assert [(trial.state, trial.step) for trial in study.trials] == [(TrialState.FINISHED, 4)] * 2
    assert copy.parent == 0
    inherited = first.reports[3].metrics["loss"]
    assert copy.reports[2].metrics["loss"] == pytest.approx(inherited * copy.config["factor"])
