"""Hints for the failure of a rank, in addition to its own error message."""

import re
from pathlib import Path

from legroom.scale.launching.outcome import RankResult

_LOG_TAIL_BYTES = 20_000
_SIGNALS = {
    "SIGKILL": "A user or the kernel sent SIGKILL. The kernel sends this signal when host memory runs out "
    "(see `dmesg`). "
    "Use fewer DataLoader workers, or keep less data in memory.",
    "SIGSEGV": "A C library or an extension crashed. Set `PYTHONFAULTHANDLER=1` to see the Python line.",
    "SIGABRT": "A C++ library aborted the process. The library's message is above or in the error log.",
    "SIGBUS": "Usually, the shared memory is full. DataLoader workers pass batches through shared memory. "
    "Increase the shared memory of a container (`docker run --shm-size 8g`), or use fewer workers.",
    "SIGTERM": "The process was terminated by a user or by the job scheduler.",
}
_HOST_OOM = "The kernel killed a process because host memory ran out. Use fewer DataLoader workers, or keep less data in memory."
_AT_EXIT = (
    "The script had finished, but a library failed at exit. "
    "End the script with `torch.distributed.destroy_process_group()`."
)
_ERRORS = (
    (
        re.compile(r"finished its bootstrapping phase"),
        "The script has no main guard, so the processes that it starts (DataLoader workers, mp.spawn) run "
        "the whole script again. "
        'Move the code into a function and call it under `if __name__ == "__main__":`.',
    ),
    (
        re.compile(r"EADDRINUSE|[Aa]ddress already in use"),
        "The script sets its own port, which another program uses. Remove `init_method`, MASTER_ADDR and MASTER_PORT, so that "
        "`init_process_group()` uses the launcher's address.",
    ),
    (
        re.compile(r"invalid device ordinal"),
        "The script selects a GPU that does not exist. Use `int(os.environ['LOCAL_RANK'])`, not RANK.",
    ),
)


def hint(rank: RankResult, host_oom_kills: int) -> str:
    """Return advice, or "" if the error message of the rank is enough."""
    if rank.failure is None:
        if rank.signal == "SIGKILL" and host_oom_kills:
            return _HOST_OOM
        return _AT_EXIT if rank.exit_record is not None else _SIGNALS.get(rank.signal, "")
    # Search the log too, because it is the only place with the error of a loader worker.
    text = f"{rank.failure.error}\n{rank.failure.traceback}\n{_tail(rank.files.err)}"
    return next((remedy for pattern, remedy in _ERRORS if pattern.search(text)), "")


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - _LOG_TAIL_BYTES, 0))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
