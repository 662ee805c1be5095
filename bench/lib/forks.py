"""Runs a function in a forked process, for example in a process that has not used the GPU before."""

import json
import os
from collections.abc import Callable
from typing import Any


def in_fork(work: Callable[[], Any]) -> Any:
    """Run `work` in a forked process and return its result, which must be JSON. Return None if the process died."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        answer = work()
        with os.fdopen(writing, "w") as pipe:
            json.dump(answer, pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else None
