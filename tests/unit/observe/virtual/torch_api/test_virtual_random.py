"""Seeds, states and generators of virtual GPUs."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from virtual_host import virtual_gpus

from legroom.units import GiB

ORIGINAL = torch.Generator


@pytest.fixture
def host() -> Iterator[Any]:
    with virtual_gpus(GiB, GiB) as host:
        yield host


@pytest.fixture(autouse=True)
def cpu_state() -> Iterator[None]:
    before = torch.get_rng_state()
    yield
    torch.set_rng_state(before)


@pytest.mark.parametrize("seeding", ["manual_seed(3)", "manual_seed_all(3)", "seed()", "seed_all()"])
def test_seeding_the_gpu_does_not_change_the_numbers_of_the_cpu(host: Any, seeding: str) -> None:
    torch.manual_seed(0)
    expected = torch.rand(4)
    torch.manual_seed(0)
    eval(f"torch.cuda.{seeding}")
    assert torch.equal(torch.rand(4), expected)


def test_manual_seed_has_the_same_effect_on_the_cpu() -> None:
    torch.manual_seed(7)
    expected = torch.rand(4)
    with virtual_gpus(GiB):
        torch.manual_seed(7)
        assert torch.equal(torch.rand(4), expected)


def test_a_generator_returns_its_seed(host: Any) -> None:
    torch.cuda.manual_seed(5)
    assert torch.cuda.initial_seed() == 5
    with torch.cuda.device(1):
        assert torch.cuda.initial_seed() != 5
    torch.cuda.manual_seed_all(6)
    with torch.cuda.device(1):
        assert torch.cuda.initial_seed() == 6


def test_seed_changes_the_initial_seed(host: Any) -> None:
    before = torch.cuda.initial_seed()
    torch.cuda.seed()
    assert torch.cuda.initial_seed() != before


@pytest.mark.parametrize("device", [0, "cuda", torch.device("cuda", 1)])
def test_restoring_a_state_repeats_the_numbers(host: Any, device: Any) -> None:
    state = torch.cuda.get_rng_state(device)
    expected = torch.rand(4)
    torch.cuda.set_rng_state(state, device)
    assert torch.equal(torch.rand(4), expected)


def test_restoring_the_states_of_all_devices_repeats_the_numbers(host: Any) -> None:
    states = torch.cuda.get_rng_state_all()
    assert len(states) == 2
    expected = torch.rand(4)
    torch.cuda.set_rng_state_all(states)
    assert torch.equal(torch.rand(4), expected)


def test_fork_rng_restores_the_state(host: Any) -> None:
    state = torch.get_rng_state()
    with torch.random.fork_rng(devices=[0, 1]):
        torch.rand(10)
    assert torch.equal(torch.get_rng_state(), state)


def test_checkpointing_repeats_dropout(host: Any) -> None:
    values = torch.ones(1000, requires_grad=True)
    dropped = torch.utils.checkpoint.checkpoint(torch.nn.functional.dropout, values, 0.5, use_reentrant=False)
    dropped.sum().backward()
    assert torch.equal(values.grad, dropped.detach())


def test_a_generator_on_the_gpu_reports_its_device(host: Any) -> None:
    torch.cuda.set_device(1)
    assert torch.Generator(device="cuda").device == torch.device("cuda", 1)
    assert torch.Generator("cuda:0").device == torch.device("cuda", 0)
    assert torch.Generator(device=torch.device("cuda", 1)).device == torch.device("cuda", 1)


def test_a_generator_on_the_gpu_returns_the_numbers_of_the_cpu(host: Any) -> None:
    ours, plain = torch.Generator(device="cuda").manual_seed(4), torch.Generator().manual_seed(4)
    assert ours.initial_seed() == 4
    assert torch.equal(torch.rand(4, generator=ours), torch.rand(4, generator=plain))


def test_a_generator_of_a_missing_device_is_an_error(host: Any) -> None:
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.Generator(device="cuda:2")


def test_generators_on_all_devices_are_instances_of_generator(host: Any) -> None:
    for generator in (ORIGINAL(), torch.default_generator, torch.Generator(), torch.Generator("cuda")):
        assert isinstance(generator, torch.Generator)
        assert isinstance(generator, ORIGINAL)
    assert not isinstance(3, torch.Generator)
    assert torch.Generator().device == torch.device("cpu")


def test_a_class_derived_from_generator_works(host: Any) -> None:
    class Seeded(torch.Generator):
        def __new__(cls, seed: int, device: str = "cpu") -> Any:
            made = super().__new__(cls, device=device)
            made.manual_seed(seed)
            return made

    for device in ("cpu", "cuda"):
        made = Seeded(3, device)
        assert isinstance(made, Seeded)
        assert (made.device.type, made.initial_seed()) == (device, 3)
    assert not isinstance(torch.Generator(), Seeded)
    assert torch.rand(2, generator=Seeded(3, "cuda")).shape == (2,)


def test_a_generator_class_imported_in_the_block_creates_cpu_generators_afterwards() -> None:
    with virtual_gpus(GiB):
        kept = torch.Generator
    assert type(kept()) is ORIGINAL
    assert isinstance(torch.default_generator, kept)
    with pytest.raises(RuntimeError):
        kept(device="cuda")


def test_each_device_has_a_default_generator(host: Any) -> None:
    assert [generator.device.index for generator in torch.cuda.default_generators] == [0, 1]
