"""Runs `legroom` in forks of one process that has imported torch. In a new interpreter, each command would import torch,
which takes two seconds of CPU time.

A fork runs and exits like `python -m legroom`: it has its own arguments, environment, folder and standard streams, its
exit handlers run, and its exit code is that of the command. Only two things come from the first process: the imported
modules, and the settings that Python and torch read at startup.
"""

import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

IMPORTS = (
    "numpy",
    "torch._dynamo",
    "legroom.cli",
    "legroom.run.recording",
    "legroom.scale.launching.elastic",
)


class ForkServer:
    """A process that has imported torch and forks for each command."""

    def __init__(self) -> None:
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": ""},
                pass_fds=[theirs.fileno()],
                stdout=subprocess.DEVNULL,  # not a terminal, so forks buffer their output
            )

    def run(
        self,
        words: Sequence[str],
        *,
        cwd: Path | str,
        env: Mapping[str, str],
        input: str = "",
        stdout: IO[str] | None = None,
        timeout: float = 120,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command until it exits. Several threads can run commands at the same time."""
        ours, theirs = socket.socketpair()
        with tempfile.TemporaryFile("w+") as given, _read_later() as out, _read_later() as err:
            given.write(input)
            given.seek(0)
            with theirs:
                files = [given.fileno(), (stdout or out).fileno(), err.fileno(), theirs.fileno()]
                request = json.dumps([list(words), str(cwd), dict(env)]).encode()
                socket.send_fds(self._connection, [request], files)
            with ours, ours.makefile() as replies:
                ours.settimeout(timeout)
                process = int(replies.readline())
                try:
                    code = int(replies.readline())
                except TimeoutError:
                    os.kill(process, signal.SIGKILL)
                    raise
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(list(words), code, out.read(), err.read())

    def close(self) -> None:
        self._connection.close()
        self._process.wait(timeout=60)


def _read_later() -> IO[str]:
    return tempfile.TemporaryFile("w+")


def main() -> None:
    """Fork for each request, until the connection is closed. This function returns only in forks."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    for name in IMPORTS:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # forks do not scan the objects of the imports
    while True:
        request, files, *_ = socket.recv_fds(connection, 1 << 20, 4)
        if not request:
            os._exit(0)
        if os.fork() == 0:
            connection.close()
            child = os.fork()
            if child == 0:
                _enter(*json.loads(request), files)
                return
            reply = socket.socket(fileno=files[3])
            reply.sendall(f"{child}\n".encode())
            _, status = os.waitpid(child, 0)
            reply.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
            os._exit(0)
        for file in files:
            os.close(file)
        _forget_finished()


def _forget_finished() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def _enter(words: list[str], folder: str, environment: dict[str, str], files: list[int]) -> None:
    for number, file in enumerate(files[:3]):
        os.dup2(file, number)
    for file in files:
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[0] = folder
    sys.argv = ["-m", *words]
    sys.orig_argv[:] = [sys.executable, "-m", "legroom", *words]


if __name__ == "__main__":
    main()
    runpy._run_module_as_main("legroom")  # type: ignore[attr-defined]  # as `python -m` does
