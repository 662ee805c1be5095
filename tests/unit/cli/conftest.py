"""Runs commands in this process."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from legroom.cli import main


class Done(NamedTuple):
    """The result of a command."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def launch(tmp_path, monkeypatch, capfd) -> Callable[..., Done]:
    """Runs `legroom launch ARGUMENTS SCRIPT` in the directory of the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def launch(source: str, words: Sequence[str]) -> Done:
        Path("train.py").write_text(source)
        code = main(["launch", *words, "train.py"])
        return Done(code, *capfd.readouterr())

    return launch
