"""Writing a capture and reading it back."""

import gzip
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import ClassVar

import pytest
from example_events import alloc, events, oom, step, training
from hypothesis import given, settings
from hypothesis import strategies as st

from legroom.errors import CaptureError, DiskFullError, UsageError
from legroom.memory.annotations import LoopWatched
from legroom.memory.capture import chunks
from legroom.memory.capture.capture import CaptureWriter, check_output, read_capture
from legroom.memory.event_base import Category
from legroom.memory.events import Event, Free, Holder, SegmentChange, Tag

RUN = {"script": "train.py", "argv": ["--epochs", "3"], "devices": [{"name": "virtual", "capacity": 8 << 30}]}


def write(path: Path, stream: list[Event], **options: object) -> Path:
    with CaptureWriter(path, run=RUN, **options) as writer:  # type: ignore[arg-type]
        for event in stream:
            writer.write(event)
    assert writer.failed is None
    return path


@pytest.mark.slow
@given(st.lists(events, max_size=40))
@settings(max_examples=150, deadline=None)
def test_any_events_are_read_back(tmp_path_factory: pytest.TempPathFactory, stream: list[Event]) -> None:
    capture = read_capture(write(tmp_path_factory.mktemp("any") / "run.legroom", stream))
    assert capture.events == stream
    assert [type(event) for event in capture.events] == [type(event) for event in stream]


@pytest.mark.slow
@given(st.lists(events, min_size=1, max_size=60))
@settings(max_examples=60, deadline=None)
def test_any_events_are_read_back_from_many_chunks(
    tmp_path_factory: pytest.TempPathFactory, stream: list[Event]
) -> None:
    path = tmp_path_factory.mktemp("chunks") / "run.legroom"
    with CaptureWriter(path, run=RUN) as writer:
        for event in stream:
            writer.write(event)
            writer.flush()
            assert writer._file is not None
            writer._file._full = 0  # every batch fills a chunk
    assert read_capture(path).events == stream


def test_the_description_of_the_run_is_read_back(tmp_path: Path) -> None:
    capture = read_capture(write(tmp_path / "run.legroom", []))
    assert capture.run == RUN
    assert not capture.truncated
    assert capture.dropped == 0


def test_a_decompressed_capture_is_json_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "run.legroom", [alloc(1, 512), Free(0.25, 1)])
    header, *rows = gzip.decompress(path.read_bytes()).decode().splitlines()
    assert json.loads(header)["format"] == "legroom capture"
    assert [json.loads(row)[0] for row in rows] == ["b", "s", "a", "f", "e"]


@pytest.mark.slow
def test_a_file_truncated_at_any_byte_yields_the_events_before_it(tmp_path: Path) -> None:
    stream = [*training(2, allocations=6), oom(), Holder("losses (list)", 4096, 2, None, 512)]
    path = tmp_path / "run.legroom"
    with CaptureWriter(path, run={}) as writer:
        for position, event in enumerate(stream):
            writer.write(event)
            if position % 9 == 0:
                writer.flush()
            if position == 20:
                assert writer._file is not None
                writer._file._full = 0  # so that there is a second chunk
    complete, truncated = path.read_bytes(), tmp_path / "truncated.legroom"
    begin = (
        complete.index(b"\x00\x00\xff\xff") + 4
    )  # the end of the first flush, which contains the start of the chunk
    lengths = []
    for size in range(begin, len(complete)):
        truncated.write_bytes(complete[:size])
        capture = read_capture(truncated)
        assert capture.events == stream[: len(capture.events)]
        lengths.append(len(capture.events))
    assert lengths == sorted(lengths)
    assert lengths[-1] == len(stream)


def test_a_file_truncated_in_its_first_line_is_rejected(tmp_path: Path) -> None:
    path = write(tmp_path / "run.legroom", list(training(1)))
    complete = path.read_bytes()
    for size in range(1, 60):
        path.write_bytes(complete[:size])
        with pytest.raises(CaptureError, match="contains no events: it was cut off, or nothing was recorded"):
            read_capture(path)


