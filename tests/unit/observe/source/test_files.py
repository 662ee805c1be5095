"""Properties of the user's source files as a whole."""

from pathlib import Path

import pytest

from legroom.observe.source.files import calls_in_loop, tree_of


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("for step in range(9):\n    if step % 5 == 0:\n        gc.collect()\n", True),
        ("def clean():\n    gc.collect()\nfor step in range(9):\n    train()\n", False),
        ("for step in range(9):\n    train()\ngc.collect()\n", False),
        ("for step in range(9):\n    pool.collect()\n", False),
    ],
)
def test_a_call_of_the_garbage_collector_counts_only_in_a_loop(
    source: str, expected: bool, tmp_path: Path
) -> None:
    file = tmp_path / "train.py"
    file.write_text(source)
    tree_of.cache_clear()
    assert calls_in_loop("gc.collect", [str(file)]) is expected
