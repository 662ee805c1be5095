"""Looking ahead: what a step would take, without disturbing the run."""

import pytest
import torch
from torch import nn

import legroom
from legroom.errors import UsageError
from legroom.gpus.catalog import find_gpu
from legroom.scale.prediction import strategy_memory
from legroom.scale.prediction.step_trace import Likeness, foreseen, likeness_of, undisturbed
from legroom.scale.prediction.strategy_memory import Job
from legroom.scale.prediction.strategy_steps import plain_step
from legroom.scale.strategies.sharded import wrapping

LIKE = Likeness(find_gpu("1GiB"), kernels=False)


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 8))


def batch(rows: int = 128) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(rows, 64), torch.zeros(rows, dtype=torch.long)


def test_a_step_on_a_virtual_gpu_takes_what_was_foreseen() -> None:
    made = model()
    peak = foreseen(LIKE, 1, plain_step(made, torch.optim.AdamW(made.parameters()), batch())).peaks[0]
    with legroom.VirtualGPU("1GiB"):
        made.cuda()
        optimizer = torch.optim.AdamW(made.parameters())
        x, y = (each.cuda() for each in batch())
        for _ in range(3):
            nn.functional.cross_entropy(made(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert torch.cuda.max_memory_allocated() == peak.allocated


def test_a_virtual_gpu_in_use_is_not_disturbed() -> None:
    with legroom.VirtualGPU("1GiB") as gpu:
        tensor = torch.ones(1000, device="cuda")
        before = torch.cuda.memory_allocated(), gpu.allocations
        inside = undisturbed(lambda: torch.cuda.is_available())
        assert inside is False
        assert (torch.cuda.memory_allocated(), gpu.allocations) == before
        assert tensor.device.type == "cuda"


def test_an_error_in_looking_ahead_is_the_callers() -> None:
    def fail() -> None:
        raise UsageError("no such thing")

    with legroom.VirtualGPU("1GiB"), pytest.raises(UsageError, match="no such thing"):
        undisturbed(fail)


def test_a_virtual_gpus_kernels_take_nothing() -> None:
    with legroom.VirtualGPU("2GiB"):
        like = likeness_of(torch.device("cuda", 0))
    assert not like.kernels
    assert like.room == 2 << 30


def job(rooms: tuple[int, ...], rows: int | None = 128) -> Job:
    made = model()
    return Job(made, torch.optim.AdamW(made.parameters()), None if rows is None else batch(rows), rooms, LIKE)


def test_sharding_over_more_ranks_needs_less_of_each() -> None:
    needs = [strategy_memory.fsdp(job((1 << 30,) * ranks), [1.0] * ranks).peak for ranks in (2, 4)]
    weights = sum(parameter.nbytes for parameter in model().parameters())
    assert needs[1] < needs[0] - weights / 2


def test_without_a_batch_the_weights_alone_are_foreseen() -> None:
    weights = sum(parameter.nbytes for parameter in model().parameters())
    without, with_batch = (
        strategy_memory.ddp(job((1 << 30,) * 2, rows), [1, 1]).peak for rows in (None, 16384)
    )
    assert 4 * weights <= without < with_batch


def test_shares_follow_what_is_left_beside_the_weights() -> None:
    even = strategy_memory.fair_shares(job((1 << 30, 1 << 30)))
    uneven = strategy_memory.fair_shares(job((200 << 20, 60 << 20)))
    assert even == [1.0, 1.0]
    assert 0 < uneven[1] < 0.29 * uneven[0]


class Forked(nn.Module):
    """Uses one of two layers; which one may depend on what it sees."""

    def __init__(self, looks: bool) -> None:
        super().__init__()
        self.looks = looks
        self.first, self.second = nn.Linear(64, 8), nn.Linear(64, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = self.second if self.looks and x.sum() > 0 else self.first
        result: torch.Tensor = chosen(x)
        return result


@pytest.mark.parametrize("looks", [False, True])
def test_unused_parameters_are_found_and_whether_they_may_change(looks: bool) -> None:
    assert strategy_memory.unused_parameters(Job(Forked(looks), None, batch(), (1 << 30,), LIKE)) == (
        True,
        looks,
    )


def test_a_model_without_unused_parameters_has_none() -> None:
    assert strategy_memory.unused_parameters(job((1 << 30,))) == (False, False)


def test_blocks_are_gathered_on_their_own_and_small_layers_with_the_whole() -> None:
    block = [nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)) for _ in range(10)]
    made = nn.Sequential(nn.Linear(2, 512), *block, nn.LayerNorm(512))
    chosen = wrapping(made)
    assert chosen.names == tuple(str(number) for number in range(1, 11))
    assert chosen.largest == 2 * (512 * 512 + 512) * 4


def test_weights_with_two_homes_are_gathered_with_the_whole_model() -> None:
    made = nn.Sequential(nn.Embedding(100, 64), nn.Linear(64, 64), nn.Linear(64, 100, bias=False))
    made[2].weight = made[0].weight  # type: ignore[assignment]
    assert wrapping(made).names == ("1",)
