"""The cycle collector rests inside imports, and nowhere else."""

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from legroom.predict.tracing.pause_gc import MANY, living, resting_during_imports


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that notes whether the collector works while it is imported, and makes many objects."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "noting", raising=False)
    (tmp_path / "noting.py").write_text(
        f"import gc\nworks = gc.isenabled()\nmade = [[number] for number in range({2 * MANY})]\n"
    )
    return tmp_path


def test_no_collection_inside_an_import_and_some_after_it(imported: Path) -> None:
    with resting_during_imports(lambda: False):
        import noting  # type: ignore[import-not-found]

        assert not noting.works
        assert gc.isenabled()


def test_what_an_import_made_is_passed_over_where_it_may_be(imported: Path) -> None:
    before = gc.get_freeze_count()
    with resting_during_imports(lambda: True):
        import noting  # noqa: F401

    assert gc.get_freeze_count() - before > MANY


def test_nothing_is_passed_over_where_it_may_not_be(imported: Path) -> None:
    before = gc.get_freeze_count()
    with resting_during_imports(lambda: False):
        import noting  # noqa: F401

    assert gc.get_freeze_count() == before


def test_a_collector_that_was_switched_off_stays_off(imported: Path) -> None:
    gc.disable()
    try:
        with resting_during_imports(lambda: True):
            import noting  # noqa: F401

            assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_failing_import_raises_and_the_collector_works_again(imported: Path) -> None:
    with resting_during_imports(lambda: True), pytest.raises(ModuleNotFoundError):
        import not_there_at_all  # type: ignore[import-not-found]  # noqa: F401

    assert gc.isenabled()


def test_what_is_frozen_is_found_all_the_same() -> None:
    class Wanted:
        pass

    thing = Wanted()
    gc.freeze()
    assert list(living(Wanted)) == [thing]
