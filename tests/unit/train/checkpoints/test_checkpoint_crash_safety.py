"""The last complete checkpoint survives any failure during a save."""

import errno
import os
import resource
import signal
import subprocess
import sys
import threading
import time

import pytest
from torch import nn

import legroom
from legroom.errors import CheckpointError
from legroom.train.checkpoints.files import checked_files
from legroom.train.checkpoints.files.unfinished_folder import UnfinishedFolder, remove_leftovers

pytestmark = pytest.mark.slow

FILE_OPERATIONS = ("mkdir", "open", "pwrite", "fsync", "rename", "rmdir", "unlink")


class Killed(BaseException):
    """Simulates the end of the process."""


def intercept_file_operations(monkeypatch, act):
    """Call `act(number)` before each file operation."""
    calls = []

    def patched(name):
        original = getattr(os, name)

        def call(*arguments, **options):
            calls.append(name)
            act(len(calls))
            return original(*arguments, **options)

        return call

    for name in FILE_OPERATIONS:
        monkeypatch.setattr(os, name, patched(name))
    monkeypatch.setattr("legroom.train.checkpoints.saving.UnfinishedFolder.discard", lambda folder: None)
    return calls


def training_with(folder, value, **options):
    model = nn.Linear(4, 2)
    nn.init.constant_(model.weight, value)
    checkpoints = legroom.Checkpoints(folder, keep=1, **options)
    checkpoints.track(model=model)
    return model, checkpoints


def resumed_value(folder):
    model, checkpoints = training_with(folder, -1.0)
    step = checkpoints.resume()
    assert bool((model.weight == model.weight[0, 0]).all())
    return step, model.weight[0, 0].item()


def operations_of_a_save(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        _, checkpoints = training_with(tmp_path / "counted", 1.0)
        checkpoints.save(1)
        calls = intercept_file_operations(patch, lambda number: None)
        checkpoints.save(2)
        return list(calls)


def test_a_kill_at_any_file_operation_leaves_a_complete_checkpoint(tmp_path, monkeypatch):
    """The process is killed before the first file operation, then before the second, and so on."""
    calls = operations_of_a_save(tmp_path, monkeypatch)
    assert {"mkdir", "pwrite", "fsync", "rename", "rmdir"} <= set(calls)
    found = []
    for end in range(1, len(calls) + 1):
        folder = tmp_path / str(end)
        training_with(folder, 1.0)[1].save(1)
        _, checkpoints = training_with(folder, 2.0)

        def act(number, end=end):
            if number >= end:
                raise Killed

        with monkeypatch.context() as patch:
            intercept_file_operations(patch, act)
            with pytest.raises(Killed):
                checkpoints.save(2)
        found.append(resumed_value(folder))
        # The next run saves as usual.
        training_with(folder, 3.0)[1].save(3)
        assert resumed_value(folder) == (3, 3.0)
    assert set(found) == {(1, 1.0), (2, 2.0)}
    assert found == sorted(found), "once the new checkpoint exists, it stays"


def test_files_are_flushed_before_the_rename(tmp_path, monkeypatch):
    calls = operations_of_a_save(tmp_path, monkeypatch)
    rename = calls.index("rename")
    writes = [index for index, call in enumerate(calls) if call == "pwrite"]
    syncs = [index for index, call in enumerate(calls) if call == "fsync"]
    assert max(writes) < rename
    assert sum(index < rename for index in syncs) == 5, "four files and their folder"
    assert calls[rename + 2] == "fsync", "the parent folder is flushed too"


def test_leftovers_of_killed_processes_are_removed_and_those_of_running_ones_stay(tmp_path):
    dead = tmp_path / ".unfinished-dead"
    dead.mkdir()
    (dead / "model.safetensors").write_bytes(b"half")
    running = UnfinishedFolder(tmp_path)
    remove_leftovers(tmp_path)
    assert not dead.exists()
    assert running.path.exists()
    running.discard()
    assert not running.path.exists()


PROGRAM = """
import sys, torch, legroom
from torch import nn
model = nn.Linear(300, 300)
checkpoints = legroom.Checkpoints(sys.argv[1], keep=2, background=sys.argv[2] == "background")
checkpoints.track(model=model)
step = checkpoints.resume()
if step and not bool((model.weight == step).all()):
    sys.exit("the weights are not those of the step")
print("resumed", step, flush=True)
while True:
    step += 1
    nn.init.constant_(model.weight, step)
    checkpoints.save(step)
    checkpoints.wait()
    print("saved", step, flush=True)
"""


def test_killed_processes_lose_no_checkpoint(tmp_path):
    """`python -m bench.guard.checkpoints` prints the table of 50 kills."""
    reported = 0
    for attempt, mode in enumerate(("foreground", "background", "foreground")):
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path), mode],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        line = process.stdout.readline()
        assert line.startswith("resumed"), process.stderr.read()
        assert reported <= int(line.split()[1]) <= reported + 1
        process.stdout.readline()  # another checkpoint exists
        time.sleep(0.003 + attempt * 0.011)
        process.send_signal(signal.SIGKILL)
        rest = [line.split() for line in process.stdout if line.endswith("\n")]
        process.wait()
        reported = max([int(step) for _, step in rest] + [int(line.split()[1]) + 1])


