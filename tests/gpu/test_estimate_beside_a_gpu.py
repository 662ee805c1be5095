"""`legroom estimate` on a machine that has a GPU: it is not used, and does not get in the way."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent / "scripts" / "healthy.py"


def test_a_script_is_traced_on_a_machine_with_a_gpu(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "legroom", "estimate", "--gpu", "h200", "--format", "json", str(SCRIPT)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)

    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["verdict"] == "fits"
    assert told["mode"] == "fake"
    assert told["steps"] == 2
