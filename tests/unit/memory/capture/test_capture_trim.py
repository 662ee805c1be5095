"""Trimming: a capture stays below its maximum size and keeps the most important events."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from example_events import alloc, oom, step, training

from legroom.errors import UsageError
from legroom.memory.annotations import GapEnded, GapStarted
from legroom.memory.capture import chunks
from legroom.memory.capture.capture import Capture, CaptureWriter, read_capture
from legroom.memory.capture.trim import Chunk, choose
from legroom.memory.event_base import Annotation, Category
from legroom.memory.events import Alloc, Event, Free, Oom, SegmentChange, Step, Tag
from legroom.units import MiB

STEPS = 700


def long_run() -> Iterator[Event]:
    """Yield more events than fit in the file, with the peak after a fifth of the steps and an `Oom` after two
    fifths."""
    for event in training(STEPS):
        if isinstance(event, Step) and event.step == STEPS // 5:
            yield alloc(10**9, 1 << 40, time=event.time)
            yield SegmentChange(event.time, 0, 1 << 40)
            yield Tag(10**9, Category.WORKSPACE)
            yield Free(event.time, 10**9)
            yield SegmentChange(event.time, 0, -(1 << 40))
        if isinstance(event, Step) and event.step == 2 * STEPS // 5:
            yield alloc(2 * 10**9, 77, time=event.time)
            yield oom(time=event.time)
            yield Free(event.time, 2 * 10**9)
        yield event


@pytest.fixture(scope="module")
def bounded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Capture, list[Event], int]:
    """Return the capture, the written events, and the largest size of the file."""
    path = tmp_path_factory.mktemp("bounded") / "run.legroom"
    written, largest = [], 0
    with CaptureWriter(path, run={"script": "train.py"}, max_bytes=MiB) as writer:
        for event in long_run():
            writer.write(event)
            written.append(event)
            if isinstance(event, Step):
                largest = max(largest, path.stat().st_size)
        writer.flush()
        dropped = writer.dropped
    assert writer.failed is None
    assert dropped == read_capture(path).dropped > 0
    assert os.listdir(path.parent) == ["run.legroom"]
    return read_capture(path), written, max(largest, path.stat().st_size)


@pytest.mark.slow
def test_the_file_stays_below_its_maximum_size(bounded: tuple[Capture, list[Event], int]) -> None:
    _, _, largest = bounded
    assert MiB // 2 < largest <= MiB


@pytest.mark.slow
def test_the_number_of_dropped_events_is_exact(bounded: tuple[Capture, list[Event], int]) -> None:
    capture, written, _ = bounded
    events_read = set(capture.events) & set(written)
    assert capture.dropped > 0
    assert capture.dropped == len(written) - len(events_read) == len(set(written) - events_read)


@pytest.mark.slow
def test_every_step_is_kept(bounded: tuple[Capture, list[Event], int]) -> None:
    capture, _, _ = bounded
    assert [event.step for event in capture.events if isinstance(event, Step)] == list(range(STEPS))


@pytest.mark.slow
def test_the_peak_is_kept_with_its_tags(bounded: tuple[Capture, list[Event], int]) -> None:
    capture, _, _ = bounded
    giant = next(event for event in capture.events if isinstance(event, Alloc) and event.bytes == 1 << 40)
    assert Tag(giant.id, Category.WORKSPACE) in capture.events


@pytest.mark.slow
def test_an_oom_is_kept_with_the_allocation_before_it(bounded: tuple[Capture, list[Event], int]) -> None:
    capture, _, _ = bounded
    where = next(index for index, event in enumerate(capture.events) if isinstance(event, Oom))
    allocated = capture.events[where - 1]
    assert isinstance(allocated, Alloc)
    assert allocated.bytes == 77


@pytest.mark.slow
def test_the_first_and_the_last_events_are_kept(bounded: tuple[Capture, list[Event], int]) -> None:
    capture, written, _ = bounded
    assert capture.events[:1000] == written[:1000]
    assert capture.events[-1000:] == written[-1000:]
    assert not capture.truncated


@pytest.mark.slow
def test_gaps_are_marked_with_the_number_of_missing_events(
    bounded: tuple[Capture, list[Event], int],
) -> None:
    capture, _, _ = bounded
    marks = [event for event in capture.events if isinstance(event, Annotation)]
    assert [type(mark) for mark in marks] == [GapStarted, GapEnded] * (len(marks) // 2)
    gaps = [mark for mark in marks if isinstance(mark, GapStarted)]
    assert all(gap.events and gap.every == 1 for gap in gaps)


@pytest.mark.slow
def test_the_live_storages_after_a_gap_are_correct(bounded: tuple[Capture, list[Event], int]) -> None:
    """After each gap, the live storages are those of the complete run at that event."""
    capture, written, _ = bounded
    position = {event: index for index, event in enumerate(written)}
    resumed = [index for index, event in enumerate(capture.events) if isinstance(event, GapEnded)]
    assert resumed
    for index in resumed:
        following = position[capture.events[index + 1]]
        assert alive(capture.events[:index]) == alive(written[:following])


def alive(events: list[Event]) -> tuple[dict[int, Category], int]:
    """Return the category of each live storage, and the reserved memory after `events`."""
    live: dict[int, Category] = {}
    reserved = 0
    for event in events:
        match event:
            case Alloc(id=id, category=category):
                live[id] = category
            case Free(id=id):
                del live[id]
            case Tag(id=id, category=category):
                if id in live:
                    live[id] = category
            case SegmentChange(bytes=size):
                reserved += size
    return live, reserved


@pytest.mark.slow
def test_steps_are_dropped_if_they_alone_exceed_the_maximum_size(tmp_path: Path) -> None:
    path = tmp_path / "run.legroom"
    with CaptureWriter(path, run={}, max_bytes=MiB) as writer:
        for number in range(40_000):
            # Numbers that do not compress well.
            scatter = number * 2654435761 % 2**32
            writer.write(Step(number / 7, number, 0.1, 0, scatter, scatter ^ 12345, scatter * 3, scatter * 7))
    assert path.stat().st_size <= MiB
    capture = read_capture(path)
    steps = [event.step for event in capture.events if isinstance(event, Step)]
    assert steps[:1] == [0]
    assert steps[-1000:] == list(range(39_000, 40_000))
    assert any(event.every > 1 for event in capture.events if isinstance(event, GapStarted))


@pytest.mark.slow
def test_without_disk_space_to_trim_recording_stops_and_the_file_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(chunks, "trim", full)
    path = tmp_path / "run.legroom"
    with CaptureWriter(path, run={}, max_bytes=MiB) as writer:
        for event in training(STEPS):
            writer.write(event)
    assert writer.failed is not None
    assert "the disk is full" in writer.failed
    assert os.listdir(tmp_path) == ["run.legroom"]
    assert len(read_capture(path).events) > 50_000


def test_a_maximum_size_below_1_mib_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"must be at least 1\.0 MiB, not 1000 B"):
        CaptureWriter(tmp_path / "run.legroom", run={}, max_bytes=1000)


@pytest.mark.slow
def test_many_live_storages_do_not_fill_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.legroom"
    with CaptureWriter(path, run={}, max_bytes=MiB) as writer:
        for number in range(30_000):
            writer.write(alloc(number * 7919 % 1_000_003, number * 31 % 4096))
        for event in training(300):
            writer.write(event)
    assert writer.failed is None
    assert writer.path.stat().st_size < 2 * MiB


def chunk(number: int, *, size: int = 100, ooms: int = 0, is_complete: bool = True) -> Chunk:
    return Chunk(
        number=number, offset=0, size=size, first_event=0, events=0, begin=0, end=0,
        step_lines=b"", ooms=ooms, is_complete=is_complete,
    )  # fmt: skip


def test_the_newest_chunk_is_kept_before_all_others() -> None:
    assert choose([chunk(n) for n in range(10)], highest=[4], max_bytes=200) == {9}


def test_the_highest_chunk_is_kept_before_an_oom_and_that_before_the_first() -> None:
    chunks = [chunk(n, ooms=n == 6) for n in range(10)]
    assert choose(chunks, highest=[4], max_bytes=400) == {9, 4}
    assert choose(chunks, highest=[4], max_bytes=600) == {9, 4, 6}
    assert choose(chunks, highest=[4], max_bytes=800) == {9, 4, 6, 0}
    assert choose(chunks, highest=[4], max_bytes=1000) == {9, 4, 6, 0, 8}


def test_the_first_and_the_latest_chunks_with_ooms_are_kept() -> None:
    chunks = [chunk(n, ooms=1) for n in range(10)]
    assert choose(chunks, highest=[], max_bytes=800) == {9, 0, 8, 7}


def test_dropped_chunks_are_not_selected_again() -> None:
    assert choose([chunk(0), chunk(1, is_complete=False), chunk(9)], highest=[1], max_bytes=10_000) == {0, 9}


@pytest.mark.slow
def test_the_steps_of_two_devices_are_kept(tmp_path: Path) -> None:
    """Steps that two devices record at the same time are kept for both."""
    path = tmp_path / "run.legroom"
    with CaptureWriter(path, run={}, max_bytes=MiB) as writer:
        for event in training(STEPS):
            writer.write(event)
            if isinstance(event, Step):
                writer.write(step(event.step, device=1, time=event.time))
    steps = [(event.step, event.device) for event in read_capture(path).events if isinstance(event, Step)]
    assert steps == [(number, device) for number in range(STEPS) for device in (0, 1)]
