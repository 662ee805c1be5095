"""Starts helper processes, with and without fork.

On Linux, helper processes are forks, which start in a few milliseconds with torch already imported. Windows has no
fork. On macOS, a fork of a process that has used system libraries can crash. On Windows and macOS, and with
`LEGROOM_FORK=off`, each helper is a new Python process that imports its modules again. Every module checks `can_fork`
before it forks.

`SpawnedProcess` connects to the new process through a socket on this machine. `SpawnedProcess` uses no inherited
descriptors and no signals, because these work differently on different systems.
"""

import contextlib
import ctypes
import hmac
import importlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from legroom.errors import UsageError

VARIABLE = "LEGROOM_FORK"
KILLED = -int(getattr(signal, "SIGKILL", 9))
_TOKEN = "LEGROOM_PROCESS_TOKEN"
_LOCAL = "127.0.0.1"
_PARENT_CHECK_SECONDS = 1.0
_CONNECT_SECONDS = 60.0
"""The maximum time in seconds to wait until a new process connects. A virus scanner can delay the start of Python."""
_PR_SET_PDEATHSIG = 1


def can_fork() -> bool:
    """Return whether helper processes are forked: on Linux, unless `LEGROOM_FORK=off` is set."""
    setting = os.environ.get(VARIABLE, "").strip().lower()
    if setting not in ("", "on", "off"):
        raise UsageError(f"{VARIABLE}={setting!r} is not valid. Set {VARIABLE} to `on` or `off`.")
    return sys.platform == "linux" and hasattr(os, "fork") and setting != "off"


def exit_with_parent(by: int = -KILLED) -> None:
    """Make this process receive a signal when its parent exits for any reason. The signal is sent only on Linux. On
    other systems, the process continues to run after its parent has exited.
    """
    with contextlib.suppress(
        OSError, AttributeError, TypeError
    ):  # Windows has no library of the process itself
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, by)


def kill_with_children(pid: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for each in [*process.children(recursive=True), process]:
            with contextlib.suppress(psutil.Error):
                each.kill()


class SpawnedProcess:
    """A new Python process that calls a function. The function receives one end of a pipe."""

    def __init__(self, function: str, *, stdin: Any = subprocess.DEVNULL, output: Path | None = None) -> None:
        """Start the process. `function` has the form `module:name`. The process prints to `output`. If `output` is
        None, the output of the process is discarded.
        """
        self._listening: socket.socket | None = socket.create_server((_LOCAL, 0))
        self._token = secrets.token_bytes(32)
        self._pipe: Connection[Any, Any] | None = None
        port = self._listening.getsockname()[1]
        with contextlib.ExitStack() as stack:
            printed = subprocess.DEVNULL if output is None else stack.enter_context(output.open("ab"))
            self._process = subprocess.Popen(
                # -u: output and errors appear in the order in which they were printed.
                [sys.executable, "-u", "-m", __name__, function, str(port), str(os.getpid())],
                # By default, a file on Windows supports only the characters of one language.
                env={"PYTHONIOENCODING": "utf-8", **os.environ, _TOKEN: self._token.hex()},
                stdin=stdin,
                stdout=printed,
                stderr=subprocess.STDOUT,
                # Ctrl-C does not interrupt the process. The process that started it handles Ctrl-C.
                start_new_session=True,
                creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def pipe(self) -> "Connection[Any, Any]":
        """The pipe to the process. Raises `EOFError` if the process exited before it connected."""
        if self._pipe is None:
            self._pipe = self._connected()
        return self._pipe

    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait(self, timeout: float | None = None) -> int | None:
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        if self.is_running():
            kill_with_children(self.pid)
        self._process.wait()

    def close(self) -> None:
        self.kill()
        if self._pipe is not None:
            self._pipe.close()
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    def _connected(self) -> "Connection[Any, Any]":
        deadline = time.monotonic() + _CONNECT_SECONDS
        while self._listening is not None and time.monotonic() < deadline:
            is_running = self.is_running()  # before `accept`: it may have connected and exited
            self._listening.settimeout(0.05)
            with contextlib.suppress(OSError):
                connection, _ = self._listening.accept()
                if _is_expected(connection, self._token):
                    self._listening.close()
                    self._listening = None
                    return Connection(connection.detach())
                connection.close()
            if not is_running:
                break
        raise EOFError


def _is_expected(connection: socket.socket, token: bytes) -> bool:
    """Return whether the other end of the connection sends the token. Other users of this machine can also connect to
    the port.
    """
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.settimeout(5)
    received = b""
    while len(received) < len(token) and (more := connection.recv(len(token) - len(received))):
        received += more
    connection.settimeout(None)
    return hmac.compare_digest(received, token)


def main(function: str, port: str, parent: str) -> None:
    connection = socket.create_connection((_LOCAL, int(port)))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(bytes.fromhex(os.environ.pop(_TOKEN)))
    threading.Thread(target=_exit_after, args=(int(parent),), daemon=True).start()
    module, name = function.split(":")
    getattr(importlib.import_module(module), name)(Connection(connection.detach()))


def _exit_after(parent: int) -> None:
    """Exit this process when the process `parent` has exited. On Windows, `parent` is not always the direct parent,
    because the `python` of a virtual environment starts the real interpreter.
    """
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(parent)
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            time.sleep(_PARENT_CHECK_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
