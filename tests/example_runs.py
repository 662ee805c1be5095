"""Small synthetic runs, created event by event."""

from collections.abc import Sequence
from pathlib import Path

from legroom.diagnose.report.run_report import RunReport, report_from_capture
from legroom.diagnose.report.source_lines import to_annotations
from legroom.findings import Finding
from legroom.memory.annotations import ExitReason, RunEnded
from legroom.memory.capture.capture import Capture
from legroom.memory.event_base import Category, Frame, Phase
from legroom.memory.events import Alloc, Event, Free, Holder, Oom, SegmentChange, Step
from legroom.units import MiB

TRAIN = "/project/train.py"


class Run:
    """Creates the events of a run on one GPU. Sizes are in MiB."""

    def __init__(self, capacity: int = 1000, arguments: Sequence[str] = (), other: int = 0) -> None:
        self.events: list[Event] = []
        self.capacity = capacity * MiB
        self.other = other * MiB
        self.arguments = list(arguments)
        self.allocator = ""
        self.step = 0
        self.phase = Phase.FORWARD
        self._live: dict[int, int] = {}
        self._time = 0.0
        self._reserved = 0
        self._peak = 0

    @property
    def allocated(self) -> int:
        return sum(self._live.values())

    def alloc(
        self,
        size: int,
        category: Category = Category.TEMPORARY,
        *,
        line: int = 10,
        module: str = "",
        op: str = "aten.op",
    ) -> int:
        self._time += 0.001
        number = len(self.events)
        self.events.append(
            Alloc(
                time=self._time,
                id=number,
                bytes=size * MiB,
                block_bytes=size * MiB,
                device=0,
                stream=0,
                category=category,
                phase=self.phase,
                step=self.step,
                module=module,
                frame=Frame(TRAIN, line, "train"),
                op=op,
            )
        )
        self._live[number] = size * MiB
        self._peak = max(self._peak, self.allocated)
        if self.allocated > self._reserved:
            self.events.append(SegmentChange(self._time, 0, self.allocated - self._reserved))
            self._reserved = self.allocated
        return number

    def free(self, *numbers: int) -> None:
        for number in numbers:
            self._time += 0.001
            self.events.append(Free(self._time, number))
            del self._live[number]

    def end_step(self) -> None:
        self._time += 0.1
        held = self.allocated
        self.events.append(
            Step(self._time, self.step, 0.1, 0, held, self._reserved, self._peak, self._reserved)
        )
        self.step += 1
        self._peak = held

    def oom(
        self,
        requested: int,
        *,
        line: int = 20,
        fragmented: int = 0,
        limit: int | None = None,
        op: str = "aten.mm",
        module: str = "layer",
    ) -> None:
        self._time += 0.001
        limit_bytes = self.capacity - self.other if limit is None else limit * MiB
        reserved = self.allocated + fragmented * MiB
        self.events.append(
            Oom(
                time=self._time,
                device=0,
                requested=requested * MiB,
                capacity=self.capacity,
                limit=limit_bytes,
                allocated=self.allocated,
                reserved=reserved,
                cached=0,
                fragmented=fragmented * MiB,
                largest_free_block=fragmented * MiB // 4,
                other=self.other,
                step=self.step,
                phase=self.phase,
                module=module,
                frame=Frame(TRAIN, line, "train"),
                op=op,
                message=f"CUDA out of memory. Tried to allocate {requested:.2f} MiB. GPU 0 has …",
            )
        )

    def holder(self, path: str, size: int, *, shared: int = 0) -> None:
        self.events.append(Holder(path, size * MiB, 1, Frame(TRAIN, 30, "train"), shared * MiB))

    def ends(
        self, exit_code: int, reason: str, error: str = "", traceback: str = "", seconds: float = 12.0
    ) -> None:
        self.events.append(RunEnded(seconds, exit_code, ExitReason(reason), error, traceback))

    def source(self, lines: dict[int, str]) -> None:
        self.events += to_annotations({TRAIN: lines}, 0.0)

    def capture(self, *, truncated: bool = False) -> Capture:
        header = {
            "options": ["--gpu", "1000MiB"],
            "target": ["train.py"],
            "arguments": self.arguments,
            "allocator": self.allocator,
            "devices": [
                {"index": 0, "name": "Legroom virtual GPU 0", "kind": "virtual", "capacity": self.capacity}
            ],
        }
        return Capture(
            path=Path("run.legroom"), run=header, events=self.events, truncated=truncated, dropped=0
        )

    def report(self) -> RunReport:
        return report_from_capture(self.capture(), path="run.legroom")

    def advice(self) -> dict[str, Finding]:
        """Return the findings by code, most useful first."""
        report = self.report()
        assert report.oom is not None
        return {finding.code: finding for finding in report.oom.advice}
