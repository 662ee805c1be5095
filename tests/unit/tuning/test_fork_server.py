"""Processes of trials: forked from one server, however many ask, and gone when nobody hears them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from legroom.tuning.engines import fork_server as fork_server_module
from legroom.tuning.engines.fork_server import TrialProcess, ended, fork_server
from legroom.tuning.schedule.schedulers import Action
from legroom.tuning.trial.function import TrainFunction
from legroom.tuning.trial.process import Order, TrialEnd
from legroom.tuning.trial.records import TrialState
from legroom.tuning.trial.trial import Reported

FILE = Path(__file__).with_name("tuned_functions.py")


@pytest.fixture(scope="module")
def server() -> str:
    return fork_server(TrainFunction.of(f"{FILE}:quadratic"))


def order(folder: Path, name: str = "quadratic", steps: int = 2) -> Order:
    function = TrainFunction.of(f"{FILE}:{name}")
    return Order(number=0, config={"x": 1, "steps": steps}, function=function, folder=str(folder))


def lives(process: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:
        return False


def test_a_process_that_searches_has_one_server(server: str) -> None:
    assert fork_server(TrainFunction.of(f"{FILE}:network")) == server


def test_where_modules_are_found_elsewhere_there_is_another_server(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = SimpleNamespace(poll=lambda: None, terminate=lambda: None, wait=lambda: None)
    monkeypatch.setattr(fork_server_module, "_server", fork_server_module._server)
    monkeypatch.setattr(fork_server_module.subprocess, "Popen", lambda *_, **__: nobody)
    monkeypatch.setattr(sys, "path", [*sys.path, "/elsewhere"])
    assert fork_server(TrainFunction.of(f"{FILE}:quadratic")) != server


def test_a_trial_reports_hears_the_answer_and_ends(server: str, tmp_path: Path) -> None:
    process = TrialProcess.start(server, order(tmp_path))
    for step in (1, 2):
        told = process.hear()
        assert isinstance(told, Reported)
        assert told.step == step
        process.answer(Action.GO_ON)
    end = process.hear()
    assert isinstance(end, TrialEnd)
    assert end.state is TrialState.FINISHED
    assert ended(server, process.number) == 0


def test_another_process_can_have_a_trial_from_the_same_server(server: str, tmp_path: Path) -> None:
    """As a worker of Ray's does."""
    program = f"""
from legroom.tuning import fork_server as fork_server_module
from legroom.tuning.engines.fork_server import TrialProcess
from legroom.tuning.trial.function import TrainFunction
from legroom.tuning.trial.process import Order
function = TrainFunction.of({str(FILE) + ":raises_in_some"!r})
order = Order(number=0, config={{"x": 4}}, function=function, folder={str(tmp_path)!r})
print(TrialProcess.start({server!r}, order).hear().final)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said == "{'loss': 4.0}\n"


def test_how_a_process_died_is_told(server: str, tmp_path: Path) -> None:
    by_itself = TrialProcess.start(server, order(tmp_path, "dies")).hear()
    assert isinstance(by_itself, TrialEnd)
    assert by_itself.why == "its process ended without a word (exit code 3)"
    process = TrialProcess.start(server, order(tmp_path, steps=10**9))
    process.hear()
    os.kill(process.number, signal.SIGKILL)
    killed = process.hear()
    assert isinstance(killed, TrialEnd)
    assert killed.why.startswith("its process was killed (signal 9)")


def test_a_trial_that_is_ended_is_gone_when_that_returns(server: str, tmp_path: Path) -> None:
    process = TrialProcess.start(server, order(tmp_path, steps=10**9))
    process.hear()
    process.kill()
    assert not lives(process.number)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a trial learns it at its next report")
def test_a_trial_that_nobody_hears_any_more_ends(server: str, tmp_path: Path) -> None:
    process = TrialProcess.start(server, order(tmp_path, "sleeps"))
    process.pipe.close()
    assert ended(server, process.number) == 1


def test_a_process_that_it_never_forked_is_left_alone(server: str) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    assert ended(server, bystander.pid, kill=True) == 1
    time.sleep(0.1)
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()
