"""An unmodified script, traced in a process of its own."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from legroom.errors import LegroomError
from legroom.gpus.catalog import GpuSpec
from legroom.memory.capture.capture import read_capture
from legroom.predict.options.names import Means
from legroom.predict.tracing.trace import Mode, Trace
from legroom.predict.tracing.worker_process import StandingBy
from legroom.units import format_size


class CannotTrace(LegroomError):  # noqa: N818
    """A script that could not be traced, and how far it came. `output` is what it printed."""

    def __init__(self, sentence: str, *, output: str = "", needs_data: bool = False) -> None:
        super().__init__(sentence)
        self.output = output
        self.needs_data = needs_data


class TracedScript:
    """A script that has run up to its first batch, and can be traced from there as often as wanted, several at a time."""

    def __init__(
        self, process: StandingBy, gpu: GpuSpec, *, mode: Mode = "fake", patience: float = 300
    ) -> None:
        self._process, self._gpu, self._mode, self._patience = process, gpu, mode, patience
        self._count = 0
        self._done: set[int] = set()
        reply = self._reply()
        self._over = reply if reply["event"] == "over" else None
        self.batch_size: int | None = reply.get("batch_size")
        """Of the loader, as it says itself; None where it does not or there is none."""

    def start(
        self, batch_size: int | None = None, means: Sequence[Means] = (), *, urgent: bool = True
    ) -> "PendingTrace":
        """Ask for a trace from the first batch on. Those that are not `urgent` let others go before them."""
        if self._over is not None:
            raise self._explained(self._over)
        self._count += 1
        path = Path(self._process.folder.name) / f"trace-{self._count}.legroom"
        order = {
            "number": self._count, "path": str(path), "batch_size": batch_size, "urgent": urgent,
            "means": [one.value for one in means],
        }  # fmt: skip
        try:
            self._process.ask(order)
        except EOFError:
            raise self._gone() from None
        return PendingTrace(self, self._count, path)

    def trace(self, batch_size: int | None = None, means: Sequence[Means] = ()) -> Trace:
        """Trace now; raises `CannotTrace` with how far the script came."""
        return self.start(batch_size, means).result()

    def close(self) -> None:
        """End the process and whatever it started."""
        self._process.close()

    def __enter__(self) -> "TracedScript":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def await_trace(self, pending: "PendingTrace") -> Trace:
        while pending.number not in self._done:
            self._done.add(self._reply()["number"])
        if not pending.path.exists():
            raise CannotTrace("the script's process died while it was traced", output=self._process.output)
        capture = read_capture(pending.path)
        pending.path.unlink()
        facts = capture.run
        # Inference, to its end.
        looked = facts["how"] == "ended" and not facts["trains"] and facts["reserved"]
        if facts["how"] in ("crashed", "needs data") or not (facts["steps"] or looked):
            raise self._explained(facts)
        if not facts["reserved"]:
            raise CannotTrace(
                "the script put nothing on the GPU, so there is nothing to estimate: "
                'it never moves its model to "cuda", or an argument of its own decides that',
                output=self._process.output,
            )
        return Trace(
            gpu=self._gpu,
            mode=self._mode,
            events=capture.events,
            steps=facts["steps"],
            trains=facts["trains"],
            batch_size=facts["batch_size"],
            doubt=facts["doubt"],
            doubts={int(number): tuple(others) for number, others in facts["doubts"].items()},
            spare=set(facts["spare"]),
            made_up=facts["made_up"],
            differing_versions=facts["differing_versions"],
            notes=facts["notes"],
        )

    def _reply(self) -> dict[str, Any]:
        try:
            reply = self._process.reply(self._patience)
        except EOFError:
            raise self._gone() from None
        if reply is None:
            raise CannotTrace(
                f"the script did not come to the end of its steps within {self._patience:.0f} seconds",
                output=self._process.output,
            )
        return reply

    def _gone(self) -> CannotTrace:
        return CannotTrace(
            f"the script's process ended before its first batch (exit code {self._process.exit_code})",
            output=self._process.output,
        )

    def _explained(self, facts: dict[str, Any]) -> CannotTrace:
        """Why there is no trace: how far the script came, and what can be done."""
        text, needs_data = str(facts["text"]), facts["how"] == "needs data"
        reserved = facts["reserved"] + self._gpu.context
        so_far = (
            f"until then it needed {format_size(reserved)}"
            if facts["reserved"]
            else "nothing was on the device yet"
        )
        if needs_data:
            sentence = f"the script needs real data where a trace has none ({text})"
        elif facts["how"] == "crashed":
            after = _counted(facts["steps"], "step", "steps")
            reason = text or self._process.last_words or f"exit code {facts['exit_code']}"
            sentence = f"the script failed by itself after {after}: {reason}; {so_far}"
            if _NEEDS_GPU.search(text):
                sentence += "; that code asks for a real GPU, so nothing after it can be estimated"
            if not text and facts["exit_code"] == 2:  # what argparse says for a bad command line
                sentence += "; the script's own arguments go after its name"
        else:
            batches = f"after {_counted(facts['batches'], 'batch', 'batches')} " if facts["batches"] else ""
            sentence = f"the script ended {batches}without an optimizer step, so there is no step to estimate; {so_far}"
        return CannotTrace(sentence, output=self._process.output, needs_data=needs_data)


@dataclass(frozen=True, slots=True)
class PendingTrace:
    """A trace that was asked for."""

    script: TracedScript
    number: int
    path: Path

    def result(self) -> Trace:
        """The trace, once it is there; raises `CannotTrace` with how far the script came."""
        return self.script.await_trace(self)


_NEEDS_GPU = re.compile(r"CUDA tensor|is_cuda|active driver|No module named 'triton'", re.IGNORECASE)
"""How extensions and Triton fail without a GPU."""


def _counted(number: int, one: str, more: str) -> str:
    return f"{number} {one if number == 1 else more}"
