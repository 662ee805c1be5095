"""Fixtures that run the `legroom` command in a separate process."""

import os
import pty
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.forked_commands import ForkServer

LEGROOM = [sys.executable, "-m", "legroom"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "", "TERM": "xterm"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], str]:
    """Writes a script to the test's folder."""

    def write(source: str, name: str = "train.py") -> str:
        (tmp_path / name).write_text(textwrap.dedent(source))
        return name

    return write


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    server = ForkServer()
    yield server
    server.close()


@pytest.fixture
def legroom(fork_server: ForkServer, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `legroom WORDS` in the test's folder, in a fork of a process that has imported torch."""

    def legroom(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return fork_server.run(words, **{"cwd": tmp_path, "env": ENVIRONMENT, **options})

    return legroom


@pytest.fixture
def legroom_in_new_interpreter(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `python -m legroom WORDS` in the test's folder, in a new interpreter."""

    def legroom(*words: str, input: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*LEGROOM, *words],
            cwd=tmp_path,
            env=ENVIRONMENT,
            input=input,
            capture_output=True,
            text=True,
            timeout=120,
        )

    return legroom


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., "subprocess.Popen[str]"]:
    """Starts `legroom WORDS` and leaves it running."""

    def start(*words: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [*LEGROOM, *words],
            cwd=tmp_path,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


@pytest.fixture
def legroom_on_terminal(tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """Runs `legroom WORDS` in a pseudo-terminal, and returns the exit code and all output."""

    def legroom_on_terminal(*words: str) -> tuple[int, str]:
        master, slave = pty.openpty()
        process = subprocess.Popen(
            [*LEGROOM, *words], cwd=tmp_path, env=ENVIRONMENT, stdin=slave, stdout=slave, stderr=slave
        )
        os.close(slave)
        output = b""
        while piece := _read(master):
            output += piece
        os.close(master)
        return process.wait(timeout=60), output.decode()

    return legroom_on_terminal


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # on Linux, the other end of the terminal is closed
        return b""
