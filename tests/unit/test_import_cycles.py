"""Legroom has no import cycles, not even through imports inside functions."""

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

import pytest

grimp: Any = pytest.importorskip("grimp")


def find_cycle(imports: Mapping[str, Iterable[str]]) -> list[str] | None:
    """Return the modules of one import cycle, or None."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return None


def imports_of(package: str) -> dict[str, set[str]]:
    graph = grimp.build_graph(package, exclude_type_checking_imports=False)
    # A package imports its submodules to re-export them, and every submodule implicitly imports its package.
    return {
        module: {
            imported
            for imported in graph.find_modules_directly_imported_by(module)
            if not module.startswith(f"{imported}.") and not imported.startswith(f"{module}.")
        }
        for module in graph.modules
    }


def test_there_is_no_import_cycle() -> None:
    assert find_cycle(imports_of("legroom")) is None


def test_a_cycle_is_found() -> None:
    cycle = find_cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})
    assert cycle is not None
    assert set(cycle) == {"a", "b", "c"}


def test_the_imports_of_this_package_are_found() -> None:
    assert "legroom.memory.events" in imports_of("legroom")["legroom.memory.ledger"]
