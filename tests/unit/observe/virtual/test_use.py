"""`legroom.use`, and other functions of Legroom while a virtual GPU is active."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

import legroom
from legroom.errors import UsageError
from legroom.observe.virtual.gpu import VirtualGPU
from legroom.units import MiB


@pytest.fixture(autouse=True)
def _ended() -> Iterator[None]:
    yield
    legroom.use(None)
    assert VirtualGPU.active() is None


def tensor(size: int) -> torch.Tensor:
    return torch.empty(size * MiB, dtype=torch.uint8, device="cuda")


def test_use_activates_a_virtual_gpu_without_a_block() -> None:
    gpu = legroom.use("64MiB")
    assert repr(gpu) == "<virtual GPU: cuda:0 64.0 MiB, active>"
    kept = tensor(40)
    assert torch.cuda.memory_allocated() == kept.nbytes
    with pytest.raises(torch.OutOfMemoryError):
        tensor(40)
    assert legroom.use(None) is None
    assert not torch.cuda.is_available()
    assert repr(gpu) == "<virtual GPU: cuda:0 64.0 MiB, not active>"


def test_another_call_replaces_the_virtual_gpu() -> None:
    legroom.use("64MiB")
    before = tensor(40)
    legroom.use("32MiB", "16MiB")
    assert torch.cuda.device_count() == 2
    assert torch.cuda.memory_allocated() == 0
    assert before.nbytes == 40 * MiB


def test_an_invalid_size_leaves_the_virtual_gpu_unchanged() -> None:
    gpu = legroom.use("64MiB")
    with pytest.raises(UsageError, match="not a valid size|not a known GPU|Unknown GPU|is not"):
        legroom.use("very large")
    assert VirtualGPU.active() is gpu


@pytest.mark.parametrize("gpus", [(), ("8GiB", None)])
def test_use_requires_a_size_or_none(gpus: tuple[str | None, ...]) -> None:
    with pytest.raises(UsageError, match=r"legroom.use\('8GiB'\)"):
        legroom.use(*gpus)


def test_a_block_inside_use_is_rejected() -> None:
    legroom.use("64MiB")
    with (
        pytest.raises(UsageError, match=r"deactivate it with `legroom.use\(None\)`"),
        legroom.VirtualGPU("32MiB"),
    ):
        pass


def test_use_inside_a_block_is_rejected() -> None:
    with legroom.VirtualGPU("32MiB"):
        with pytest.raises(UsageError, match="already active"):
            legroom.use("64MiB")
        assert legroom.use(None) is None  # ends only a virtual GPU that `use` started
        assert VirtualGPU.active() is not None


def test_use_inside_a_recording_is_rejected() -> None:
    with legroom.record(), pytest.raises(UsageError, match="A recording is running"):
        legroom.use("64MiB")
    legroom.use("64MiB")
    with legroom.record(), pytest.raises(UsageError, match="A recording is running"):
        legroom.use(None)


def test_estimates_and_summaries_use_the_active_virtual_gpu_without_changing_its_memory() -> None:
    legroom.use("64MiB")
    model = nn.Linear(256, 256).cuda()
    batch = torch.randn(64, 256).cuda()
    allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    estimate = legroom.estimate(model, batch, search=False)
    assert estimate.gpu.total == 64 * MiB
    assert estimate.by_category["parameter"] == allocated - batch.nbytes
    assert legroom.summary(model, batch).parameters == 256 * 257
    assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == (allocated, reserved)
    assert model.weight.device == batch.device == torch.device("cuda:0")
    del batch
    assert torch.cuda.memory_allocated() == estimate.by_category["parameter"]
    assert model(tensor(1).float()[: 64 * 256].view(64, 256)).is_cuda


def test_tensors_that_are_freed_during_an_estimate_free_their_memory() -> None:
    legroom.use("64MiB")
    kept = [tensor(8)]

    def step(x: torch.Tensor) -> None:
        (x * 2).sum()

    gpu = VirtualGPU.active()
    assert gpu is not None
    with gpu.suspended():
        assert VirtualGPU.active() is None
        kept.clear()
    assert torch.cuda.memory_allocated() == 0


def test_an_estimate_inside_a_recording_on_a_virtual_gpu_is_rejected() -> None:
    legroom.use("64MiB")
    model, batch = nn.Linear(8, 8).cuda(), torch.randn(4, 8).cuda()
    with legroom.record() as recording, pytest.raises(UsageError, match="Move the call out of"):
        legroom.summary(model, batch)
    assert recording.device == "virtual GPU 0"


def test_an_estimate_without_a_gpu_asks_for_one() -> None:
    with pytest.raises(UsageError, match="This machine has no GPU. Pass a size"):
        legroom.estimate(nn.Linear(8, 8), torch.randn(4, 8))
