"""The report is about the process of the script that ran out of memory or used the most."""

import os
from pathlib import Path

import pytest

from legroom.memory.capture.capture import CaptureWriter
from legroom.memory.event_base import Category, Phase
from legroom.memory.events import Alloc, Oom
from legroom.memory.ledger import Ledger
from legroom.observe.children.captures import VARIABLE, ChildCaptures, sink_of_this_process
from legroom.run.child_processes import RecordedProcess, describe_processes
from legroom.units import MiB


def alloc(size: int) -> Alloc:
    return Alloc(0.0, 1, size, size, 0, 0, Category.TEMPORARY, Phase.FORWARD, 0, "net", None, "aten.mm")


OUT_OF_MEMORY = Oom(
    0.1, 0, MiB, MiB, MiB, MiB, MiB, 0, 0, 0, 0, 0, Phase.FORWARD, "", None, "aten.mm", "CUDA out of memory"
)


def process(name: str, size: int, *more: Oom) -> RecordedProcess:
    events = [alloc(size), *more] if size else []
    return RecordedProcess(name, Ledger(events), events)


def test_a_process_that_ran_out_of_memory_comes_before_one_that_used_more() -> None:
    failed, large = process("process 1", MiB, OUT_OF_MEMORY), process("process 2", 8 * MiB)
    assert max([large, failed], key=lambda each: each.importance) is failed


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        ([0, 2], "this report is about process 1, which the script started; no other process used GPU memory"),
        ([1, 2], "this report is about process 1, which the script started; the main process used up to 1.0 MiB"),
        ([3, 2], "this report is about the main process; process 1 used up to 2.0 MiB"),
        ([3, 2, 1], "this report is about the main process; 2 other processes used up to 2.0 MiB each"),
    ],
)  # fmt: skip
def test_the_report_states_which_process_it_is_about(sizes: list[int], sentence: str) -> None:
    main, *others = [
        process(f"process {number}" if number else "the main process", size * MiB)
        for number, size in enumerate(sizes)
    ]
    chosen = max([main, *others], key=lambda each: each.importance)
    assert describe_processes(chosen, main, others) == sentence


def test_the_events_of_another_process_are_read_from_its_capture() -> None:
    captures = ChildCaptures()
    with captures.recorded():
        sink = sink_of_this_process()
        assert sink is not None
        sink(alloc(2 * MiB))
        sink(OUT_OF_MEMORY)  # written at once, because the process may be killed now
        [child] = map(RecordedProcess.from_capture, captures.read())
    captures.discard()
    assert (child.name, child.importance) == (f"process {os.getpid()}", (True, 2 * MiB))
    assert VARIABLE not in os.environ
    assert sink_of_this_process() is None


def test_a_process_continues_if_it_cannot_write_its_capture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "removed"))
    sink = sink_of_this_process()
    assert sink is not None
    sink(alloc(MiB))
    sink(alloc(MiB))


def test_a_capture_that_cannot_be_read_is_omitted() -> None:
    captures = ChildCaptures()
    with captures.recorded():
        folder = Path(os.environ[VARIABLE])
        (folder / "1.legroom").write_bytes(b"not a capture")
        with CaptureWriter(folder / "2.legroom", run={"process": 2}) as writer:
            writer.write(alloc(MiB))
        assert [capture.run["process"] for capture in captures.read()] == [2]
    captures.discard()
