"""Estimates without fork: each trace runs the script again in a new process, with the same results."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from legroom.errors import UsageError
from legroom.gpus.catalog import find_gpu
from legroom.observe.script import Script
from legroom.predict.script_estimate import estimate_script
from legroom.predict.tracing import time_limit
from legroom.predict.tracing.script import CannotTrace, TracedScript
from legroom.predict.tracing.worker_process import start_tracing
from legroom.processes import SpawnedProcess, can_fork

GPU = find_gpu("1GiB")

ARGUMENTS = """
import argparse, os
import torch
from torch.utils.data import DataLoader, TensorDataset

options = argparse.ArgumentParser()
options.add_argument("--batch-size", type=int, default=32)
size = options.parse_args().batch_size
os.mkdir("run")  # fails if another trace of the same script has left its folder
data = TensorDataset(torch.randn(128, 64), torch.randint(0, 10, (128,)))
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)).cuda()
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(2):
    for x, y in DataLoader(data, batch_size=size, num_workers=1, timeout=30):
        loss = torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        print([model(x.cuda()).sum() for x, _ in DataLoader(data, batch_size=64)])
"""

GAN = """
import torch

generator, critic = torch.nn.Linear(16, 64).cuda(), torch.nn.Linear(64, 1).cuda()
steps = torch.optim.Adam(generator.parameters()), torch.optim.Adam(critic.parameters())
for i in range(20):
    for player, step in enumerate(steps):
        loss = critic(generator(torch.randn(32, 16, device="cuda"))).mean()
        step.zero_grad()
        (loss if player else -loss).backward()
        step.step()
"""


@pytest.fixture
def without_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEGROOM_FORK", "off")


def with_and_without_fork(monkeypatch: pytest.MonkeyPatch, function: Callable[[], Any]) -> list[Any]:
    results = []
    for setting in ("on", "off"):
        monkeypatch.setenv("LEGROOM_FORK", setting)
        results.append(function())
    return results


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="there is no fork to compare with")
def test_an_estimate_and_its_largest_batch_are_the_same_without_fork(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "train.py"
    script.write_text(ARGUMENTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "legroom.predict.script_estimate.SEARCH_SECONDS", 600
    )  # the result must not depend on the load
    forked, spawned = with_and_without_fork(
        monkeypatch, lambda: estimate_script(Script(str(script)), GPU).as_json()
    )
    assert forked == spawned
    assert spawned["max_batch_size"] > 32
    assert not any("No validation" in note for note in spawned["notes"])
    assert spawned["batch_setting"]["name"] == "--batch-size"
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="there is no fork to compare with")
def test_a_trace_of_two_optimizers_is_the_same_without_fork(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "train.py"
    script.write_text(GAN)

    def trace() -> Any:
        with TracedScript(start_tracing(Script(str(script)), GPU), GPU) as traced:
            found = traced.trace()
        return found.steps, found.notes, [(type(event), getattr(event, "bytes", 0)) for event in found.events]

    forked, spawned = with_and_without_fork(monkeypatch, trace)
    assert len(spawned[2]) > 100
    assert forked == spawned


@pytest.mark.slow
def test_a_script_that_fails_without_fork_is_reported_with_its_output(
    tmp_path: Path, without_fork: None
) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('reading data'); raise ValueError('no data')")
    with TracedScript(start_tracing(Script(str(script)), GPU), GPU) as traced:
        with pytest.raises(CannotTrace, match=r"train.py:1, ValueError: no data") as failure:
            traced.trace()
    assert failure.value.output.startswith("reading data\n")


def test_forking_is_switched_off_by_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEGROOM_FORK", raising=False)
    assert can_fork() == (sys.platform == "linux")
    for system in ("darwin", "win32"):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "platform", system)
            assert not can_fork()
    monkeypatch.setenv("LEGROOM_FORK", "off")
    assert not can_fork()
    monkeypatch.setenv("LEGROOM_FORK", "never")
    with pytest.raises(UsageError, match="Set LEGROOM_FORK to `on` or `off`"):
        can_fork()


def test_a_time_limit_without_interval_timers_stops_the_main_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows has no interval timers."""
    import signal

    class ReachedError(Exception):
        pass

    def stop() -> None:
        raise ReachedError

    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(time_limit, "_HAS_TIMERS", False)
    limit = time_limit.TimeLimit()
    try:
        limit.set(stop, 60, processor_seconds=0.01)
        with pytest.raises(ReachedError):
            while True:
                sum(range(1000))
    finally:
        signal.signal(signal.SIGTERM, handler)


@pytest.mark.slow
def test_a_spawned_process_is_killed_with_the_processes_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "worker.py").write_text(
        "import subprocess, sys\n"
        "def work(pipe):\n"
        "    child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
        "    pipe.send((pipe.recv(), child.pid))\n"
        "    child.wait()\n"
        "def fail(pipe):\n"
        "    raise SystemExit('no such file')\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    process = SpawnedProcess("worker:work")
    process.pipe.send("hello")
    word, child = process.pipe.recv()
    assert word == "hello"
    started = psutil.Process(child)
    process.close()
    started.wait(10)

    output = tmp_path / "output.txt"
    failing = SpawnedProcess("worker:fail", output=output)
    with pytest.raises(EOFError):
        failing.pipe.recv()
    assert failing.wait() == 1
    assert output.read_text().strip() == "no such file"
    failing.close()
