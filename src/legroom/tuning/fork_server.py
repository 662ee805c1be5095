"""Where trials' processes come from: a server that has imported what a trial needs, and forks one in a fraction of a second.

Each process of ours has at most one such server, which ends with it and takes the trials along.
"""

import contextlib
import multiprocessing
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any

from legroom.tuning.function import TrainFunction
from legroom.tuning.records import TrialState
from legroom.tuning.schedulers import Action
from legroom.tuning.trial import Reported
from legroom.tuning.trial_process import Order, TrialEnd, live


def warm_up(function: TrainFunction) -> None:
    """Start the server: it imports while others work. What it has once imported stays so."""
    multiprocessing.set_forkserver_preload(["torch", "legroom.tuning.preloaded", *function.imports])
    with _no_main_module():
        forkserver.ensure_running()


@dataclass(slots=True)
class TrialProcess:
    """The process of one rank of a trial."""

    process: Any
    pipe: Connection
    name: str
    """What it is called in a sentence."""

    @classmethod
    def start(cls, order: Order) -> "TrialProcess":
        context = multiprocessing.get_context("forkserver")
        ours, theirs = context.Pipe()
        process = context.Process(target=live, args=(order, theirs), daemon=True)
        with _no_main_module():
            process.start()
        theirs.close()
        return cls(process, ours, "its process" if order.ranks == 1 else f"the process of rank {order.rank}")

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

    def kill(self) -> None:
        """End it; its memory is free when this returns."""
        self.process.kill()
        self.process.join()
        self.pipe.close()

    def _died(self) -> TrialEnd:
        self.process.join(5)
        code = self.process.exitcode
        if code == -signal.SIGKILL:
            why = f"{self.name} was killed (signal 9): by someone, or by the host for want of memory"
        else:
            how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
            why = f"{self.name} ended without a word ({how})"
        return TrialEnd(state=TrialState.FAILED, why=why)


@contextlib.contextmanager
def _no_main_module() -> Iterator[None]:
    """A process that is started inside does not import this one's main module: the function comes from its own file, and a script would search anew."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
