"""The folder for live files: one small file per process, readable only by its user.

A process that is killed leaves its file behind. Each file therefore contains the process ID and the start time of its
process. `read_all` returns only the files of processes that are still running, and deletes the others.

The folder is `$XDG_RUNTIME_DIR/legroom`, or `legroom-UID` in the system's folder for temporary files.
`LEGROOM_LIVE=off` disables the files, and `LEGROOM_LIVE=PATH` sets the folder. Live files are optional, so this module
raises no error if a file cannot be read or written.
"""

import contextlib
import functools
import hashlib
import json
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from legroom.log import log
from legroom.memory.live.status import RunStatus
from legroom.user_cache import is_disabled, read_json

MAX_BYTES = 256 << 10
"""Legroom does not read files above this size, because Legroom cannot have written them."""
FORGET_SECONDS = 3600.0
"""The age in seconds at which a file from another container is deleted. Legroom cannot check whether a process in
another container is still running.
"""
RETRY_SECONDS = 10.0
_NAME = "*-*.json"


def live_folders() -> list[Path]:
    """Return the folders that can contain live files, preferred folder first. The list is empty if live files are
    disabled.

    There is more than one folder, because XDG_RUNTIME_DIR may be unset in a program that a service or a batch system
    starts.
    """
    setting = os.environ.get("LEGROOM_LIVE", "")
    if is_disabled(setting):
        return []
    if setting:
        return [Path(setting)]
    user = os.geteuid() if hasattr(os, "geteuid") else os.environ.get("USERNAME", "user")
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    return list(
        dict.fromkeys(
            [
                *([Path(runtime) / "legroom"] if runtime else []),
                Path(f"/run/user/{user}/legroom"),
                Path(tempfile.gettempdir()) / f"legroom-{user}",
                Path(f"/tmp/legroom-{user}"),
            ]
        )
    )


_writer: "LiveFile | None" = None


def other_writer(file: "LiveFile") -> bool:
    return _writer is not None and _writer is not file and _writer.is_written


