"""Predicts one measured training step. The result is one row of the accuracy tables."""

import gc
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from bench.accuracy.cases.build_step import build
from bench.accuracy.cases.case import Case
from legroom.gpus.catalog import find_gpu
from legroom.memory.allocator.settings import AllocatorSettings
from legroom.predict import uncertainty
from legroom.predict.fit import replay, safe_reserved
from legroom.predict.tracing.trace import Trace
from legroom.predict.tracing.virtual_trace import needs_arithmetic, trace_steps

MEASURED_PEAKS = Path(__file__).parents[1] / "results" / "measured_peaks.json"
MEASURED_STEPS = 3
MEASURED_WITH = AllocatorSettings.from_environment({}, "2.11.0")
"""The allocator settings of torch 2.11, with which the cases were measured. Releases differ in the choice between free
blocks of equal size."""


@dataclass(frozen=True, slots=True)
class Row:
    """The predicted and measured memory of one case. All sizes are in bytes."""

    case_set: str
    key: str
    allocated: int
    real_allocated: int
    reserved: int
    real_reserved: int
    safe: int
    """The estimate's upper bound for reserved memory."""
    seconds: float

    @property
    def allocated_error(self) -> float:
        return self.allocated / self.real_allocated - 1

    @property
    def reserved_error(self) -> float:
        return self.reserved / self.real_reserved - 1


class Measured(NamedTuple):
    """The peak memory of a case on the GPU, in bytes."""

    allocated: int
    reserved: int
    skipped: list[int]
    """The optimizer steps that the GradScaler skipped in the measured run."""


def measured(case_set: str, folder: Path | None) -> dict[str, Measured]:
    """Return measured peaks by case key, from `folder` or from the repository."""
    if folder is not None:
        path = Path(folder) / ("peaks.json" if case_set == "reference" else f"peaks-{case_set}.json")
        if not path.exists():
            return {}
        rows = json.loads(path.read_text())
        return {
            row["key"]: Measured(row["peak_alloc"], row["peak_reserved"], row.get("skipped_steps", []))
            for row in rows
            if "error" not in row
        }
    recorded = json.loads(MEASURED_PEAKS.read_text())
    skipped = recorded["skipped_steps"]
    return {
        key: Measured(peaks[0], peaks[1], skipped.get(key, []))
        for key, peaks in recorded["peaks"].get(case_set, {}).items()
    }


class RowFile:
    """The rows of earlier runs, one JSON object per line. A later line replaces an earlier line of the same case."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        self._rows = {(row.case_set, row.key): row for row in (Row(**json.loads(line)) for line in lines)}

    def get(self, case_set: str, case: Case) -> Row | None:
        return self._rows.get((case_set, case.key))

    def put(self, row: Row) -> None:
        if self._path is None or self._rows.get((row.case_set, row.key)) == row:
            return
        self._rows[row.case_set, row.key] = row
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(row)) + "\n")


def compare(case_set: str, case: Case, real: Measured) -> Row:
    """Trace the case without a GPU, and return the estimate with the measurement."""
    began = time.perf_counter()
    trace = traced(case, real)
    peaks = replay(trace, settings=MEASURED_WITH)
    seconds = time.perf_counter() - began
    trace.uncertain_bytes = uncertainty.uncertain_bytes(trace, MEASURED_WITH)
    safe = safe_reserved(trace, peaks)
    del trace
    gc.collect()
    return Row(
        case_set, case.key, peaks.allocated, real.allocated, peaks.reserved, real.reserved, safe, seconds
    )


def traced(case: Case, real: Measured) -> Trace:
    """Trace the case as `legroom estimate` does: with fake tensors, or on the CPU if shapes depend on computed
    values."""

    def make() -> Callable[[], object]:
        return build(case, "cuda", skipped=real.skipped)[2]

    try:
        return trace_steps(make, find_gpu("h200"), steps=MEASURED_STEPS)
    except Exception as error:
        if not needs_arithmetic(error):
            raise
    return trace_steps(make, find_gpu("h200"), steps=MEASURED_STEPS, mode="cpu")
