"""What training steps change is put back, wherever a step can reach it by name."""

import functools
import logging
import random
from typing import Any

import torch
from torch import nn

from legroom.train.sizes.state_snapshot import Preserved

calls = 0
seen: list[int] = []


def counts_globally() -> None:
    global calls
    calls += 1
    seen.append(calls)


def after(step: Any, *, times: int = 2, also: tuple[Any, ...] = ()) -> None:
    """Runs a step and puts everything back."""
    kept = Preserved(step, also)
    for _ in range(times):
        step()
    kept.restore()


def test_globals_and_lists_of_the_module() -> None:
    after(counts_globally)
    assert (calls, seen) == (0, [])


def test_variables_of_the_function_around() -> None:
    count, table = 0, {"a": [1]}

    def step() -> None:
        nonlocal count
        count += 1
        table["a"].append(count)
        table["b"] = []

    after(step)
    assert (count, table) == (0, {"a": [1]})


def test_the_object_that_a_method_is_bound_to() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.epoch, self.average = 3, torch.ones(2)

        def step(self, by: float = 2.0) -> None:
            self.epoch += 1
            self.average *= by
            self.added = True

    trainer = Trainer()
    average = trainer.average
    after(functools.partial(trainer.step, by=3.0))
    assert trainer.epoch == 3
    assert trainer.average is average
    assert average.tolist() == [1, 1]
    assert not hasattr(trainer, "added")


def test_gradients_are_put_back_and_ones_that_were_not_there_are_gone() -> None:
    model = nn.Linear(2, 2)
    model.weight.grad = torch.full((2, 2), 7.0)

    def step() -> None:
        model.zero_grad()
        model(torch.ones(1, 2)).sum().backward()

    after(step)
    assert model.weight.grad.tolist() == [[7, 7], [7, 7]]
    assert model.bias.grad is None


def test_optimizer_groups_and_state_that_was_there() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)

    def step() -> None:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        scheduler.step()

    step()
    state = optimizer.state[model.weight]
    moment, rate = state["exp_avg"].clone(), optimizer.param_groups[0]["lr"]
    after(step)
    assert optimizer.state[model.weight] is state
    assert torch.equal(state["exp_avg"], moment)
    assert state["step"] == 1
    assert optimizer.param_groups[0]["lr"] == rate
    assert scheduler.last_epoch == 1


def test_a_scaler_that_has_not_begun_has_not_begun() -> None:
    scaler = torch.amp.GradScaler("cpu")

    def step() -> None:
        scaler.scale(torch.ones(1))

    after(step)
    assert scaler._scale is None


def test_modes_and_counters_of_modules() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout())
    model[0].calls = 0

    def step() -> None:
        model(torch.ones(4, 2))
        model.eval()
        model[0].calls += 1

    after(step)
    assert model[1].training
    assert model[0].calls == 0
    assert model[0].num_batches_tracked == 0


def test_random_numbers_go_on_as_if_none_had_been_drawn() -> None:
    own = torch.Generator().manual_seed(5)

    def draw() -> tuple[float, ...]:
        return random.random(), torch.rand(()).item(), torch.rand((), generator=own).item()

    state = random.getstate(), torch.get_rng_state(), own.get_state()
    expected = draw()
    random.setstate(state[0])
    torch.set_rng_state(state[1])
    own.set_state(state[2])
    after(draw)
    assert draw() == expected


def test_what_is_named_besides() -> None:
    hidden = torch.ones(2)
    by_other_ways = [lambda: hidden.add_(1)]

    class Opaque:
        __slots__ = ()

        def __call__(self) -> None:
            by_other_ways[0]()

    after(Opaque(), also=(hidden,))
    assert hidden.tolist() == [1, 1]


def test_loggers_are_left_alone() -> None:
    logger = logging.getLogger("legroom.tests.preserving")

    def step() -> None:
        logger.setLevel(logging.ERROR)

    after(step)
    assert logger.level == logging.ERROR


def test_data_is_read_only_but_its_generator_is_put_back() -> None:
    source, own = torch.zeros(2), torch.Generator().manual_seed(1)
    before = own.get_state()

    def make_batch() -> torch.Tensor:
        return source + torch.rand(2, generator=own)

    kept = Preserved(None, data=make_batch)
    make_batch()
    source.add_(1)
    kept.restore()
    assert source.tolist() == [1, 1]
    assert torch.equal(own.get_state(), before)
