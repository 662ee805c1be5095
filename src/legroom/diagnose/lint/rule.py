"""What a rule is: a function that reads a program and yields problems."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import libcst as cst

from legroom.diagnose.lint.edits import Edit
from legroom.diagnose.lint.flow.program import Program


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One place where a rule is broken."""

    node: cst.CSTNode
    """What to point at."""
    message: str
    """One sentence: what is wrong there, in the names of the code."""
    help: str
    """What to write instead, in a few words."""
    edits: tuple[Edit, ...] = ()
    safe: bool = True
    """Whether the edits leave what the program computes as it is."""


Check = Callable[[Program], Iterator[Problem]]
