"""Paths and programs of Windows in the sandbox. These tests run on every system."""

import ntpath
import os
import posixpath
import sys

import pytest

from legroom.observe.source.user_files import slashes
from legroom.predict.sandbox import programs
from legroom.predict.sandbox.overlay import path_in_layer, without_prefix


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (r"C:\Users\me\log.csv", r"\C\Users\me\log.csv"),
        ("D:\\", "\\D\\"),
        (r"\\server\share\data\x", r"\server\share\data\x"),
    ],
)
def test_a_drive_is_a_folder_of_the_layer(path: str, expected: str) -> None:
    assert path_in_layer(path, ntpath) == expected


def test_a_posix_path_is_unchanged_in_the_layer() -> None:
    assert path_in_layer("/home/me/C:/log.csv", posixpath) == "/home/me/C:/log.csv"


def test_the_prefix_of_long_paths_is_removed() -> None:
    assert without_prefix(r"\\?\C:\a") == r"C:\a"
    assert without_prefix(r"\\?\UNC\server\share\a") == r"\\server\share\a"
    assert without_prefix("/home/me") == "/home/me"


def test_windows_paths_ignore_case_and_the_kind_of_slash() -> None:
    assert slashes(r"C:\Python\Lib\site-packages\torch\x.py", ntpath) == slashes(
        "c:/python/lib/Site-Packages/torch/x.py", ntpath
    )
    assert "/site-packages/" in slashes(r"C:\Python\Lib\site-packages\torch\x.py", ntpath)
    assert slashes("/Home/a\\b", posixpath) == "/Home/a\\b"


@pytest.mark.parametrize(
    ("command", "may_run"),
    [
        (r'"C:\Program Files\Git\cmd\git.exe" rev-parse HEAD', True),
        (r"C:\Windows\System32\nvidia-smi.exe -L", True),
        (r"C:\Windows\system32\cmd.exe /c git status", True),
        (r"C:\Windows\system32\cmd.exe /c del log.csv", False),
        (r"powershell.exe -Command Remove-Item log.csv", False),
    ],
)
def test_only_programs_that_change_nothing_run_on_windows(
    command: str, may_run: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sep", "\\")
    assert programs._changes_nothing(command) is may_run


@pytest.mark.parametrize(
    ("command", "may_run"),
    [
        ("git rev-parse HEAD", True),
        ("/bin/sh -c 'stty size'", True),
        ("/bin/sh -c 'rm log.csv'", False),
        ("sh -c 'stty size; rm log.csv'", False),
        ("rm log.csv", False),
        (f"{sys.executable} -c 'from multiprocessing.spawn import spawn_main'", True),
    ],
)
def test_only_programs_that_change_nothing_run_without_landlock(command: str, may_run: bool) -> None:
    assert programs._changes_nothing(command) is may_run
