"""A worker process: started, sent requests, killed."""

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import legroom
from legroom.predict.tracing.worker_process import WorkerProcess, start_worker

pytestmark = pytest.mark.slow

SOURCES = str(Path(legroom.__file__).parents[1])
Start = Callable[..., WorkerProcess]

CONNECT = """
import os, subprocess, sys
from multiprocessing.connection import Connection
pipe = Connection(int(sys.argv[1]))
job = pipe.recv()
"""
ECHO = f"""{CONNECT}
while True:
    pipe.send({{"job": job, "request": pipe.recv(), "word": os.environ["WORD"]}})
"""


TERMINAL = f"""{CONNECT}
rows, columns = os.popen("stty size").read().split()
lines = [sys.stdin.readline() for _ in range(3)]
pipe.send((int(columns), int(rows), lines, sys.stdin.isatty()))
"""
SLEEP = f"""{CONNECT}
import time
from legroom.predict.tracing.running_line import report_running_line
report_running_line(job["folder"])
pipe.send("ready")
time.sleep(60)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a process that runs the given source."""
    with contextlib.ExitStack() as stack:

        def started(source: str) -> WorkerProcess:
            (tmp_path / "worker.py").write_text(source)
            process = start_worker(
                "worker",
                {"gpu": "8GiB"},
                {"PYTHONPATH": os.pathsep.join((str(tmp_path), SOURCES)), "WORD": "hello"},
            )
            stack.callback(process.close)
            return process

        yield started


def test_it_has_its_job_and_environment_and_answers_requests(start: Start) -> None:
    process = start(ECHO)
    for number in (1, 2):
        process.send({"number": number})
        assert process.receive(60) == {
            "job": {"gpu": "8GiB", "folder": process.folder.name}, "request": {"number": number}, "word": "hello",
        }  # fmt: skip


def test_receiving_ends_after_the_timeout(start: Start) -> None:
    assert start(ECHO).receive(0.01) is None


def test_a_failed_process_has_its_output_and_exit_code(start: Start) -> None:
    process = start("print('a line before'); raise SystemExit('no such file')")
    with pytest.raises(EOFError):
        process.receive(60)
    assert process.exit_code == 1
    assert process.output.splitlines() == ["a line before", "no such file"]
    assert process.last_line == "no such file"
    with pytest.raises(EOFError):
        process.send({})


def test_killing_it_kills_the_processes_that_it_started(start: Start) -> None:
    process = start(
        f"{CONNECT}\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "pipe.send(child.pid)\n"
        "child.wait()\n"
    )
    child = process.receive(60)
    assert child is not None
    process.kill()
    assert _is_dead(child)
    with pytest.raises(EOFError):
        process.receive(60)


def _is_dead(pid: int) -> bool:
    """Whether a killed process is dead within ten seconds."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for _ in range(1000):
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
            time.sleep(0.01)
        return False
    return True


def test_it_has_a_terminal_without_input(start: Start) -> None:
    columns, rows, lines, is_terminal = start(TERMINAL).receive(10)
    assert (columns, rows) == shutil.get_terminal_size()
    assert lines == ["", "", ""]
    assert is_terminal


def test_it_reports_the_line_that_it_is_running_and_continues(start: Start) -> None:
    process = start(SLEEP)
    assert process.running_line() == ""  # not ready
    process.receive(10)
    assert [process.running_line().split(":")[0] for _ in range(3)] == ["worker.py"] * 3
