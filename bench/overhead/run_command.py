"""Measures the time that `legroom run` adds to a ResNet-50 training step on a real GPU. Needs a GPU.

    python -m bench.overhead.run_command [--rounds 3] [--steps 30]

`legroom run` and plain python alternately run the same script (this file with `--measure`). The script times its steps
with the device synchronized. The results are the median over all steps of all rounds, and the fastest quarter. If
Python is the bottleneck, the spread between rounds of plain python (the last column) exceeds the difference. Needs
torchvision.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
CASES = [(64, "fp32"), (128, "fp32"), (64, "amp"), (128, "amp"), (16, "fp32")]
"""The batch size and precision of each case. The last case has the largest overhead, because it is limited by Python
and not by the GPU."""
WARM_UP = 8


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--steps", type=int, default=30)
    arguments.add_argument("--measure", type=Path)
    chosen = arguments.parse_args()
    if chosen.measure is not None:
        chosen.measure.write_text(json.dumps(measure(chosen.steps)))
    else:
        compare(chosen.rounds, chosen.steps)


def compare(rounds: int, steps: int) -> None:
    from bench.lib.table import print_table

    times: dict[str, dict[str, list[list[float]]]] = {"plain": {}, "watched": {}}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "steps.json"
        watching = ["-m", "legroom", "run", "--force", "-o", str(Path(folder) / "run.legroom")]
        for _ in range(rounds):
            for how, before in (("plain", []), ("watched", watching)):
                words = [*before, str(Path(__file__)), "--measure", str(out), "--steps", str(steps)]
                done = subprocess.run(
                    [sys.executable, *words],
                    cwd=ROOT,
                    env=_environment(),
                    capture_output=True,
                    text=True,
                    check=False,
                )
                if done.returncode != 0:
                    sys.exit(f"{how} failed:\n{done.stdout}\n{done.stderr}")
                for case, measured in json.loads(out.read_text()).items():
                    times[how].setdefault(case, []).append(measured)
    rows = []
    for case in times["plain"]:
        plain, watched = (
            [step for turn in times[how][case] for step in turn] for how in ("plain", "watched")
        )
        median = [statistics.median(steps) for steps in (plain, watched)]
        quarter = [statistics.quantiles(steps, n=4)[0] for steps in (plain, watched)]
        rounds_of_plain = [statistics.median(turn) for turn in times["plain"][case]]
        rows.append(
            [
                case,
                *(f"{milliseconds:.2f}" for milliseconds in median),
                f"{median[1] / median[0] - 1:+.1%}",
                f"{quarter[1] / quarter[0] - 1:+.1%}",
                f"{max(rounds_of_plain) / min(rounds_of_plain) - 1:.1%}",
            ]
        )
    header = [
        "ResNet-50 step",
        "python, ms",
        "legroom run, ms",
        "cost",
        "fastest quarter",
        "spread of python",
    ]
    print_table(
        f"`legroom run` on a real GPU, {rounds} rounds of {steps} steps each, alternating", header, rows
    )


def measure(steps: int) -> dict[str, list[float]]:
    """Return the time of each step in milliseconds, by case."""
    import torch
    from torch.nn import functional as F
    from torchvision.models import resnet50

    device = torch.device("cuda")
    times = {}
    for batch, precision in CASES:
        torch.manual_seed(0)
        model = resnet50().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        x = torch.randn(batch, 3, 224, 224, device=device)
        y = torch.randint(0, 1000, (batch,), device=device)
        taken = []
        for _ in range(WARM_UP + steps):
            torch.cuda.synchronize()
            began = time.perf_counter()
            with torch.autocast("cuda", torch.bfloat16, enabled=precision == "amp"):
                loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            torch.cuda.synchronize()
            taken.append((time.perf_counter() - began) * 1e3)
        times[f"batch {batch}, {precision}"] = taken[WARM_UP:]
        del model, optimizer, x, y, loss
        torch.cuda.empty_cache()
    return times


def _environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"PYTHONPATH": path}


if __name__ == "__main__":
    main()