def test_a_truncated_file_is_marked_as_truncated(tmp_path: Path) -> None:
    path = write(tmp_path / "run.legroom", list(training(3)))
    path.write_bytes(path.read_bytes()[:-30])
    assert read_capture(path).truncated


def test_events_before_a_damaged_byte_are_read(tmp_path: Path) -> None:
    path = tmp_path / "run.legroom"
    stream = list(training(20))
    with CaptureWriter(path, run={}) as writer:
        for event in stream[:2000]:
            writer.write(event)
        writer.flush()
        undamaged = path.stat().st_size
        for event in stream[2000:]:
            writer.write(event)
    data = bytearray(path.read_bytes())
    data[undamaged:] = b"\xff" * (len(data) - undamaged)
    path.write_bytes(data)
    capture = read_capture(path)
    assert capture.truncated
    assert capture.events == stream[:2000]


@pytest.mark.slow
def test_flushed_events_survive_a_killed_process(tmp_path: Path) -> None:
    path = tmp_path / "run.legroom"
    program = """
        import itertools, sys
        from example_events import training
        from legroom.memory.capture.capture import CaptureWriter
        writer = CaptureWriter(sys.argv[1], run={})
        for number, event in enumerate(training(10_000)):
            writer.write(event)
            if number == 30_000:
                print("ready", flush=True)
    """
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), str(path)], stdout=subprocess.PIPE, env=environment
    )
    assert child.stdout is not None
    with child.stdout:
        child.stdout.readline()
    child.kill()
    assert child.wait() == -signal.SIGKILL
    capture = read_capture(path)
    assert capture.truncated
    assert len(capture.events) > 29_000
    expected = training(10_000)
    assert all(event == next(expected) for event in capture.events)


@pytest.mark.parametrize("event", [step(0), oom(), LoopWatched(0.0, 5)])
def test_rare_events_are_written_at_once(tmp_path: Path, event: Event) -> None:
    writer = CaptureWriter(tmp_path / "run.legroom", run={})
    writer.write(alloc(1))
    writer.write(event)
    assert read_capture(writer.path).events == [alloc(1), event]
    writer.close()


def test_events_older_than_half_a_second_are_written(tmp_path: Path) -> None:
    writer = CaptureWriter(tmp_path / "run.legroom", run={})
    for number in range(8):
        writer.write(alloc(number, time=number / 10))
    assert len(read_capture(writer.path).events) >= 6
    writer.close()


def test_a_thousand_pending_events_are_written(tmp_path: Path) -> None:
    writer = CaptureWriter(tmp_path / "run.legroom", run={})
    for number in range(1100):
        writer.write(Tag(number, Category.INPUT))
    assert len(read_capture(writer.path).events) >= 1000
    writer.close()


def test_an_event_during_encoding_is_not_lost(tmp_path: Path) -> None:
    """A storage may be freed inside `write`, which then calls `write` again."""

    class WritesWhenHashed(str):
        def __hash__(self) -> int:
            if not inside:
                inside.append(True)
                writer.write(Free(0.5, 99))
                writer.flush()
            return str.__hash__(self)

    inside: list[bool] = []
    writer = CaptureWriter(tmp_path / "run.legroom", run={})
    with writer:
        writer.write(alloc(1, module=WritesWhenHashed("net")))
    assert inside
    assert read_capture(writer.path).events == [alloc(1), Free(0.5, 99)]


class Interrupting(str):
    """A module name that raises each of `signals` once while its event is encoded."""

    signals: ClassVar[list[signal.Signals]] = []

    def __hash__(self) -> int:
        while self.signals:
            signal.raise_signal(self.signals.pop())
        return str.__hash__(self)


