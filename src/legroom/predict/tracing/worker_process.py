"""A process of ours that stands by: it takes requests and answers them, both lines of JSON on pipes of their own.

Whoever traces starts one, since a trace changes much of torch and forks: a script's (`tracing_process`) and a training function's
(`trial_tracing`) are started, asked and ended alike. What such a process prints goes to a file, so that the terminal stays ours and
its last words can be told. Imports no torch: the process imports it meanwhile, and so can the caller.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any

from legroom.predict.tracing.line_reader import LineReader

SECONDS_TO_LEAVE = 2.0


@dataclass(frozen=True, slots=True)
class StandingBy:
    """A process that was started, from this side."""

    _process: subprocess.Popen[bytes]
    _requests: IO[str]
    _replies: LineReader
    _printed: IO[bytes]
    folder: tempfile.TemporaryDirectory[str]
    """A scratch folder for the process and for its replies; removed when it is closed."""

    def ask(self, request: dict[str, Any]) -> None:
        """Send a request. Raises `EOFError` where the process is gone."""
        try:
            self._requests.write(json.dumps(request) + "\n")
            self._requests.flush()
        except OSError:
            raise EOFError from None

    def reply(self, patience: float) -> dict[str, Any] | None:
        """The next reply; None where there is none after so many seconds. Raises `EOFError` where the process is gone."""
        line = self._replies.line(patience)
        return None if line is None else json.loads(line)

    @property
    def output(self) -> str:
        """What it printed so far."""
        size = os.fstat(self._printed.fileno()).st_size
        return os.pread(self._printed.fileno(), size, 0).decode(errors="replace")

    @property
    def last_words(self) -> str:
        """The last line that it printed, if any."""
        lines = self.output.strip().splitlines()
        return lines[-1].strip() if lines else ""

    @property
    def exit_code(self) -> int:
        """Of a process that is gone."""
        return self._process.wait()

    def kill(self) -> None:
        """End it and whatever it started, at once; who waits for its reply gets `EOFError`."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, 9)
        self._process.wait()

    def close(self) -> None:
        """No more requests: it ends by itself, or is ended."""
        with contextlib.suppress(OSError):  # it may be gone, with a request unread
            self._requests.close()
        self._replies.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=SECONDS_TO_LEAVE)
        self.kill()
        self._printed.close()
        with contextlib.suppress(OSError):
            self.folder.cleanup()


def start_standing_by(
    module: str, order: dict[str, Any], environment: Mapping[str, str] | None = None
) -> StandingBy:
    """Run a module of ours with `order` and the numbers of its two pipes as arguments. `environment`: what it finds beside ours."""
    folder = tempfile.TemporaryDirectory(prefix="legroom-", ignore_cleanup_errors=True)
    order = {**order, "folder": os.path.realpath(folder.name)}
    printed = tempfile.TemporaryFile("w+b")  # noqa: SIM115  (lives as long as the process)
    request_read, request_write = os.pipe()
    reply_read, reply_write = os.pipe()
    process = subprocess.Popen(
        # -u: what it prints stands in the order in which it was printed, errors among it.
        [sys.executable, "-u", "-m", module, json.dumps(order), str(request_read), str(reply_write)],
        pass_fds=(request_read, reply_write),
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=printed,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    os.close(request_read)
    os.close(reply_write)
    return StandingBy(process, os.fdopen(request_write, "w"), LineReader(reply_read), printed, folder)
