"""Kinds of holders: replay memories, queues, optimizers, reference cycles, and numbers on the host."""

import contextvars
import gc
import inspect
import logging
import logging.handlers
import queue
import random
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.unit.observe.leaks.loops import leaks_of
from torch import nn

from legroom.memory.detected_leak import DetectedLeak
from legroom.observe.holders.descriptions import NO_HOLDER
from legroom.observe.leaks.detector import LeakDetector
from legroom.observe.leaks.search.suspects import FoundHolder, is_parameter_list
from legroom.observe.source.statements import StoringStatement
from legroom.observe.source.storing_lines import NO_USAGE

pytestmark = pytest.mark.slow


class _ReplayMemory:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.items: list[Any] = []

    def push(self, item: Any) -> None:
        self.items.append(item)
        if len(self.items) > self.capacity:
            self.items.pop(0)


def test_a_large_replay_memory_of_graphs_is_reported() -> None:
    memory = _ReplayMemory(100_000)
    (leak,) = leaks_of(lambda step, loss, output: memory.push((step, output)), iterations=40)
    assert (leak.name, leak.kind) == ("memory.items", "graph")


def test_a_large_deque_of_graphs_is_reported() -> None:
    recent: Any = deque(maxlen=50_000)
    (leak,) = leaks_of(lambda step, loss, output: recent.append(loss), iterations=40)
    assert (leak.name, leak.kind) == ("recent", "graph")


class _SkippedLimit:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.entries: list[Any] = []

    def push(self, output: Any, *, twice: bool) -> None:
        if len(self.entries) == self.capacity:
            self.entries.clear()
        self.entries.append(output.detach().clone())
        if twice:
            self.entries.append(output.detach().clone())


@pytest.mark.parametrize("twice", [True, False])
def test_a_limit_that_the_length_skips_does_not_prevent_a_leak(twice: bool) -> None:
    memory = _SkippedLimit(3)
    leaks = leaks_of(lambda step, loss, output: memory.push(output, twice=twice), iterations=30)
    assert [leak.name for leak in leaks[:1]] == ["memory.entries"] * twice


class _Memory:
    def __init__(self) -> None:
        self.items: list[Any] = []

    def sample(self, number: int) -> list[Any]:
        return self.items[:number]


def test_a_sample_of_a_memory_does_not_hide_the_memory() -> None:
    memory, found = _Memory(), dict[tuple[object, ...], DetectedLeak]()
    detector = LeakDetector(lambda leak: found.setdefault(leak.identity, leak) and None, fraction=1e6)
    model = nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    detector.attach()
    try:
        for _ in range(30):
            output = model(torch.randn(5, 6))
            memory.items.append(output)
            sample = memory.sample(100)
            optimizer.zero_grad()
            model(sample[0].detach() @ torch.ones(2, 6)).sum().backward()
            optimizer.step()
    finally:
        detector.detach()
    assert [leak.name for leak in found.values()] == ["memory.items"]


@pytest.mark.parametrize(("every", "is_reported"), [(10, False), (1, True)])
def test_a_model_that_grows_a_few_times_is_not_a_leak(every: int, is_reported: bool) -> None:
    found: dict[tuple[object, ...], DetectedLeak] = {}
    detector = LeakDetector(lambda leak: found.setdefault(leak.identity, leak) and None, fraction=1e6)
    blocks = nn.ModuleList([nn.Linear(2, 2)])
    adam = torch.optim.Adam(blocks.parameters())
    detector.attach()
    try:
        for step in range(60):
            if step % every == every - 1:
                blocks.append(nn.Linear(2, 2))
                adam.add_param_group({"params": list(blocks[-1].parameters())})
            output = torch.randn(3, 2)
            for block in blocks:
                output = block(output)
            adam.zero_grad()
            output.sum().backward()
            adam.step()
    finally:
        detector.detach()
    assert detector.error == ""
    assert bool(found) is is_reported


def test_a_replay_memory_of_detached_tensors_is_not_a_leak() -> None:
    memory = _ReplayMemory(100_000)
    assert leaks_of(lambda step, loss, output: memory.push(output.detach().clone()), iterations=40) == []


def test_a_small_window_of_graphs_is_not_a_leak() -> None:
    memory, recent = _ReplayMemory(10), deque[Any](maxlen=60)

    def keep(step: int, loss: Any, output: Any) -> None:
        memory.push(loss)
        recent.append(output)

    assert leaks_of(keep, iterations=50) == []


def test_a_queue_that_is_read_only_after_the_loop_is_reported() -> None:
    outbox: queue.LifoQueue[Any] = queue.LifoQueue()

    def keep(step: int, loss: Any, output: Any) -> None:
        outbox.put(output.detach().clone())

    (leak,) = leaks_of(keep, iterations=40)
    assert leak.line == keep.__code__.co_firstlineno + 1
    outbox.get()


