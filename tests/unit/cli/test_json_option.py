"""`--json` is short for `--format json` in every command that prints JSON."""

import json
from pathlib import Path

import pytest

from legroom.cli import main


def test_json_is_short_for_format_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("import torch\n")
    assert main(["lint", "--json", str(file)]) == 0
    short = json.loads(capsys.readouterr().out)
    assert main(["lint", str(file), "--format", "json"]) == 0
    assert short == json.loads(capsys.readouterr().out)


def test_json_after_the_script_is_an_argument_of_the_script(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\nprint(sys.argv[1:])\n")
    assert main(["run", str(script), "--json"]) == 0
    assert "['--json']" in capfd.readouterr().out


def test_json_before_the_script_is_an_option_of_the_command(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\nprint(sys.argv[1:])\n")
    assert main(["run", "--json", str(script), "--steps", "3"]) == 0
    output = capfd.readouterr().out
    assert '"schema": "legroom.run/' in output
    assert "['--steps', '3']" in output
