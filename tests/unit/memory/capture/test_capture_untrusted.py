"""A capture from an untrusted source is read or rejected with CaptureError."""

import gc
import gzip
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from example_events import training
from hypothesis import example, given, settings
from hypothesis import strategies as st

from legroom.errors import CaptureError, CaptureVersionError
from legroom.memory.annotations import GapStarted
from legroom.memory.capture.capture import Capture, CaptureWriter, read_capture
from legroom.memory.capture.lines import VERSION
from legroom.memory.events import Free
from legroom.units import MiB

HEADER = {
    "format": "legroom capture",
    "version": VERSION,
    "run": {},
    "chunk": 0,
    "holds": "events",
    "first_event": 0,
    "time": 0,
}
SITE = ["s", 0, 0, "input", "forward", "net", "train.py", 3, "main", "aten.mm"]
ALLOC = ["a", 5, 1, 512, 0, 0, 0]


def make(path: Path, *rows: Any, header: Any = HEADER) -> Path:
    """Write a file with one chunk, which consists of `header` and `rows`."""
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in (header, *rows)).encode()))
    return path


def read_rows(tmp_path: Path, *rows: Any) -> Capture:
    return read_capture(make(tmp_path / "made.legroom", *rows))


def test_valid_lines_are_read(tmp_path: Path) -> None:
    """If valid lines were rejected, the tests below would pass for the wrong reason."""
    capture = read_rows(tmp_path, ["b", 0], SITE, ALLOC, ["f", 10, 0], ["e"])
    assert len(capture.events) == 2
    assert capture.events[1] == Free(15e-6, 1)
    assert not capture.truncated


@pytest.mark.parametrize(
    "row",
    [
        ["a", 5, 1, 512, 0, 0],
        ["a", 5, 1, 512, 0, 0, 0, 0],
        ["a", "5", 1, 512, 0, 0, 0],
        ["a", 5, 1.5, 512, 0, 0, 0],
        ["a", 5, 1, True, 0, 0, 0],
        ["a", 5, 1, None, 0, 0, 0],
        ["a", 5, 1, -512, 0, 0, 0],
        ["a", 5, 1, 512, -513, 0, 0],
        ["a", 5, 1, 10**40, 0, 0, 0],
        ["a", 10**400, 1, 512, 0, 0, 0],
        ["a", 5, 10**30, 512, 0, 0, 0],
        ["a", 5, 1, 512, 0, 0, 1],
        ["a", 5, 1, 512, 0, 0, -1],
        ["f", 5],
        ["f", 5, [1]],
        ["f", 5, 10**30],
        ["t", 0, "sculpture"],
        ["t", 0, ["input"]],
        ["t", "0", "input"],
        ["g", 5, 0, 0.5],
        ["g", 5, 0],
        ["p", 5, 0, "0.1", 0, 0, 0, 0, 0],
        ["p", 5, 0, 0.1, 0, 0, 0, 0],
        ["p", 5, 0, 0.1, 0, 0, 0, 0, 0, 0],
        ["p", 5, 0, float("nan"), 0, 0, 0, 0, 0],
        ["p", 5, 0, float("inf"), 0, 0, 0, 0, 0],
        ["o", 5, 0],
        ["o", 5, *[0] * 10, 0, "forward", "net", ["train.py", "3", "main"], "op", "message"],
        ["o", 5, *[0] * 9, 0, "forward", "net", None, "op", "message"],
        ["o", 5, *[0] * 10, 0, "lunch", "net", None, "op", "message"],
        ["h", "losses", 0, 0, [1]],
        ["h", 3, 0, 0, None],
        ["h", "losses", 0, 0, None, "1"],
        ["h", "losses", 0, 0, None, 1, 1, 1],
        ["n", 5, "GapEnded", None],
        ["n", "5", "GapEnded"],
        ["n", 5, "Unknown"],
        ["n", 5, ["GapEnded"]],
        ["n", 5, "LibraryRetries", "2"],
        ["n", 5, "LibraryRetries"],
        ["n", 5, "ForwardProgress", float("nan")],
        ["n", 5, "RunEnded", "x", "raised", "", ""],
        ["n", 5, "RunEnded", 1, "vanished", "", ""],
        ["n", 5, "SourceLines", "a.py", {"1": "x"}],
        ["n", 5, "SourceLines", "a.py", [[1, 2]]],
        ["s", 0, 0, "input", "forward", "net", 3, 3, "main", "aten.mm"],
        ["s", 0, 0, "input", "forward", {}, None, None, None, "aten.mm"],
        ["s", 0],
        ["l", 0, 1, 512, 512, 0, 0],
        ["z"],
        [],
        [["a"]],
        {},
        {"0": "a"},
        "a123456",
        7,
        None,
    ],
)
def test_reading_stops_at_an_invalid_line(tmp_path: Path, row: Any) -> None:
    capture = read_rows(tmp_path, ["b", 0], SITE, ALLOC, row, ALLOC, ["e"])
    assert len(capture.events) == 1
    assert capture.truncated


