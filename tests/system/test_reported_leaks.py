"""`legroom run` reports leaks of unmodified scripts on a virtual GPU, as text and as JSON."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.corpus.programs import FOLDER, programs


def run(tmp_path: Path, script: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "legroom", "run", "--gpu", "1GiB", *options, "-o", "out.legroom", str(script)],
        cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=200,
    )  # fmt: skip


def test_a_leak_is_reported_with_line_holder_and_kind(tmp_path: Path) -> None:
    name = "06_collected_predictions.py"
    (program,) = [each for each in programs() if each.path == FOLDER / "leaking" / name]
    done = run(tmp_path, program.path, "--format", "json")
    (leak,) = json.loads(done.stdout)["leaks"]
    assert leak["line"] in program.lines
    assert leak["file"] == str(program.path)
    assert leak["kind"] == program.kind
    assert program.holders[0] in leak["holder"]
    assert "→" in leak["holder"]
    assert {"bytes_per_step", "nodes_per_step", "advice"} <= set(leak)


def test_a_healthy_script_has_no_leaks(tmp_path: Path) -> None:
    done = run(tmp_path, FOLDER / "healthy" / "08_evaluation_every_n.py", "--format", "json")
    assert json.loads(done.stdout)["leaks"] == []


def test_the_report_shows_the_reference_path(tmp_path: Path) -> None:
    done = run(tmp_path, FOLDER / "leaking" / "02_list_of_losses.py")
    assert "Memory leak  LG" in done.stderr
    assert "02_list_of_losses.py:15 losses (list, " in done.stderr
