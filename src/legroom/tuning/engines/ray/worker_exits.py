"""Describes why a Ray worker died, if Ray reports the reason.

Ray reports the exit code of a worker that calls `sys.exit`. For `os._exit` and signals, Ray reports neither the exit
code nor the signal.
"""

import re

_EXIT_CODE = re.compile(r"exit code (\d+)")


def exit_reason(error: str, process: str = "The process") -> str:
    code = _EXIT_CODE.search(error)
    if code is not None:
        return f"{process} exited without a result (exit code {code[1]})"
    if "running low on memory" in error:
        return f"{process} was killed by Ray, because the machine ran low on memory"
    if "ray.kill" in error:
        return f"{process} was killed with `ray.kill`"
    return (
        f"{process} exited without a result. Ray does not report the exit code or the signal. Common causes are a call to "
        "`os._exit`, a crash in native code, and a lack of host memory"
    )
