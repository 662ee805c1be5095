"""Scores `legroom run` on a folder of programs with a manifest: leaks detected, correct line, false alarms.

The manifest is `manifest.json` in the folder, a list of `{"file", "leak", "lines"}`. `lines` are the lines that are correct
in a report. Each program runs in its own process, as a user would run it.
"""

import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

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
        """Whether the first report names a correct line."""
        return self.is_detected and self.reported[0]["line"] in self.expected


def score_folder(folder: Path, *, gpu: str | None, jobs: int, names: bool, output: Path | None) -> None:
    """Run all programs of a folder and print the score. `gpu` is the size of the virtual GPU; None uses the GPUs of this
    machine."""
    manifest = json.loads((folder / "manifest.json").read_text())
    with ThreadPoolExecutor(jobs) as pool:
        scores = list(pool.map(lambda entry: _run(folder, entry, gpu), manifest))
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
    if output is not None:
        output.write_text(json.dumps([each._asdict() for each in scores], indent=1))


def _run(folder: Path, entry: dict[str, Any], gpu: str | None) -> Score:
    with tempfile.TemporaryDirectory() as scratch:
        words = [sys.executable, "-m", "legroom", "run", *(["--gpu", gpu] if gpu else []), "--format", "json"]
        words += ["-o", f"{scratch}/run.legroom", str(folder / entry["file"])]
        error, leaks = "", []
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=MAX_SECONDS, cwd=scratch)
            result = json.loads(done.stdout)
            leaks = result["leaks"]
            error = f"exit code {result['exit_code']}" if result["exit_code"] else ""
        except (subprocess.TimeoutExpired, json.JSONDecodeError) as failure:
            error = f"{type(failure).__name__}"
    return Score(entry["file"], entry["leak"], entry["lines"], leaks, error)


def _share(right: int, total: int) -> str:
    return f"{right} ({right / max(total, 1):.0%})"