class LiveFile:
    """The live file of this process. A forked child neither writes nor removes the live file of its parent."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._started = _process_started(self._pid)
        self._path: Path | None = None
        self._retry_at = 0.0
        self._was_swept = False
        self._is_off = False
        self._was_reported = False

    def write(self, status: RunStatus) -> bool:
        """Replace the file atomically, and return whether it was written. After a failure, further attempts are
        skipped for a few seconds.
        """
        if os.getpid() != self._pid or time.monotonic() < self._retry_at:
            return False
        document = {"process": self._started, "machine": _machine(), **status.as_json()}
        text = json.dumps(document, separators=(",", ":")).encode()
        if self._path is not None and _replace(self._path, text):
            return True
        for folder in live_folders():
            path = folder / self._name
            if _is_private(folder, create=True) and _replace(path, text):
                if self._path not in (None, path):
                    self.remove()
                global _writer
                self._path, _writer = path, self
                if not self._was_swept:
                    self._was_swept = True
                    for _ in _live_documents():
                        pass  # deletes the files of processes that were killed
                return True
        self._retry_at = time.monotonic() + RETRY_SECONDS
        return False

    def publish(self, make_status: Callable[[], RunStatus]) -> None:
        """Write the status that `make_status` returns. After an error in Legroom, nothing more is written, and the
        program continues.
        """
        if self._is_off:
            return
        try:
            if not self.write(make_status()) and not self._was_reported:
                self._was_reported = True
                log.debug(
                    "`legroom monitor` cannot show this run, because the folder for its state is not writable."
                )
        except Exception as error:
            self._is_off = True
            log.debug(
                "`legroom monitor` cannot show this run, because its state could not be written (%s: %s).",
                type(error).__name__,
                error,
            )

    def remove(self) -> None:
        if self.is_written and _writer is self:
            assert self._path is not None
            for path in (self._path, _temporary(self._path)):
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
        self._path = None

    @property
    def is_written(self) -> bool:
        return self._path is not None and os.getpid() == self._pid

    @property
    def _name(self) -> str:
        return f"{self._pid}-{hashlib.sha256(_machine().encode()).hexdigest()[:8]}.json"


def read_all() -> list[RunStatus]:
    """Return the status of every running process of this user that writes a live file, sorted by process ID."""
    found: dict[int, RunStatus] = {}
    for document in _live_documents():
        status = RunStatus.from_json(document)
        if status is not None and (status.pid not in found or found[status.pid].updated < status.updated):
            found[status.pid] = status
    return [found[pid] for pid in sorted(found)]


def _live_documents() -> Iterator[dict[str, Any]]:
    for folder in live_folders():
        if not _is_private(folder, create=False):
            continue
        with contextlib.suppress(OSError):
            for path in sorted([*folder.glob(_NAME), *folder.glob(f"{_NAME}.tmp")]):
                document = read_json(path, max_bytes=MAX_BYTES) if path.suffix == ".json" else None
                if isinstance(document, dict) and _is_running(document):
                    yield document
                elif _is_abandoned(path, document):
                    with contextlib.suppress(OSError):
                        path.unlink(missing_ok=True)


def _is_running(document: dict[str, Any]) -> bool:
    pid = document.get("pid")
    if document.get("machine") != _machine() or type(pid) is not int:
        return False
    started = _process_started(pid)
    return started is not None and started == document.get("process")


def _is_abandoned(path: Path, document: Any) -> bool:
    """Return True if no process updates the file anymore. An incomplete file, or a file from another container, counts
    as abandoned only after a minimum age.
    """
    if isinstance(document, dict) and document.get("machine") == _machine():
        return True
    try:
        return time.time() - path.stat().st_mtime > FORGET_SECONDS
    except OSError:
        return False


# --- files


def _is_private(folder: Path, *, create: bool) -> bool:
    """Return whether the folder exists (or was created) and only this user can write to it. In the folder for temporary
    files, another user may have created a folder or a link with this name.
    """
    try:
        if create:
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700)
        found = folder.lstat()
    except OSError:
        return False
    if not stat.S_ISDIR(found.st_mode):
        return False
    return not hasattr(os, "geteuid") or (found.st_uid == os.geteuid() and not found.st_mode & 0o022)


def _replace(path: Path, text: bytes) -> bool:
    temporary = _temporary(path)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        return False
    return True


def _temporary(path: Path) -> Path:
    return path.with_name(f"{path.name}.tmp")


# --- processes


def process_identity() -> dict[str, Any]:
    """Return a description of this process, with which `is_still_running` finds it. The description contains a hash
    that changes with every boot, so it does not identify the machine in a file that is shared.
    """
    pid = os.getpid()
    return {"pid": pid, "started": _process_started(pid), "machine": _hashed_machine()}


def is_still_running(identity: Any) -> bool | None:
    """Return whether the process with this `process_identity` is running, or None if this is unknown, for example
    because it ran on another machine.
    """
    if not isinstance(identity, dict) or not identity.get("machine"):
        return None
    pid = identity.get("pid")
    if identity["machine"] != _hashed_machine() or type(pid) is not int or pid <= 0:
        return None
    started = _process_started(pid)
    return started is not None and started == identity.get("started")


def _hashed_machine() -> str:
    """Return a hash of `_machine`, or "" if the boot or the PID namespace is unknown. This is always the case on macOS
    and Windows.
    """
    machine = _machine()
    return hashlib.sha256(machine.encode()).hexdigest()[:16] if " " in machine else ""


def _process_started(pid: int) -> str | None:
    """Return a string that identifies the process with this ID, or None if the process is not running. A zombie
    process counts as not running.

    On Linux, the string contains the start time in clock ticks, which does not change if the system time is changed.
    """
    if os.path.exists("/proc/self/stat"):
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                values = file.read().rpartition(b")")[2].split()
        except OSError:
            return None
        return None if values[0] in (b"Z", b"X") else values[19].decode()
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else f"{process.create_time():.0f}"
    except psutil.Error:
        return None


@functools.cache
def _machine() -> str:
    """Return a string that identifies this boot of the machine and the PID namespace. Containers that share the folder
    have separate PID namespaces.
    """
    parts = []
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    with contextlib.suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)
