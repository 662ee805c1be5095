"""Runs difficult programs many times, with python and with Legroom, and counts the runs that end as with python.

    python -m bench.first_contact.repeated_runs [--times 100] [--jobs 2] [--full FOLDER] [--only NAME ...]

The programs train in four threads, run in a folder without disk space, and allocate more memory than the GPU or the
host has. With python, all programs exit with code 0 and print "done". A run with Legroom counts if it does the same
within two minutes and reports no leak. `--full` is a folder on a file system without free space, in which the second
program runs.
"""

import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench.lib.command_line import command_line
from bench.lib.table import print_table

SECONDS = 120
LEAK = re.compile("memory leaks?( detected|$)", re.IGNORECASE | re.MULTILINE)

TRAINING = """
import sys, threading
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"

def train(seed, steps=60):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    rows = range(steps)
    if "--watch" in sys.argv:
        import legroom
        rows = legroom.watch(rows)
    for _ in rows:
        x, y = torch.randn(32, 64, device=device), torch.randint(0, 10, (32,), device=device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    assert loss.item() > 0
"""
THREADS = f"""{TRAINING}
threads = [threading.Thread(target=train, args=(seed,)) for seed in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("done")
"""
FULL_DISK = f"""{TRAINING}
train(0)
print("done")
"""
HUGE = f"""{TRAINING}
train(0, steps=3)
for elements in (2**40, 2**34, 2**32):
    try:
        torch.zeros(elements, device=device).sum()
    except (torch.OutOfMemoryError, RuntimeError, MemoryError):
        pass
    try:
        torch.ones(elements // 2**16, 1, device=device) @ torch.ones(1, 2**16, device=device)
    except (torch.OutOfMemoryError, RuntimeError, MemoryError):
        pass
train(1, steps=3)
print("done")
"""


@dataclass(frozen=True)
class Kind:
    name: str
    source: str
    full: bool = False
    """True if the program runs in the folder without space."""
    commands: tuple[str, ...] = ("legroom run", "legroom run --gpu", "legroom.watch")


KINDS = (
    Kind("four threads", THREADS),
    Kind("full disk", FULL_DISK, full=True),
    Kind("huge allocations", HUGE, commands=("legroom run --gpu",)),
)
COMMANDS = {
    "legroom run": ["-m", "legroom", "run", "SCRIPT"],
    "legroom run --gpu": ["-m", "legroom", "run", "--gpu", "2GiB", "SCRIPT"],
    "legroom.watch": ["SCRIPT", "--watch"],
}


def main(argv: Sequence[str]) -> int:
    parser = command_line(__doc__)
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--full", type=Path)
    parser.add_argument("--only", nargs="*", choices=[each.name for each in KINDS])
    options = parser.parse_args(argv)
    rows = []
    for kind in KINDS:
        if options.only and kind.name not in options.only:
            continue
        if kind.full and options.full is None:
            rows.append([kind.name, "", "skipped: give --full FOLDER", ""])
            continue
        for command in kind.commands:
            results = outcomes(kind, command, options.full, options.times, options.jobs)
            others = ", ".join(f"{count} × {what}" for what, count in results.items() if what)
            rows.append([kind.name, command, f"{results['']} of {options.times}", others])
            print(*rows[-1], flush=True)
    print_table("Runs that end as with python", ["program", "command", "as with python", "others"], rows)
    return 0


def outcomes(kind: Kind, command: str, full: Path | None, times: int, jobs: int) -> Counter[str]:
    """Return the difference between each run and python, or "" if there is none."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        script = Path(folder) / "train.py"
        script.write_text(kind.source)
        words = [str(script) if word == "SCRIPT" else word for word in COMMANDS[command]]
        where = full if kind.full and full is not None else Path(folder)
        return Counter(pool.map(lambda _: outcome(words, where), range(times)))


def outcome(words: Sequence[str], folder: Path) -> str:
    try:
        done = subprocess.run(
            [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return "no end"
    if done.returncode:
        return f"exit code {done.returncode}: {done.stderr.strip().splitlines()[-1:]}"
    if "done" not in done.stdout.splitlines():
        return "another output"
    return "a leak is reported" if LEAK.search(done.stdout + done.stderr) else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
