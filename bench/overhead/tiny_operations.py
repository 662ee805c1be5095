"""Measures the time that `legroom run` adds to programs with the smallest possible operations, where Python dominates.

    python -m bench.overhead.tiny_operations [--steps 100000] [--tensors 1000000] [--rounds 1] [--sides plain run ...]

The program compares these sides, which run alternately, each in its own process: plain python, a dispatch mode that
does nothing (with and without a function mode that does nothing), `legroom run`, and `legroom run --gpu 8GiB`. No
recorder written in Python can be faster than a mode that does nothing.

- Steps: `Linear(8, 8)` with a batch of 4, mean squared error, backward, SGD.
- Tensors: a list of live `torch.zeros(4)`.

The table shows the CPU time of all threads per step or tensor, from the start of the loop to the end of the process. It
is the lowest of all rounds and includes the report of `legroom run`. The last two columns show the growth of the peak
of resident memory since the start of the loop, after a fifth of the steps and after all steps. If both are similar, the
memory of the recorder does not grow with the number of steps.
"""

import argparse
import inspect
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
SIDES: dict[str, tuple[str, list[str], str]] = {
    "plain": ("python", [], ""),
    "dispatch": ("no-op dispatch mode", [], "dispatch"),
    "both": ("no-op dispatch and function modes", [], "both"),
    "run": ("legroom run", ["-m", "legroom", "run", "--force"], ""),
    "gpu": ("legroom run --gpu 8GiB", ["-m", "legroom", "run", "--force", "--gpu", "8GiB"], ""),
}
"""The title, the arguments of python, and the modes to enter, by side."""
WARM_UP = 100


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--steps", type=int, default=100_000)
    arguments.add_argument("--tensors", type=int, default=1_000_000)
    arguments.add_argument("--rounds", type=int, default=1)
    arguments.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    arguments.add_argument("--work", choices=WORK)
    arguments.add_argument("--modes", default="")
    arguments.add_argument("--device", default="cpu")
    arguments.add_argument("--out", type=Path)
    chosen = arguments.parse_args()
    if chosen.work is not None:
        chosen.out.write_text(
            json.dumps(measure(chosen.work, chosen.steps or chosen.tensors, chosen.device, chosen.modes))
        )
        return
    from bench.lib.table import print_table

    for work, count in (("steps", chosen.steps), ("tensors", chosen.tensors)):
        if count:
            print_table(
                f"{count:,} {'tiny training steps' if work == 'steps' else 'live tiny tensors'}",
                [
                    "",
                    "CPU time each",
                    "relative to python",
                    f"memory after {count // 5:,}",
                    f"memory after {count:,}",
                ],
                compare(work, count, chosen.rounds, chosen.sides),
            )


def compare(work: str, count: int, rounds: int, sides: list[str]) -> list[list[str]]:
    figures: dict[str, list[Figures]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side in sides:
            figures[side].append(run_side(side, work, count))
    lowest = {side: min(each.seconds for each in measured) for side, measured in figures.items()}
    return [
        [
            SIDES[side][0],
            f"{lowest[side] * 1e6:.1f} µs",
            f"{lowest[side] / lowest['plain']:.2f}×" if "plain" in lowest else "",
            f"+{min(each.first_fifth for each in figures[side]) / 2**20:.1f} MiB",
            f"+{min(each.all for each in figures[side]) / 2**20:.1f} MiB",
        ]
        for side in sides
    ]


class Figures(NamedTuple):
    """Return the CPU seconds per step or tensor, and the growth of the peak of resident memory in bytes."""

    seconds: float
    first_fifth: float
    all: float


def run_side(side: str, work: str, count: int) -> Figures:
    _, command, modes = SIDES[side]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "figures.json"
        output = ["-o", str(Path(folder) / "run.legroom")] if command else []
        device = "cuda" if side == "gpu" else "cpu"
        sizes = [
            "--steps",
            str(count if work == "steps" else 0),
            "--tensors",
            str(count if work != "steps" else 0),
        ]
        options = ["--work", work, *sizes, "--modes", modes, "--device", device, "--out", str(out)]
        process = subprocess.Popen(
            [sys.executable, *command, *output, str(Path(__file__)), *options],
            cwd=ROOT,
            env=_environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        errors = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            sys.exit(f"{side} failed:\n{errors}")
        measured = json.loads(out.read_text())
    seconds = usage.ru_utime + usage.ru_stime - measured["seconds_before"]
    before = measured["peak_before"]
    return Figures(seconds / count, measured["peak_fifth"] - before, measured["peak_end"] - before)


# --- the measured program


def measure(work: str, count: int, device: str, modes: str) -> dict[str, float]:
    with ExitStack() as stack:
        for mode in no_op_modes(modes):
            stack.enter_context(mode)
        do = WORK[work](device)
        for _ in range(WARM_UP):
            do()
        peak, before = _peak_memory(), time.process_time()
        for _ in range(count // 5):
            do()
        fifth = _peak_memory()
        for _ in range(count - count // 5):
            do()
        return {
            "seconds_before": before,
            "peak_before": peak,
            "peak_fifth": fifth,
            "peak_end": _peak_memory(),
        }


def tiny_steps(device: str) -> Callable[[], object]:
    import torch
    from torch import nn

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Linear(8, 8).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(4, 8, device=device), torch.randn(4, 8, device=device)

    def step() -> None:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()

    return step


def tiny_tensors(device: str) -> Callable[[], object]:
    import torch

    tensors: list[torch.Tensor] = []
    return lambda: tensors.append(torch.zeros(4, device=device))


WORK: dict[str, Callable[[str], Callable[[], object]]] = {"steps": tiny_steps, "tensors": tiny_tensors}


def no_op_modes(name: str) -> list[AbstractContextManager[Any]]:
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    class Dispatch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **kwargs) if kwargs else func(*args)

    class Function(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **kwargs) if kwargs else func(*args)

    # Without torch's wrapper that disables the compiler.
    Dispatch.__torch_dispatch__ = inspect.unwrap(Dispatch.__torch_dispatch__)  # type: ignore[method-assign]
    return {"": [], "dispatch": [Dispatch()], "both": [Dispatch(), Function()]}[name]


def _peak_memory() -> float:
    scale = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale)


def _environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    # Without a GPU, `legroom run` records host memory.
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


if __name__ == "__main__":
    main()
