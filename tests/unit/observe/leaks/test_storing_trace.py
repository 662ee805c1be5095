"""Where the source of a name does not say which line stores, two turns are traced."""

import sys
import weakref
from typing import Any

import torch
from tests.unit.observe.leaks.loops import leaks_of

from legroom.observe.leaks.storing_trace import StoringTrace


def _remember(store: list[Any], value: Any) -> None:
    store.append(value)  # the line


def test_a_helper_that_stores_under_another_name_is_named() -> None:
    losses: list[Any] = []
    (leak,) = leaks_of(lambda step, loss, output: _remember(losses, loss))
    assert (leak.name, leak.function, leak.file) == ("losses", "_remember", __file__)
    assert leak.line == _remember.__code__.co_firstlineno + 1
    assert leak.step <= 6
    assert sys.gettrace() is None


def _push(ring: list[Any], value: Any) -> None:
    ring.append(value)
    if len(ring) > 30:
        ring.pop(0)


def test_a_helper_that_limits_what_it_stores_under_another_name_is_no_leak() -> None:
    losses: list[Any] = []
    assert leaks_of(lambda step, loss, output: _push(losses, loss), turns=20) == []


def test_the_line_of_the_caller_is_named_where_an_argument_is_computed_by_a_call() -> None:
    store: list[int] = []

    def give() -> int:
        return 3

    trace = StoringTrace(id(store))
    assert trace.begin(sys._getframe())
    wanted = sys._getframe().f_lineno + 1
    store.append(give())
    trace.end()
    assert trace.place is not None
    assert trace.place.line == wanted


def test_the_line_that_writes_into_a_tensor_of_a_small_container_is_named() -> None:
    totals = {"loss": torch.zeros(())}

    def total(name: str) -> torch.Tensor:
        return totals[name]

    def add(step: int, loss: Any, output: Any) -> None:
        total("loss").add_(loss)

    (leak,) = leaks_of(add)
    assert (leak.kind, leak.name, leak.line) == ("graph", "totals", add.__code__.co_firstlineno + 1)


def test_a_debugger_is_left_alone() -> None:
    def debugger(frame: Any, event: str, argument: Any) -> None:
        return None

    store: list[int] = []
    sys.settrace(debugger)
    try:
        assert not StoringTrace(id(store)).begin(sys._getframe())
        assert sys.gettrace() is debugger
    finally:
        sys.settrace(None)


def test_a_container_that_the_program_drops_is_let_go() -> None:
    store = [torch.ones(2)]
    alive = weakref.ref(store[0])
    trace = StoringTrace(id(store))
    assert trace.begin(sys._getframe())
    del store
    still = alive() is not None
    still = alive() is not None
    trace.end()
    assert not still
