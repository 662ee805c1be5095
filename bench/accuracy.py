"""How near an estimate comes: predicted and measured peaks of training steps on an H200, case by case.

    python -m bench.accuracy                          all cases whose measurements are kept in tests/data/truth_peaks.json
    python -m bench.accuracy --cases study            one part only (reference, study, held-back, fresh, fresh-again, everyday, ordinary, ...)
    python -m bench.accuracy --only resnet gpt2       cases with these words in their names
    python -m bench.accuracy --truth FOLDER           measurements from FOLDER/peaks.json (or LEGROOM_TRUTH)
    python -m bench.accuracy --markdown               tables as docs/accuracy.md has them
    python -m bench.accuracy --peers                  other estimators on the same cases too (see bench/peers.py)
    python -m bench.accuracy --rows FILE              keep what is found in FILE, and go on from what it has (with one and the same code)
                                                      (`python -m bench.score FILE` fills it with several processes at once)

The measured step ran on the GPU with torch 2.11; the predicted one is traced on this machine without data. Cases whose
libraries are not installed here (torchvision, transformers) are named and left out.
"""

import argparse
import gc
import json
import math
import os
import resource
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

from bench.peers import PEERS, ask_all
from bench.table import print_table
from bench.workloads import CASES, Case, build
from legroom.memory.allocator_settings import AllocatorSettings
from legroom.observe.gpus import find_gpu
from legroom.predict import doubt
from legroom.predict.fit import replay, safe_reserved
from legroom.predict.trace import Trace
from legroom.predict.tracing import needs_arithmetic, trace_steps

KEPT = Path(__file__).parent.parent / "tests" / "data" / "truth_peaks.json"
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
    peers: tuple[int | None, ...] = ()
    """What others say of allocated memory, in the order of PEERS; None where they cannot do the case."""

    @property
    def allocated_error(self) -> float:
        return self.allocated / self.real_allocated - 1

    @property
    def reserved_error(self) -> float:
        return self.reserved / self.real_reserved - 1


