"""Compares the traced temporary memory of operations with recordings from a GPU.

    python -m bench.rules.operations.compare FOLDER [--only WORD...]     FOLDER/operations-*.jsonl.gz, from `measure operations`

Each operation runs twice on a traced device. Only the second run counts, because libraries keep memory from the first
run. The program prints every operation whose peak differs from the recorded peak, and the number of correct operations
by kind.
"""

import gzip
import itertools
import json
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.lib.command_line import command_line
from bench.lib.models.parts import torchvision
from bench.lib.table import print_table
from bench.rules.operations.operation_list import OPERATIONS
from legroom.gpus.catalog import find_gpu
from legroom.memory.events import Alloc, Event, Free
from legroom.predict.tracing.virtual_trace import make_device
from legroom.units import format_size

CUBLAS_WORKSPACES = (32 << 20, 1 << 20)
"""The sizes in bytes of the workspaces that cuBLAS allocates once and keeps. In a recorded history, the first
operation allocates them."""
TOLERANCE = 64 << 10
"""Differences below this number of bytes are not shown."""


def main(argv: list[str]) -> int:
    parser = command_line(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", default=[""])
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    torchvision()
    operations = dict(OPERATIONS())
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    wrong: list[list[str]] = []
    for name, real in measured(options.folder):
        if not any(word in name for word in options.only):
            continue
        operation = name.split(" ")[0]
        try:
            events = traced(operations[name])
        except Exception as error:
            wrong.append([name, "", "", type(error).__name__])
            continue
        expected, found = peak(real), peak(events)
        counts[operation][1] += 1
        if abs(expected - found) > max(TOLERANCE, 0.005 * expected):
            wrong.append([name, format_size(expected), format_size(found), f"{found / expected - 1:+.1%}"])
        else:
            counts[operation][0] += 1
    print_table("operations whose peak differs", ["operation", "measured", "traced", "error"], wrong)
    rows = [
        [operation, str(right), str(total)]
        for operation, (right, total) in sorted(counts.items())
        if right < total
    ]
    print_table("by kind of operation", ["operation", "right", "of"], rows)
    print(
        f"{sum(right for right, _ in counts.values())} of {sum(total for _, total in counts.values())} right"
    )
    return 0


def measured(folder: Path) -> Iterator[tuple[str, list[int]]]:
    """Yield the name of each recorded operation and the bytes it allocated (+) and freed (-)."""
    for path in sorted(folder.glob("operations-*.jsonl.gz")):
        with gzip.open(path, "rt") as file:
            for row in map(json.loads, file):
                if "error" not in row:
                    yield row["name"], [size for size in row["events"] if size not in CUBLAS_WORKSPACES]


def traced(operation: Callable[[], Any]) -> list[int]:
    """Run the operation twice on a traced device, and return the bytes allocated (+) and freed (-) by the second
    run."""
    events: list[Event] = []
    with make_device(find_gpu("h200"), "fake", events.append):
        operation()
        before = len(events)
        operation()
        after = len(events)
    sizes_by_id = {event.id: event.bytes for event in events if isinstance(event, Alloc)}
    late = {event.id for event in events[before:after] if isinstance(event, Alloc)}
    sizes = []
    for event in events[before:after]:
        if isinstance(event, Alloc):
            sizes.append(event.bytes)
        elif isinstance(event, Free) and event.id in late:
            sizes.append(-sizes_by_id[event.id])
    return [size for size in sizes if abs(size) not in CUBLAS_WORKSPACES]


def peak(sizes: list[int]) -> int:
    return max(itertools.accumulate(sizes), default=0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
