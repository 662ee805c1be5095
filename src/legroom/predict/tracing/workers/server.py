"""The server process of `forked`, which imports torch once, with the garbage collector paused, and forks a worker for
each request.

Each request is one byte, sent together with four file descriptors: the pipe, the standard input, the output and the
current folder of the worker. The server replies with the process id of the worker. When the worker exits, the server
sends its exit code.
"""

import contextlib
import importlib
import os
import signal
import socket
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from legroom.predict.tracing.pause_gc import gc_paused_during_imports
from legroom.processes import exit_with_parent


def serve(requests: socket.socket, function: str) -> None:
    module, name = function.split(":")
    with gc_paused_during_imports(lambda: True):
        call = getattr(importlib.import_module(module), name)

    def report_exits(*_: object) -> None:
        with contextlib.suppress(OSError):  # there are no more workers, or the caller has closed the socket
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                requests.sendall(b"exited %d %d\n" % (pid, os.waitstatus_to_exitcode(status)))

    signal.signal(signal.SIGCHLD, report_exits)
    while True:
        byte, descriptors, _, _ = socket.recv_fds(requests, 1, 4)
        if not byte:
            return
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})  # a worker is reported before its exit
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
            requests.close()
            _become_worker(call, *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        requests.sendall(b"started %d\n" % pid)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})


def _become_worker(
    call: Callable[[dict[str, Any], "Connection[Any, Any]"], None],
    pipe: int,
    stdin: int,
    output: int,
    folder: int,
) -> NoReturn:
    exit_with_parent()
    os.setsid()
    os.fchdir(folder)
    os.close(folder)
    for source, targets in ((stdin, (0,)), (output, (1, 2))):
        for target in targets:
            os.dup2(source, target)
        os.close(source)
    connection = Connection(pipe)
    try:
        job = connection.recv()
    except EOFError:
        os._exit(0)
    os.environ.clear()
    os.environ.update(job["environment"])
    call(job, connection)
    sys.exit()


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])
