"""The list of the user's modules is always up to date, although it is not always computed again."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

from legroom.observe.source.loaded_modules import module_namespaces, user_modules


def names() -> set[str]:
    return {module.__name__ for _, module in user_modules()}


def make(name: str, file: Path) -> ModuleType:
    module = ModuleType(name)
    module.__file__ = str(file)
    return module


def test_added_replaced_and_removed_modules_are_noticed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "first_module" not in names()
    first = make("first_module", tmp_path / "first.py")
    monkeypatch.setitem(sys.modules, "first_module", first)
    assert (str(tmp_path / "first.py"), first) in user_modules()
    assert module_namespaces()[id(first.__dict__)] == "first_module"
    again = make("first_module", tmp_path / "first.py")  # reloaded
    monkeypatch.setitem(sys.modules, "first_module", again)
    assert (str(tmp_path / "first.py"), again) in user_modules()
    assert module_namespaces()[id(again.__dict__)] == "first_module"
    monkeypatch.delitem(sys.modules, "first_module")
    assert "first_module" not in names()
    script = make("__main__", tmp_path / "train.py")
    monkeypatch.setitem(sys.modules, "__main__", script)
    assert (str(tmp_path / "train.py"), script) in user_modules()
    assert "torch" not in names()


def test_the_namespaces_can_be_changed_by_the_caller() -> None:
    module_namespaces().clear()
    assert module_namespaces()[id(sys.__dict__)] == "sys"
