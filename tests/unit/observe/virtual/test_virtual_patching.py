"""All attributes of torch that a virtual GPU replaces are restored exactly."""

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from virtual_host import virtual_gpus

from legroom.observe.virtual.patching import Replacement, optional_module, replaced
from legroom.units import GiB

CLASSES = (
    torch.Tensor,
    torch.UntypedStorage,
    torch.amp.autocast_mode.autocast,
    torch.autograd.profiler.profile,
    torch.cuda.streams.Stream,
    torch.cuda.streams.Event,
    torch.cuda.graphs.CUDAGraph,
    torch.cuda.graphs.graph,
)


def torch_attributes() -> dict[tuple[str, str], Any]:
    """Return every attribute of all torch modules, of the classes above, and of modules wrapped in property
    modules."""
    owners: list[Any] = [module for name, module in sys.modules.items() if name.split(".")[0] == "torch"]
    owners += [vars(owner)["m"] for owner in owners if isinstance(vars(owner).get("m"), ModuleType)]
    owners += CLASSES
    found = {(repr(owner), name): value for owner in owners for name, value in vars(owner).items()}
    found["serialization", "registry"] = tuple(torch.serialization._package_registry)
    return found


def assert_as_before(before: dict[tuple[str, str], Any]) -> None:
    after = torch_attributes()
    changed = {key for key in before.keys() & after.keys() if before[key] is not after[key]}
    changed.discard(("serialization", "registry"))
    # A submodule that was imported meanwhile stays imported.
    appeared = {key for key in after.keys() - before.keys() if key[0] in {owner for owner, _ in before}}
    appeared = {key for key in appeared if not isinstance(after[key], ModuleType)}
    assert (changed, appeared, before.keys() - after.keys()) == (set(), set(), set())
    assert before["serialization", "registry"] == after["serialization", "registry"]


@pytest.mark.slow
def test_every_attribute_is_restored_to_the_same_object() -> None:
    before = torch_attributes()
    with virtual_gpus(GiB, GiB):
        torch.cuda.manual_seed_all(1)
        torch.cuda.set_device(1)
        torch.cuda.memory_stats()
        torch.accelerator.set_device_index(0)
    assert_as_before(before)


@pytest.mark.slow
def test_everything_is_restored_after_an_error() -> None:
    before = torch_attributes()
    with pytest.raises(ZeroDivisionError), virtual_gpus(GiB):
        _ = 1 / 0
    assert_as_before(before)


@pytest.mark.slow
def test_the_check_for_restoration_can_fail() -> None:
    before = torch_attributes()
    plain = torch.cuda.is_available
    torch.cuda.is_available = lambda: True
    try:
        with pytest.raises(AssertionError):
            assert_as_before(before)
    finally:
        torch.cuda.is_available = plain


def test_a_virtual_gpu_can_be_entered_again() -> None:
    for size in (GiB, 2 * GiB):
        with virtual_gpus(size):
            assert torch.cuda.get_device_properties(0).total_memory == size
    assert not torch.cuda.is_available()


def test_replacements_made_before_one_fails_are_undone() -> None:
    class Owner:
        name = "plain"
        __slots__ = ()

    frozen = Replacement(int, "bit_length", None)
    with pytest.raises(TypeError), replaced([Replacement(Owner, "name", "replaced"), frozen]):
        pass
    assert Owner.name == "plain"


def test_an_inherited_attribute_is_inherited_again_after_the_block() -> None:
    class Parent:
        def speak(self) -> str:
            return "parent"

    class Child(Parent):
        pass

    with replaced([Replacement(Child, "speak", lambda self: "replacement")]):
        assert Child().speak() == "replacement"
    assert "speak" not in vars(Child)


def test_a_missing_name_is_skipped_unless_it_is_added() -> None:
    module = ModuleType("some_module")
    with replaced([Replacement(module, "skipped", 1), Replacement(module, "added", 2, add=True)]):
        assert not hasattr(module, "skipped")
        assert vars(module)["added"] == 2
    assert not hasattr(module, "added")


def test_a_missing_module_is_none() -> None:
    assert optional_module("torch.no_such_module") is None


def test_a_function_imported_in_the_block_calls_torchs_function_afterwards() -> None:
    with virtual_gpus(GiB) as host:
        kept = host.put(torch.zeros(3))
        memory_allocated, is_built = torch.cuda.memory_allocated, torch.backends.cuda.is_built
        assert (memory_allocated(), is_built()) == (512, True)
    assert (memory_allocated(), is_built()) == (0, torch.backends.cuda.is_built())
    assert kept is not None


def test_a_replaced_function_keeps_its_name_and_documentation() -> None:
    documentation = torch.cuda.memory_allocated.__doc__
    with virtual_gpus(GiB):
        assert torch.cuda.memory_allocated.__name__ == "memory_allocated"
        assert torch.cuda.memory_allocated.__doc__ == documentation
