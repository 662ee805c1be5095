"""Measures the speed of the simulated allocator, and how often it differs from recordings of the real allocator.

    python -m bench.accuracy.allocator_replay [FOLDER]

The program prints one line per recorded history: the number of calls, calls per second (best of several runs), and how
often a replay differs from the recording, with and without the recorded segment addresses. Histories with several
streams are replayed but not timed, because their timing depends on the recording.
"""

import sys
import time
from pathlib import Path

from tests.history_replay import History

from bench.lib.command_line import command_line
from bench.lib.table import print_table
from legroom.memory.allocator.allocator import AllocationFailed, Allocator
from legroom.memory.allocator.blocks import Block

HISTORIES = Path(__file__).parents[2] / "tests" / "data" / "histories"
RUNS = 7

Call = tuple[int, int]
"""The number of a block and the bytes to allocate, or -1 to free the block."""


def main(argv: list[str]) -> int:
    parser = command_line(__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=HISTORIES)
    folder: Path = parser.parse_args(argv).folder
    rows = []
    all_events, all_seconds = 0, 0.0
    for path in sorted(folder.glob("*.json.gz")):
        history = History.read(path)
        mismatches = [history.replay(with_addresses=known).mismatches for known in (True, False)]
        calls = program(history)
        speed = "not timed"
        if "streams" not in path.name:
            seconds = min(timed(history, calls) for _ in range(RUNS))
            all_events += len(calls)
            all_seconds += seconds
            speed = f"{len(calls) / seconds:,.0f}"
        rows.append([history.name, f"{len(calls):,}", speed, *map(str, mismatches)])
    if all_seconds:
        rows.append(["all timed histories", f"{all_events:,}", f"{all_events / all_seconds:,.0f}", "", ""])
    print_table(
        "Allocator replay",
        ["history", "events", "events/s", "mismatches", "without addresses"],
        rows,
    )
    return 0


def program(history: History) -> list[Call]:
    """Return the calls that the recorded program made to its allocator."""
    calls: list[Call] = []
    live: dict[int, int] = {}
    for action, address, size, _ in history.rows:
        if action == "alloc":
            live[address] = len(calls)
            calls.append((len(calls), size))
        elif action == "oom":
            calls.append((len(calls), size))
        elif action == "free_requested":
            calls.append((live.pop(address), -1))
    return calls


def timed(history: History, calls: list[Call]) -> float:
    """Return the time of all calls on a new allocator in seconds."""
    allocator = Allocator(history.capacity, settings=history.settings, total=history.total)
    for action, _, size, _ in history.rows:
        if action == "set_limit":
            allocator.set_limit(size)
    blocks: list[Block | None] = [None] * len(calls)
    malloc, free = allocator.malloc, allocator.free
    start = time.perf_counter()
    for number, size in calls:
        if size < 0:
            block = blocks[number]
            if block is not None:
                free(block)
        else:
            try:
                blocks[number] = malloc(size)
            except AllocationFailed:
                blocks[number] = None
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
