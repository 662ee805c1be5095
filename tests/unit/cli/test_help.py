"""What `--help` prints is for people: in 80 columns, in words, without Python's types."""

import pytest

from legroom.cli import app, main

VERBS = sorted(command.name for command in app.registered_commands if command.name)


@pytest.mark.parametrize("verb", VERBS)
def test_help_fits_a_terminal_and_names_no_types_of_python(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([verb, "--help"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert not [word for word in ("<list", "<str>", "...]...") if word in text]
