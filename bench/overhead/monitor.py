"""Measures the CPU use of `legroom monitor` and of nvitop, and the cost of publishing the state of a run.

    python -m bench.overhead.monitor [--nvitop PATH] [--seconds 20] [--rounds 3] [--parts screen once publishing]

1. Screen: Both programs run alternately, each in its own terminal, with one update per second. `CPU` is the CPU time
   after the start, in percent of one core. `Start` is the CPU time of the start. nvitop is skipped, with the reason,
   if there is no GPU or nvitop is not found.
2. Once: The time of `legroom monitor --once` in a new process.
3. Publishing: `legroom run` trains a small model alternately with and without live files, on a real GPU if there is
   one, and otherwise on a virtual GPU. The program prints the ratio of step times, the ratio of the CPU times of the
   whole process, and the CPU time to write one live file. On a busy machine, only the ratio of CPU times is exact.
"""

import argparse
import fcntl
import json
import os
import pty
import re
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from bench.lib.table import print_table

ROOT = Path(__file__).parents[2]
SIZES = [(80, 24), (160, 50)]
START_SECONDS = 5.0
"""The time after which a program has started and drawn its first screen."""
PARTS = ("screen", "once", "publishing")
WARM_UP = 50


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--nvitop", help="path of the nvitop program")
    arguments.add_argument("--seconds", type=float, default=20.0, help="measured time of each screen")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--steps", type=int, default=400, help="steps of each run of the part publishing")
    arguments.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    arguments.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    chosen = arguments.parse_args()
    if chosen.measure is not None:
        chosen.measure.write_text(json.dumps(train(chosen.steps)))
        return
    if "screen" in chosen.parts:
        compare_screens(chosen.nvitop, chosen.seconds, chosen.rounds)
    if "once" in chosen.parts:
        time_once(chosen.rounds)
    if "publishing" in chosen.parts:
        compare_publishing(chosen.rounds, chosen.steps)


# --- the screen


def compare_screens(nvitop: str | None, seconds: float, rounds: int) -> None:
    programs = {"legroom monitor": [sys.executable, "-m", "legroom", "monitor", "--interval", "1"]}
    path = nvitop or shutil.which("nvitop")
    if path is None:
        print("nvitop is skipped: it is not on the path. Give `--nvitop PATH`.")
    else:
        programs["nvitop"] = [path, "--monitor", "full", "--interval", "1"]
    results: dict[tuple[str, tuple[int, int]], list[tuple[float, float, float]]] = {}
    for _ in range(rounds):
        for size in SIZES:
            for name, command in list(programs.items()):
                try:
                    results.setdefault((name, size), []).append(measure_screen(command, size, seconds))
                except EarlyExitError as error:
                    print(f"{name} is skipped: {error}")
                    if name == "legroom monitor":
                        sys.exit(1)
                    del programs[name], results[name, size]
    rows = []
    for (name, size), measured in sorted(results.items(), key=lambda item: (item[0][1], item[0][0])):
        used, start, memory = (statistics.median(values) for values in zip(*measured, strict=True))
        spread = max(each[0] for each in measured) - min(each[0] for each in measured)
        rows.append(
            [
                name,
                f"{size[0]}×{size[1]}",
                f"{used:.1f}%",
                f"{spread:.1f}%",
                f"{start:.2f} s",
                f"{memory / 2**20:.0f} MiB",
            ]
        )
    header = ["program", "terminal", "CPU at 1 Hz", "spread", "start", "memory"]
    print_table(f"Median of {rounds} rounds of {seconds:.0f} s each, in percent of one core", header, rows)


class EarlyExitError(Exception):
    """The program ended before it was measured."""


