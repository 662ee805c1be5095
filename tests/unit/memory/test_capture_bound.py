"""A capture stays below its bound, and keeps what matters most."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from made_events import alloc, oom, step, training

from legroom.errors import UsageError
from legroom.memory.annotations import Annotation, GapEnded, GapStarted
from legroom.memory.capture import chunks
from legroom.memory.capture.capture import Capture, CaptureWriter, read_capture
from legroom.memory.capture.trim import Chunk, choose
from legroom.memory.events import Alloc, Category, Event, Free, Oom, Segment, Step, Tag
from legroom.units import MiB

STEPS = 700


def long_run() -> Iterator[Event]:
    """More than fits, with the highest memory a fifth of the way in, an Oom at two fifths, and a device's cache freed."""
    for event in training(STEPS):
        if isinstance(event, Step) and event.step == STEPS // 5:
            yield alloc(10**9, 1 << 40, time=event.time)
            yield Segment(event.time, 0, 1 << 40)
            yield Tag(10**9, Category.WORKSPACE)
            yield Free(event.time, 10**9)
            yield Segment(event.time, 0, -(1 << 40))
        if isinstance(event, Step) and event.step == 2 * STEPS // 5:
            yield alloc(2 * 10**9, 77, time=event.time)
            yield oom(time=event.time)
            yield Free(event.time, 2 * 10**9)
        yield event


@pytest.fixture(scope="module")
def bounded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Capture, list[Event], int]:
    """What is read, what was written, and the largest size that the file ever had."""
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


def test_the_file_stays_below_its_bound(bounded: tuple[Capture, list[Event], int]) -> None:
    _, _, largest = bounded
    assert MiB // 2 < largest <= MiB


def test_the_number_of_dropped_events_is_exact(bounded: tuple[Capture, list[Event], int]) -> None:
    capture, written, _ = bounded
    truly_read = set(capture.events) & set(written)
    assert capture.dropped > 0
    assert capture.dropped == len(written) - len(truly_read) == len(set(written) - truly_read)


def test_every_step_survives(bounded: tuple[Capture, list[Event], int]) -> None:
    capture, _, _ = bounded
    assert [event.step for event in capture.events if isinstance(event, Step)] == list(range(STEPS))


def test_the_highest_moment_survives_with_its_tags(bounded: tuple[Capture, list[Event], int]) -> None:
    capture, _, _ = bounded
    giant = next(event for event in capture.events if isinstance(event, Alloc) and event.bytes == 1 << 40)
    assert Tag(giant.id, Category.WORKSPACE) in capture.events


def test_the_out_of_memory_survives_with_what_was_alive(bounded: tuple[Capture, list[Event], int]) -> None:
    capture, _, _ = bounded
    where = next(index for index, event in enumerate(capture.events) if isinstance(event, Oom))
    born = capture.events[where - 1]
    assert isinstance(born, Alloc)
    assert born.bytes == 77


def test_the_first_and_the_last_events_survive(bounded: tuple[Capture, list[Event], int]) -> None:
    capture, written, _ = bounded
    assert capture.events[:1000] == written[:1000]
    assert capture.events[-1000:] == written[-1000:]
    assert not capture.truncated


