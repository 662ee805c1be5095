"""The help of every command: at most 80 columns, in plain English, without Python types."""

import os
from pathlib import Path

import pytest

from legroom.cli import app, main

SNAPSHOTS = Path(__file__).parents[2] / "snapshots" / "help"
COMMANDS = sorted(command.name for command in app.registered_commands if command.name)


@pytest.mark.parametrize("command", ["legroom", *COMMANDS])
def test_help_fits_80_columns_without_python_types(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["--help"] if command == "legroom" else [command, "--help"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert not [
        word for word in ("<list", "<str>", "...]...", "x>=") if word in text.partition("Options:")[2]
    ]
    file = SNAPSHOTS / f"{command}.txt"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")
