"""Live files: only running processes are shown, files do not accumulate, and a file that cannot be written is not an
error."""

import json
import os
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from legroom.memory.live import folder
from legroom.memory.live.folder import LiveFile, other_writer, read_all
from legroom.memory.live.history import HISTORY, trend
from legroom.memory.live.status import DeviceStatus, RunStatus

DEVICE = DeviceStatus(
    index=0, name="T4", kind="cuda", uuid="GPU-1", capacity=100, allocated=5, reserved=7, peak_allocated=6, peak_reserved=8
)  # fmt: skip


def status(**values: object) -> RunStatus:
    run = RunStatus(
        pid=os.getpid(), verb="run", script="train.py", command="legroom run train.py", folder="/", started=1.0,
        updated=time.time(), step=3, seconds_per_step=0.5, history=(1, 2, 3), devices=(DEVICE,),
    )  # fmt: skip
    return replace(run, **values)


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "live"
    monkeypatch.setenv("LEGROOM_LIVE", str(path))
    return path


def test_a_written_status_is_read_back(live: Path) -> None:
    file = LiveFile()
    assert file.write(status())
    assert read_all() == [replace(status(), updated=read_all()[0].updated)]
    file.remove()
    assert read_all() == []
    assert list(live.iterdir()) == []


def test_only_the_user_can_read_the_files(live: Path) -> None:
    LiveFile().write(status())
    assert stat.S_IMODE(live.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in live.iterdir())


def test_the_file_of_a_killed_process_is_not_shown_and_is_deleted(live: Path) -> None:
    program = (
        "import os, time; from legroom.memory.live.folder import LiveFile; from legroom.memory.live.status import RunStatus;"
        "LiveFile().write(RunStatus(pid=os.getpid(), verb='run', script='s', command='c', folder='/', started=1.0, updated=time.time(), step=1));"
        "print('written', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "written\n"
    assert [run.pid for run in read_all()] == [process.pid]
    process.kill()
    deadline = time.monotonic() + 10
    while read_all() and time.monotonic() < deadline:  # a zombie is not a running process
        time.sleep(0.01)
    assert read_all() == []
    assert list(live.iterdir()) == []
    process.communicate()


def test_a_process_with_the_same_number_that_started_later_is_another_process(live: Path) -> None:
    LiveFile().write(status())
    (path,) = live.iterdir()
    path.write_text(json.dumps(json.loads(path.read_text()) | {"process": "1"}))
    assert read_all() == []
    assert not path.exists()


def test_a_new_run_deletes_the_files_of_killed_runs(live: Path) -> None:
    LiveFile().write(status())
    (path,) = live.iterdir()
    for pid in (4_000_001, 4_000_002):
        document = json.loads(path.read_text()) | {"pid": pid}
        path.with_name(path.name.replace(str(os.getpid()), str(pid))).write_text(json.dumps(document))
    assert len(list(live.iterdir())) == 3
    LiveFile().write(status())
    assert list(live.iterdir()) == [path]


def test_files_of_another_container_are_ignored_and_deleted_after_an_hour(live: Path) -> None:
    LiveFile().write(status())
    (path,) = live.iterdir()
    path.write_text(json.dumps(json.loads(path.read_text()) | {"machine": "another"}))
    assert read_all() == []
    assert path.exists()
    old = time.time() - folder.FORGET_SECONDS - 1
    os.utime(path, (old, old))
    assert read_all() == []
    assert not path.exists()


@pytest.mark.parametrize(
    "change",
    [
        {"step": "many"},
        {"devices": None},
        {"devices": [{"index": 0}]},
        {"history": ["x"]},
        {"rank": True},
        {"script": 7},
        {"updated": None},
    ],
)
def test_a_file_with_invalid_values_is_ignored(live: Path, change: dict[str, object]) -> None:
    LiveFile().write(status())
    (path,) = live.iterdir()
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document))
    assert len(read_all()) == 1
    path.write_text(json.dumps(document | change))
    assert read_all() == []


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b" " * (folder.MAX_BYTES + 1)]
)
def test_a_file_that_is_not_json_is_ignored(live: Path, content: bytes) -> None:
    live.mkdir(mode=0o700)
    (live / "1-1.json").write_bytes(content)
    assert read_all() == []


def test_long_texts_and_lists_are_limited() -> None:
    document = status(command="x" * 10_000, history=tuple(range(10_000))).as_json()
    read = RunStatus.from_json(json.loads(json.dumps(document)))
    assert read is not None
    assert len(read.command) == 2000
    assert read.history == tuple(range(10_000 - HISTORY, 10_000))


def test_a_folder_that_cannot_be_created_is_not_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LEGROOM_LIVE", str(tmp_path / "file" / "live"))
    file = LiveFile()
    assert not file.write(status())
    file.remove()
    assert read_all() == []


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="this system has no modes of folders")
def test_a_folder_that_others_can_write_to_is_not_used(live: Path) -> None:
    live.mkdir()
    live.chmod(0o777)
    assert not LiveFile().write(status())
    assert list(live.iterdir()) == []


def test_a_link_in_place_of_the_folder_is_not_followed(live: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    live.symlink_to(tmp_path / "elsewhere")
    assert not LiveFile().write(status())
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_live_files_can_be_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEGROOM_LIVE", "off")
    assert folder.live_folders() == []
    assert not LiveFile().write(status())


def test_the_runtime_folder_of_the_user_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LEGROOM_LIVE", "")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert folder.live_folders()[0] == tmp_path / "legroom"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert tmp_path / "legroom" not in folder.live_folders()


def test_a_process_has_one_file_and_its_last_writer_owns_it(live: Path) -> None:
    loop, run = LiveFile(), LiveFile()
    loop.write(status(verb="watch"))
    assert not other_writer(loop)
    run.write(status(verb="run"))
    assert other_writer(loop)
    loop.remove()
    assert [each.verb for each in read_all()] == ["run"]
    run.remove()
    assert not other_writer(loop)
    assert read_all() == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_does_not_touch_the_file_of_its_parent(live: Path) -> None:
    file = LiveFile()
    file.write(status())
    child = os.fork()
    if child == 0:
        file.remove()
        os._exit(int(file.write(status(step=99))))
    assert os.waitpid(child, 0)[1] == 0
    assert [run.step for run in read_all()] == [3]


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        ([], None),
        ([(1, 10), (2, 20)], None),
        ([(1, 10), (2, 20), (5, 50)], 10),
        ([(1, 50), (2, 40), (3, 30)], -10),
        ([(1, 10), (2, 20), (3, 20)], 0),
        ([(1, 10), (2, 5), (3, 20)], 0),
    ],
)
def test_a_trend_requires_growth_between_all_measurements(
    readings: list[tuple[int, int]], expected: int | None
) -> None:
    assert trend(readings) == expected
