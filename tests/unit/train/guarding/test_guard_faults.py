"""Memory fails at allocations all over a guarded step; `bench/guard/fault_injection.py` fails every single one."""

import pytest
from bench.guard.fault_injection import CASES, PLACES, inject

pytestmark = pytest.mark.usefixtures("frozen_heap")


@pytest.mark.parametrize("case", CASES[1:6], ids=lambda case: case.name)
def test_a_failed_allocation_leaves_what_an_uninterrupted_run_leaves(case):
    for place, every in zip(PLACES, (7, 29, 9, 11), strict=True):
        tried, right, wrong = inject(case, place, every)
        assert tried
        assert (right, wrong) == (tried, [])
