"""Events of a run are forwarded in batches, in order, and without loss."""

import threading

from legroom.memory.events import Event, Free
from legroom.run import event_buffer
from legroom.run.event_buffer import MAX_PENDING, EventBuffer


def event(number: int) -> Free:
    return Free(0.0, number)


def test_added_events_are_passed_on_together_at_the_end_of_a_step():
    batches: list[list[Event]] = []
    buffer = EventBuffer(batches.append)
    for number in range(3):
        buffer.add(event(number))
    assert batches == []
    buffer.step_ended()
    assert batches == [[event(0), event(1), event(2)]]


def test_short_steps_are_passed_on_together(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(event_buffer.time, "perf_counter", lambda: now[0])
    batches: list[list[Event]] = []

    def consume(batch: list[Event]) -> None:
        batches.append(batch)
        now[0] += 0.001

    buffer = EventBuffer(consume)
    for number in range(100):
        buffer.add(event(number))
        buffer.step_ended()
        now[0] += 0.001
    assert [each.id for batch in batches for each in batch] == list(range(sum(map(len, batches))))
    # Forwarding takes 1 ms, so it occurs about every 20 ms.
    assert len(batches) == 5


def test_a_slow_step_is_passed_on_at_once(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(event_buffer.time, "perf_counter", lambda: now[0])
    batches: list[list[Event]] = []
    buffer = EventBuffer(batches.append)
    for number in range(5):
        now[0] += 1.0
        buffer.add(event(number))
        buffer.step_ended()
    assert batches == [[event(number)] for number in range(5)]


def test_write_passes_events_on_when_many_are_pending():
    batches: list[list[Event]] = []
    buffer = EventBuffer(batches.append)
    for number in range(MAX_PENDING):
        assert not batches
        buffer.write(event(number))
    assert len(batches[0]) == MAX_PENDING


def test_events_that_are_added_while_a_batch_is_passed_on_are_kept():
    received: list[Event] = []

    def consume(batch: list[Event]) -> None:
        received.extend(batch)
        if len(received) < 3:
            buffer.add(event(len(received)))
            buffer.flush()  # as if a storage were freed here; this must not deadlock

    buffer = EventBuffer(consume)
    buffer.add(event(0))
    buffer.flush()
    buffer.flush()
    buffer.flush()
    assert received == [event(0), event(1), event(2)]


def test_several_threads_lose_no_events():
    received: list[Event] = []
    buffer = EventBuffer(received.extend)

    def add(first: int) -> None:
        for number in range(first, first + 2000):
            buffer.add(event(number))
            if number % 7 == 0:
                buffer.step_ended()

    threads = [threading.Thread(target=add, args=(first,)) for first in (0, 10_000, 20_000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    buffer.flush()
    numbers = [each.id for each in received if isinstance(each, Free)]
    assert sorted(numbers) == [*range(2000), *range(10_000, 12_000), *range(20_000, 22_000)]
    assert [number for number in numbers if number < 10_000] == list(range(2000))