@pytest.mark.parametrize(
    "row",
    [
        ["b", 1],
        ["l", 0, 1, 512, 512, 0, 5],
        ["l", 0, 1, -1, 512, 0, 0],
        ["l", 0, "1", 512, 512, 0, 0],
        ["r", 0, "much"],
        ["a", 5, 1, 512, 0, 0, 0],
    ],
)
def test_an_invalid_start_of_a_chunk_yields_no_events(tmp_path: Path, row: Any) -> None:
    capture = read_rows(tmp_path, SITE, row, ["b", 0], ALLOC, ["e"])
    assert capture.events == []
    assert capture.truncated


def test_reading_stops_at_a_line_that_is_not_json(tmp_path: Path) -> None:
    path = tmp_path / "made.legroom"
    good = [json.dumps(row) for row in (HEADER, ["b", 0], SITE, ALLOC)]
    path.write_bytes(gzip.compress("\n".join([*good, '["a",', *good]).encode()))
    assert len(read_capture(path).events) == 1


def test_a_deeply_nested_line_does_not_crash(tmp_path: Path) -> None:
    path = tmp_path / "made.legroom"
    lines = [json.dumps(HEADER), '["b",0]', "[" * 100_000 + "]" * 100_000, ""]
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    assert read_capture(path).truncated


def test_a_deeply_nested_header_does_not_crash(tmp_path: Path) -> None:
    path = tmp_path / "made.legroom"
    path.write_bytes(gzip.compress(b'{"format":' + b"[" * 100_000))
    with pytest.raises(CaptureError):
        read_capture(path)


@pytest.mark.slow
def test_reading_stops_at_a_very_long_line(tmp_path: Path) -> None:
    path = tmp_path / "bomb.legroom"
    path.write_bytes(gzip.compress(f'{json.dumps(HEADER)}\n["b",0]\n'.encode() + b" " * 60 * MiB))
    assert path.stat().st_size < MiB
    capture = read_capture(path)
    assert capture.events == []
    assert capture.truncated


@pytest.mark.slow
def test_a_decompression_bomb_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "bomb.legroom"
    line = b'["t",0,"input"]' + b" " * MiB + b"\n"
    path.write_bytes(gzip.compress(f'{json.dumps(HEADER)}\n["b",0]\n'.encode() + line * 150))
    assert path.stat().st_size < MiB
    with pytest.raises(CaptureError, match=r"bomb\.legroom is too large after decompression"):
        read_capture(path)


def test_too_many_lines_are_rejected(tmp_path: Path) -> None:
    path = make(tmp_path / "many.legroom", ["b", 0], SITE, *[ALLOC] * 5000, ["e"])
    assert len(read_capture(path).events) == 5000
    with pytest.raises(CaptureError, match="contains more than 1,000 lines"):
        read_capture(path, max_lines=1000)


def test_a_missing_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"run\.legroom does not exist"):
        read_capture(tmp_path / "run.legroom")


def test_a_directory_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="is a directory"):
        read_capture(tmp_path)


