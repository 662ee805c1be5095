from pathlib import Path

import pytest

from legroom.observe.source.passing_calls import (
    Callback,
    find_creating_calls,
    find_partial_detach,
    find_registrations,
)
from legroom.observe.source.statements import StoringStatement
from legroom.observe.source.storing_lines import find_usage


def _lines(found: tuple[StoringStatement, ...]) -> list[int]:
    return [each.line for each in found]


@pytest.mark.parametrize(
    "call",
    [
        "layer.register_forward_hook(save)",
        "layer.register_forward_hook(functools.partial(save, 'fc1'))",
        "layer.register_forward_hook(hook=probe.save)",
        "threading.Thread(target=save).start()",
    ],
)
def test_a_call_that_passes_the_function_registers_it(tmp_path: Path, call: str) -> None:
    file = tmp_path / "train.py"
    file.write_text(f"def save(*args):\n    pass\n\nsave(1)\n{call}\n")
    assert _lines(find_registrations(Callback("save", str(file), 1), ())) == [5]


def test_a_lambda_expression_is_identified_by_its_line(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("a.register_hook(lambda g: g)\nb.register_hook(lambda g: g)\n")
    assert _lines(find_registrations(Callback("<lambda>", str(file), 2), ())) == [2]


def test_a_function_that_a_factory_returns_is_registered_by_the_call_around_the_factory(
    tmp_path: Path,
) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        "def make(name):\n    def hook(*args):\n        pass\n    return hook\nlayer.add(make('a'))\n"
    )
    assert _lines(find_registrations(Callback("hook", str(file), 2), ())) == [5]


def test_a_thread_class_is_identified_by_the_call_that_creates_the_thread(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("class Loader(Thread):\n    def run(self):\n        pass\n\nLoader().start()\n")
    assert _lines(find_registrations(Callback("run", str(file), 2, frozenset({"Loader"})), ())) == [5]


def test_the_call_that_passes_the_linked_object_is_found_by_position_and_by_keyword(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        "class Node:\n    def __init__(self, value, parent=None):\n        self.up = parent\n\n"
        "root = Node(1)\nroot = Node(1, None)\nnode = Node(2, root)\nnode = Node(2, parent=root)\n"
    )
    assert _lines(find_creating_calls(frozenset({"Node"}), "up", str(file)).statements) == [7, 8]


@pytest.mark.parametrize(("body", "found"), [("h.detach(), c", 3), ("h.clone(), c", None)])
def test_a_function_that_detaches_only_a_part_of_the_state_is_found(
    tmp_path: Path, body: str, found: int | None
) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        f"def repackage(state):\n    h, c = state\n    return {body}\n\nstate = repackage(state)\n"
    )
    (statement,) = find_usage("state", is_attribute=False, file=str(file)).statements
    detaching = find_partial_detach(statement)
    assert (detaching.line if detaching is not None else None) == found


def test_a_statement_that_uses_another_name_of_the_object_is_marked(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("node.parent = root\nnode = node.parent\nnode.add(child)\n")
    statements = find_usage("parent", is_attribute=True, file=str(file)).statements
    assert [(each.line, each.by_alias) for each in statements] == [(1, False), (3, True)]
