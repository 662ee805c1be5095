"""Memory fails at allocations all over a guarded step; `bench/guard/fault_injection.py` fails every single one."""

import pytest
from bench.guard.fault_injection import CASES, PHASES, inject

pytestmark = pytest.mark.usefixtures("frozen_heap")


@pytest.mark.parametrize("case", CASES[1:6], ids=lambda case: case.name)
def test_a_failed_allocation_leaves_what_an_uninterrupted_run_leaves(case):
    for phase, every in zip(PHASES, (7, 29, 9, 11), strict=True):
        tried, right, wrong = inject(case, phase, every)
        assert tried
        assert (right, wrong) == (tried, [])
