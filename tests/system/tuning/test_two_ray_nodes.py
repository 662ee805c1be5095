"""A Ray cluster of two nodes: trials and ranks are placed on both."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from legroom.cli import main
from legroom.tuning.api import tune
from legroom.tuning.trial.records import TrialState

pytestmark = [pytest.mark.ray, pytest.mark.ranks, pytest.mark.slow]

WIDE = """
import os
import time
import torch

def train(config, trial):
    model = torch.nn.Linear(config["width"], config["width"]).to(trial.device)
    model(torch.ones(16, config["width"], device=trial.device)).sum().backward()
    time.sleep(1)  # the other trial starts in the meantime
    # Each node has its own raylet. Calls of Ray would start a cluster in each trace, which has no node.
    trial.report(loss=config["x"], raylet=int(os.environ.get("RAY_RAYLET_PID", "0")))
"""
PLACED = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("sum", total.item(), flush=True)
dist.destroy_process_group()
"""


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    node = {"num_cpus": 1, "num_gpus": 0, "object_store_memory": 80_000_000, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    cluster.add_node(num_cpus=1, num_gpus=0, object_store_memory=80_000_000)
    cluster.wait_for_nodes()
    yield cluster.address
    cluster.shutdown()


def test_trials_and_ranks_are_placed_on_both_nodes(address, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Path("wide.py").write_text(WIDE)
    Path("placed.py").write_text(PLACED)
    study = tune(
        "wide.py:train", {"x": [1, 2], "width": [64, 8192]},
        search="grid", gpu="48MiB,48MiB", address=address, storage=tmp_path / "study",
    )  # fmt: skip
    states = {tuple(trial.config.values()): trial.state for trial in study.trials}
    assert states == {
        (1, 64): TrialState.FINISHED, (2, 64): TrialState.FINISHED,
        (1, 8192): TrialState.NEVER_FITS, (2, 8192): TrialState.NEVER_FITS,
    }  # fmt: skip
    raylets = {trial.reports[0].metrics["raylet"] for trial in study.trials if trial.reports}
    assert len(raylets) == 2
    assert 0 not in raylets

    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    code = main(["launch", "--engine", "ray", "--nproc", "2", "placed.py"])
    output = capsys.readouterr()
    assert code == 0
    assert sorted(output.out.splitlines()) == ["[0] sum 2.0", "[1] sum 2.0"]  # one CPU and rank on each node
