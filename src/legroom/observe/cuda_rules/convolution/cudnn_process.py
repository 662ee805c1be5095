"""Queries the cuDNN library from a separate process, so that a crash inside cuDNN cannot end a trace.

A trace runs in forked processes. On a machine with a GPU, cuDNN crashes in a fork whose parent has initialized CUDA
(cuDNN 9.19, H200). Queries can crash for other reasons too. The separate process is started once and loads cuDNN at the
first query. No GPU is visible to this process, so its results are the same on every machine.

The forks of a traced script share the process. Each query and each reply is one message, and a file lock allows only
one query at a time. After a crash, the process is restarted, and the query that crashed has no result.
"""

import atexit
import contextlib
import json
import os
import pickle
import select
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from legroom.errors import UsageError
from legroom.gpus.catalog import GpuSpec
from legroom.observe.cuda_rules.convolution.cudnn_location import (
    CUDNN,
    SETTING,
    library_paths,
    packaged_version,
)
from legroom.observe.cuda_rules.convolution.recorded_table import ConvQuery
from legroom.observe.cuda_rules.convolution.workspace_rules import Convolution
from legroom.observe.cuda_rules.versions import RULES_VERSION

MAX_CRASHES = 3
"""The number of crashes after which cuDNN is not queried again."""
TIMEOUT = 60
"""The maximum number of seconds to wait for a reply. The first reply takes the longest, because the process first loads
several hundred MiB of libraries.
"""
MAX_MESSAGE = 1 << 16


class Answer(NamedTuple):
    version: int
    """The version as `cudnnGetVersion` returns it (91900 for 9.19.0), or 0 if no library could be loaded."""
    logs_skipped_kernels: bool = False
    sizes: tuple[tuple[int, ...], ...] = ()
    """The most likely workspace size and its alternatives, for the forward pass and the two gradients. A tuple is empty
    if cuDNN returns no result.
    """


class CudnnProcess:
    def __init__(self, paths: Sequence[str], command: Sequence[str] | None = None) -> None:
        """`command` replaces the command that starts `cudnn_worker`, for tests. The file descriptor of the socket is
        appended as the last argument.
        """
        self._command = list(command or _worker_command(paths))
        self._version: int | None = None
        self._queries = 0
        self.crashes = 0
        self._start()
        atexit.register(self.close)

    @property
    def version(self) -> str | None:
        """The version, for example `9.19.0`, or None if no library can be queried."""
        if self._version is None:
            answer = self._ask(None)
            self._version = answer.version if answer else 0
        if not self._version:
            return None
        return f"{self._version // 10_000}.{self._version // 100 % 100}.{self._version % 100}"

    @property
    def is_recorded_version(self) -> bool:
        """True if the recorded table was measured with this version of cuDNN or with one that selects the same kernels."""
        return self.version is not None and RULES_VERSION.covers_cudnn(self.version)

    def ask(self, query: ConvQuery, c: Convolution, gpu: GpuSpec) -> Answer | None:
        """Return the workspaces of one convolution. Return None if cuDNN crashed during this query or crashed too often
        before.
        """
        return self._ask((query, c, gpu))

    def close(self) -> None:
        """Terminate the process that loads cuDNN, if this process started it. The process also ends when its last
        connection is closed.
        """
        atexit.unregister(self.close)
        self._disconnect()

    def _ask(self, query: Any) -> Answer | None:
        if self.crashes >= MAX_CRASHES:
            return None
        try:
            if not self._is_alive():  # a query of another fork crashed the process
                self._restart()
            with self._exclusive():
                return self._exchange(query)
        except OSError:
            self.crashes += 1
            with contextlib.suppress(OSError):
                self._restart()
            return None

    def _exchange(self, query: Any) -> Answer:
        self._queries += 1
        number = os.getpid(), self._queries
        self._socket.send(pickle.dumps((number, query)))
        while message := self._socket.recv(MAX_MESSAGE):
            answered, answer = pickle.loads(message)
            if answered == number:  # a fork that was killed may have left its reply unread
                return Answer(*answer)
        raise ConnectionResetError

    def _is_alive(self) -> bool:
        poll = select.poll()
        poll.register(self._socket, 0)  # hang-ups are always reported
        return not poll.poll(0)

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Allow one query at a time among threads and forks. If a fork is killed, its lock is released."""
        import fcntl  # not on Windows, where there is no process to lock

        file = os.open(f"/proc/self/fd/{self._lock}", os.O_RDONLY)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)
            os.close(file)

    def _start(self) -> None:
        # Packets, not a stream: a fork that is killed between two reads leaves no partial message.
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(TIMEOUT)
        self._lock = os.memfd_create("legroom-cudnn")
        self._owner = os.getpid()
        with theirs:
            self._process = subprocess.Popen(
                [*self._command, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    def _restart(self) -> None:
        self._disconnect()
        self._start()

    def _disconnect(self) -> None:
        self._socket.close()
        os.close(self._lock)
        if self._owner == os.getpid():
            self._process.kill()
            self._process.wait()


def _worker_command(paths: Sequence[str]) -> list[str]:
    # With `-I`, modules in the script's folder cannot replace modules of the standard library.
    root = str(Path(__file__).parents[4])
    return [sys.executable, "-I", "-c", _WORKER, root, json.dumps(list(paths))]


_WORKER = f"""
import json, sys
if sys.argv[1] not in sys.path:
    sys.path.insert(0, sys.argv[1])
from {__package__}.cudnn_worker import main
main(json.loads(sys.argv[2]), int(sys.argv[3]))
"""


@lru_cache(maxsize=1)
def cudnn_process() -> CudnnProcess | None:
    """Return the process that this trace and its forks share, or None if cuDNN is not installed or is disabled."""
    paths = library_paths()
    if not paths or sys.platform != "linux":
        return None
    try:
        return CudnnProcess(paths)
    except OSError:
        return None


def installed_cudnn() -> str | None:
    """Return the version of the installed cuDNN library, even if Legroom does not query it."""
    process = cudnn_process()
    return (process.version if process else None) or packaged_version()


def check_setting() -> None:
    """Raise `UsageError` if `LEGROOM_CUDNN` is neither `on`, `off` nor a cuDNN library that can be queried."""
    paths, setting = library_paths(), os.environ.get(SETTING, "")
    if paths and paths[0] == setting:
        if sys.platform != "linux":
            raise UsageError(f"cuDNN can be queried only on Linux. Unset {SETTING}, or set it to `off`.")
        process = CudnnProcess(paths)
        try:
            if process.version is None:
                raise UsageError(
                    f"{SETTING}={setting!r} is not a usable cuDNN library. Set {SETTING} to "
                    "`on`, `off`, or the path to "
                    f"{CUDNN} (version 9.8 or newer, with cuBLAS installed)."
                )
        finally:
            process.close()
