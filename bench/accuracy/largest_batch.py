"""Compares the predicted largest batch under a memory limit with the largest batch measured on an H200.

    python -m bench.accuracy.largest_batch                              all cases
    python -m bench.accuracy.largest_batch --group predicted-first      one group (published, development, predicted-first)
    python -m bench.accuracy.largest_batch --only gpt2 lstm             cases whose keys contain one of these words

The true sizes were found by running three steps at each size on the GPU, with the limit set by the per-process
fraction (`measure_largest_batch.py`). The results are in bench/results/largest_batches.json. Cases whose libraries
are not installed (torchvision, transformers) are listed and skipped.
"""

import dataclasses
import json
import statistics
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

from bench.accuracy.cases.build_step import build
from bench.accuracy.largest_batch_cases import LARGEST_BATCH_CASES, Capped
from bench.accuracy.scored_case import MEASURED_STEPS, MEASURED_WITH
from bench.lib.command_line import command_line
from bench.lib.table import print_table
from legroom.gpus.catalog import find_gpu
from legroom.predict import requests
from legroom.predict.largest_batch import BatchSearch, largest_batch
from legroom.predict.tracing.trace import Trace
from legroom.predict.tracing.virtual_trace import trace_steps
from legroom.units import GiB

LARGEST_BATCHES = Path(__file__).parents[1] / "results" / "largest_batches.json"
START = 16
"""The size at which every search starts, regardless of the result."""


def main(argv: Sequence[str] = ()) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--group", default="")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--safe", action="store_true", help="the safe bound must fit too")
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    requests.default_settings = lambda: MEASURED_WITH
    rows: list[list[str]] = []
    ratios: dict[str, list[float]] = {}
    for capped, true in cases():
        if not capped.group.startswith(options.group) or not (
            not options.only or any(word in capped.key for word in options.only)
        ):
            continue
        began = time.process_time()
        try:
            search = predicted(capped, safe=options.safe)
        except ImportError as error:
            print(f"skipped, {capped.key}: {error}")
            continue
        found = search.largest or 0
        if true:
            ratios.setdefault(capped.group, []).append(found / true)
        row = [
            capped.group, capped.key, str(true or "?"), str(found), f"{found / true:.3f}" if true else "",
            str(len(search.tried)), f"{time.process_time() - began:.0f}",
        ]  # fmt: skip
        print(*row, flush=True)
        rows.append(row)
    print_table(
        f"Largest batch, starting at {START}",
        ["group", "case", "true", "found", "found / true", "traces", "CPU s"],
        rows,
    )
    for group, values in {**ratios, "all": [v for vs in ratios.values() for v in vs]}.items():
        if values:
            print(f"{group}: mean {statistics.mean(values):.3f}, min {min(values):.3f}, max {max(values):.3f}, "
                  f"above 1: {sum(value > 1 for value in values)} of {len(values)}")  # fmt: skip


def cases() -> list[tuple[Capped, int | None]]:
    """Return every case with its true largest batch, or None if it was not measured."""
    measured = {row["key"]: row["largest"] for row in json.loads(LARGEST_BATCHES.read_text())}
    return [(capped, measured.get(capped.key)) for capped in LARGEST_BATCH_CASES]


def predicted(capped: Capped, *, safe: bool = False) -> BatchSearch:
    gpu = find_gpu("h200")

    def trace_at(size: int) -> Trace:
        case = dataclasses.replace(capped.case, batch=size)
        return trace_steps(lambda: build(case, "cuda")[2], gpu, steps=MEASURED_STEPS)

    return largest_batch(trace_at, capped.cap * GiB, start=START, safe=safe)


if __name__ == "__main__":
    main(sys.argv[1:])