def assert_rejected_and_unchanged(checkpoints, folder):
    with pytest.raises(
        CheckpointError,
        match=r"There is not enough disk space for the checkpoint in .*\. The checkpoint needs 1\d\d\.\d KiB, and .* is free\. Existing checkpoints are not affected\. Free disk space",
    ):
        checkpoints.save(2)
        checkpoints.wait()
    assert [path.name for path in folder.iterdir()] == ["step-00000001"]
    assert resumed_value(folder) == (1, 1.0)


def test_a_full_disk_raises_and_keeps_the_last_checkpoint(tmp_path, monkeypatch):
    def full(descriptor, data, offset):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    training_with(tmp_path, 1.0)[1].save(1)
    _, checkpoints = training_with(tmp_path, 2.0)
    with monkeypatch.context() as patch:
        patch.setattr(checked_files.os, "pwrite", full)
        with pytest.raises(CheckpointError, match="No space left on device"):
            checkpoints.save(2)
    assert resumed_value(tmp_path) == (1, 1.0)


@pytest.mark.parametrize("background", [False, True])
def test_a_file_size_limit_is_reported_like_a_full_disk(tmp_path, background):
    training_with(tmp_path, 1.0)[1].save(1)
    checkpoints = legroom.Checkpoints(tmp_path, background=background)
    checkpoints.track(model=nn.Linear(200, 200))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        assert_rejected_and_unchanged(checkpoints, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_folder_that_is_not_writable_is_reported(tmp_path):
    _, checkpoints = training_with(tmp_path / "file" / "runs", 1.0)
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="could not be written to .*: Not a directory"):
        checkpoints.save(1)


# ------------------------------------------------------------ in the background


def test_training_continues_while_the_copy_is_written(tmp_path, monkeypatch):
    model, checkpoints = training_with(tmp_path, 1.0, background=True)
    may_write = threading.Event()
    original = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda *arguments: may_write.wait(20) and original(*arguments))
    checkpoints.save(1)
    assert checkpoints.last is None, "not written yet"
    nn.init.constant_(model.weight, 5.0)
    may_write.set()
    checkpoints.wait()
    assert resumed_value(tmp_path) == (1, 1.0)


def test_an_error_in_the_background_is_raised_by_the_next_call(tmp_path, monkeypatch):
    _, checkpoints = training_with(tmp_path, 1.0, background=True)
    with monkeypatch.context() as patch:
        patch.setattr(
            os, "pwrite", lambda *arguments: (_ for _ in ()).throw(OSError(errno.EIO, "Input/output error"))
        )
        checkpoints.save(1)
        with pytest.raises(CheckpointError, match="Input/output error"):
            checkpoints.wait()
        checkpoints.save(2)
        with pytest.raises(CheckpointError, match="Input/output error"):
            checkpoints.save(3)
    checkpoints.save(4)
    checkpoints.wait()
    assert resumed_value(tmp_path) == (4, 1.0)


def test_a_program_waits_for_the_write_at_exit_and_reports_its_error(tmp_path):
    program = """
import os, sys, legroom
from torch import nn
if sys.argv[2] == "fails":
    def broken(*arguments):
        raise OSError(5, "Input/output error")
    os.pwrite = broken
checkpoints = legroom.Checkpoints(sys.argv[1], background=True)
checkpoints.track(model=nn.Linear(400, 400))
checkpoints.save(1)
"""
    for mode in ("works", "fails"):
        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / mode), mode],
            capture_output=True,
            text=True,
            timeout=60,
        )
        reported = "The last checkpoint was not written" in done.stderr
        saved = [path.name for path in (tmp_path / mode).glob("step-*")]
        assert (reported, saved) == ((True, []) if mode == "fails" else (False, ["step-00000001"])), (
            done.stderr
        )
        assert "Traceback" not in done.stderr


def test_consecutive_background_saves_have_separate_copies(tmp_path):
    model, checkpoints = training_with(tmp_path, 1.0, background=True)
    checkpoints._keep = None
    for step in (1, 2, 3):
        nn.init.constant_(model.weight, step)
        checkpoints.save(step)
    checkpoints.wait()
    for step in (1, 2, 3):
        checkpoints.load_weights(model, f"step-{step:08d}")
        assert bool((model.weight == step).all())


def test_a_checkpoint_of_the_same_step_replaces_the_old_one_once_it_is_complete(tmp_path):
    training_with(tmp_path, 1.0)[1].save(7)
    training_with(tmp_path, 2.0)[1].save(7)
    assert resumed_value(tmp_path) == (7, 2.0)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000007.2"]


def test_copies_are_freed_after_the_save(tmp_path):
    _, checkpoints = training_with(tmp_path, 1.0, background=True)
    checkpoints.save(2)
    checkpoints.wait()
    assert list(checkpoints._buffers) == ["model.safetensors"]
    assert all(not buffers._buffers for buffers in checkpoints._buffers.values())
