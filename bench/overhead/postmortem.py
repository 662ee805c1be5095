"""Measures the time from an out-of-memory error to the end of its report.

    python -m bench.overhead.postmortem [--repeats 3] [--json FILE]

Each program runs under `legroom run` until memory is full, on a virtual GPU of 128 MiB or within that limit on a real
GPU. Times are measured from the failing step and from the error to the last line of the report. CPU time is measured
from the failing step to that line and to the end of the command. The rest is the shutdown of Python.

The small program has a few layers and runs 20 steps. The large program has 300,000 objects and 20,000 device tensors,
and runs 400 steps with 60 layers. The program prints medians and the load of the machine.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import torch

from bench.lib.command_line import command_line
from bench.lib.table import print_table
from legroom.units import MiB

PROGRAM = """
import json, sys, time
from pathlib import Path
import torch
from torch import nn

def train(layers, tensors, objects, steps, limit, times_file):
    if torch.cuda.get_device_properties(0).total_memory > limit:
        torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.get_device_properties(0).total_memory)
    ballast = [[i] for i in range(objects)]
    kept = [torch.zeros(8, device="cuda") for _ in range(tensors)]
    model = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.ReLU()) for _ in range(layers))).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(steps + 1):
        samples = 4 if step < steps else 1 << 20
        began, used = time.time(), time.process_time()
        try:
            loss = model(torch.ones(samples, 32, device="cuda")).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        except torch.OutOfMemoryError:
            Path(times_file).write_text(json.dumps([began, time.time(), used]))
            raise

train(*map(int, sys.argv[1:6]), sys.argv[6])
"""

SIZES = {"small": (4, 0, 0, 20), "large": (60, 20_000, 300_000, 400)}
"""The number of layers, tensors, objects and steps."""
ROOM = 128 * MiB
COLUMNS = {
    "from_step": "from the failing step",
    "from_error": "from the error",
    "first_line": "to its first line",
    "processor": "CPU time, from the failing step",
    "processor_to_end": "to the end of the command",
}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures = {name: _medians([fail(sizes) for _ in range(options.repeats)]) for name, sizes in SIZES.items()}
    print_table(
        f"Seconds to the end of the report (target 2), median of {options.repeats}",
        [
            "program",
            *COLUMNS.values(),
            "load",
        ],
        [
            [
                name,
                *(f"{row[key]:.2f}" for key in COLUMNS),
                f"{row['load']:.1f}",
            ]
            for name, row in figures.items()
        ],
    )
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


def fail(sizes: tuple[int, ...]) -> dict[str, float]:
    """Run the program once. Return the times at which its lines appeared."""
    with tempfile.TemporaryDirectory() as folder:
        script, times_file = Path(folder, "train.py"), Path(folder, "failed.json")
        script.write_text(PROGRAM)
        command = [
            sys.executable,
            "-m",
            "legroom",
            "run",
            "--verbose",
            *([] if torch.cuda.is_available() else ["--gpu", f"{ROOM}"]),
            str(script),
            *map(str, sizes),
            str(ROOM),
            str(times_file),
        ]
        run = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert run.stdout is not None
        child = psutil.Process(run.pid)
        lines = [(time.time(), sum(child.cpu_times()[:2]), line) for line in run.stdout]
        _, _, usage = os.wait4(run.pid, 0)
        began, failed, used = json.loads(times_file.read_text())
    after = [(moment, spent) for moment, spent, line in lines if moment > began and line.strip()]
    assert any("Memory by variable" in line for *_, line in lines), "no post-mortem"
    (first, _), (last, spent) = after[0], after[-1]
    return {
        "from_step": last - began,
        "from_error": last - failed,
        "first_line": first - failed,
        "processor": spent - used,
        "processor_to_end": usage.ru_utime + usage.ru_stime - used,
        "load": os.getloadavg()[0],
    }


def _medians(rows: list[dict[str, float]]) -> dict[str, Any]:
    return {key: statistics.median(row[key] for row in rows) for key in rows[0]}


if __name__ == "__main__":
    main()
