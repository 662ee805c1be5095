"""The server process from which study processes are forked (see `fork_server`). The server imports modules and then
accepts requests, one per connection.

The process has no threads and does not use a GPU, so it can be forked. A forked process communicates over the
connection of its request, and exits when the server process exits. Queries about exit codes are answered immediately,
so that no client waits for the process of another client.
"""

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import sys
from collections.abc import Iterable
from multiprocessing.connection import Connection
from typing import NoReturn

from legroom.processes import exit_with_parent
from legroom.tuning.engines.fork_server import ExitQuery
from legroom.tuning.engines.study_process import run_task
from legroom.tuning.memory.tracer import TracerSetup
from legroom.tuning.trial.process import TrialTask


class _Server:
    def __init__(self, listening: socket.socket, imports: list[str]) -> None:
        self._listening = listening
        self._imported: set[str] = set()
        self._import(imports)
        self._codes: dict[int, int | None] = {}
        """A dict that maps process IDs to exit codes. The exit code is None while the process runs."""

    def run(self) -> NoReturn:
        signal.signal(signal.SIGTERM, lambda *_: self._kill_all_and_exit())
        while True:
            connection, _ = self._listening.accept()
            with contextlib.suppress(EOFError, OSError), Connection(connection.detach()) as pipe:
                request = pipe.recv()
                if isinstance(request, ExitQuery):
                    pipe.send(self._exit_code(request))
                else:
                    self._fork(request, pipe)

    def _import(self, names: Iterable[str]) -> None:
        new = [name for name in dict.fromkeys(names) if name not in self._imported]
        if not new:
            return
        self._imported.update(new)
        gc.disable()  # otherwise, repeated scans of all imported objects would take a fifth of the time
        for name in new:
            with contextlib.suppress(
                Exception, SystemExit
            ):  # a trial that needs the module reports the error
                importlib.import_module(name)
        gc.freeze()  # otherwise the collector of each fork would copy all pages that it scans
        gc.enable()

    def _fork(self, task: TrialTask | TracerSetup, pipe: Connection) -> None:
        self._import(task.function.imports)  # the function of a later study may import other modules
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._listening.close()
            pipe.send(os.getpid())
            exit_with_parent()
            run_task(task, pipe)
        self._codes[child] = None

    def _exit_code(self, query: ExitQuery) -> int | None:
        process = query.process
        if self._codes.get(process, 1) is not None:
            return self._codes.get(process, 1)  # exit code 1: the server did not fork this process
        if query.kill:
            os.kill(process, signal.SIGKILL)
        waited, status = os.waitpid(process, os.WNOHANG)
        if waited:
            self._codes[process] = os.waitstatus_to_exitcode(status)
        return self._codes[process]

    def _kill_all_and_exit(self) -> NoReturn:
        alive = [process for process, code in self._codes.items() if code is None]
        for process in alive:
            os.kill(process, signal.SIGKILL)
        for process in alive:
            os.waitpid(process, 0)
        os._exit(0)


def main(setup: str, number: str) -> NoReturn:
    exit_with_parent(signal.SIGTERM)
    settings = json.loads(setup)
    sys.path[:] = settings["path"]
    _Server(socket.socket(fileno=int(number)), settings["imports"]).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
