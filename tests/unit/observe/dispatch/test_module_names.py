"""Module paths below a root, and the fraction of a model that has run."""

import gc
import weakref

import pytest
from torch import nn

from legroom.observe.dispatch.module_names import ModuleNames, fraction_entered


def test_submodules_are_named_by_their_path_below_the_root() -> None:
    root = nn.ModuleDict({"encoder": nn.Sequential(nn.Linear(2, 2))})
    encoder = root["encoder"]
    assert ModuleNames().below(root) == {id(encoder): "encoder", id(encoder[0]): "encoder.0"}


def test_a_bare_index_is_shown_with_its_type() -> None:
    root = nn.Sequential(nn.Sequential(nn.Linear(2, 2)), nn.Tanh())
    assert list(ModuleNames().below(root).values()) == ["Sequential (0)", "Linear (0.0)", "Tanh (1)"]


def test_a_submodule_called_alone_is_named_as_in_the_known_root() -> None:
    root = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)))
    names = ModuleNames()
    names.below(root)
    assert names.containing(root[1])[id(root[1][0])] == "Linear (1.0)"


def test_no_module_is_kept_alive() -> None:
    names, root = ModuleNames(), nn.Linear(2, 2)
    names.below(root)
    gone = weakref.ref(root)
    del root
    gc.collect()
    assert gone() is None


def test_a_module_whose_submodules_cannot_be_listed_has_no_names() -> None:
    class Unlistable(nn.Module):
        def named_modules(self, *args: object, **options: object) -> object:
            raise RuntimeError("cannot be listed")

    assert ModuleNames().below(Unlistable()) == {}


@pytest.mark.parametrize(("entered", "fraction"), [(1, 0.25), (3, 0.75), (4, None)])
def test_the_fraction_is_known_until_modules_are_called_repeatedly(
    entered: int, fraction: float | None
) -> None:
    assert fraction_entered(entered, {1: "a", 2: "b", 3: "c"}) == fraction
