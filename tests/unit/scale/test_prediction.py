"""Prediction of the memory of a step, without effects on the run."""

import pytest
import torch
from torch import nn

import legroom
from legroom.errors import UsageError
from legroom.gpus.catalog import find_gpu
from legroom.scale.prediction import strategy_memory
from legroom.scale.prediction.step_trace import (
    DeviceModel,
    device_model_of,
    outside_virtual_gpu,
    predict_step,
)
from legroom.scale.prediction.strategy_memory import TrainingSetup
from legroom.scale.prediction.strategy_steps import single_device_step
from legroom.scale.strategies.sharded import wrapping

DEVICE = DeviceModel(find_gpu("1GiB"), kernels=False)


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 8))


def batch(batch_size: int = 128) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(batch_size, 64), torch.zeros(batch_size, dtype=torch.long)


@pytest.fixture(params=["on", "off"])
def fork(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test with predictions in a forked process, and again in this process."""
    monkeypatch.setenv("LEGROOM_FORK", request.param)


def test_the_prediction_equals_a_step_on_a_virtual_gpu(fork: None) -> None:
    network = model()
    peak = predict_step(
        DEVICE, 1, single_device_step(network, torch.optim.AdamW(network.parameters()), batch())
    ).peaks[0]
    with legroom.VirtualGPU("1GiB"):
        network.cuda()
        optimizer = torch.optim.AdamW(network.parameters())
        x, y = (each.cuda() for each in batch())
        for _ in range(3):
            nn.functional.cross_entropy(network(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert torch.cuda.max_memory_allocated() == peak.allocated


def test_an_active_virtual_gpu_is_not_affected(fork: None) -> None:
    with legroom.VirtualGPU("1GiB") as gpu:
        tensor = torch.ones(1000, device="cuda")
        before = torch.cuda.memory_allocated(), gpu.allocations
        inside = outside_virtual_gpu(lambda: torch.cuda.is_available())
        assert inside is False
        assert (torch.cuda.memory_allocated(), gpu.allocations) == before
        assert tensor.device.type == "cuda"


def test_an_error_outside_the_virtual_gpu_is_raised(fork: None) -> None:
    def fail() -> None:
        raise UsageError("custom error")

    with legroom.VirtualGPU("1GiB"), pytest.raises(UsageError, match="custom error"):
        outside_virtual_gpu(fail)


def test_kernel_workspaces_are_not_included_on_a_virtual_gpu() -> None:
    with legroom.VirtualGPU("2GiB"):
        device_model = device_model_of(torch.device("cuda", 0))
    assert not device_model.kernels
    assert device_model.capacity == 2 << 30


def setup(capacities: tuple[int, ...], batch_size: int | None = 128) -> TrainingSetup:
    network = model()
    return TrainingSetup(
        network,
        torch.optim.AdamW(network.parameters()),
        None if batch_size is None else batch(batch_size),
        capacities,
        DEVICE,
    )


def test_sharding_over_more_ranks_needs_less_memory_per_rank() -> None:
    peaks = [strategy_memory.fsdp(setup((1 << 30,) * ranks), [1.0] * ranks).peak for ranks in (2, 4)]
    weights = sum(parameter.nbytes for parameter in model().parameters())
    assert peaks[1] < peaks[0] - weights / 2


def test_without_a_batch_the_prediction_includes_only_the_weights() -> None:
    weights = sum(parameter.nbytes for parameter in model().parameters())
    without, with_batch = (
        strategy_memory.ddp(setup((1 << 30,) * 2, batch_size), [1, 1]).peak for batch_size in (None, 16384)
    )
    assert 4 * weights <= without < with_batch


def test_shares_depend_on_the_memory_that_weights_leave_free() -> None:
    even = strategy_memory.fair_shares(setup((1 << 30, 1 << 30)))
    uneven = strategy_memory.fair_shares(setup((200 << 20, 60 << 20)))
    assert even == [1.0, 1.0]
    assert 0 < uneven[1] < 0.29 * uneven[0]


class Forked(nn.Module):
    """Uses one of two layers. With `reads_values`, the choice depends on the input."""

    def __init__(self, reads_values: bool) -> None:
        super().__init__()
        self.reads_values = reads_values
        self.first, self.second = nn.Linear(64, 8), nn.Linear(64, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = self.second if self.reads_values and x.sum() > 0 else self.first
        result: torch.Tensor = chosen(x)
        return result


@pytest.mark.parametrize("reads_values", [False, True])
def test_unused_parameters_are_detected_and_whether_they_may_change(reads_values: bool) -> None:
    assert strategy_memory.unused_parameters(
        TrainingSetup(Forked(reads_values), None, batch(), (1 << 30,), DEVICE)
    ) == (
        True,
        reads_values,
    )


def test_a_model_without_unused_parameters_is_detected() -> None:
    assert strategy_memory.unused_parameters(setup((1 << 30,))) == (False, False)


def test_blocks_are_gathered_on_their_own_and_small_layers_with_the_model() -> None:
    block = [nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)) for _ in range(10)]
    network = nn.Sequential(nn.Linear(2, 512), *block, nn.LayerNorm(512))
    chosen = wrapping(network)
    assert chosen.names == tuple(str(number) for number in range(1, 11))
    assert chosen.largest == 2 * (512 * 512 + 512) * 4


def test_shared_weights_are_gathered_with_the_whole_model() -> None:
    network = nn.Sequential(nn.Embedding(100, 64), nn.Linear(64, 64), nn.Linear(64, 100, bias=False))
    network[2].weight = network[0].weight  # type: ignore[assignment]
    assert wrapping(network).names == ("1",)


def test_a_coordinator_that_always_uses_more_memory_gets_the_samples_with_the_lowest_peak() -> None:
    """The optimizer step of Adam determines the peak of the coordinator, so fewer samples would not lower this
    peak."""
    network = model()
    optimizer = torch.optim.Adam(network.parameters())
    shares, peaks = strategy_memory.coordinator_shares(network, optimizer, batch(), 2, DEVICE)
    assert shares == [64, 64]
    assert peaks[0] > peaks[1]
