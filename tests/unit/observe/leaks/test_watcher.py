"""What a watched loop keeps is found within a few turns, and what it does not keep is not."""

import gc
import weakref
from collections import deque
from typing import Any

import torch
from tests.unit.observe.leaks.loops import leaks_of
from torch import nn

from legroom.observe.leaks import watcher as watcher_module
from legroom.observe.leaks.watcher import Watcher


def test_a_list_of_losses_is_a_graph_with_its_holder_and_line() -> None:
    losses = []

    def keep(step: int, loss: Any, output: Any) -> None:
        losses.append(loss)  # the line

    (leak,) = leaks_of(keep)
    assert (leak.kind, leak.name, leak.nodes_per_step > 0) == ("graph", "losses", True)
    assert leak.file == __file__
    assert leak.line is not None
    assert "# the line" in open(__file__).read().splitlines()[leak.line - 1]  # noqa: SIM115


def test_the_verdict_comes_within_five_turns_of_growth() -> None:
    losses = []
    (leak,) = leaks_of(lambda step, loss, output: losses.append(loss))
    assert leak.step <= 5


def test_what_compiling_left_behind_is_not_taken_for_a_holder() -> None:
    compiled = torch.compile(nn.Sequential(nn.Linear(6, 4), nn.ReLU()), backend="aot_eager")
    compiled(torch.randn(3, 6)).sum().backward()
    losses = []
    (leak,) = leaks_of(lambda step, loss, output: losses.append(loss))
    assert leak.name == "losses"


def test_growth_that_begins_late_is_found_within_five_turns() -> None:
    kept = []

    def keep(step: int, loss: Any, output: Any) -> None:
        if step >= 30:
            kept.append(output.detach().clone())

    (leak,) = leaks_of(keep, turns=60)
    assert leak.kind == "tensor"
    assert 30 <= leak.step <= 36


def test_a_late_graph_is_not_hidden_by_floats() -> None:
    floats, losses = [], []

    def keep(step: int, loss: Any, output: Any) -> None:
        floats.extend([loss.item() + n for n in range(50)])
        if step >= 40:
            losses.append(loss)

    (leak,) = leaks_of(keep, turns=60)
    assert (leak.name, leak.step <= 46) == ("losses", True)


def test_one_graph_node_a_step_is_enough() -> None:
    class Total:
        value: Any = 0.0

    total = Total()

    def add(step: int, loss: Any, output: Any) -> None:
        total.value = total.value + loss

    (leak,) = leaks_of(add)
    assert (leak.kind, leak.name) == ("graph", "total.value")


def test_one_tensor_born_larger_each_time() -> None:
    class Store:
        history = torch.zeros(0, 2)

    store = Store()

    def join(step: int, loss: Any, output: Any) -> None:
        store.history = torch.cat([store.history, output.detach()])

    (leak,) = leaks_of(join)
    assert (leak.kind, leak.name, leak.bytes_per_step) == ("larger", "store.history", 40)


def test_a_list_that_is_emptied_is_no_leak() -> None:
    outputs = []

    def keep(step: int, loss: Any, output: Any) -> None:
        outputs.append(output)
        if step % 3 == 2:
            outputs.clear()

    assert leaks_of(keep) == []


def test_a_bounded_queue_is_no_leak_while_it_fills() -> None:
    recent: Any = deque(maxlen=100)
    assert leaks_of(lambda step, loss, output: recent.append(output.detach().clone())) == []


def test_floats_are_no_leak() -> None:
    losses = []
    assert leaks_of(lambda step, loss, output: losses.append(loss.item()), turns=40) == []


def test_slots_that_are_filled_one_after_another_are_no_leak() -> None:
    slots: list[Any] = [None] * 30

    def keep(step: int, loss: Any, output: Any) -> None:
        free = slots.index(None)
        slots[free] = output.detach().clone()

    assert leaks_of(keep) == []


def test_nothing_is_collected_for_a_user_who_has_gc_off() -> None:
    class Cycle:
        def __init__(self) -> None:
            self.me = self

    gc.collect()
    gc.disable()
    try:
        cycle = Cycle()
        alive = weakref.ref(cycle)
        del cycle
        losses = []
        leaks_of(lambda step, loss, output: losses.append(loss))
        # leaks_of itself collects once before the loop; what dies in the loop must stay
        cycles = [weakref.ref(Cycle()) for _ in range(3)]
        watcher = Watcher(lambda kept: None)
        for _ in range(12):
            watcher._turn_ended()
        assert all(each() is not None for each in cycles)
        del alive
    finally:
        gc.enable()
        gc.collect()


def test_looking_keeps_no_tensor_alive() -> None:
    losses = []
    gc.disable()
    try:
        leaks_of(lambda step, loss, output: losses.append(loss))
        references = [weakref.ref(loss) for loss in losses]
        losses.clear()
        assert sum(reference() is not None for reference in references) <= 1  # the loop's own last one
    finally:
        gc.enable()


def test_trouble_in_looking_never_reaches_the_loop(monkeypatch: Any) -> None:
    def fails(self: Any, turn: int) -> Any:
        raise RuntimeError("no luck")

    monkeypatch.setattr(watcher_module.Window, "look", fails)
    watcher = Watcher(lambda kept: None)
    watcher.attach()
    parameter = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    for _ in range(5):
        parameter.grad = torch.ones(2)
        optimizer.step()
    assert watcher.trouble == "RuntimeError: no luck"


def test_without_windows_a_turn_only_counts() -> None:
    watcher = Watcher(lambda kept: None)
    watcher._next_by_chance = 10**9
    watcher._not_before = dict.fromkeys(watcher._not_before, 10**9)
    for _ in range(50):
        watcher._turn_ended()
    assert watcher.seconds_looking == 0.0


def test_what_an_object_keeps_is_seen_from_within_a_comprehension_of_its_method() -> None:
    """There `self` is a variable taken along, and yet no variable of a call that ends."""

    class Server:
        def __init__(self) -> None:
            self.archive: dict[int, Any] = {}
            self.weights = {"weight": torch.zeros(4)}

        def train(self) -> dict[str, torch.Tensor]:
            model = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            model(torch.ones(2, 4) + self.weights["weight"]).sum().backward()
            optimizer.step()
            return model.state_dict()

        def run_round(self, number: int) -> None:
            updates = {client: self.train() for client in range(3)}
            self.archive[number] = updates

    leaks: list[Any] = []
    watcher = Watcher(leaks.append, share=1e6)
    watcher.attach()
    try:
        server = Server()
        for number in range(14):
            server.run_round(number)
    finally:
        watcher.detach()
    assert {leak.name.rpartition(".")[2] for leak in leaks} == {"archive"}


def _models_trained_and_kept(trials: int) -> set[str]:
    """Who is told to keep something in a search that keeps the model of every trial."""
    leaks: list[Any] = []
    watcher = Watcher(leaks.append, share=1e6)
    watcher.attach()
    try:
        results = []
        for _ in range(trials):
            model = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.ones(2, 4)).sum().backward()
                optimizer.step()
            results.append({"model": model})
    finally:
        watcher.detach()
    return {leak.name for leak in leaks}


def test_a_few_trained_models_are_kept_on_purpose_and_many_are_not() -> None:
    assert _models_trained_and_kept(6) == set()
    assert _models_trained_and_kept(24) == {"results"}
