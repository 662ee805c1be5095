"""Tensors that a hook, a thread or a constructor retains: the report shows the call that passes the object."""

import atexit
import copy
import functools
import linecache
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.observe.leaks.loops import leaks_of
from torch import nn

from legroom.memory.detected_leak import DetectedLeak
from legroom.observe.leaks.search import holder_source
from legroom.observe.leaks.search.storing_trace import StoringTrace


def _line(leak: DetectedLeak) -> str:
    return linecache.getline(leak.file or "", leak.line or 0)


class _Probe:
    def __init__(self, layer: nn.Module) -> None:
        self.picture: Any = None

        def save(module: nn.Module, args: Any, output: Any) -> None:
            self.picture = self.picture if self.picture is not None else output.detach()
            output.register_hook(lambda gradient: setattr(self, "gradient", gradient))

        layer.register_forward_hook(save)


class _Service:
    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Sequential(nn.Linear(4, 4)))

    def handle(self, picture: Any) -> None:
        _Probe(self.model[0])
        self.model(picture)


def test_a_hook_that_each_step_registers_is_reported_at_the_line_that_registers_it() -> None:
    service = _Service()
    leaks = leaks_of(lambda step, loss, output: service.handle(torch.randn(2, 4)))
    assert {leak.how for leak in leaks} == {"hook"}
    assert "layer.register_forward_hook(save)" in _line(leaks[0])


class _Features(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

    def forward(self, picture: Any) -> None:
        self.extract(picture)

    def extract(self, picture: Any) -> list[Any]:
        found: list[Any] = []

        def grab(module: nn.Module, args: Any, output: Any) -> None:
            found.append(output)

        for layer in self.model:
            layer.register_forward_hook(grab)
        self.model(picture)
        return found


def test_hooks_that_are_registered_again_are_reported_instead_of_their_lists() -> None:
    features = _Features()
    leaks = leaks_of(lambda step, loss, output: features(torch.randn(2, 4)), iterations=20)
    assert {leak.how for leak in leaks} == {"hook"}
    assert {leak.name for leak in leaks} == {"grab"}
    assert "layer.register_forward_hook(grab)" in _line(leaks[0])


def test_a_hook_that_is_registered_once_is_reported_at_the_line_that_stores_the_output() -> None:
    found: list[Any] = []
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(12)))

    def hook_of(name: int) -> Any:
        def grab(module: nn.Module, args: Any, output: Any) -> None:
            found.append(output)

        return grab

    for position, layer in enumerate(model):
        layer.register_forward_hook(hook_of(position))
    leaks = leaks_of(lambda step, loss, output: model(torch.randn(2, 4)), iterations=20)
    assert "found.append(output)" in _line(leaks[0])


def _in_threads(start: Callable[[Any, threading.Event], None]) -> list[DetectedLeak]:
    done = threading.Event()
    before = set(threading.enumerate())
    try:
        return leaks_of(lambda step, loss, output: start(output.detach().clone(), done))
    finally:
        done.set()
        for thread in set(threading.enumerate()) - before:
            thread.join()


def test_threads_that_never_end_are_reported_at_the_line_that_creates_them() -> None:
    def wait(batch: Any, done: threading.Event) -> None:
        done.wait()

    def start(batch: Any, done: threading.Event) -> None:
        threading.Thread(target=wait, args=(batch, done), daemon=True).start()

    (leak,) = _in_threads(start)
    assert leak.how == "thread"
    assert "threading.Thread(target=wait" in _line(leak)


def test_threads_whose_functions_use_a_tensor_of_the_enclosing_function_are_reported() -> None:
    def start(batch: Any, done: threading.Event) -> None:
        def wait() -> None:
            done.wait()
            batch.sum()

        threading.Thread(target=wait, daemon=True).start()

    (leak,) = _in_threads(start)
    assert leak.how == "thread"
    assert "threading.Thread(target=wait" in _line(leak)


def test_threads_that_share_a_list_are_not_reported_instead_of_the_list() -> None:
    shared: list[Any] = []

    def wait(results: list[Any], done: threading.Event) -> None:
        done.wait()

    def start(batch: Any, done: threading.Event) -> None:
        shared.append(batch)
        if len(shared) <= 6:
            threading.Thread(target=wait, args=(shared, done), daemon=True).start()

    (leak,) = _in_threads(start)
    assert "shared.append(batch)" in _line(leak)


class _Transition:
    def __init__(self, output: Any, before: "_Transition | None" = None) -> None:
        self.output = output
        self.before = before