def main(argv: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", choices=sorted(CASES), action="append")
    parser.add_argument("--only", nargs="*", default=[""])
    parser.add_argument("--truth", type=Path, default=os.environ.get("LEGROOM_TRUTH"))
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--rows", type=Path)
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    kept = Kept(options.rows)
    rows: list[Row] = []
    left_out: list[str] = []
    for half, case, real in chosen(options.cases or CASES, options.only, options.truth):
        try:
            row = kept.get(half, case) or compare(half, case, real)
            if options.peers and not row.peers:
                row = replace(row, peers=ask_all(case))
        except (ImportError, RuntimeError) as error:
            left_out.append(f"{case.key}: {error}")
        else:
            rows.append(row)
            kept.put(row)
            show_progress(row)
    report(rows, markdown=options.markdown)
    for line in left_out:
        print(f"left out, {line}")
    print(f"highest host memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")
    return 0


def chosen(
    halves: Iterable[str], words: Sequence[str], truth: Path | None
) -> list[tuple[str, Case, "Measured"]]:
    """The cases that were measured, of these parts and with one of these words in their names."""
    found: list[tuple[str, Case, Measured]] = []
    for half in halves:
        peaks = measured(half, truth)
        found += [
            (half, case, peaks[case.key])
            for case in CASES[half]
            if case.key in peaks and any(word in case.key for word in words)
        ]
    return found


class Kept:
    """Rows of earlier runs, in a file of one JSON object a line; without a path, none."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        read = [Row(**json.loads(line)) for line in lines]
        self._rows = {(row.half, row.key): replace(row, peers=tuple(row.peers)) for row in read}

    def get(self, half: str, case: Case) -> Row | None:
        return self._rows.get((half, case.key))

    def put(self, row: Row) -> None:
        if self._path is None or self._rows.get((row.half, row.key)) == row:
            return
        with self._path.open("a") as file:  # a later line stands for an earlier one of the same case
            file.write(json.dumps(asdict(row)) + "\n")


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


def compare(half: str, case: Case, real: Measured) -> Row:
    began = time.perf_counter()
    trace = traced(case, real)
    trace.further_steps = 0  # the cache may grow in later steps, but these were not measured
    peaks = replay(trace, settings=MEASURED_WITH)
    seconds = time.perf_counter() - began
    trace.doubt = doubt.of(trace, MEASURED_WITH)
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


def show_progress(row: Row) -> None:
    if sys.stderr.isatty():
        print(f"{row.key}: {row.allocated_error:+.2%} {row.reserved_error:+.2%}", file=sys.stderr)


def report(rows: list[Row], *, markdown: bool) -> None:
    for half in dict.fromkeys(row.half for row in rows):
        chosen = [row for row in rows if row.half == half]
        show(
            f"{half}: {len(chosen)} cases, MiB",
            ["case", "allocated", "real", "error", "reserved", "real", "error", "s"],
            [
                [
                    row.key, f"{row.allocated / 2**20:.0f}", f"{row.real_allocated / 2**20:.0f}", f"{row.allocated_error:+.2%}",
                    f"{row.reserved / 2**20:.0f}", f"{row.real_reserved / 2**20:.0f}", f"{row.reserved_error:+.2%}",
                    f"{row.seconds:.1f}",
                ]
                for row in chosen
            ],
            markdown,
        )  # fmt: skip
    halves = {
        half: [row for row in rows if row.half == half] for half in dict.fromkeys(row.half for row in rows)
    }
    if len(halves) > 1:
        halves["all"] = rows
    show("summary", SUMMARY, [[name, *summary(chosen)] for name, chosen in halves.items()], markdown)
    compare_peers(rows, markdown)


def compare_peers(rows: list[Row], markdown: bool) -> None:
    """The error of every estimator on allocated memory, over the cases that it can do."""
    told: list[list[str]] = []
    for index, name in enumerate(PEERS):
        errors = [
            said / row.real_allocated - 1
            for row in rows
            if row.peers and (said := row.peers[index]) is not None
        ]
        if errors:
            told.append(
                [
                    name,
                    str(len(errors)),
                    *(f"{value:.1%}" for value in (median(errors), percentile(errors, 0.95), min(errors))),
                ]
            )
    if told:
        ours = [row.allocated_error for row in rows]
        told.insert(
            0,
            [
                "Legroom",
                str(len(ours)),
                *(f"{value:.1%}" for value in (median(ours), percentile(ours, 0.95), min(ours))),
            ],
        )
        show("allocated, by estimator", ["", "cases", "median", "p95", "worst under"], told, markdown)


SUMMARY = [
    "", "cases", "allocated: median", "p95", "worst under", "reserved: median", "p95", "worst under", "above safe bound",
    "safe margin: median", "seconds: median", "most",
]  # fmt: skip


def summary(rows: list[Row]) -> list[str]:
    if not rows:
        return ["0", *[""] * (len(SUMMARY) - 2)]
    allocated = [row.allocated_error for row in rows]
    reserved = [row.reserved_error for row in rows]
    above = sum(row.real_reserved > row.safe for row in rows)
    return [
        str(len(rows)),
        *(f"{value:.2%}" for value in (median(allocated), percentile(allocated, 0.95), min(allocated))),
        *(f"{value:.2%}" for value in (median(reserved), percentile(reserved, 0.95), min(reserved))),
        f"{above} ({above / len(rows):.0%})",
        f"{statistics.median(row.safe / row.reserved - 1 for row in rows):.1%}",
        f"{statistics.median(row.seconds for row in rows):.1f}",
        f"{max(row.seconds for row in rows):.1f}",
    ]


def median(errors: list[float]) -> float:
    return statistics.median(map(abs, errors))


def percentile(errors: list[float], share: float) -> float:
    """The smallest error that `share` of all cases stay within."""
    ordered = sorted(map(abs, errors))
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def show(title: str, columns: list[str], rows: list[list[str]], markdown: bool) -> None:
    if not markdown:
        print_table(title, columns, rows)
        return
    print(f"\n### {title}\n")
    for cells in (columns, ["---"] * len(columns), *rows):
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
