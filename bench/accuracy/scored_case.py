"""One measured training step, predicted: the row that every table of accuracy is made of."""

import gc
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from bench.accuracy.cases.steps import Case, build
from legroom.memory.allocator.settings import AllocatorSettings
from legroom.gpus.catalog import find_gpu
from legroom.predict import uncertainty
from legroom.predict.fit import replay, safe_reserved
from legroom.predict.tracing.trace import Trace
from legroom.predict.tracing.virtual_trace import needs_arithmetic, trace_steps

KEPT = Path(__file__).parents[2] / "tests" / "data" / "truth_peaks.json"
MEASURED_STEPS = 3
MEASURED_WITH = AllocatorSettings.from_environment({}, "2.11.0")
"""Releases of torch differ in which of several equal free blocks they take; these were measured with 2.11."""


@dataclass(frozen=True, slots=True)
class Row:
    """One case, predicted and measured. Sizes in bytes."""

    half: str
    key: str
    allocated: int
    real_allocated: int
    reserved: int
    real_reserved: int
    safe: int
    """What the estimate says reserved memory will not exceed."""
    seconds: float

    @property
    def allocated_error(self) -> float:
        return self.allocated / self.real_allocated - 1

    @property
    def reserved_error(self) -> float:
        return self.reserved / self.real_reserved - 1


class Measured(NamedTuple):
    """What a case took on the GPU."""

    allocated: int
    reserved: int
    skipped: list[int]
    """Steps that the GradScaler skipped there."""


def measured(half: str, folder: Path | None) -> dict[str, Measured]:
    """Measured peaks of allocated and reserved memory, by the name of the case."""
    if folder is not None:
        path = Path(folder) / ("peaks.json" if half == "reference" else f"peaks-{half}.json")
        if not path.exists():
            return {}
        rows = json.loads(path.read_text())
        return {
            row["key"]: Measured(row["peak_alloc"], row["peak_reserved"], row.get("skipped_steps", []))
            for row in rows
            if "error" not in row
        }
    kept = json.loads(KEPT.read_text())
    skipped = kept["skipped_steps"]
    return {
        key: Measured(peaks[0], peaks[1], skipped.get(key, []))
        for key, peaks in kept["peaks"].get(half, {}).items()
    }


class Kept:
    """Rows of earlier runs, in a file of one JSON object a line; without a path, none."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        self._rows = {(row.half, row.key): row for row in (Row(**json.loads(line)) for line in lines)}

    def get(self, half: str, case: Case) -> Row | None:
        return self._rows.get((half, case.key))

    def put(self, row: Row) -> None:
        if self._path is None or self._rows.get((row.half, row.key)) == row:
            return
        self._rows[row.half, row.key] = row
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:  # a later line stands for an earlier one of the same case
            file.write(json.dumps(asdict(row)) + "\n")


def compare(half: str, case: Case, real: Measured) -> Row:
    began = time.perf_counter()
    trace = traced(case, real)
    peaks = replay(trace, settings=MEASURED_WITH)
    seconds = time.perf_counter() - began
    trace.doubt = uncertainty.of(trace, MEASURED_WITH)
    safe = safe_reserved(trace, peaks)
    del trace
    gc.collect()
    return Row(half, case.key, peaks.allocated, real.allocated, peaks.reserved, real.reserved, safe, seconds)


def traced(case: Case, real: Measured) -> Trace:
    """As `legroom estimate` does it: without data, and where shapes depend on the model's results, computed on the CPU."""

    def make() -> Callable[[], object]:
        return build(case, "cuda", skipped=real.skipped)[2]

    try:
        return trace_steps(make, find_gpu("h200"), steps=MEASURED_STEPS)
    except Exception as error:
        if not needs_arithmetic(error):
            raise
    return trace_steps(make, find_gpu("h200"), steps=MEASURED_STEPS, mode="cpu")
