"""The snapshot restores all objects that a step references by name and changes."""

import functools
import logging
import random
from typing import Any

import torch
from torch import nn

from legroom.train.sizes.state_snapshot import StateSnapshot

calls = 0
seen: list[int] = []


def counts_globally() -> None:
    global calls
    calls += 1
    seen.append(calls)


def run_and_restore(step: Any, *, times: int = 2, extra_state: tuple[Any, ...] = ()) -> None:
    snapshot = StateSnapshot(step, extra_state)
    for _ in range(times):
        step()
    snapshot.restore()


def test_global_variables_and_lists_are_restored() -> None:
    run_and_restore(counts_globally)
    assert (calls, seen) == (0, [])


def test_closure_variables_are_restored() -> None:
    count, table = 0, {"a": [1]}

    def step() -> None:
        nonlocal count
        count += 1
        table["a"].append(count)
        table["b"] = []

    run_and_restore(step)
    assert (count, table) == (0, {"a": [1]})


def test_the_object_of_a_bound_method_is_restored() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.epoch, self.average = 3, torch.ones(2)

        def step(self, by: float = 2.0) -> None:
            self.epoch += 1
            self.average *= by
            self.added = True

    trainer = Trainer()
    average = trainer.average
    run_and_restore(functools.partial(trainer.step, by=3.0))
    assert trainer.epoch == 3
    assert trainer.average is average
    assert average.tolist() == [1, 1]
    assert not hasattr(trainer, "added")


def test_gradients_are_restored_and_new_ones_removed() -> None:
    model = nn.Linear(2, 2)
    model.weight.grad = torch.full((2, 2), 7.0)

    def step() -> None:
        model.zero_grad()
        model(torch.ones(1, 2)).sum().backward()

    run_and_restore(step)
    assert model.weight.grad.tolist() == [[7, 7], [7, 7]]
    assert model.bias.grad is None


def test_optimizer_groups_and_state_are_restored() -> None:
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
    run_and_restore(step)
    assert optimizer.state[model.weight] is state
    assert torch.equal(state["exp_avg"], moment)
    assert state["step"] == 1
    assert optimizer.param_groups[0]["lr"] == rate
    assert scheduler.last_epoch == 1


def test_an_uninitialized_grad_scaler_stays_uninitialized() -> None:
    scaler = torch.amp.GradScaler("cpu")

    def step() -> None:
        scaler.scale(torch.ones(1))

    run_and_restore(step)
    assert scaler._scale is None


def test_modes_and_counters_of_modules_are_restored() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout())
    model[0].calls = 0

    def step() -> None:
        model(torch.ones(4, 2))
        model.eval()
        model[0].calls += 1

    run_and_restore(step)
    assert model[1].training
    assert model[0].calls == 0
    assert model[0].num_batches_tracked == 0


def test_random_generators_are_restored() -> None:
    own = torch.Generator().manual_seed(5)

    def draw() -> tuple[float, ...]:
        return random.random(), torch.rand(()).item(), torch.rand((), generator=own).item()

    state = random.getstate(), torch.get_rng_state(), own.get_state()
    expected = draw()
    random.setstate(state[0])
    torch.set_rng_state(state[1])
    own.set_state(state[2])
    run_and_restore(draw)
    assert draw() == expected


def test_extra_state_is_restored() -> None:
    hidden = torch.ones(2)
    hidden_references = [lambda: hidden.add_(1)]

    class Opaque:
        __slots__ = ()

        def __call__(self) -> None:
            hidden_references[0]()

    run_and_restore(Opaque(), extra_state=(hidden,))
    assert hidden.tolist() == [1, 1]


def test_loggers_are_not_restored() -> None:
    logger = logging.getLogger("legroom.tests.snapshot")

    def step() -> None:
        logger.setLevel(logging.ERROR)

    run_and_restore(step)
    assert logger.level == logging.ERROR


def test_data_tensors_are_not_restored_but_their_generator_is() -> None:
    source, own = torch.zeros(2), torch.Generator().manual_seed(1)
    before = own.get_state()

    def make_batch() -> torch.Tensor:
        return source + torch.rand(2, generator=own)

    snapshot = StateSnapshot(None, data=make_batch)
    make_batch()
    source.add_(1)
    snapshot.restore()
    assert source.tolist() == [1, 1]
    assert torch.equal(own.get_state(), before)
