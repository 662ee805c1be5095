"""The indexes of a parsed file: nodes by class, calls by node, and results that are cached for each node."""

import libcst as cst

from legroom.diagnose.lint.flow.analysis import analyze_program
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import dotted, names_in


def program_of(text: str) -> Program:
    program = Program(text, cst.parse_module(text))
    analyze_program(program)
    return program


def test_nodes_of_a_class_are_in_source_order() -> None:
    program = program_of("first(second())\nthird()\n")
    assert [dotted(call.func) for call in program.nodes_of(cst.Call)] == ["first", "second", "third"]
    assert program.nodes_of(cst.Lambda) == []


def test_call_of_returns_the_fact_of_a_call_and_none_for_another_node() -> None:
    program = program_of("import torch\nx = torch.load('a')\n")
    (call,) = program.nodes_of(cst.Call)
    fact = program.call_of(call)
    assert fact is not None
    assert fact.name == "torch.load"
    assert program.call_of(call.func) is None
    assert program.call_of(None) is None


def test_cached_results_belong_to_one_node_even_if_nodes_are_created_and_freed() -> None:
    program_of("x = 1\n")
    for number in range(200):
        assert names_in(cst.parse_expression(f"a{number}.b")) == {f"a{number}", f"a{number}.b"}
