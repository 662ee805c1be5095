"""The example of the demo: too large for its GPU, and mended by the command that its report ends with."""

import json
import os
import shlex
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples/digits_cnn.py"


def test_the_example_is_mended_by_what_its_report_says(legroom, tmp_path):
    os.symlink(EXAMPLE, tmp_path / "digits_cnn.py")
    words = ["--gpu", "384MiB", "digits_cnn.py", "--epochs", "1", "--batch-size", "256"]
    failed = json.loads(legroom("run", "--format", "json", *words).stdout)
    assert failed["oom"]["advice"][0]["code"] == "LG603"
    assert failed["next"][0] == "legroom run --gpu 384MiB digits_cnn.py --epochs 1 --batch-size 64"
    mended = legroom(*shlex.split(failed["next"][0])[1:])
    assert mended.returncode == 0, mended.stderr
    assert "accuracy" in mended.stdout