def test_arguments_of_log_records_in_a_memory_handler_are_reported() -> None:
    log, handler = logging.Logger("run"), logging.handlers.MemoryHandler(100_000)
    log.addHandler(handler)

    def keep(step: int, loss: Any, output: Any) -> None:
        log.info("loss %s", loss)

    (leak,) = leaks_of(keep, iterations=50)
    assert (leak.name, leak.line) == ("handler.buffer", keep.__code__.co_firstlineno + 1)


def test_optimizers_of_the_same_parameters_are_reported() -> None:
    old: list[Any] = []
    model = nn.Linear(4, 4)

    def keep(step: int, loss: Any, output: Any) -> None:
        optimizer = torch.optim.Adam(model.parameters())
        old.append(optimizer)
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()

    (leak,) = leaks_of(keep, iterations=40)
    assert leak.name == "old"


class _Tuner:
    def __init__(self) -> None:
        self.optimizer = torch.optim.Adam([nn.Parameter(torch.zeros(4))])

    def add_prompt(self) -> None:
        self.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(4))]})

    def step(self) -> None:
        for group in self.optimizer.param_groups:
            group["params"][0].grad = torch.ones(4)
        self.optimizer.step()


def test_parameters_added_to_an_optimizer_are_reported_at_the_line_that_adds_them() -> None:
    tuner = _Tuner()

    def keep(step: int, loss: Any, output: Any) -> None:
        tuner.add_prompt()
        tuner.step()

    (leak,) = leaks_of(keep, iterations=40)
    assert leak.line == _Tuner.add_prompt.__code__.co_firstlineno + 1


def test_the_parameter_list_of_an_optimizer_is_not_a_leak_unless_the_program_adds_to_it() -> None:
    holder = FoundHolder(NO_HOLDER._replace(name='optimizer.param_groups[0]["params"]'), NO_USAGE, 0)
    assert is_parameter_list(holder)
    adds = StoringStatement("train.py", 1, "", False, False, False, False, True, keys=("params",))
    assert not is_parameter_list(holder._replace(usage=NO_USAGE._replace(statements=(adds,))))


def test_a_batch_that_each_call_assigns_again_is_not_a_holder_of_the_graphs_in_the_memory() -> None:
    found: dict[str, DetectedLeak] = {}
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    memory: list[Any] = []

    def update() -> None:
        batch = tuple(zip(*random.sample(memory, 6), strict=True))
        loss = model(torch.cat(batch[0])).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    detector = LeakDetector(lambda leak: found.setdefault(leak.name, leak) and None, fraction=1e6)
    detector.attach()
    try:
        for _ in range(40):
            state = torch.randn(1, 4)
            memory.append((state, model(state).max()))
            if len(memory) >= 6:
                update()
    finally:
        detector.detach()
    assert list(found) == ["memory"]


