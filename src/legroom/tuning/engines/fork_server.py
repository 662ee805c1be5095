"""Where the processes of a study come from, its trials' and the one that traces: a server that has imported what they need, and forks one in a
fraction of a second.

A process that searches has one, started before anything else so that it imports while the rest is made ready, kept for further studies, and used by whoever
starts trials: the local engine, or Ray's workers. It is reached through a socket in a folder of its own; each connection is a trial's pipe from its
order to its last word, or a question about a trial. It ends with the process that searches and takes the trials along. Python's own fork server serves
one process alone, so every worker of Ray's would have to import all of it anew.
"""

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

from legroom.errors import LegroomError
from legroom.tuning.schedule.schedulers import Action
from legroom.tuning.trial.function import TrainFunction
from legroom.tuning.trial.process import Order, TrialEnd
from legroom.tuning.trial.records import TrialState
from legroom.tuning.trial.trial import Reported

BACKLOG = 128
LONGEST_FOLDER = 70
"""Letters of the folder for temporary files; below it the name of a socket, which has about a hundred at most, must still fit."""
SECONDS_BETWEEN_LOOKS = 0.005
SECONDS_TO_END = 60
"""Patience with a process that was killed: a GPU's memory takes its time to go back."""


@dataclass(frozen=True, slots=True)
class End:
    """Asked of the server: how did this process end? Answered with its exit code, or None while it lives."""

    process: int
    kill: bool = False
    """End it, if it lives."""


class ServerGone(LegroomError):  # noqa: N818
    """Nothing answers where trials are started."""


def fork_server(function: TrainFunction) -> str:
    """Where this process's server is reached; it is started if there is none."""
    global _server
    if _server is None or not _server.is_fit:
        _server = _ForkServer(function)
        atexit.register(_server.close)
    return _server.address


class _ForkServer:
    """The server, from the side of the process that started it."""

    def __init__(self, function: TrainFunction) -> None:
        self._owner, self._path = os.getpid(), list(sys.path)
        folder = tempfile.gettempdir()
        self._folder = tempfile.TemporaryDirectory(
            prefix="legroom-", dir="/tmp" if len(folder) > LONGEST_FOLDER else folder
        )
        self.address = str(Path(self._folder.name) / "trials")
        with socket.socket(socket.AF_UNIX) as listening:
            # Bound here, so that whoever comes before all is imported waits in line.
            listening.bind(self.address)
            listening.listen(BACKLOG)
            order = {
                "path": self._path,
                "imports": ["torch", "legroom.tuning.engines.preloaded", *function.imports],
            }
            number = listening.fileno()
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "legroom.tuning.engines.fork_server_process",
                    json.dumps(order),
                    str(number),
                ],
                pass_fds=(number,),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # what imports print would stand in the middle of the table
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is the study's to handle
            )

    @property
    def is_fit(self) -> bool:
        """Whether it lives, is this process's own (a fork has its parent's, which ends with the parent) and finds modules where this process does."""
        return self._owner == os.getpid() and self._process.poll() is None and self._path == sys.path

    def close(self) -> None:
        """End it, and with it all trials that live."""
        if self._owner == os.getpid():
            self._process.terminate()
            self._process.wait()


_server: _ForkServer | None = None


@dataclass
class Forked:
    """A process that the server forked, from the side of the one that asked for it."""

    server: str
    """Where its server is reached."""
    number: int
    """Its own, as the system counts."""
    pipe: Connection

    @classmethod
    def start(cls, server: str, order: Any) -> Self:
        """One that does what is ordered. Returns when it is there: after all that the server imports."""
        try:
            pipe = _connected(server)
        except OSError:
            raise ServerGone(
                "the process that trials are started from has ended: it was killed, or the machine was out of memory; "
                "what had ended is kept: go on with resume"
            ) from None
        number = 0
        with contextlib.suppress(EOFError, OSError):  # the server is gone: whoever listens hears that
            pipe.send(order)
            number = pipe.recv()
        return cls(server, number, pipe)

    def kill(self) -> None:
        """End it; its memory is free when this returns."""
        ended(self.server, self.number, kill=True)
        self.pipe.close()


@dataclass
class TrialProcess(Forked):
    """The process of one rank of a trial."""

    name: str = "its process"
    """What it is called in a sentence."""

    @classmethod
    def start(cls, server: str, order: Order) -> Self:
        process = super().start(server, order)
        if order.ranks > 1:
            process.name = f"the process of rank {order.rank}"
        return process

    def hear(self) -> Reported | TrialEnd:
        """What it says next, or how it died."""
        try:
            told: Reported | TrialEnd = self.pipe.recv()
        except (EOFError, OSError):
            return self._died()
        return told

    def answer(self, action: Action) -> None:
        with contextlib.suppress(OSError):  # its end comes next
            self.pipe.send(action)

    def _died(self) -> TrialEnd:
        code = ended(self.server, self.number)
        if code == -signal.SIGKILL:
            why = f"{self.name} was killed (signal 9): by someone, or by the host for want of memory"
        else:
            how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
            why = f"{self.name} ended without a word ({how})"
        return TrialEnd(state=TrialState.FAILED, why=why)


def ended(server: str, process: int, *, kill: bool = False) -> int | None:
    """The exit code of a trial's process, once it has ended; None where nobody can tell, or it does not end."""
    deadline = time.monotonic() + SECONDS_TO_END
    while time.monotonic() < deadline:
        try:
            with _connected(server) as line:
                line.send(End(process, kill))
                code: int | None = line.recv()
        except (EOFError, OSError):  # the server is gone, and its trials with it
            return None
        if code is not None:
            return code
        time.sleep(SECONDS_BETWEEN_LOOKS)
    return None


def _connected(server: str) -> Connection:
    line = socket.socket(socket.AF_UNIX)
    try:
        line.connect(server)
    except OSError:
        line.close()
        raise
    return Connection(line.detach())
