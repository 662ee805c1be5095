"""The transfer learning example: a pretrained model learns from real sentences, and a second run resumes the first."""

import re
import runpy
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples/fine_tune_minilm.py"


def test_minilm_learns_and_a_second_run_resumes(tmp_path, monkeypatch, capsys):
    def run(folder, epochs):
        arguments = [
            "--sentences",
            "24",
            "--batch-size",
            "16",
            "--epochs",
            str(epochs),
            "--folder",
            str(folder),
        ]
        monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *arguments])
        runpy.run_path(str(EXAMPLE), run_name="__main__")  # in this process, because the imports take long
        return capsys.readouterr().out

    first = run(tmp_path, 1)
    predicted = float(re.search(r"which saves ([\d.]+) MiB", first)[1])
    measured = float(re.search(r"Measured on a virtual GPU: ([\d.]+) MiB less", first)[1])
    assert 0.8 < predicted / measured < 1.2
    assert "epoch 0: accuracy" in first
    second = run(tmp_path, 2)
    assert "epoch 0:" not in second
    assert "epoch 1: accuracy" in second
    before, epoch_0, after_0, resumed, epoch_1, after_1 = map(
        float, re.findall(r"accuracy ([\d.]+)%", first + second)
    )
    assert resumed == epoch_0 == after_0, "the second run resumes where the first ended"
    assert after_1 == max(epoch_0, epoch_1) > before + 10, "the accuracy did not improve"
