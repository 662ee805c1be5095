"""Several leaks in one loop are all named, each with its own figures."""

from typing import Any

from tests.unit.observe.watching.loops import leaks_of


def test_a_graph_carried_on_is_named_beside_a_list() -> None:
    class Total:
        value: Any = 0.0

    total, outputs = Total(), []

    def keep(step: int, loss: Any, output: Any) -> None:
        total.value += loss
        outputs.append(output)

    assert {leak.name for leak in leaks_of(keep)} == {"total.value", "outputs"}


def test_plain_tensors_are_named_beside_a_graph_that_is_seen_sooner() -> None:
    losses, features = [], []

    def keep(step: int, loss: Any, output: Any) -> None:
        losses.append(loss)
        features.append(output.detach().clone())

    found = {leak.name: leak for leak in leaks_of(keep)}
    assert set(found) == {"losses", "features"}
    assert (found["losses"].kind, found["features"].kind) == ("graph", "tensor")
    assert found["features"].bytes_per_step == 5 * 2 * 4
    assert found["features"].nodes_per_step == 0