class _Agent:
    def __init__(self) -> None:
        self.memory: deque[_Transition] = deque(maxlen=3)
        self.last: _Transition | None = None

    def remember(self, output: Any) -> None:
        transition = _Transition(output, before=self.last)
        self.memory.append(transition)
        self.last = transition


def test_linked_objects_in_a_full_deque_are_reported_at_the_call_that_links_them() -> None:
    agent = _Agent()
    leaks = leaks_of(lambda step, loss, output: agent.remember(output.detach().clone()), iterations=44)
    assert {leak.how for leak in leaks} == {"linked"}
    assert "before=self.last" in _line(leaks[0])


class _Learner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.teacher: Any = None

    def promote(self) -> None:
        self.teacher = copy.deepcopy(self)

    def replace(self) -> None:
        self.teacher = None
        self.teacher = copy.deepcopy(self)


def _promoted(method: str) -> list[DetectedLeak]:
    learner = _Learner()
    return leaks_of(
        lambda step, loss, output: getattr(learner, method)() if step % 3 == 0 else None,
        iterations=160,
        on_device=lambda tensor: True,
    )


def test_copies_that_contain_all_earlier_copies_are_reported() -> None:
    (leak,) = _promoted("promote")
    assert (leak.name, leak.how) == ("_Learner.teacher", "linked")


def test_a_copy_that_replaces_the_earlier_copy_is_not_a_leak() -> None:
    assert _promoted("replace") == []


def test_a_tuple_that_grows_by_replacement_is_traced_through_its_attribute() -> None:
    probe = _Probe(nn.Linear(2, 2))
    probe.picture = ([], [])
    trace = StoringTrace(id(probe.picture))
    assert trace.begin(sys._getframe())
    expected = sys._getframe().f_lineno + 1
    probe.picture += ([],)
    trace.end()
    assert trace.line is not None
    assert trace.line.line == expected


class _Runner:
    def __init__(self) -> None:
        self.info: dict[str, Any] = {}

    def step(self, output: Any) -> None:
        info = {"output": output, "previous": self.info}
        self.info = info


def test_dicts_that_contain_their_predecessors_are_reported_at_the_line_of_the_key() -> None:
    runner = _Runner()
    leaks = leaks_of(lambda step, loss, output: runner.step(output.detach().clone()), iterations=44)
    assert {leak.how for leak in leaks} == {"linked"}
    assert '"previous": self.info' in _line(leaks[0])


class _Cache:
    def __init__(self, weight: Any) -> None:
        self.value = weight * 2

    def clear(self, *gradients: Any) -> None:
        self.value = None


def test_a_hook_of_an_autograd_node_that_refers_to_the_owner_of_the_tensor_is_reported() -> None:
    weight = torch.randn(4, requires_grad=True)

    def keep(step: int, loss: Any, output: Any) -> None:
        cache = _Cache(weight)
        cache.value.grad_fn.register_hook(functools.partial(_Cache.clear, cache))

    (leak,) = leaks_of(keep, iterations=20)
    assert leak.how == "hook"
    assert "grad_fn.register_hook" in _line(leak)


class _Penalty:
    def __init__(self) -> None:
        self.compute: Any = None

    def add(self, anchor: Any) -> None:
        self.compute = _wrap(self.compute, anchor)


def _wrap(inner: Any, anchor: Any) -> Any:
    return lambda: (inner, anchor)


def test_functions_that_wrap_their_predecessors_are_reported_at_the_line_that_wraps_them() -> None:
    penalty = _Penalty()
    (leak,) = leaks_of(lambda step, loss, output: penalty.add(output.detach().clone()), iterations=44)
    assert leak.name == "penalty.compute"
    assert "self.compute = _wrap(self.compute" in _line(leak)


def test_callbacks_that_each_step_registers_for_the_exit_are_reported() -> None:
    try:
        leaks = leaks_of(lambda step, loss, output: _register(output.detach().clone()), iterations=44)
    finally:
        atexit.unregister(_dump)
    assert "atexit.register(_dump" in _line(leaks[0])


def _dump(output: Any) -> None:
    """Do nothing."""


def _register(output: Any) -> None:
    for each in (output,):
        atexit.register(_dump, each)


@pytest.mark.parametrize("in_loop", [True, False])
def test_functions_that_each_step_compiles_are_found_in_the_source(
    in_loop: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "export.py"
    file.write_text(
        "for step in range(9):\n    run(step)\n" + "    " * in_loop + "traced = torch.jit.trace(run, x)\n"
    )
    monkeypatch.setattr(holder_source, "user_files", lambda: [str(file)])
    found = holder_source.compiled_functions()
    assert (found is not None) == in_loop
    if found is not None:
        path, usage = found
        assert (path.name, usage.statements[0].line) == ("torch.jit.trace", 3)
