"""Counts the processes that the kernel killed because host memory ran out, which is the most common cause of SIGKILL."""

from pathlib import Path

_COUNTERS = (Path("/sys/fs/cgroup/memory.events"), Path("/proc/vmstat"))


def host_oom_kills() -> int:
    """Return the number of processes that the kernel has killed since the machine or container started because host
    memory ran out. Return 0 if the number is unknown.
    """
    return max((_read(path) for path in _COUNTERS), default=0)


def _read(path: Path) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        name, _, number = line.partition(" ")
        if name == "oom_kill" and number.isdecimal():
            return int(number)
    return 0
