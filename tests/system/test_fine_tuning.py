"""The transfer learning example: a pretrained model learns from real sentences, and a second run resumes the first."""

import importlib.util
import re
import sys
from functools import cache
from pathlib import Path

from legroom.train.transfer import freezing

EXAMPLE = Path(__file__).parents[2] / "examples/fine_tune_minilm.py"


def test_minilm_learns_and_a_second_run_resumes(tmp_path, monkeypatch, capsys):
    spec = importlib.util.spec_from_file_location("fine_tune_minilm", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)  # in this process, because the imports take a long time

    def run(epochs):
        sizes = ["--sentences", "24", "--batch-size", "16", "--epochs", str(epochs)]
        monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *sizes, "--folder", str(tmp_path)])
        example.main()
        return capsys.readouterr().out

    monkeypatch.setattr(example, "load_sentences", cache(example.load_sentences))
    first = run(1)
    predicted = float(re.search(r"which saves ([\d.]+) MiB", first)[1])
    measured = float(re.search(r"Measured on a virtual GPU: ([\d.]+) MiB less", first)[1])
    assert 0.8 < predicted / measured < 1.2
    assert "epoch 0: accuracy" in first
    # The second run predicts and measures the same peaks.
    monkeypatch.setattr(example, "peak_on_virtual_gpu", lambda *_: 0)
    monkeypatch.setattr(freezing, "_peak", lambda *_: 1)
    second = run(2)
    assert "epoch 0:" not in second
    assert "epoch 1: accuracy" in second
    before, epoch_0, after_0, resumed, epoch_1, after_1 = map(
        float, re.findall(r"accuracy ([\d.]+)%", first + second)
    )
    assert resumed == epoch_0 == after_0, "the second run resumes where the first ended"
    assert after_1 == max(epoch_0, epoch_1) > before + 10, "the accuracy did not improve"
