"""What operations allocate inside, traced here and measured on a GPU, held against each other.

    python -m bench.rules.operations.compare FOLDER [--only WORD...]     FOLDER/scratch-*.jsonl.gz, from `measure_gpu.py scratch`

Each probe runs twice on a traced device; the second time libraries hold what they keep. Prints every probe whose peak, above what
was there before, is another than the measured one, and by operation how many are right.
"""

import argparse
import gzip
import itertools
import json
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.lib.models.parts import torchvision
from bench.lib.table import print_table
from bench.rules.operations.scratch_probes import SCRATCH_PROBES
from legroom.memory.events import Alloc, Event, Free
from legroom.gpus.catalog import find_gpu
from legroom.predict.tracing.virtual_trace import make_device
from legroom.units import format_size

KEPT = (32 << 20, 1 << 20)
"""Bytes that cuBLAS takes once and keeps: in a measured history they belong to whichever probe came first."""
NOTABLE = 64 << 10
"""Bytes below which a difference is not shown."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", default=[""])
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    torchvision()
    probes = dict(SCRATCH_PROBES())
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    wrong: list[list[str]] = []
    for name, real in measured(options.folder):
        if not any(word in name for word in options.only):
            continue
        operation = name.split(" ")[0]
        try:
            said = traced(probes[name])
        except Exception as error:
            wrong.append([name, "", "", type(error).__name__])
            continue
        expected, found = peak(real), peak(said)
        counts[operation][1] += 1
        if abs(expected - found) > max(NOTABLE, 0.005 * expected):
            wrong.append([name, format_size(expected), format_size(found), f"{found / expected - 1:+.1%}"])
        else:
            counts[operation][0] += 1
    print_table("probes whose peak is another", ["probe", "measured", "traced", "error"], wrong)
    rows = [
        [operation, str(right), str(total)]
        for operation, (right, total) in sorted(counts.items())
        if right < total
    ]
    print_table("operations with wrong peaks", ["operation", "right", "of"], rows)
    print(
        f"{sum(right for right, _ in counts.values())} of {sum(total for _, total in counts.values())} right"
    )
    return 0


def measured(folder: Path) -> Iterator[tuple[str, list[int]]]:
    """The name of each probe that ran, and the bytes it asked for (+) and gave back (-)."""
    for path in sorted(folder.glob("scratch-*.jsonl.gz")):
        with gzip.open(path, "rt") as file:
            for row in map(json.loads, file):
                if "error" not in row:
                    yield row["name"], [size for size in row["events"] if size not in KEPT]


def traced(probe: Callable[[], Any]) -> list[int]:
    """The same of the second run on a traced device."""
    events: list[Event] = []
    with make_device(find_gpu("h200"), "fake", events.append):
        probe()
        before = len(events)
        probe()
        after = len(events)
    born = {event.id: event.bytes for event in events if isinstance(event, Alloc)}
    late = {event.id for event in events[before:after] if isinstance(event, Alloc)}
    sizes = []
    for event in events[before:after]:
        if isinstance(event, Alloc):
            sizes.append(event.bytes)
        elif isinstance(event, Free) and event.id in late:
            sizes.append(-born[event.id])
    return [size for size in sizes if abs(size) not in KEPT]


def peak(sizes: list[int]) -> int:
    return max(itertools.accumulate(sizes), default=0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
