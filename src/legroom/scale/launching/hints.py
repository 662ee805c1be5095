"""What a rank's death means beyond its own words, and what to do about it."""

import re
from pathlib import Path

from legroom.scale.launching.outcome import RankResult

_LOOKED_AT = 20_000
"""Bytes at the end of an error log."""
_SIGNALS = {
    "SIGKILL": "Nobody but a person or the kernel sends SIGKILL; the kernel does when host memory runs out (dmesg tells): "
    "fewer loader workers, or a smaller data set in memory.",
    "SIGSEGV": "That is a crash inside a C library or an extension; PYTHONFAULTHANDLER=1 in front shows the Python line.",
    "SIGABRT": "A C++ library gave up; its last words are above or in the error log.",
    "SIGBUS": "Mostly shared memory is full, which loader workers hand batches through: give a container more "
    "(docker run --shm-size 8g), or use fewer workers.",
    "SIGTERM": "Somebody told it to end: a person, or the system that runs this job.",
}
_KERNEL = "The kernel killed a process meanwhile for want of host memory: fewer loader workers, or a smaller data set in memory."
_AT_THE_END = (
    "Its script was done by then: a library failed on the way out. "
    "Scripts should end with torch.distributed.destroy_process_group()."
)
_ERRORS = (
    (
        re.compile(r"finished its bootstrapping phase"),
        "The script has no main guard, and the processes that it starts (a DataLoader's workers, mp.spawn) run it anew: "
        'put what it does into a function, and call that under if __name__ == "__main__":',
    ),
    (
        re.compile(r"EADDRINUSE|[Aa]ddress already in use"),
        "The script chose its port itself and another program holds it: leave init_method, MASTER_ADDR and MASTER_PORT away, "
        "init_process_group() finds what the launcher gave it.",
    ),
    (
        re.compile(r"invalid device ordinal"),
        "The script asks for a GPU that is not there: it should use int(os.environ['LOCAL_RANK']), not RANK.",
    ),
)


def hint(rank: RankResult, kernel_kills: int) -> str:
    """A sentence with the remedy; "" where the rank's own words say it all."""
    if rank.failure is None:
        if rank.signal == "SIGKILL" and kernel_kills:
            return _KERNEL
        return _AT_THE_END if rank.ending is not None else _SIGNALS.get(rank.signal, "")
    # The log too: what a loader's worker died of is told there alone.
    text = f"{rank.failure.error}\n{rank.failure.traceback}\n{_tail(rank.files.err)}"
    return next((remedy for pattern, remedy in _ERRORS if pattern.search(text)), "")


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - _LOOKED_AT, 0))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
