import gc
import weakref

import pytest
from torch import nn

from legroom.observe.dispatch.module_names import ModuleNames, part_begun


def test_modules_are_named_by_their_path_below_the_root() -> None:
    root = nn.Sequential(nn.Sequential(nn.Linear(2, 2)))
    assert ModuleNames().under(root) == {id(root[0]): "0", id(root[0][0]): "0.0"}


def test_a_part_that_runs_by_itself_is_named_as_in_the_model_that_ran_before() -> None:
    root = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)))
    names = ModuleNames()
    names.under(root)
    assert names.around(root[1])[id(root[1][0])] == "1.0"


def test_no_module_is_kept_alive() -> None:
    names, root = ModuleNames(), nn.Linear(2, 2)
    names.under(root)
    gone = weakref.ref(root)
    del root
    gc.collect()
    assert gone() is None


def test_a_module_that_cannot_be_looked_through_has_no_names_below_it() -> None:
    class Closed(nn.Module):
        def named_modules(self, *args: object, **options: object) -> object:
            raise RuntimeError("not for you")

    assert ModuleNames().under(Closed()) == {}


@pytest.mark.parametrize(("entered", "part"), [(1, 0.25), (3, 0.75), (4, None)])
def test_the_part_that_has_begun_is_known_until_modules_come_again(entered: int, part: float | None) -> None:
    assert part_begun(entered, {1: "a", 2: "b", 3: "c"}) == part
