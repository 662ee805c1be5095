"""A server and its workers: starting, requests, and killing."""

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import legroom
from legroom.predict.tracing.worker_process import WorkerProcess
from legroom.predict.tracing.workers.forked import ForkedWorkers

pytestmark = pytest.mark.slow

SOURCES = str(Path(legroom.__file__).parents[1])
Start = Callable[..., WorkerProcess]
Serve = Callable[[str], ForkedWorkers]

HEAD = """
import os, subprocess, sys, time
print("imported by", os.getpid())
"""
ECHO = f"""{HEAD}
def run(job, pipe):
    while True:
        words = (job["gpu"], job["folder"], os.environ.get("WORD"), os.getcwd(), os.getpid())
        pipe.send((*words, pipe.recv()))
"""
FAILING = f"""{HEAD}
def run(job, pipe):
    print("a line before")
    raise SystemExit("no such file")
"""
CHILD = f"""{HEAD}
def run(job, pipe):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    pipe.send(child.pid)
    child.wait()
"""
TERMINAL = f"""{HEAD}
def run(job, pipe):
    rows, columns = os.popen("stty size").read().split()
    lines = [sys.stdin.readline() for _ in range(3)]
    pipe.send((int(columns), int(rows), lines, sys.stdin.isatty()))
"""
SLEEP = f"""{HEAD}
from legroom.predict.tracing.running_line import report_running_line
def run(job, pipe):
    report_running_line(job["folder"])
    pipe.send("ready")
    time.sleep(60)
"""


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Starts a server whose workers run the given source."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), SOURCES)))
    with contextlib.ExitStack() as stack:

        def serving(source: str) -> ForkedWorkers:
            (tmp_path / "worker.py").write_text(source)
            server = ForkedWorkers("worker:run")
            stack.callback(server.close)
            return server

        yield serving


@pytest.fixture
def start(serve: Serve) -> Iterator[Start]:
    """Starts a worker that runs the given source."""
    with contextlib.ExitStack() as stack:

        def started(source: str) -> WorkerProcess:
            worker = serve(source).start({"gpu": "8GiB"}, {"WORD": "hello"})
            stack.callback(worker.close)
            return worker

        yield started


def test_workers_have_their_own_job_and_environment_and_answer_requests(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(ECHO)
    before = os.getcwd()
    first = server.start({"gpu": "8GiB"}, {"WORD": "hello"})
    monkeypatch.chdir(tmp_path)
    second = server.start({"gpu": "4GiB"})
    replies = {}
    for worker, gpu, word, folder in (
        (first, "8GiB", "hello", before),
        (second, "4GiB", None, str(tmp_path)),
    ):
        for number in (1, 2):
            worker.send({"number": number})
            *reply, pid, request = worker.receive(60)
            assert reply == [gpu, worker.folder.name, word, folder]
            assert request == {"number": number}
            replies[gpu] = pid
    assert replies["8GiB"] != replies["4GiB"]
    assert first.output == second.output, "the module was imported once"
    first.close()
    second.send({})
    assert second.receive(60) is not None, "the other worker continues"


def test_workers_exit_with_their_server(serve: Serve) -> None:
    server = serve(CHILD)
    worker = server.start({})
    worker.receive(60)
    pid = server.pid(0)
    server.close()
    assert pid is not None
    assert _is_dead(pid)


def test_a_server_with_a_failed_import_reports_its_output_and_exit_code(start: Start) -> None:
    process = start("print('a line before'); raise SystemExit('no such file')")
    with pytest.raises(EOFError):
        process.receive(60)
    assert process.exit_code == 1
    assert process.output.splitlines() == ["a line before", "no such file"]
    assert process.last_line == "no such file"
    with pytest.raises(EOFError):
        process.send({})


def test_a_server_is_not_reused_after_a_startup_setting_changes(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(ECHO)
    monkeypatch.setenv("EPOCHS", "3")
    assert server.is_usable()
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    assert not server.is_usable()


def test_receiving_ends_after_the_timeout(start: Start) -> None:
    assert start(ECHO).receive(0.01) is None


def test_a_failed_worker_reports_its_output_and_exit_code(start: Start) -> None:
    process = start(FAILING)
    with pytest.raises(EOFError):
        process.receive(60)
    assert process.exit_code == 1
    assert process.output.splitlines()[1:] == ["a line before", "no such file"]
    assert process.last_line == "no such file"
    with pytest.raises(EOFError):
        process.send({})


def test_killing_a_worker_kills_the_processes_that_it_started(start: Start) -> None:
    process = start(CHILD)
    child = process.receive(60)
    assert child is not None
    process.kill()
    assert _is_dead(child)
    with pytest.raises(EOFError):
        process.receive(60)


def _is_dead(pid: int) -> bool:
    """Wait up to ten seconds, and return whether a killed process is dead."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for _ in range(1000):
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
            time.sleep(0.01)
        return False
    return True


def test_a_worker_has_a_terminal_without_input(start: Start) -> None:
    columns, rows, lines, is_terminal = start(TERMINAL).receive(10)
    assert (columns, rows) == shutil.get_terminal_size()
    assert lines == ["", "", ""]
    assert is_terminal


def test_a_worker_reports_its_current_line_and_continues(start: Start) -> None:
    process = start(SLEEP)
    assert process.running_line() == ""  # not ready
    process.receive(10)
    assert [process.running_line().split(":")[0] for _ in range(3)] == ["worker.py"] * 3