def test_an_interrupt_during_writing_is_delayed_until_after_it(tmp_path: Path) -> None:
    """Scripts may catch Ctrl-C and continue, for example to evaluate, so the file must stay valid."""
    writer = CaptureWriter(tmp_path / "run.legroom", run={})
    handler = signal.getsignal(signal.SIGINT)
    Interrupting.signals = [signal.SIGINT]
    writer.write(alloc(1, module=Interrupting("net")))
    with pytest.raises(KeyboardInterrupt):
        writer.flush()
    assert signal.getsignal(signal.SIGINT) is handler
    writer.write(alloc(2))
    writer.close()
    assert read_capture(writer.path).events == [alloc(1), alloc(2)]
    assert writer.failed is None


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="needs SIGUSR1")
def test_an_exception_of_a_signal_handler_during_writing_does_not_corrupt_the_file(tmp_path: Path) -> None:
    class Timeout(BaseException):
        pass

    def handler(*_: object) -> None:
        raise Timeout

    writer = CaptureWriter(tmp_path / "run.legroom", run={})
    writer.write(step(0))
    writer.write(alloc(1, module=Interrupting("net")))
    Interrupting.signals = [signal.SIGUSR1]
    previous = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(Timeout):
            writer.flush()
    finally:
        signal.signal(signal.SIGUSR1, previous)
    writer.write(step(1))
    writer.close()
    assert writer.failed is not None
    assert "interrupted by Timeout" in writer.failed
    assert read_capture(writer.path).events == [step(0)]


