"""The memory of a device in the report."""

from hypothesis import example, given
from hypothesis import strategies as st

from legroom.diagnose.report.device_memory import to_milliseconds


@given(st.floats(0, 1e6))
@example(1.5384999996)
def test_times_are_equal_before_and_after_storage_in_a_capture(seconds: float) -> None:
    stored = round(seconds * 1e6)
    assert to_milliseconds(seconds) == to_milliseconds(stored / 1e6)
    assert abs(to_milliseconds(seconds) - seconds) < 0.00051