@pytest.mark.parametrize(("length", "is_leak"), [(0, False), (160, False), (5000, True)])
def test_numbers_and_small_tensors_on_the_host_are_not_a_leak_if_there_is_a_device(
    length: int, is_leak: bool
) -> None:
    found: list[DetectedLeak] = []
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    detector = LeakDetector(found.append, on_device=lambda tensor: tensor.dim() == 2, fraction=1e6)
    curve = []
    detector.attach()
    try:
        for _ in range(30):
            loss = model(torch.randn(2, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            curve.append(torch.ones(length) if length else loss.detach())
    finally:
        detector.detach()
    assert {leak.name for leak in found if leak.on_host} == ({"curve"} if is_leak else set())


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()
    gc.collect()


class _Parent:
    def __init__(self, value: Any) -> None:
        self.value = value
        self.children: list[_Child] = []


class _Child:
    def __init__(self, parent: _Parent) -> None:
        self.parent = parent


class _Reporting:
    def __init__(self, value: Any) -> None:
        self.value = value
        self.report = lambda: self.value.norm()


@pytest.mark.usefixtures("no_collector")
def test_a_cycle_of_parent_and_child_is_reported_at_the_line_that_closes_it() -> None:
    def keep(step: int, loss: Any, output: Any) -> None:
        parent = _Parent(output.detach().clone())
        parent.children.append(_Child(parent))

    (leak,) = leaks_of(keep, iterations=20)
    assert (leak.how, leak.name, leak.line) == ("cycle", "_Parent.value", keep.__code__.co_firstlineno + 2)


class _Request:
    def __init__(self) -> None:
        self.response: _Response | None = None

    def __del__(self) -> None:
        self.response = None


class _Turn:
    def __init__(self, episode: "_Episode", output: Any, loss: Any) -> None:
        self.episode = episode
        self.output = output
        self.log_prob = loss


class _Episode:
    def __init__(self) -> None:
        self.turns: list[_Turn] = []


@pytest.mark.usefixtures("no_collector")
def test_several_tensors_in_a_cycle_are_reported_once() -> None:
    def keep(step: int, loss: Any, output: Any) -> None:
        episode = _Episode()
        episode.turns.append(_Turn(episode, output.detach().clone(), loss))

    leaks = leaks_of(keep, iterations=40)
    assert [each.how for each in leaks] == ["cycle"]


class _Response:
    def __init__(self, request: _Request, value: Any) -> None:
        self.request = request
        self.value = value


@pytest.mark.usefixtures("no_collector")
def test_a_cycle_is_reported_where_the_new_object_is_assigned_not_in_its_constructor() -> None:
    def keep(step: int, loss: Any, output: Any) -> None:
        request = _Request()
        request.response = _Response(request, output.detach().clone())

    (leak,) = leaks_of(keep, iterations=10)
    assert (leak.how, leak.name, leak.line) == ("cycle", "_Response.value", keep.__code__.co_firstlineno + 2)


class _Peer:
    def __init__(self, value: Any = None) -> None:
        self.value = value
        self.other: _Peer | None = None


@pytest.mark.usefixtures("no_collector")
def test_a_cycle_of_two_equal_objects_is_reported_at_the_last_assignment() -> None:
    def keep(step: int, loss: Any, output: Any) -> None:
        first, second = _Peer(output.detach().clone()), _Peer()
        first.other = second
        second.other = first

    (leak,) = leaks_of(keep, iterations=10)
    assert (leak.how, leak.name, leak.line) == ("cycle", "_Peer.value", keep.__code__.co_firstlineno + 3)


@pytest.mark.usefixtures("no_collector")
def test_a_cycle_through_a_closure_names_the_attribute_with_the_function() -> None:
    def keep(step: int, loss: Any, output: Any) -> None:
        _Reporting(output.detach().clone())

    (leak,) = leaks_of(keep, iterations=20)
    assert (leak.how, leak.name) == ("cycle", "_Reporting.value")
    assert leak.line == _Reporting.__init__.__code__.co_firstlineno + 2


def _fail(value: Any) -> None:
    kept = value * 2
    try:
        raise ValueError(kept.shape)
    except ValueError as error:
        failure = error
    assert failure


def _visit(value: Any) -> None:
    def visit(depth: int) -> int:
        return visit(depth - 1) if depth else value.dim()

    visit(3)


@pytest.mark.usefixtures("no_collector")
def test_a_cycle_of_an_exception_and_its_frame_is_reported() -> None:
    (leak,) = leaks_of(lambda step, loss, output: _fail(output.detach()), iterations=20)
    assert (leak.how, leak.name, leak.line) == ("cycle", "failure", _fail.__code__.co_firstlineno + 5)


@pytest.mark.usefixtures("no_collector")
def test_a_cycle_of_a_recursive_inner_function_is_reported() -> None:
    (leak,) = leaks_of(lambda step, loss, output: _visit(output.detach().clone()), iterations=20)
    assert (leak.how, leak.name, leak.line) == ("cycle", "visit", _visit.__code__.co_firstlineno + 1)


def test_a_cycle_that_the_collector_frees_is_not_a_leak() -> None:
    assert leaks_of(lambda step, loss, output: _visit(output.detach().clone()), iterations=20) == []


class _Average:
    def __init__(self) -> None:
        self.value: Any = None

    def update(self, loss: Any) -> Any:
        smooth = loss if self.value is None else 0.9 * self.value + 0.1 * loss
        self.value = smooth
        return smooth


@pytest.mark.parametrize("in_dict", [False, True])
def test_an_average_with_a_graph_is_named_by_its_attribute_not_by_a_variable_that_is_overwritten(
    in_dict: bool,
) -> None:
    found: list[DetectedLeak] = []
    detector = LeakDetector(found.append, fraction=1e6)
    model = nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    average = _Average()
    averages = {"loss": _Average()}
    detector.attach()
    try:
        for _ in range(14):
            loss = model(torch.randn(5, 6)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            smooth = averages["loss"].update(loss) if in_dict else average.update(loss)
    finally:
        detector.detach()
    assert smooth.requires_grad
    assert found[0].name == ('averages["loss"].value' if in_dict else "average.value")
    assert found[0].stored_line == inspect.getsourcelines(_Average.update)[1] + 2


_losses: contextvars.ContextVar[tuple[Any, ...]] = contextvars.ContextVar("_losses", default=())


def test_a_tuple_in_a_context_variable_is_reported_at_the_line_that_sets_it() -> None:
    def keep(step: int, loss: Any, output: Any) -> None:
        _losses.set((*_losses.get(), loss))

    (leak,) = leaks_of(keep, iterations=20)
    assert (leak.name, leak.line) == ("_losses", keep.__code__.co_firstlineno + 1)


def test_only_one_list_of_a_log_contains_tensors() -> None:
    logs: dict[str, list[Any]] = {name: [] for name in ("loss", "l0", "norm", "bias", "z_l2", "codes")}

    def log(step: int, loss: torch.Tensor, output: torch.Tensor) -> None:
        for name in logs:
            logs[name].append(output.detach()[::4] if name == "codes" else loss.item())

    (leak,) = leaks_of(log, iterations=40)
    assert leak.name == 'logs["codes"]'
    assert leak.line is not None