@pytest.mark.parametrize(
    "content", [b"import torch\n", b"\x80\x04\x95", gzip.compress(b"[1, 2]\n", mtime=0), b"\x1f\x8c" * 99]
)
def test_another_kind_of_file_is_rejected(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "train.py"
    path.write_bytes(content)
    with pytest.raises(
        CaptureError, match=r"train\.py is not a Legroom capture\. Pass a file that `legroom run` wrote\."
    ):
        read_capture(path)


def test_an_empty_file_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "run.legroom"
    path.touch()
    with pytest.raises(CaptureError, match=r"run\.legroom is empty"):
        read_capture(path)


def test_a_newer_version_is_rejected_with_the_upgrade_command(tmp_path: Path) -> None:
    path = make(tmp_path / "run.legroom", header={**HEADER, "version": VERSION + 1})
    with pytest.raises(
        CaptureVersionError,
        match=rf"newer version of Legroom in capture format {VERSION + 1}. This version reads format {VERSION}. Upgrade",
    ):
        read_capture(path)


@pytest.mark.parametrize("version", [VERSION - 1, "2", None, [2]])
def test_an_older_version_is_rejected(tmp_path: Path, version: Any) -> None:
    path = make(tmp_path / "run.legroom", header={**HEADER, "version": version})
    with pytest.raises(CaptureVersionError, match=r"older version of Legroom\..*Record the run again\."):
        read_capture(path)


@pytest.mark.parametrize("field", ["run", "first_event", "time"])
def test_a_header_with_invalid_fields_is_rejected(tmp_path: Path, field: str) -> None:
    with pytest.raises(CaptureError, match="is not a Legroom capture"):
        read_capture(make(tmp_path / "run.legroom", ["b", 0], header={**HEADER, field: "what"}))


def test_a_removed_chunk_is_a_gap(tmp_path: Path) -> None:
    first, second = make(tmp_path / "a", ["b", 0], SITE, ALLOC), tmp_path / "b"
    alive = ["l", 5, 9, 512, 1024, 0, 0]
    make(
        second,
        SITE,
        alive,
        ["r", 0, 4096],
        ["b", 1],
        ["f", 3, -9],
        ["e"],
        header={**HEADER, "first_event": 4, "time": 9},
    )
    path = tmp_path / "run.legroom"
    path.write_bytes(first.read_bytes() + second.read_bytes())
    capture = read_capture(path)
    assert capture.dropped == 3
    assert [type(event).__name__ for event in capture.events] == [
        "Alloc", "GapStarted", "Free", "Alloc", "SegmentChange", "GapEnded", "Free",
    ]  # fmt: skip
    assert capture.events[1] == GapStarted(9e-6, 3)


def test_reading_stops_at_a_repeated_chunk(tmp_path: Path) -> None:
    chunk = make(tmp_path / "a", ["b", 0], SITE, ALLOC).read_bytes()
    path = tmp_path / "run.legroom"
    path.write_bytes(chunk + chunk)
    assert len(read_capture(path).events) == 1


@pytest.mark.parametrize("field", ["events", "until", "every"])
def test_reading_stops_at_an_invalid_replacement_of_dropped_chunks(tmp_path: Path, field: str) -> None:
    replacement = {**HEADER, "holds": "steps", "events": 3, "until": 1, "every": 1}
    step_row = ["p", 5, 0, 0.1, 0, 0, 0, 0, 0]
    assert len(read_capture(make(tmp_path / "a", step_row, header=replacement)).events) == 2
    path = tmp_path / "run.legroom"
    good = make(tmp_path / "b", ["b", 0], SITE, ALLOC).read_bytes()
    bad = make(tmp_path / "c", step_row, header={**replacement, "first_event": 1, field: "many"}).read_bytes()
    path.write_bytes(good + bad)
    assert len(read_capture(path).events) == 1


def test_data_after_the_end_mark_is_ignored(tmp_path: Path) -> None:
    path = make(tmp_path / "run.legroom", ["b", 0], SITE, ALLOC, ["e"])
    with open(path, "ab") as file:
        file.write(b"\0" * 4096)
    capture = read_capture(path)
    assert len(capture.events) == 1
    assert not capture.truncated


@given(st.binary(max_size=300))
@example(b"\x1f\x8b")
@example(b"\x1f\x8b\x08\x00")
@settings(deadline=None)
def test_arbitrary_bytes_are_rejected(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / "run.legroom"
    path.write_bytes(content)
    with pytest.raises(CaptureError):
        read_capture(path)


@pytest.mark.slow
@given(st.data())
@settings(deadline=None, max_examples=150)
def test_a_capture_with_changed_bytes_is_read_or_rejected(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("changed") / "run.legroom"
    with CaptureWriter(path, run={}) as writer:
        for event in training(2, allocations=20):
            writer.write(event)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    with suppress(CaptureError):
        read_capture(path)


_json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | st.sampled_from(list("slrbaftgpohne")),
    lambda inner: st.lists(inner, max_size=9) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


@pytest.mark.slow
@given(st.lists(_json_values, max_size=6))
@settings(deadline=None)
def test_arbitrary_lines_are_read_or_stop_the_reading(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any]
) -> None:
    read_rows(tmp_path_factory.mktemp("rows"), ["b", 0], SITE, *rows)


def test_the_garbage_collector_is_restored(tmp_path: Path) -> None:
    path = make(tmp_path / "run.legroom", ["b", 0])
    assert gc.isenabled()
    read_capture(path)
    assert gc.isenabled()
    gc.disable()
    try:
        read_capture(path)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_file_without_read_permission_is_rejected(tmp_path: Path) -> None:
    path = make(tmp_path / "run.legroom", ["b", 0])
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    with pytest.raises(CaptureError, match="cannot be read"):
        read_capture(path)
