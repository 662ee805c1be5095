"""Failed allocations throughout a guarded step. `bench/guard/fault_injection.py` injects a failure at every
allocation."""

import pytest
from bench.guard.fault_injection import CASES, PHASES, inject


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES[1:6], ids=lambda case: case.name)
def test_a_failed_allocation_does_not_change_the_result(case):
    for phase, every in zip(PHASES, (7, 29, 9, 11), strict=True):
        tried, right, wrong = inject(case, phase, every)
        assert tried
        assert (right, wrong) == (tried, [])
