import sys
from pathlib import Path

import pytest

sys.path += [str(Path(__file__).parents[2]), str(Path(__file__).parents[1] / "memory")]

from example_runs import Run


@pytest.fixture
def make_run() -> type[Run]:
    return Run
