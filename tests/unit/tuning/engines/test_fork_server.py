"""Trial processes that are forked from a server."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from legroom.tuning.engines import fork_server as fork_server_module
from legroom.tuning.engines.fork_server import TrialProcess, fork_server, wait_for_exit
from legroom.tuning.schedule.protocol import Action
from legroom.tuning.trial.function import TrainFunction
from legroom.tuning.trial.process import TrialExit, TrialTask
from legroom.tuning.trial.records import TrialState
from legroom.tuning.trial.trial import ReportMessage

pytestmark = pytest.mark.slow

FILE = Path(__file__).parents[1] / "tuned_functions.py"


@pytest.fixture(scope="module")
def server() -> str:
    return fork_server(TrainFunction.of(f"{FILE}:quadratic"))


def task(folder: Path, name: str = "quadratic", steps: int = 2) -> TrialTask:
    function = TrainFunction.of(f"{FILE}:{name}")
    return TrialTask(number=0, config={"x": 1, "steps": steps}, function=function, folder=str(folder))


def is_running(process: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:
        return False


def test_one_server_serves_several_functions(server: str) -> None:
    assert fork_server(TrainFunction.of(f"{FILE}:network")) == server


def test_the_server_imports_the_modules_of_a_later_function_before_it_forks(
    server: str, tmp_path: Path
) -> None:
    path = tmp_path / "later.py"
    path.write_text(
        "import sys\nwas_imported = 'wave' in sys.modules\nimport wave\n"
        "def train(config, trial):\n    return {'loss': float(was_imported)}\n"
    )
    function = TrainFunction.of(f"{path}:train")
    end = TrialProcess.start(
        server, TrialTask(number=0, config={}, function=function, folder=str(tmp_path))
    ).receive()
    assert isinstance(end, TrialExit)
    assert end.final == {"loss": 1.0}


def test_a_changed_sys_path_starts_another_server(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    process = SimpleNamespace(poll=lambda: None, terminate=lambda: None, wait=lambda: None)
    monkeypatch.setattr(fork_server_module, "_server", fork_server_module._server)
    monkeypatch.setattr(fork_server_module.subprocess, "Popen", lambda *_, **__: process)
    monkeypatch.setattr(sys, "path", [*sys.path, "/elsewhere"])
    assert fork_server(TrainFunction.of(f"{FILE}:quadratic")) != server


def test_a_trial_reports_receives_the_answer_and_ends(server: str, tmp_path: Path) -> None:
    process = TrialProcess.start(server, task(tmp_path))
    for step in (1, 2):
        message = process.receive()
        assert isinstance(message, ReportMessage)
        assert message.step == step
        process.answer(Action.CONTINUE)
    end = process.receive()
    assert isinstance(end, TrialExit)
    assert end.state is TrialState.FINISHED
    assert wait_for_exit(server, process.number) == 0


def test_another_process_can_use_the_same_server(server: str, tmp_path: Path) -> None:
    """A Ray worker uses the server in this way."""
    program = f"""
from legroom.tuning.engines.fork_server import TrialProcess
from legroom.tuning.trial.function import TrainFunction
from legroom.tuning.trial.process import TrialTask
function = TrainFunction.of({str(FILE) + ":raises_in_some"!r})
task = TrialTask(number=0, config={{"x": 4}}, function=function, folder={str(tmp_path)!r})
print(TrialProcess.start({server!r}, task).receive().final)
"""
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert output == "{'loss': 4.0}\n"


def test_the_reason_says_how_a_process_died(server: str, tmp_path: Path) -> None:
    exited = TrialProcess.start(server, task(tmp_path, "dies")).receive()
    assert isinstance(exited, TrialExit)
    assert exited.reason == "The process exited without a result (exit code 3)"
    process = TrialProcess.start(server, task(tmp_path, steps=10**9))
    process.receive()
    os.kill(process.number, signal.SIGKILL)
    killed = process.receive()
    assert isinstance(killed, TrialExit)
    assert killed.reason.startswith("The process was killed (signal 9)")


def test_a_killed_trial_has_exited_when_kill_returns(server: str, tmp_path: Path) -> None:
    process = TrialProcess.start(server, task(tmp_path, steps=10**9))
    process.receive()
    process.kill()
    assert not is_running(process.number)


@pytest.mark.skipif(sys.platform != "linux", reason="on other systems, a trial exits at its next report")
def test_a_trial_exits_when_its_pipe_is_closed(server: str, tmp_path: Path) -> None:
    process = TrialProcess.start(server, task(tmp_path, "sleeps"))
    process.pipe.close()
    assert wait_for_exit(server, process.number) == 1


def test_the_server_does_not_kill_processes_that_it_did_not_fork(server: str) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    assert wait_for_exit(server, bystander.pid, kill=True) == 1
    time.sleep(0.1)
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()


def test_a_process_that_was_not_forked_is_reported_when_it_dies(tmp_path: Path) -> None:
    process = TrialProcess.start(None, task(tmp_path, "dies"))
    exited = process.receive()
    assert isinstance(exited, TrialExit)
    assert exited.reason == "The process exited without a result (exit code 3)"
    process.kill()
