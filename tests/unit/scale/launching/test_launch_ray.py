"""A launch on Ray without a cluster fails at once, with advice."""

import socket
from pathlib import Path

import pytest

from legroom.errors import UsageError
from legroom.observe.script import Script
from legroom.scale.launching.folder import LaunchFolder
from legroom.scale.launching.plan import plan_launch
from legroom.scale.launching.ray_engine import run_ray

pytestmark = pytest.mark.ray

pytest.importorskip("ray.train")


def launch(folder: Path, nodes: str) -> None:
    script = folder / "train.py"
    script.write_text("raise AssertionError('it was started')")
    plan = plan_launch(Script(str(script), ()), nproc=2, gpus=(), real_gpus=0, nodes=nodes, engine="ray")
    run_ray(plan, LaunchFolder(folder), on_start=lambda *_: None, on_end=lambda *_: None)


def test_an_unreachable_cluster_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as bound:  # a port without a listener
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        monkeypatch.setattr("ray.is_initialized", lambda: False)  # other tests may have started it
        with pytest.raises(
            UsageError, match=rf"no Ray cluster at {address}.*Without RAY_ADDRESS and --nodes, the ranks run"
        ):
            launch(tmp_path, nodes="1")


def test_several_nodes_without_a_local_cluster_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**options: object) -> None:
        raise ConnectionError("Could not find any running Ray instance.")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("ray.init", fail)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with pytest.raises(
        UsageError, match=r"no Ray cluster on this machine.*`ray start --address` on the other nodes"
    ):
        launch(tmp_path, nodes="2")
