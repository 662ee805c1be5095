"""Runs tasks in forked processes with a time limit. A task that hangs or crashes affects no other task."""

import collections
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple


class Task(NamedTuple):
    """A task that writes its result to a file."""

    name: str
    work: Callable[[], None]
    failed: Callable[[str], None]
    """A function that is called with the reason if the process crashes or exceeds its time limit."""


def run_parallel(tasks: Iterable[Task], jobs: int, limit: float) -> None:
    """Run all tasks, `jobs` at a time, each for at most `limit` seconds. Progress is printed to stderr."""
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
                task.failed(f"its process exited with {one.exitcode}")
            one.join()
            del running[one]
            done = total - len(waiting) - len(running)
            minutes = (time.monotonic() - began) / done * (total - done) / 60
            print(f"{done} of {total}, {task.name}; {minutes:.0f} min left", file=sys.stderr, flush=True)
