"""The demo does not fit on its GPU, and the command at the end of its report fixes that."""

import json
import os
import shlex
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples/digits_cnn.py"


def test_the_command_at_the_end_of_the_report_fixes_the_example(legroom, tmp_path):
    os.symlink(EXAMPLE, tmp_path / "digits_cnn.py")
    words = ["--gpu", "384MiB", "digits_cnn.py", "--epochs", "1", "--samples", "400", "--batch-size", "256"]
    failed = json.loads(legroom("run", "--format", "json", *words).stdout)
    assert failed["oom"]["advice"][0]["code"] == "LG603"
    assert (
        failed["next"][0]
        == "legroom run --gpu 384MiB digits_cnn.py --epochs 1 --samples 400 --batch-size 144"
    )
    fixed = legroom(*shlex.split(failed["next"][0])[1:])
    assert fixed.returncode == 0, fixed.stderr
    assert "accuracy" in fixed.stdout
