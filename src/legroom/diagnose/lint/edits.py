"""Edits to the source code of a file."""

from collections.abc import Iterable
from dataclasses import dataclass

import libcst as cst

from legroom.diagnose.lint.flow.program import NEWLINE, Program
from legroom.diagnose.lint.flow.syntax import walk


@dataclass(frozen=True, slots=True, order=True)
class Edit:
    """Replaces a span of a file. Lines start at 1, columns start at 0, and the end is exclusive."""

    start: tuple[int, int]
    end: tuple[int, int]
    text: str


def replace(program: Program, node: cst.CSTNode, text: str) -> Edit:
    start, end = program.span(node)
    return Edit(start, end, text)


def append_to(program: Program, node: cst.BaseExpression, suffix: str) -> list[Edit]:
    """Append a method call to an expression, with parentheses if needed: `a + b` becomes `(a + b).item()`."""
    start, end = program.span(node)
    needs_parentheses = (
        cst.BinaryOperation,
        cst.UnaryOperation,
        cst.BooleanOperation,
        cst.Comparison,
        cst.IfExp,
        cst.Await,
    )
    if isinstance(node, needs_parentheses) and not node.lpar:
        return [Edit(start, start, "("), Edit(end, end, ")" + suffix)]
    if node.lpar:  # a span excludes the parentheses of an expression
        end = (end[0], end[1] + len(program.source(node)) - program.source(node).rfind(")"))
        return [Edit(end, end, suffix)] if program.source(node).endswith(")") else []
    return [Edit(end, end, suffix)]


def add_argument(program: Program, call: cst.Call, text: str, *, first: bool = False) -> Edit:
    if first and call.args:
        start, _ = program.span(call.args[0])
        return Edit(start, start, f"{text}, ")
    if call.args:
        _, end = program.span(call.args[-1].value)
        closing = len(call.args[-1].value.rpar) if isinstance(call.args[-1].value, cst.BaseExpression) else 0
        end = (end[0], end[1] + closing)
        return Edit(end, end, f", {text}")
    _, (line, column) = program.span(call)
    return Edit((line, column - 1), (line, column - 1), text)


def remove_argument(program: Program, call: cst.Call, argument: cst.Arg) -> Edit:
    index = list(call.args).index(argument)
    start, end = program.span(argument)
    if index > 0:
        start = program.span(call.args[index - 1])[1]
    elif len(call.args) > 1:
        end = program.span(call.args[1])[0]
    return Edit(start, end, "")


def indentation(program: Program, node: cst.CSTNode) -> str:
    (line, column), _ = program.span(node)
    return program.lines[line - 1][:column]


def line_before(program: Program, statement: cst.CSTNode, code: str) -> Edit:
    (line, _), _ = program.span(statement)
    return Edit((line, 0), (line, 0), f"{indentation(program, statement)}{code}{program.newline}")


def line_after(program: Program, statement: cst.CSTNode, code: str) -> Edit:
    (first, column), (last, _) = program.span(statement)
    end = (last, len(program.lines[last - 1]))
    return Edit(end, end, f"{program.newline}{program.lines[first - 1][:column]}{code}")


def remove_statement(program: Program, node: cst.CSTNode) -> list[Edit]:
    """Remove a statement that is alone on its line. For any other statement, return no edits."""
    line = program.statement_line(node)
    if line is None or len(line.body) != 1:
        return []
    block = program.parent.get(line)
    if isinstance(block, (cst.IndentedBlock, cst.Module)) and len(block.body) > 1:
        (first, _), (last, _) = program.span(line)
        if last < len(program.lines):
            return [Edit((first, 0), (last + 1, 0), "")]
        return []
    return [replace(program, line.body[0], "pass")]


def wrap_in_with(program: Program, statement: cst.CSTNode, context: str) -> list[Edit]:
    """Indent a statement under `with ...:`. Return no edits if the statement contains a multi-line string."""
    (first, column), _ = program.span(statement)
    last = max(program.span(each)[1][0] for each in walk(statement))
    if has_multiline_string(program, statement):
        return []
    margin = program.lines[first - 1][:column]
    if margin.strip():
        return []
    unit = indent_unit(program)
    edits = [Edit((first, 0), (first, 0), f"{margin}with {context}:{program.newline}{unit}")]
    edits += [
        Edit((line, 0), (line, 0), unit)
        for line in range(first + 1, last + 1)
        if program.lines[line - 1].strip()
    ]
    return edits


def indent_unit(program: Program) -> str:
    return program.module.default_indent


def has_multiline_string(program: Program, node: cst.CSTNode) -> bool:
    for each in walk(node):
        if isinstance(each, cst.BaseString):
            start, end = program.span(each)
            if start[0] != end[0]:
                return True
    return False


def apply_edits(text: str, edits: Iterable[Edit]) -> str:
    """Apply edits that do not overlap, and return the new source code."""
    starts = [0, *(found.end() for found in NEWLINE.finditer(text))]
    for edit in sorted(set(edits), reverse=True):
        begin = starts[edit.start[0] - 1] + edit.start[1]
        end = (starts[edit.end[0] - 1] if edit.end[0] <= len(starts) else len(text)) + edit.end[1]
        text = text[:begin] + edit.text + text[end:]
    return text


def edits_overlap(first: Iterable[Edit], second: Iterable[Edit]) -> bool:
    others = list(second)
    return any(
        (one.start < other.end and other.start < one.end) or (one.start, one.end) == (other.start, other.end)
        for one in first
        for other in others
    )