def measure_screen(command: list[str], size: tuple[int, int], seconds: float) -> tuple[float, float, float]:
    """Return the CPU use in percent, the CPU time of the start in seconds, and the resident memory."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
    environment = {**_environment(), "TERM": "xterm-256color"}
    for name in ("COLUMNS", "LINES"):  # the size of the terminal applies
        environment.pop(name, None)
    process = subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
    )
    os.close(slave)
    output = bytearray()
    reader = threading.Thread(target=_read, args=(master, output), daemon=True)
    reader.start()
    try:
        time.sleep(START_SECONDS)
        if process.poll() is not None:
            lines = re.sub(r"\x1b\[[0-9;]*m", "", bytes(output).decode(errors="replace")).strip().splitlines()
            errors = [line for line in lines if "error" in line.lower()]
            reason = (errors or lines or ["no output"])[0].strip()
            raise EarlyExitError(f"it exited with code {process.returncode} ({reason})")
        watched = psutil.Process(process.pid)
        start, began = _processor_seconds(watched), time.perf_counter()
        time.sleep(seconds)
        if process.poll() is not None:
            raise EarlyExitError(f"it exited with code {process.returncode} while it was measured")
        used, elapsed = _processor_seconds(watched) - start, time.perf_counter() - began
        return 100 * used / elapsed, start, float(watched.memory_info().rss)
    finally:
        process.kill()
        process.wait()
        reader.join(timeout=5)
        os.close(master)


def _processor_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


def _read(descriptor: int, output: bytearray) -> None:
    """Read the output of a program, so that the program is not blocked. Only the end of the output is kept."""
    while True:
        try:
            read = os.read(descriptor, 1 << 16)
        except OSError:  # the program has ended
            return
        output += read
        del output[:-10_000]


# --- once


def time_once(rounds: int) -> None:
    def seconds() -> float:
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "legroom", "monitor", "--once"],
            check=True,
            env=_environment(),
            stdout=subprocess.DEVNULL,
        )
        return time.perf_counter() - began

    measured = [seconds() for _ in range(max(rounds, 3))]
    rows = [[f"{statistics.median(measured):.2f} s", f"{min(measured):.2f} s"]]
    print_table("`legroom monitor --once`, as a process", ["median", "fastest"], rows)


# --- publishing


def compare_publishing(rounds: int, steps: int) -> None:
    import torch

    gpu = [] if torch.cuda.is_available() else ["--gpu", "8GiB"]
    results: dict[str, list[dict[str, Any]]] = {"off": [], "on": []}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "steps.json"
        for number in range(rounds):
            for mode in ("off", "on") if number % 2 == 0 else ("on", "off"):
                live = "off" if mode == "off" else str(Path(folder) / "live")
                words = ["--force", "-o", str(Path(folder) / "run.legroom"), str(Path(__file__))]
                done = subprocess.run(
                    [
                        sys.executable,
                        "-m",
                        "legroom",
                        "run",
                        *gpu,
                        *words,
                        "--measure",
                        str(out),
                        "--steps",
                        str(steps),
                    ],
                    cwd=ROOT,
                    env={**_environment(), "LEGROOM_LIVE": live},
                    capture_output=True,
                    text=True,
                    check=False,
                )
                if done.returncode != 0:
                    sys.exit(f"legroom run failed:\n{done.stdout}\n{done.stderr}")
                results[mode].append(json.loads(out.read_text()))
        left = list(Path(folder, "live").glob("*"))
    median = {mode: [statistics.median(run["steps"]) for run in runs] for mode, runs in results.items()}
    cpu = {mode: [run["cpu"] / steps * 1e3 for run in runs] for mode, runs in results.items()}
    off, on = (statistics.median(median[mode]) for mode in ("off", "on"))
    rows = [
        [
            "real GPU" if not gpu else "virtual GPU",
            f"{off:.3f} ms",
            f"{on:.3f} ms",
            f"{on / off:.3f}",
            f"{max(median['off']) / min(median['off']):.3f}",
            f"{statistics.median(cpu['off']):.3f} ms",
            f"{statistics.median(cpu['on']) / statistics.median(cpu['off']):.3f}",
            f"{max(cpu['off']) / min(cpu['off']):.3f}",
            f"{write_microseconds():.0f} µs",
            str(len(left)),
        ]
    ]
    header = [
        "device",
        "median step, off",
        "on",
        "ratio",
        "spread of off",
        "CPU of a step, off",
        "ratio of CPU",
        "spread of off",
        "CPU of a write",
        "files left",
    ]
    print_table(f"Live files of `legroom run`, {rounds} rounds of {steps} steps, alternating", header, rows)


def train(steps: int) -> dict[str, Any]:
    """Train a small model. Return the time of each step in milliseconds and the CPU time of all steps in seconds."""
    import torch
    from torch import nn

    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(4))).cuda()
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    batch = torch.randn(16, 64, device="cuda")
    times = []
    cpu = 0.0
    for number in range(WARM_UP + steps):
        if number == WARM_UP:
            cpu = time.process_time()
        began = time.perf_counter()
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
        times.append((time.perf_counter() - began) * 1e3)
    return {"steps": times[WARM_UP:], "cpu": time.process_time() - cpu}


def write_microseconds(times: int = 300) -> float:
    """Return the median CPU time to write one live file."""
    from legroom.memory.live.folder import LiveFile
    from legroom.memory.live.status import DeviceStatus, RunStatus

    device = DeviceStatus(
        index=0, name="GPU", kind="cuda", capacity=1, allocated=1, reserved=1, peak_allocated=1, peak_reserved=1
    )  # fmt: skip
    status = RunStatus(
        pid=os.getpid(), verb="run", script="s", command="c", folder="/", started=1.0, updated=1.0, step=1,
        history=tuple(range(60)), devices=(device,),
    )  # fmt: skip
    before = os.environ.get("LEGROOM_LIVE")
    measured = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LEGROOM_LIVE"] = str(Path(folder) / "live")
        try:
            file = LiveFile()
            for _ in range(times):
                began = time.thread_time()
                file.write(status)
                measured.append(time.thread_time() - began)
            file.remove()
        finally:
            os.environ.pop("LEGROOM_LIVE")
            if before is not None:
                os.environ["LEGROOM_LIVE"] = before
    return statistics.median(measured) * 1e6


def _environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"PYTHONPATH": path}


if __name__ == "__main__":
    main()
