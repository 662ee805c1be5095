"""Events for tests: single events, the events of a training loop, and hypothesis strategies."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any, get_args

from hypothesis import strategies as st

from legroom.memory.annotations import ExitReason
from legroom.memory.detected_leak import LeakHolder, LeakKind
from legroom.memory.event_base import Annotation, Category, Frame, Phase
from legroom.memory.events import Alloc, Event, Free, Holder, Oom, SegmentChange, Step, Tag

HERE = Frame("train.py", 12, "main")


def alloc(
    id: int,
    size: int = 1000,
    *,
    time: float = 0.0,
    block: int | None = None,
    device: int = 0,
    category: Category = Category.TEMPORARY,
    phase: Phase = Phase.FORWARD,
    step: int = 0,
    module: str = "net",
    frame: Frame | None = HERE,
    op: str = "aten.mm",
) -> Alloc:
    charged = size if block is None else block
    return Alloc(time, id, size, charged, device, 0, category, phase, step, module, frame, op)


def step(number: int, *, time: float = 0.0, device: int = 0, allocated: int = 0) -> Step:
    return Step(time, number, 0.1, device, allocated, allocated, allocated, allocated)


def oom(*, time: float = 0.0, device: int = 0, at_step: int = 0) -> Oom:
    return Oom(
        time=time,
        device=device,
        requested=2048,
        capacity=1 << 20,
        limit=1 << 20,
        allocated=1 << 19,
        reserved=1 << 19,
        cached=0,
        fragmented=0,
        largest_free_block=0,
        other=0,
        step=at_step,
        phase=Phase.FORWARD,
        module="net.head",
        frame=HERE,
        op="aten.mm",
        message='CUDA out of memory. "Tried" to allocate\n2.00 KiB',
    )


def training(steps: int, *, allocations: int = 200, leak: bool = False) -> Iterator[Event]:
    """Yield the events of a training loop that keeps half of its forward allocations until the backward pass. With
    `leak`, one allocation per step is never freed."""
    time, id = 0.0, 0
    yield SegmentChange(time, 0, 2 << 20)
    for number in range(steps):
        saved = []
        for position in range(allocations):
            time += 0.000_013 * (1 + (position * 7919 + number) % 11)
            id += 1
            frame = Frame("model.py", 40 + position % 20, "forward")
            yield alloc(id, 512 * (1 + position % 9), time=round(time, 6), step=number, frame=frame)
            if position % 2:
                yield Tag(id, Category.ACTIVATION)
                saved.append(id)
            else:
                yield Free(round(time, 6), id)
        if leak:
            saved.pop()
        for dead in reversed(saved):
            time += 0.000_009
            yield Free(round(time, 6), dead)
        yield step(number, time=round(time, 6))


# Captures store times in microseconds.
_times = st.integers(0, 10**10).map(lambda microseconds: microseconds / 1e6)
_sizes = st.integers(0, 1 << 45)
_devices = st.integers(0, 3)
_texts = st.text(st.characters(codec=None), max_size=8) | st.sampled_from(
    ['a"b', "line\nbreak", "\x00", "é漢", "\udc80", "\\"]
)
_frames = st.none() | st.builds(Frame, _texts, st.integers(0, 10**6), _texts)
_categories = st.sampled_from(Category)
_phases = st.sampled_from(Phase)
_ids = st.integers(0, 30) | st.integers(0, 1 << 50)

allocs = st.builds(
    Alloc, _times, _ids, _sizes, _sizes, _devices, st.integers(0, 1 << 50), _categories, _phases,
    st.integers(0, 10**6), _texts, _frames, _texts,
)  # fmt: skip
_values: dict[Any, st.SearchStrategy[Any]] = {
    int: _sizes,
    float: st.floats(0, 1e6),
    str: _texts,
    bool: st.booleans(),
    int | None: st.none() | _sizes,
    str | None: st.none() | _texts,
    bool | None: st.none() | st.booleans(),
    tuple[str, ...] | None: st.none() | st.lists(_texts, max_size=3).map(tuple),
    tuple[int, ...]: st.lists(_sizes, max_size=3).map(tuple),
    tuple[str, ...]: st.lists(_texts, max_size=3).map(tuple),
    tuple[tuple[int, str], ...]: st.lists(st.tuples(_sizes, _texts), max_size=3).map(tuple),
    LeakKind: st.sampled_from(get_args(LeakKind)),
    LeakHolder: st.sampled_from(get_args(LeakHolder)),
    ExitReason: st.sampled_from(ExitReason),
}
annotations: st.SearchStrategy[Annotation] = st.one_of(
    st.builds(kind, **{field.name: _values[field.type] for field in fields(kind)} | {"time": _times})
    for kind in Annotation.__subclasses__()
)
events: st.SearchStrategy[Event] = st.one_of(
    allocs,
    st.builds(Free, _times, _ids),
    st.builds(Tag, _ids, _categories),
    st.builds(SegmentChange, _times, _devices, st.integers(-(1 << 45), 1 << 45)),
    st.builds(
        Step, _times, st.integers(0, 10**6), st.floats(0, 1e6), _devices, _sizes, _sizes, _sizes, _sizes
    ),
    st.builds(
        Oom, _times, _devices, _sizes, _sizes, _sizes, _sizes, _sizes, _sizes, _sizes, _sizes, _sizes,
        st.integers(0, 10**6), _phases, _texts, _frames, _texts, _texts,
    ),
    st.builds(Holder, _texts, _sizes, st.integers(0, 10**6), _frames, _sizes),
    annotations,
)  # fmt: skip
