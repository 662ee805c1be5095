"""What a rank's death means beyond its own words, and what to do about it."""

import re

from legroom.scale.launching.outcome import RankResult

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
_ERRORS = (
    (
        re.compile(r"finished its bootstrapping phase"),
        "The script starts processes (a DataLoader's workers, mp.spawn) while those import it again: put what starts the "
        'run into a function, and call it under if __name__ == "__main__":',
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
    if rank.ending is None:
        if rank.signal == "SIGKILL" and kernel_kills:
            return _KERNEL
        return _SIGNALS.get(rank.signal, "")
    text = f"{rank.ending.error}\n{rank.ending.traceback}"
    return next((remedy for pattern, remedy in _ERRORS if pattern.search(text)), "")
