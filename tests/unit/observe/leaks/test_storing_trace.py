"""Two iterations are traced if the source does not show which line stores the tensors."""

import sys
import threading
import weakref
from typing import Any

import pytest
import torch
from tests.unit.observe.leaks.loops import leaks_of

from legroom.observe.leaks.search import storing_trace
from legroom.observe.leaks.search.storing_trace import StoringTrace

pytestmark = pytest.mark.slow


def _remember(store: list[Any], value: Any) -> None:
    store.append(value)  # the line


def test_a_helper_that_stores_under_another_name_is_reported() -> None:
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


def test_a_helper_that_bounds_the_list_under_another_name_is_not_a_leak() -> None:
    losses: list[Any] = []
    assert leaks_of(lambda step, loss, output: _push(losses, loss), iterations=20) == []


def test_the_line_of_the_caller_is_found_if_an_argument_is_a_call() -> None:
    store: list[int] = []

    def value() -> int:
        return 3

    trace = StoringTrace(id(store))
    assert trace.begin(sys._getframe())
    expected = sys._getframe().f_lineno + 1
    store.append(value())
    trace.end()
    assert trace.line is not None
    assert trace.line.line == expected


def test_the_line_that_modifies_a_tensor_in_a_small_container_is_reported() -> None:
    totals = {"loss": torch.zeros(())}

    def total(name: str) -> torch.Tensor:
        return totals[name]

    def add(step: int, loss: Any, output: Any) -> None:
        total("loss").add_(loss)

    (leak,) = leaks_of(add)
    assert (leak.kind, leak.name, leak.line) == ("graph", "totals", add.__code__.co_firstlineno + 1)


class _Meters:
    def __init__(self, sums: dict[Any, Any]) -> None:
        self.sums: Any = list(sums.values()) if 0 in sums else sums

    def slot(self, name: Any) -> Any:
        return self.sums[name]


@pytest.mark.parametrize("names", [("loss", "entropy"), (0, 1)])
def test_only_the_line_that_adds_a_graph_to_a_tensor_of_an_object_is_reported(names: tuple[Any, Any]) -> None:
    meters = _Meters({name: torch.zeros(()) for name in names})

    def add(step: int, loss: Any, output: Any) -> None:
        meters.slot(names[0]).add_(loss.detach())
        meters.slot(names[1]).add_(output.mean())

    (leak,) = leaks_of(add)
    assert (leak.kind, leak.name, leak.line) == ("graph", "meters.sums", add.__code__.co_firstlineno + 2)


def test_a_trace_function_that_is_already_set_stays() -> None:
    def debugger(frame: Any, event: str, argument: Any) -> None:
        return None

    store: list[int] = []
    sys.settrace(debugger)
    try:
        assert not StoringTrace(id(store)).begin(sys._getframe())
        assert sys.gettrace() is debugger
    finally:
        sys.settrace(None)


def test_the_trace_does_not_keep_the_container_alive() -> None:
    store = [torch.ones(2)]
    alive = weakref.ref(store[0])
    trace = StoringTrace(id(store))
    assert trace.begin(sys._getframe())
    del store
    still = alive() is not None
    still = alive() is not None
    trace.end()
    assert not still


def test_a_trace_ends_after_a_number_of_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storing_trace, "MAX_EVENTS", 20)
    store: list[int] = []
    trace = StoringTrace(id(store))
    assert trace.begin(sys._getframe())
    for number in range(30):  # the program continues, but there is no further iteration
        number += 1
    ended = sys.gettrace() is None
    trace.end()
    assert ended


def test_a_trace_that_another_thread_ended_does_not_stay() -> None:
    store: list[int] = []
    trace = StoringTrace(id(store))
    assert trace.begin(sys._getframe())
    other = threading.Thread(target=trace.end)
    other.start()
    other.join()
    stays = sys.gettrace() is not None
    sys.settrace(None)
    assert not stays
