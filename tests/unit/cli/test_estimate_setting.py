"""`LEGROOM_CUDNN` on the command line."""

from pathlib import Path

import pytest

from legroom.cli import main

pytestmark = pytest.mark.slow


def test_an_invalid_setting_is_reported_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEGROOM_CUDNN", "yes")
    Path("train.py").write_text("import torch\n")

    assert main(["estimate", "--gpu", "8GiB", "train.py"]) == 2
    assert capsys.readouterr().err == (
        "legroom: LEGROOM_CUDNN='yes' is not valid, because the file does not exist. Set LEGROOM_CUDNN to `on`, `off`, "
        "or the path to libcudnn.so.9.\n"
    )
