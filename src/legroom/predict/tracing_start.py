"""Starts the process that traces a script. Imports no torch: that process imports it meanwhile, and so can the caller."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any, Literal

from legroom.observe.script import Script
from legroom.predict.line_reader import LineReader


@dataclass(frozen=True, slots=True)
class Started:
    """A process on its way to the script's first batch."""

    process: subprocess.Popen[bytes]
    requests: IO[str]
    replies: LineReader
    printed: IO[bytes]

    @property
    def output(self) -> str:
        """What the script printed so far."""
        size = os.fstat(self.printed.fileno()).st_size
        return os.pread(self.printed.fileno(), size, 0).decode(errors="replace")

    def close(self) -> None:
        """End the process and whatever it started."""
        with contextlib.suppress(OSError):  # it may be gone, with a request unread
            self.requests.close()
        self.replies.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=2)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, 9)
        self.process.wait()
        self.printed.close()


def start(
    script: Script,
    gpu: str | int,
    *,
    mode: Literal["fake", "cpu"] = "fake",
    steps: int = 2,
    environment: Mapping[str, str] | None = None,
) -> Started:
    """Run `script` up to its first batch, in a process that then takes requests (see `tracing_process`).

    `environment`: what it finds there beside ours.
    """
    order: dict[str, Any] = {
        "script": script.name, "arguments": list(script.arguments), "is_module": script.is_module,
        "gpu": gpu, "mode": mode, "steps": steps,
    }  # fmt: skip
    printed = tempfile.TemporaryFile("w+b")  # noqa: SIM115  (lives as long as the process)
    request_read, request_write = os.pipe()
    reply_read, reply_write = os.pipe()
    process = subprocess.Popen(
        [
            sys.executable, "-m", "legroom.predict.tracing_main",
            json.dumps(order), str(request_read), str(reply_write),
        ],
        pass_fds=(request_read, reply_write),
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=printed,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip
    os.close(request_read)
    os.close(reply_write)
    return Started(process, os.fdopen(request_write, "w"), LineReader(reply_read), printed)
