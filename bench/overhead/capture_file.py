"""Measures the speed of writing and reading a capture file, and its size.

    python -m bench.overhead.capture_file [STEPS]

The events represent a training loop over a transformer of 48 blocks. Every allocation has a module, a line and an
operation, and activations are freed in the backward pass. Seconds are CPU time, so other work on the machine is not
counted.
"""

import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.lib.command_line import command_line
from bench.lib.table import print_table
from legroom.memory.capture.capture import CaptureWriter, read_capture
from legroom.memory.event_base import Category, Frame, Phase
from legroom.memory.events import Alloc, Event, Free, SegmentChange, Step, Tag
from legroom.memory.ledger import Ledger

BLOCKS = 48
OPERATIONS = ("addmm", "gelu", "native_layer_norm", "native_dropout", "bmm", "_softmax")


def training(steps: int) -> Iterator[Event]:
    """Yield the events of `steps` steps."""
    scatter = random.Random(0)
    now, number = 0.0, 0

    def tick() -> float:
        nonlocal now
        now += scatter.expovariate(1 / 30e-6)
        return now

    def allocate(size: int, phase: Phase, step: int, module: str, line: int, op: str) -> Alloc:
        nonlocal number
        number += 1
        frame = Frame("/home/ada/projects/trainer/model/block.py", line, "forward")
        block = -(-size // 512) * 512
        return Alloc(
            tick(), number, size, block, 0, 0, Category.TEMPORARY, phase, step, module, frame, f"aten.{op}"
        )

    yield SegmentChange(tick(), 0, 20 << 20)
    for step in range(steps):
        saved = []
        for block in range(BLOCKS):
            for position in range(12):
                op = OPERATIONS[position % 6]
                made = allocate(
                    (12 + position % 3) << 20,
                    Phase.FORWARD,
                    step,
                    f"h.{block}.m{position}",
                    40 + position,
                    op,
                )
                yield made
                if position % 3 == 2:
                    yield Free(tick(), made.id)
                else:
                    yield Tag(made.id, Category.ACTIVATION)
                    saved.append(made)
        gradients = []
        for made in reversed(saved):
            assert made.frame is not None
            where = (made.module, made.frame.line, f"{made.op[5:]}_backward")
            passing = allocate(12 << 20, Phase.BACKWARD, step, *where)
            yield passing
            gradient = allocate(768 * 768 * 4, Phase.BACKWARD, step, *where)
            yield gradient
            yield Tag(gradient.id, Category.GRADIENT)
            gradients.append(gradient.id)
            yield Free(tick(), made.id)
            yield Free(tick(), passing.id)
        for dead in gradients:
            yield Free(tick(), dead)
        yield Step(tick(), step, 0.3, 0, 10**9, 2 * 10**9, 3 * 10**9, 4 * 10**9)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("steps", type=int, nargs="?", default=100)
    steps: int = parser.parse_args().steps
    stream = list(training(steps))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.legroom"

        def write() -> None:
            with CaptureWriter(path, run={"script": "bench"}, force=True) as writer:
                sink = writer.write
                for event in stream:
                    sink(event)
            assert writer.failed is None

        def fold_live() -> None:
            ledger = Ledger(keep_events=200_000)
            for event in stream:
                ledger.apply(event)

        write()
        ledger = Ledger(stream)
        works: dict[str, Callable[[], object]] = {
            "write a capture": write,
            "read it": lambda: read_capture(path),
            "fold it into a ledger": lambda: Ledger(stream),
            "fold it live, keeping 200,000 events": fold_live,
            "draw a timeline of 600 samples": lambda: ledger.timeline(600),
        }
        rows = []
        for what, work in works.items():
            seconds = min(cost(work) for _ in range(3))
            rows.append([what, f"{len(stream) / seconds:,.0f}", f"{1e6 * seconds / len(stream):.2f}"])
        size = path.stat().st_size / len(stream)
    title = f"{len(stream):,} events of {steps} steps, {size:.2f} bytes each in the file"
    print_table(title, ["", "events per second", "µs per event"], rows)


def cost(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


if __name__ == "__main__":
    main()
