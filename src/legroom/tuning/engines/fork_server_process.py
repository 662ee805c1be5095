"""The process that others are forked from: imports first, then takes orders, one connection each (see `fork_server`).

It has no threads and has touched no GPU, so that it can be forked. A process of a trial, or the one that traces, talks on the connection that its order came by, and ends with
this one. Who asks how a process ended is answered at once, so that nobody waits for another's.
"""

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import sys
from multiprocessing.connection import Connection
from typing import NoReturn

from legroom.observe.exit_with_parent import exit_with_parent
from legroom.tuning.engines.fork_server import End
from legroom.tuning.memory.tracer import TraceOrder
from legroom.tuning.trial.process import Order, live


class _Server:
    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._codes: dict[int, int | None] = {}
        """Exit code of each process that was forked; None while it lives."""

    def run(self) -> NoReturn:
        signal.signal(signal.SIGTERM, lambda *_: self._leave())
        while True:
            line, _ = self._listening.accept()
            with contextlib.suppress(EOFError, OSError), Connection(line.detach()) as pipe:
                request = pipe.recv()
                if isinstance(request, End):
                    pipe.send(self._ended(request))
                else:
                    self._fork(request, pipe)

    def _fork(self, order: Order | TraceOrder, pipe: Connection) -> None:
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._listening.close()
            pipe.send(os.getpid())
            if isinstance(order, Order):
                live(order, pipe)
            else:
                from legroom.tuning.memory.tracing_process import trace

                trace(order, pipe)
        self._codes[child] = None

    def _ended(self, asked: End) -> int | None:
        process = asked.process
        if self._codes.get(process, 1) is not None:
            return self._codes.get(process, 1)  # 1: it never was
        if asked.kill:
            os.kill(process, signal.SIGKILL)
        waited, status = os.waitpid(process, os.WNOHANG)
        if waited:
            self._codes[process] = os.waitstatus_to_exitcode(status)
        return self._codes[process]

    def _leave(self) -> NoReturn:
        alive = [process for process, code in self._codes.items() if code is None]
        for process in alive:
            os.kill(process, signal.SIGKILL)
        for process in alive:
            os.waitpid(process, 0)
        os._exit(0)


def main(order: str, number: str) -> NoReturn:
    exit_with_parent(signal.SIGTERM)
    told = json.loads(order)
    sys.path[:] = told["path"]
    gc.disable()  # it would look at all that was imported so far again and again: a fifth of the time
    for name in told["imports"]:
        with contextlib.suppress(Exception, SystemExit):  # a trial that needs it says what is wrong with it
            importlib.import_module(name)
    gc.freeze()  # nor does it concern trials: each would have a copy of whatever its collector looks at
    gc.enable()
    _Server(socket.socket(fileno=int(number))).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
