"""The garbage collector is paused only during imports."""

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from legroom.predict.tracing.pause_gc import MANY_OBJECTS, gc_paused_during_imports, instances_of


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a module that records whether the collector is enabled during its import, and creates many objects."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "recording", raising=False)
    (tmp_path / "recording.py").write_text(
        f"import gc\nenabled = gc.isenabled()\nobjects = [[number] for number in range({2 * MANY_OBJECTS})]\n"
    )
    return tmp_path


def test_the_collector_is_disabled_only_inside_an_import(imported: Path) -> None:
    with gc_paused_during_imports(lambda: False):
        import recording  # type: ignore[import-not-found]

        assert not recording.enabled
        assert gc.isenabled()


def test_imported_objects_are_frozen(imported: Path) -> None:
    before = gc.get_freeze_count()
    with gc_paused_during_imports(lambda: True):
        import recording  # noqa: F401

    assert gc.get_freeze_count() - before > MANY_OBJECTS


def test_nothing_is_frozen_if_freezing_is_disabled(imported: Path) -> None:
    before = gc.get_freeze_count()
    with gc_paused_during_imports(lambda: False):
        import recording  # noqa: F401

    assert gc.get_freeze_count() == before


def test_a_disabled_collector_stays_disabled(imported: Path) -> None:
    gc.disable()
    try:
        with gc_paused_during_imports(lambda: True):
            import recording  # noqa: F401

            assert not gc.isenabled()
    finally:
        gc.enable()


def test_the_collector_is_enabled_after_a_failed_import(imported: Path) -> None:
    with gc_paused_during_imports(lambda: True), pytest.raises(ModuleNotFoundError):
        import not_there_at_all  # type: ignore[import-not-found]  # noqa: F401

    assert gc.isenabled()


def test_instances_of_a_class_include_frozen_objects() -> None:
    class Wanted:
        pass

    instance = Wanted()
    gc.freeze()
    assert list(instances_of(Wanted)) == [instance]
