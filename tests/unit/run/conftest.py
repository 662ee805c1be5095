import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2]))

from example_runs import Run


@pytest.fixture
def make_run() -> type[Run]:
    return Run
