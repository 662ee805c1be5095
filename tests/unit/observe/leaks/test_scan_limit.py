"""A symptom that opened many windows without a finding opens another window only if scans use a small fraction of the
run time."""

import time

import pytest

from legroom.observe.leaks.detector import MAX_DELAY_EXPONENT, MAX_SCAN_FRACTION, LeakDetector


@pytest.fixture(autouse=True)
def enough_time() -> None:
    """Keep the default limit, as in a user's run. The fixture of the same name in conftest.py removes the limit for
    all other tests."""


def detector(*, windows: int, scan_seconds: float, run_seconds: float) -> tuple[LeakDetector, float]:
    found = LeakDetector(lambda leak: None)
    now = time.perf_counter()
    found._began = now - run_seconds
    found.scan_seconds = scan_seconds
    found._windows_opened["host"] = windows
    found._not_before["host"] = 8
    return found, now


def test_the_first_windows_open_regardless_of_the_time_that_scans_used():
    for windows in range(MAX_DELAY_EXPONENT):
        watched, now = detector(windows=windows, scan_seconds=50.0, run_seconds=100.0)
        assert watched._opens_window("host", 10, now)


def test_later_windows_open_while_scans_use_a_small_fraction_of_the_time():
    used = MAX_SCAN_FRACTION * 100
    watched, now = detector(windows=MAX_DELAY_EXPONENT, scan_seconds=0.9 * used, run_seconds=100.0)
    assert watched._opens_window("host", 10, now)
    watched, now = detector(windows=MAX_DELAY_EXPONENT, scan_seconds=1.1 * used, run_seconds=100.0)
    assert not watched._opens_window("host", 10, now)
    assert watched._opens_window("host", 10, now + 20)


def test_a_window_opens_regardless_of_the_time_when_the_number_of_iterations_has_doubled():
    watched, now = detector(windows=MAX_DELAY_EXPONENT, scan_seconds=50.0, run_seconds=100.0)
    watched._not_before["host"] = 300
    assert not watched._opens_window("host", 599, now)
    assert watched._opens_window("host", 600, now)


def test_the_limit_applies_to_each_symptom_alone():
    watched, now = detector(windows=MAX_DELAY_EXPONENT, scan_seconds=50.0, run_seconds=100.0)
    assert not watched._opens_window("host", 10, now)
    assert watched._opens_window("graph", 10, now)


def test_no_window_opens_before_its_delay_has_passed():
    watched, now = detector(windows=0, scan_seconds=0.0, run_seconds=100.0)
    watched._not_before["host"] = 20
    assert not watched._opens_window("host", 19, now)
    assert watched._opens_window("host", 20, now)
