"""Work that is done in forked processes, so many at a time, each with a limit of time: what hangs or dies costs itself alone."""

import collections
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple


class Task(NamedTuple):
    """Something to do, and its name for people. It leaves its result in a file."""

    name: str
    work: Callable[[], None]
    failed: Callable[[str], None]
    """Is told why, where the process took too long or died."""


def side_by_side(tasks: Iterable[Task], jobs: int, limit: float) -> None:
    """All of them, `jobs` at a time, each for at most `limit` seconds; how far it is goes to stderr."""
    waiting = collections.deque(tasks)
    running: dict[multiprocessing.process.BaseProcess, tuple[Task, float]] = {}
    forking = multiprocessing.get_context("fork")
    total, began = len(waiting), time.monotonic()
    while waiting or running:
        while waiting and len(running) < jobs:
            task = waiting.popleft()
            process = forking.Process(target=task.work)
            process.start()
            running[process] = (task, time.monotonic())
        time.sleep(0.05)
        for one, (task, started) in list(running.items()):
            if one.is_alive() and time.monotonic() - started < limit:
                continue
            if one.is_alive():
                one.kill()
                task.failed(f"took more than {limit:.0f} s")
            elif one.exitcode:
                task.failed(f"its process ended with {one.exitcode}")
            one.join()
            del running[one]
            done = total - len(waiting) - len(running)
            minutes = (time.monotonic() - began) / done * (total - done) / 60
            print(f"{done} of {total}, {task.name}; {minutes:.0f} min to go", file=sys.stderr, flush=True)
