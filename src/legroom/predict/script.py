"""An unmodified script, traced in a process of its own."""

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from legroom.errors import LegroomError
from legroom.memory.capture import read_capture
from legroom.observe.gpus import Gpu
from legroom.observe.script import Script
from legroom.predict.means import Means
from legroom.predict.trace import Mode, Trace


class CannotTrace(LegroomError):  # noqa: N818
    """A script that could not be traced, and how far it came. `output` is what it printed."""

    def __init__(self, sentence: str, *, output: str = "", needs_data: bool = False) -> None:
        super().__init__(sentence)
        self.output = output
        self.needs_data = needs_data


class TracedScript:
    """A script that has run up to its first batch, and can be traced from there as often as wanted."""

    def __init__(
        self,
        script: Script,
        gpu: Gpu,
        gpu_name: str | int,
        *,
        mode: Mode = "fake",
        steps: int = 2,
        patience: float = 300,
    ) -> None:
        self.gpu = gpu
        self.mode = mode
        self.batch_size: int | None = None
        self._patience = patience
        self._folder = tempfile.TemporaryDirectory(prefix="legroom-")
        self._count = 0
        self._over: dict[str, Any] | None = None
        self._output = open(Path(self._folder.name) / "output", "w+b")  # noqa: SIM115  (lives as long as the process)
        order = {
            "script": script.name, "arguments": list(script.arguments), "is_module": script.is_module,
            "gpu": gpu_name, "mode": mode, "steps": steps,
        }  # fmt: skip
        request_read, request_write = os.pipe()
        reply_read, reply_write = os.pipe()
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "legroom.predict.tracing_process",
                json.dumps(order),
                str(request_read),
                str(reply_write),
            ],
            pass_fds=(request_read, reply_write),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        os.close(request_read)
        os.close(reply_write)
        self._requests = os.fdopen(request_write, "w")
        self._replies = os.fdopen(reply_read, "r")
        reply = self._reply()
        if reply["event"] == "over":
            self._over = reply
        self.batch_size = reply.get("batch_size")

    def trace(self, batch_size: int | None = None, means: Means = Means.NONE) -> Trace:
        """Trace from the first batch on; raises `CannotTrace` with how far the script came."""
        if self._over is not None:
            raise self._explained(self._over)
        self._count += 1
        path = Path(self._folder.name) / f"trace-{self._count}.legroom"
        self._requests.write(
            json.dumps({"path": str(path), "batch_size": batch_size, "means": means.value}) + "\n"
        )
        self._requests.flush()
        self._reply()
        if not path.exists():
            raise CannotTrace("the script's process died while it was traced", output=self.output)
        capture = read_capture(path)
        path.unlink()
        facts = capture.run
        if facts["how"] == "crashed" or not facts["steps"]:
            raise self._explained(facts)
        return Trace(
            gpu=self.gpu,
            mode=self.mode,
            events=capture.events,
            steps=facts["steps"],
            trains=facts["trains"],
            batch_size=facts["batch_size"],
            doubt=facts["doubt"],
            made_up=facts["made_up"],
            notes=facts["notes"],
        )

    @property
    def output(self) -> str:
        """What the script printed so far."""
        self._output.flush()
        self._output.seek(0)
        return self._output.read().decode(errors="replace")

    def close(self) -> None:
        """End the process and whatever it started."""
        for end in (self._requests, self._replies):
            end.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=2)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, 9)
        self._process.wait()
        self._output.close()
        self._folder.cleanup()

    def __enter__(self) -> "TracedScript":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _reply(self) -> dict[str, Any]:
        until = time.monotonic() + self._patience
        while time.monotonic() < until:
            if select.select([self._replies], [], [], 0.5)[0]:
                line = self._replies.readline()
                if line:
                    reply: dict[str, Any] = json.loads(line)
                    return reply
                raise CannotTrace(
                    f"the script's process ended before its first batch (exit code {self._process.wait()})",
                    output=self.output,
                )
        raise CannotTrace(
            f"the script did not come to the end of its steps within {self._patience:.0f} seconds",
            output=self.output,
        )

    def _explained(self, facts: dict[str, Any]) -> CannotTrace:
        """Why there is no trace: how far the script came, and what can be done."""
        text: str = facts.get("text") or ""
        last = text.strip().splitlines()[-1] if text.strip() else ""
        needs_data = any(name in text for name in ("DataDependentOutput", "DynamicOutputShape"))
        if needs_data:
            sentence = f"the script asks for data that a trace does not have: {last}"
        elif facts["how"] == "crashed":
            sentence = f"the script failed by itself after {facts['steps']} steps: {last or 'exit code ' + str(facts['exit_code'])}"
        else:
            sentence = "the script ended without an optimizer step or a batch from a DataLoader: there is nothing to estimate"
        return CannotTrace(sentence, output=self.output, needs_data=needs_data)
