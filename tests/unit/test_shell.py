"""Quoting of commands that users paste into a shell."""

import os
import shutil
import subprocess

import pytest

from legroom import shell

WORDS = ["legroom", "run", "my runs/train.py", "--note=a'b"]


def test_a_command_is_quoted_for_the_shell_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "name", "posix")
    assert shell.join(WORDS) == """legroom run 'my runs/train.py' '--note=a'"'"'b'"""
    assert shell.with_variables({"A": "1 2", "B": "3"}, "legroom run") == "A='1 2' B=3 legroom run"
    monkeypatch.setattr(os, "name", "nt")
    assert shell.join(WORDS) == """legroom run "my runs/train.py" --note=a'b"""
    assert shell.quote(r"runs\train.py") == r"runs\train.py"
    assert shell.with_variables({"A": "1 2"}, "legroom run") == '$env:A="1 2"; legroom run'


@pytest.mark.skipif(os.name == "nt", reason="PowerShell has other quotes")
def test_a_line_break_in_a_word_does_not_split_the_command() -> None:
    word = "a\nit's \\ b\x1b"
    command = shell.join(["printf", "%s", word])
    assert "\n" not in command
    assert "\x1b" not in command
    if bash := shutil.which("bash"):
        assert subprocess.run([bash, "-c", command], capture_output=True, text=True).stdout == word
