"""`legroom estimate` works on a machine with a GPU, and does not use the GPU."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent / "scripts" / "healthy.py"


def test_a_script_is_traced_on_a_machine_with_a_gpu(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "legroom", "estimate", "--gpu", "h200", "--format", "json", str(SCRIPT)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)

    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["verdict"] == "fits"
    assert report["mode"] == "fake"
    assert report["steps"] == 3
