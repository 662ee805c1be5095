"""The interface of a lint rule. A rule is a function that reads a program and yields problems."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import libcst as cst

from legroom.diagnose.lint.edits import Edit
from legroom.diagnose.lint.flow.program import Program


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One violation of a rule."""

    node: cst.CSTNode
    """The expression or statement with the problem."""
    message: str
    """The problem in one sentence without a final period, using the names in the code."""
    help: str
    """The fix, without a final period."""
    edits: tuple[Edit, ...] = ()
    safe: bool = True
    """True if the edits leave the results of the program unchanged."""


RuleCheck = Callable[[Program], Iterator[Problem]]
