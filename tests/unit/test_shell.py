"""Quoting of commands that users paste into a shell."""

import os

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
