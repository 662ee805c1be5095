"""What a traced script does with files."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from legroom.predict.tracing.files import checkpoints_mapped

MAPS = Path("/proc/self/maps")


@pytest.mark.skipif(not MAPS.exists(), reason="what a process has mapped is read from Linux")
def test_a_checkpoint_is_mapped_and_takes_no_memory(tmp_path: Path) -> None:
    torch.save({"weight": torch.arange(1000)}, tmp_path / "checkpoint.pt")
    with checkpoints_mapped():
        loaded = torch.load(tmp_path / "checkpoint.pt", map_location="cpu")["weight"]
        assert str(tmp_path / "checkpoint.pt") in MAPS.read_text()
    assert loaded[999] == 999


def test_an_old_checkpoint_that_cannot_be_mapped_is_read(tmp_path: Path) -> None:
    torch.save(torch.arange(10), tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    with checkpoints_mapped():
        assert torch.load(tmp_path / "old.pt")[9] == 9


def run_apart(program: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A program in a folder, whose files are written apart."""
    (cwd / "apart").mkdir()
    begin = "from pathlib import Path; from legroom.predict.tracing.files import write_apart; write_apart(Path('apart'))\n"
    command = [sys.executable, "-c", begin + program]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True)


def test_what_a_script_writes_does_not_land_and_is_read_again_by_itself(tmp_path: Path) -> None:
    (tmp_path / "answers.csv").write_text("real")
    program = """
open("answers.csv", "a").write(" and made up")
Path("new.txt").write_text("made up")
print(open("answers.csv").read(), Path("new.txt").read_text())
open("answers.csv", "w").close()
print(repr(open("answers.csv").read()))
"""
    assert run_apart(program, tmp_path).stdout == "real and made up made up\n''\n"
    assert (tmp_path / "answers.csv").read_text() == "real"
    assert not (tmp_path / "new.txt").exists()


def test_files_that_cannot_be_written_fail_as_ever(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("before")
    program = """
for name, mode in (("no/such/folder", "w"), ("there", "x"), (".", "w")):
    try: open(name, mode)
    except OSError as error: print(type(error).__name__)
"""
    told = run_apart(program, tmp_path).stdout.split()
    assert told == ["FileNotFoundError", "FileExistsError", "IsADirectoryError"]


def test_what_is_written_and_then_renamed_is_there_for_the_script_alone(tmp_path: Path) -> None:
    (tmp_path / "answers.csv").write_text("real")
    program = """
import os
Path("answers.tmp").write_text("made up")
os.replace("answers.tmp", "answers.csv")
print(open("answers.csv").read())
"""
    assert run_apart(program, tmp_path).stdout == "made up\n"
    assert (tmp_path / "answers.csv").read_text() == "real"
    assert not (tmp_path / "answers.tmp").exists()


def test_what_was_there_is_neither_moved_nor_removed(tmp_path: Path) -> None:
    (tmp_path / "answers.csv").write_text("real")
    (tmp_path / "old.csv").write_text("real too")
    program = """
import os
Path("answers.csv").rename("answers.bak")
os.remove("old.csv")
print(open("answers.bak").read())
"""
    assert run_apart(program, tmp_path).stdout == "real\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["answers.csv", "apart", "old.csv"]
