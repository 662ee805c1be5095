"""A trace of several GPUs, reduced to one of them."""

from legroom.gpus.catalog import find_gpu
from legroom.memory.event_base import Category, Phase
from legroom.memory.events import Alloc, Event, Free, SegmentChange, Tag
from legroom.predict.tracing.trace import Trace


def allocation(id: int, device: int) -> Alloc:
    return Alloc(0.0, id, 512, 512, device, 0, Category.INPUT, Phase.FORWARD, 0, "", None, "aten.empty")


def test_only_the_events_of_the_device_are_kept() -> None:
    trace = Trace(gpu=find_gpu("8GiB"), mode="fake")
    trace.events += [
        SegmentChange(0.0, 0, 1 << 21), allocation(1, 0),
        SegmentChange(0.0, 1, 1 << 21), allocation(2, 1), Tag(1, Category.PARAMETER), Tag(2, Category.PARAMETER),
        Free(0.0, 1), Free(0.0, 2),
    ]  # fmt: skip
    trace.validation_starts = 6

    trace.keep_device(1)

    kept: list[Event] = [
        SegmentChange(0.0, 0, 1 << 21), allocation(2, 0), Tag(2, Category.PARAMETER), Free(0.0, 2)
    ]  # fmt: skip
    assert trace.events == kept
    assert trace.validation_starts == 3
    assert {request.id for request in trace.requests()} == {0, 2}  # 0 marks the first kernel
