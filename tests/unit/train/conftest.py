"""What tests of training share."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture
def frozen_heap() -> Iterator[None]:
    """Recovering from a full GPU collects garbage: do not search what was imported, again and again."""
    gc.freeze()
    yield
    gc.unfreeze()