def test_gaps_are_marked_with_the_number_of_missing_events(
    bounded: tuple[Capture, list[Event], int],
) -> None:
    capture, _, _ = bounded
    marks = [event for event in capture.events if isinstance(event, Annotation)]
    assert [type(mark) for mark in marks] == [GapStarted, GapEnded] * (len(marks) // 2)
    gaps = [mark for mark in marks if isinstance(mark, GapStarted)]
    assert all(gap.events and gap.every == 1 for gap in gaps)


def test_across_gaps_what_is_alive_is_right(bounded: tuple[Capture, list[Event], int]) -> None:
    """After each gap the storages alive are those that were alive there in the whole run."""
    capture, written, _ = bounded
    position = {event: index for index, event in enumerate(written)}
    resumed = [index for index, event in enumerate(capture.events) if isinstance(event, GapEnded)]
    assert resumed
    for index in resumed:
        following = position[capture.events[index + 1]]
        assert alive(capture.events[:index]) == alive(written[:following])


def alive(events: list[Event]) -> tuple[dict[int, Category], int]:
    """After these events: the category of each live storage, and what is reserved."""
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
            case Segment(bytes=size):
                reserved += size
    return live, reserved


def test_steps_are_thinned_when_even_they_outgrow_the_bound(tmp_path: Path) -> None:
    path = tmp_path / "run.legroom"
    with CaptureWriter(path, run={}, max_bytes=MiB) as writer:
        for number in range(60_000):
            # Figures that compress badly.
            scatter = number * 2654435761 % 2**32
            writer.write(Step(number / 7, number, 0.1, 0, scatter, scatter ^ 12345, scatter * 3, scatter * 7))
    assert path.stat().st_size <= MiB
    capture = read_capture(path)
    steps = [event.step for event in capture.events if isinstance(event, Step)]
    assert steps[:1] == [0]
    assert steps[-1000:] == list(range(59_000, 60_000))
    assert any(event.every > 1 for event in capture.events if isinstance(event, GapStarted))


def test_when_there_is_no_room_to_trim_recording_stops_and_the_file_stays(
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


def test_a_bound_too_small_to_keep_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"a capture needs at least 1\.0 MiB, not 1000 B"):
        CaptureWriter(tmp_path / "run.legroom", run={}, max_bytes=1000)


def test_where_much_is_alive_describing_it_does_not_outweigh_the_events(tmp_path: Path) -> None:
    path = tmp_path / "run.legroom"
    with CaptureWriter(path, run={}, max_bytes=MiB) as writer:
        for number in range(30_000):
            writer.write(alloc(number * 7919 % 1_000_003, number * 31 % 4096))
        for event in training(300):
            writer.write(event)
    assert writer.failed is None
    assert writer.path.stat().st_size < 2 * MiB


def chunk(number: int, *, size: int = 100, ooms: int = 0, whole: bool = True) -> Chunk:
    return Chunk(
        number=number, offset=0, size=size, first_event=0, events=0, begin=0, end=0,
        step_rows=b"", ooms=ooms, whole=whole,
    )  # fmt: skip


def test_the_newest_chunk_is_kept_before_all_others() -> None:
    assert choose([chunk(n) for n in range(10)], highest=[4], max_bytes=200) == {9}


def test_the_highest_chunk_is_kept_before_an_oom_and_that_before_the_first() -> None:
    chunks = [chunk(n, ooms=n == 6) for n in range(10)]
    assert choose(chunks, highest=[4], max_bytes=400) == {9, 4}
    assert choose(chunks, highest=[4], max_bytes=600) == {9, 4, 6}
    assert choose(chunks, highest=[4], max_bytes=800) == {9, 4, 6, 0}
    assert choose(chunks, highest=[4], max_bytes=1000) == {9, 4, 6, 0, 8}


def test_of_many_ooms_the_first_and_the_latest_are_kept() -> None:
    chunks = [chunk(n, ooms=1) for n in range(10)]
    assert choose(chunks, highest=[], max_bytes=800) == {9, 0, 8, 7}


def test_what_was_dropped_before_is_not_chosen_again() -> None:
    assert choose([chunk(0), chunk(1, whole=False), chunk(9)], highest=[1], max_bytes=10_000) == {0, 9}


def test_step_rows_keep_their_own_share(tmp_path: Path) -> None:
    """A step recorded by two devices at the same time survives for both."""
    path = tmp_path / "run.legroom"
    with CaptureWriter(path, run={}, max_bytes=MiB) as writer:
        for event in training(STEPS):
            writer.write(event)
            if isinstance(event, Step):
                writer.write(step(event.step, device=1, time=event.time))
    steps = [(event.step, event.device) for event in read_capture(path).events if isinstance(event, Step)]
    assert steps == [(number, device) for number in range(STEPS) for device in (0, 1)]