def test_no_events_of_other_threads_are_lost(tmp_path: Path) -> None:
    from threading import Thread

    path = tmp_path / "run.legroom"
    with CaptureWriter(path, run={}) as writer:

        def work(first: int) -> None:
            for number in range(first, first + 5000):
                writer.write(alloc(number))

        threads = [Thread(target=work, args=(first,)) for first in (0, 10_000, 20_000)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    ids = [event.id for event in read_capture(path).events]
    assert len(ids) == len(set(ids)) == 15_000


def test_events_after_close_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "run.legroom"
    with CaptureWriter(path, run={}) as writer:
        writer.write(alloc(1))
    writer.write(Free(1.0, 1))
    writer.close()
    assert read_capture(path).events == [alloc(1)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("abandons", [True, False])
def test_a_forked_child_does_not_change_the_file(tmp_path: Path, abandons: bool) -> None:
    path = tmp_path / "run.legroom"
    writer = CaptureWriter(path, run={})
    writer.write(alloc(1))
    child = os.fork()
    if child == 0:
        if abandons:
            writer.abandon()
        for number in range(3000):
            writer.write(alloc(100 + number))
        writer.close()
        os._exit(0)
    os.waitpid(child, 0)
    writer.write(alloc(2))
    writer.close()
    capture = read_capture(path)
    assert capture.events == [alloc(1), alloc(2)]
    assert not capture.truncated


def test_a_full_disk_stops_recording_but_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = CaptureWriter(tmp_path / "run.legroom", run={})
    writer.write(alloc(1))
    writer.flush()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(chunks.ChunkFile, "_write_all", full)
    writer.write(step(0))
    assert writer.failed is not None
    assert "Recording stopped" in writer.failed
    assert "the disk is full" in writer.failed
    writer.write(step(1))
    writer.close()
    assert read_capture(writer.path).events == [alloc(1)]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_disk_that_is_full_at_the_start_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from io import FileIO

    from legroom.memory.capture import capture as module

    monkeypatch.setattr(module, "_create", lambda path, force: FileIO("/dev/full", "wb"))
    with pytest.raises(CaptureError, match=r"the disk is full\. Free some space"):
        CaptureWriter(tmp_path / "run.legroom", run={})


def test_a_file_that_accepts_no_data_stops_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = CaptureWriter(tmp_path / "run.legroom", run={})

    class AcceptsNothing:
        def write(self, data: object) -> None: ...

        def close(self) -> None: ...

    assert writer._file is not None
    monkeypatch.setattr(writer._file, "_file", AcceptsNothing())
    writer.write(step(0))
    assert "Recording stopped" in (writer.failed or "")


def test_a_capture_that_cannot_be_started_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(chunks.ChunkFile, "_write_all", full)
    with pytest.raises(DiskFullError):
        CaptureWriter(tmp_path / "run.legroom", run={})
    assert list(tmp_path.iterdir()) == []


def test_an_invalid_event_stops_recording_but_not_the_run(tmp_path: Path) -> None:
    writer = CaptureWriter(tmp_path / "run.legroom", run={})
    writer.write(alloc(1))
    writer.flush()
    writer.write(alloc(2, size=None, block=0))  # type: ignore[arg-type]
    writer.flush()
    assert writer.failed is not None
    assert "an event could not be written" in writer.failed
    assert read_capture(writer.path).events == [alloc(1)]


def test_an_existing_capture_is_not_overwritten(tmp_path: Path) -> None:
    path = write(tmp_path / "run.legroom", [alloc(1)])
    with pytest.raises(UsageError, match=r"run\.legroom already exists\. Add `--force`"):
        CaptureWriter(path, run={})
    assert read_capture(path).events == [alloc(1)]


def test_force_overwrites_a_capture(tmp_path: Path) -> None:
    path = write(tmp_path / "run.legroom", list(training(2)))
    assert read_capture(write(path, [alloc(1)], force=True)).events == [alloc(1)]


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("name", ["train.py", "TRAIN.PY", "train.pyw", "notes.ipynb", "train.sh"])
@pytest.mark.parametrize("content", ["import torch\n", "", None])
def test_a_script_is_never_written(tmp_path: Path, name: str, content: str | None, force: bool) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError, match="is a script, and Legroom will never write a script"):
        CaptureWriter(path, run={}, force=force)
    assert (path.read_text() if path.exists() else None) == content


def test_a_link_to_a_script_is_recognized_as_a_script(tmp_path: Path) -> None:
    script, link = tmp_path / "train.py", tmp_path / "link.legroom"
    script.write_text("import torch\n")
    link.symlink_to(script)
    with pytest.raises(UsageError, match=r"link\.legroom \(a link to train\.py\) is a script"):
        check_output(link, force=True)


@pytest.mark.parametrize(
    "content", [gzip.compress(b'{"my": "data"}', mtime=0), gzip.compress(b"", mtime=0), b"\x1f\x8bprecious"]
)
def test_other_gzip_files_are_not_overwritten(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "precious.csv.gz"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="is not a capture, and Legroom overwrites only captures"):
        CaptureWriter(path, run={}, force=True)
    assert path.read_bytes() == content


@pytest.mark.parametrize("force", [False, True])
def test_only_captures_are_overwritten(tmp_path: Path, force: bool) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("notes")
    with pytest.raises(UsageError, match="is not a capture, and Legroom overwrites only captures"):
        CaptureWriter(path, run={}, force=force)
    assert path.read_text() == "notes"


def test_damage_is_distinguished_from_a_missing_end(tmp_path: Path) -> None:
    path = tmp_path / "run.legroom"
    with CaptureWriter(path, run={}) as writer:
        for number in range(2000):
            writer.write(SegmentChange(0.1, 0, number))
    complete = path.read_bytes()
    assert not read_capture(path).damaged
    path.write_bytes(complete[:-25])
    cut = read_capture(path)
    assert (cut.truncated, cut.damaged) == (True, False)
    middle = len(complete) // 2
    path.write_bytes(complete[:middle] + bytes(40) + complete[middle + 40 :])
    damaged = read_capture(path)
    assert (damaged.truncated, damaged.damaged) == (True, True)
    assert 0 < len(damaged.events) < 2000


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"nowhere is not a directory\. Create the directory"):
        CaptureWriter(tmp_path / "nowhere" / "run.legroom", run={})


def test_a_directory_instead_of_a_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="is a directory. Specify the path to a file"):
        CaptureWriter(tmp_path, run={}, force=True)


def test_a_device_file_is_not_overwritten() -> None:
    with pytest.raises(CaptureError, match="is not a regular file"):
        CaptureWriter(os.devnull, run={}, force=True)


@pytest.mark.parametrize("number", [13, 30])
def test_a_read_only_directory_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    from legroom.memory.capture import capture as module

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(module, "FileIO", refuse)
    with pytest.raises(CaptureError, match=r"is read-only\. Specify another path"):
        CaptureWriter(tmp_path / "run.legroom", run={})


def test_a_description_with_other_types_than_json_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="must contain only JSON types"):
        CaptureWriter(tmp_path / "run.legroom", run={"device": object()})
    assert not (tmp_path / "run.legroom").exists()
