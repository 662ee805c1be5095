"""Whether the kernel killed processes for want of host memory: the commonest reason of a SIGKILL that nobody sent."""

from pathlib import Path

_COUNTERS = (Path("/sys/fs/cgroup/memory.events"), Path("/proc/vmstat"))


def kernel_kills() -> int:
    """How many processes the kernel has killed for that reason since the machine or the container started; 0 where
    it does not say."""
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
