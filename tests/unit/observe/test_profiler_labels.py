"""`record_function` does nothing unless a profiler runs."""

import torch
from tests.unit.observe.operations import Operations

from legroom.observe.profiler_labels import labels_only_while_profiling


def operations_of_a_label() -> list[str]:
    with Operations() as mode, torch.profiler.record_function("mine"):
        torch.zeros(1)
    return mode.names


def labels_seen_by_a_profiler() -> list[str]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        with torch.profiler.record_function("mine"):
            torch.zeros(1)
    return [event.key for event in profile.key_averages() if event.key == "mine"]


def test_a_label_runs_no_operation_without_a_profiler():
    assert any("record_function" in name for name in operations_of_a_label())
    with labels_only_while_profiling():
        assert operations_of_a_label() == ["aten.zeros.default"]
    assert any("record_function" in name for name in operations_of_a_label())


def test_a_profiler_still_sees_labels():
    with labels_only_while_profiling():
        assert labels_seen_by_a_profiler() == ["mine"]


def test_a_label_that_was_entered_before_the_profiler_started_ends_without_error():
    with labels_only_while_profiling():
        with torch.profiler.record_function("early"):
            assert labels_seen_by_a_profiler() == ["mine"]


def test_a_label_may_end_after_the_profiler():
    with labels_only_while_profiling():
        label = torch.profiler.record_function("late")
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            label.__enter__()
        label.__exit__(None, None, None)
        assert operations_of_a_label() == ["aten.zeros.default"]
