"""The largest batch under a cap: found without a GPU, against the true one measured on an H200.

    python -m bench.accuracy.largest_batch                        all cases
    python -m bench.accuracy.largest_batch --half held-back       one half only (published, study, held-back, fresh, later)
    python -m bench.accuracy.largest_batch --only gpt2 lstm       cases with these words in their names

True sizes: by trying on the GPU, three full steps each, the cap set by the per-process fraction (`measure_largest_batch.py`
writes them; tests/data/largest_batches.json keeps them). Cases whose libraries are not installed here (torchvision,
transformers) are named and left out.
"""

import argparse
import dataclasses
import json
import statistics
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

from bench.accuracy.cases.steps import build
from bench.accuracy.largest_batch_cases import MEASURED_HERE, PUBLISHED, Capped
from bench.accuracy.scored_case import MEASURED_STEPS, MEASURED_WITH
from bench.lib.table import print_table
from legroom.gpus.catalog import find_gpu
from legroom.predict import requests
from legroom.predict.largest_batch import Search, largest_batch
from legroom.predict.tracing.trace import Trace
from legroom.predict.tracing.virtual_trace import trace_steps
from legroom.units import GiB

KEPT = Path(__file__).parents[2] / "tests" / "data" / "largest_batches.json"
START = 16
"""Where every search begins, however far from the answer."""


def main(argv: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--half", default="")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--safe", action="store_true", help="the safe bound must fit, too")
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    requests.default_settings = lambda: MEASURED_WITH
    rows: list[list[str]] = []
    ratios: dict[str, list[float]] = {}
    for capped, true in cases():
        if not capped.half.startswith(options.half) or not (
            not options.only or any(word in capped.key for word in options.only)
        ):
            continue
        began = time.process_time()
        try:
            search = found_for(capped, safe=options.safe)
        except ImportError as error:
            print(f"left out, {capped.key}: {error}")
            continue
        found = search.largest or 0
        if true:
            ratios.setdefault(capped.half, []).append(found / true)
        row = [
            capped.half, capped.key, str(true or "?"), str(found), f"{found / true:.3f}" if true else "",
            str(len(search.tried)), f"{time.process_time() - began:.0f}",
        ]  # fmt: skip
        print(*row, flush=True)
        rows.append(row)
    print_table(
        f"Largest batch, from a start of {START}",
        ["half", "case", "true", "found", "found / true", "traces", "CPU s"],
        rows,
    )
    for half, values in {**ratios, "all": [v for vs in ratios.values() for v in vs]}.items():
        if values:
            print(f"{half}: mean {statistics.mean(values):.3f}, least {min(values):.3f}, most {max(values):.3f}, "
                  f"above 1: {sum(value > 1 for value in values)} of {len(values)}")  # fmt: skip


def cases() -> list[tuple[Capped, int | None]]:
    """Every case with its true largest batch, as a process of its own reaches it; None where that was not measured. (Two of
    the published sizes differ from that: they were measured in a process in which other sizes had run before.)"""
    measured = {row["key"]: row["largest"] for row in json.loads(KEPT.read_text())}
    return [(capped, measured.get(capped.key)) for capped in (*(one for one, _ in PUBLISHED), *MEASURED_HERE)]


def found_for(capped: Capped, *, safe: bool = False) -> Search:
    gpu = find_gpu("h200")

    def trace_at(size: int) -> Trace:
        case = dataclasses.replace(capped.case, batch=size)
        return trace_steps(lambda: build(case, "cuda")[2], gpu, steps=MEASURED_STEPS)

    return largest_batch(trace_at, capped.cap * GiB, start=START, safe=safe)


if __name__ == "__main__":
    main(sys.argv[1:])
