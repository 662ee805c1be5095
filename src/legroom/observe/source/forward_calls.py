"""Counts the forward passes of a training step, for example those of the generator and the discriminator of a GAN."""

import ast
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from legroom.memory.event_base import Frame
from legroom.observe.source.files import innermost_loop, tree_of
from legroom.observe.source.syntax import is_backward_call

_BLOCKS = ("body", "orelse", "finalbody")
_METHODS = frozenset({"parameters", "named_parameters", "train", "zero_grad", "state_dict"})
"""Methods that are called on models. A model that a loop calls is usually passed to an optimizer first."""


class ForwardCalls(NamedTuple):
    """The calls of models between two backward passes of a loop."""

    before: int
    """How many calls of models are before the call on the line."""
    total: int
    """How many calls of models are between the backward passes before and after the line."""
    most: int
    """The largest number of calls between two backward passes of the loop."""


def forward_calls(call: Frame) -> ForwardCalls | None:
    """Return the forward passes around the line that calls a model. Return None if the line is not in a loop with a
    backward pass, or if the line calls no model by its name.
    """
    tree = tree_of(call.file)
    loop = innermost_loop(tree, call.line) if tree is not None else None
    if tree is None or loop is None:
        return None
    models = {
        ast.unparse(node.func.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS
    }
    groups: list[list[int]] = [[]]
    for line, is_backward in _events(loop.body, models, call.line):
        if is_backward:
            groups.append([])
        else:
            groups[-1].append(line)
    if len(groups) == 1:
        return None
    for group in groups:
        if call.line in group:
            return ForwardCalls(group.index(call.line), len(group), max(map(len, groups)))
    return None


def _events(statements: Sequence[ast.stmt], models: set[str], line: int) -> Iterator[tuple[int, bool]]:
    """Yield the line of each call of a model and of each backward pass, in order. Of the branches of an `if` statement,
    only the one that contains `line` counts, or else the one with the most calls.
    """
    for statement in statements:
        if isinstance(statement, ast.If):
            branches = [list(_events(each, models, line)) for each in (statement.body, statement.orelse)]
            yield from _calls(statement.test, models)
            yield from max(
                branches, key=lambda events: (any(line == each for each, _ in events), len(events))
            )
            continue
        parts: list[ast.AST] = [statement]
        blocks = [block for name in _BLOCKS if isinstance(block := getattr(statement, name, None), list)]
        if blocks:
            inner = {id(each) for block in blocks for each in block}
            parts = [each for each in ast.iter_child_nodes(statement) if id(each) not in inner]
        for part in parts:
            yield from _calls(part, models)
        for block in blocks:
            yield from _events(block, models, line)


def _calls(node: ast.AST, models: set[str]) -> Iterator[tuple[int, bool]]:
    calls = [each for each in ast.walk(node) if isinstance(each, ast.Call)]
    for call in sorted(calls, key=lambda each: (each.lineno, each.col_offset)):
        if is_backward_call(call):
            yield call.lineno, True
        elif ast.unparse(call.func) in models:
            yield call.lineno, False
