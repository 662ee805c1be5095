"""Scores `legroom run` on a folder of programs with a manifest: leaks detected, correct line, false alarms.

The manifest is `manifest.json` in the folder, a list of `{"file", "leak", "lines"}`. `lines` are the lines that are
correct in a report. Each program runs under `legroom run` in its own process. On a virtual GPU, this process is a
fork, so that torch is imported only once. On a real GPU, several programs run at the same time.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch

import legroom.cli
from bench.lib.table import print_table

MAX_SECONDS = 300


class Score(NamedTuple):
    """The result of one program."""

    file: str
    leak: bool
    expected: list[int]
    reported: list[dict[str, Any]]
    error: str

    @property
    def is_detected(self) -> bool:
        return bool(self.reported)

    @property
    def has_correct_line(self) -> bool:
        """True if the first report names a correct line."""
        return self.is_detected and self.reported[0]["line"] in self.expected


def _warm_up() -> None:
    """Import the modules that every run needs before the forks."""
    for module in ("run.recording", "show.report.run_report", "diagnose.report.run_report"):
        importlib.import_module(f"legroom.{module}")
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    torch.optim.Adam([parameter]).step()


def score_folder(folder: Path, *, gpu: str | None, jobs: int, names: bool, output: Path | None) -> None:
    """Run all programs of a folder and print the score. `gpu` is the size of the virtual GPU. If it is None, the GPUs of
    this machine are used, and `jobs` programs run at the same time."""
    manifest = json.loads((folder / "manifest.json").read_text())
    torch.set_num_threads(1)
    if gpu is not None:
        _warm_up()
    scores = []
    with ThreadPoolExecutor(jobs) as pool:
        run_all = pool.map if gpu is None else map  # forks start in the main thread
        for score in run_all(lambda entry: _run(folder, entry, gpu), manifest):
            scores.append(score)
            print(f"\r{len(scores)} of {len(manifest)}", end="", file=sys.stderr, flush=True)
            if output is not None:
                output.write_text(json.dumps([each._asdict() for each in scores], indent=1))
    leaking, healthy = [each for each in scores if each.leak], [each for each in scores if not each.leak]
    print_table(
        f"{folder.name}, {f'virtual GPU of {gpu}' if gpu else 'GPUs of this machine'}",
        ["leaking", "detected", "correct line", "healthy", "false alarms", "failed"],
        [
            [
                str(len(leaking)),
                _share(sum(each.is_detected for each in leaking), len(leaking)),
                _share(sum(each.has_correct_line for each in leaking), len(leaking)),
                str(len(healthy)),
                str(sum(each.is_detected for each in healthy)),
                str(sum(bool(each.error) for each in scores)),
            ]
        ],
    )
    for each in scores:
        right = each.has_correct_line if each.leak else not each.is_detected
        if names and (each.error or not right):
            found = [f"line {leak['line']}: {leak['holder']}" for leak in each.reported] or "nothing"
            print(f"  {each.file}: {found}, expected {each.expected or 'nothing'} {each.error}")


def _run(folder: Path, entry: dict[str, Any], gpu: str | None) -> Score:
    with tempfile.TemporaryDirectory() as scratch:
        words = ["run", *(["--gpu", gpu] if gpu else []), "--format", "json"]
        words += ["-o", f"{scratch}/run.legroom", str(folder.absolute() / entry["file"])]
        text = _in_new_process(words, scratch) if gpu is None else _in_fork(words, scratch)
    try:
        result = json.loads(text)
    except json.JSONDecodeError:
        return Score(entry["file"], entry["leak"], entry.get("lines", []), [], "no result")
    error = f"exit code {result['exit_code']}" if result["exit_code"] else ""
    return Score(entry["file"], entry["leak"], entry.get("lines", []), result["leaks"], error)


def _in_new_process(words: list[str], folder: str) -> str:
    try:
        words = [sys.executable, "-m", "legroom", *words]
        return subprocess.run(words, capture_output=True, text=True, timeout=MAX_SECONDS, cwd=folder).stdout
    except subprocess.TimeoutExpired:
        return ""


def _in_fork(words: list[str], folder: str) -> str:
    output = Path(folder) / "output.json"
    pid = os.fork()
    if pid == 0:
        signal.alarm(MAX_SECONDS)
        os.chdir(folder)
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT), 1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        for name in [name for name in sys.modules if name.partition(".")[0] in ("bench", "tests")]:
            del sys.modules[name]  # these are not files of the user
        code = 1
        try:
            code = legroom.cli.main(words)
        finally:
            sys.stdout.flush()
            os._exit(code or 0)
    os.waitpid(pid, 0)
    return output.read_text()


def _share(right: int, total: int) -> str:
    return f"{right} ({right / max(total, 1):.0%})"
