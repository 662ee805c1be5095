"""Finds the functions and record types that assignments define: `log = partial(record, rows)`, `double = lambda x: 2 * x`
and `Step = namedtuple("Step", "loss accuracy")`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import libcst as cst

from legroom.diagnose.lint.flow.syntax import dotted, has_star, is_call_of

_RECORDS = ("namedtuple", "NamedTuple", "make_dataclass")


@dataclass(frozen=True, slots=True)
class Definitions:
    """The values of names that exactly one assignment in the file sets."""

    lambdas: Mapping[str, cst.Lambda]
    partials: Mapping[str, cst.Call]
    records: frozenset[str]
    tables: Mapping[str, cst.Dict]
    """Maps a name to the dict literal that it refers to, such as `MODELS` in `MODELS[name](classes)`."""
    applied: dict[cst.Call, cst.Call] = field(default_factory=dict)
    """Maps a call to a partial function, such as `log(loss)`, to the complete call, such as `record(rows, loss)`."""
    written: dict[cst.CSTNode, cst.Call] = field(default_factory=dict)
    """Maps each value of `applied` to its key, which is the call in the file."""

    def apply(self, call: cst.Call, path: str) -> cst.Call:
        if call not in self.applied:
            made = self.partials[path]
            given = sorted((*made.args[1:], *call.args), key=lambda each: bool(each.keyword or each.star))
            full = cst.Call(made.args[0].value, given)
            self.applied[call], self.written[full] = full, call
        return self.applied[call]


def find_definitions(assignments: Iterable[cst.Assign]) -> Definitions:
    found: dict[str, cst.BaseExpression | None] = {}
    for node in assignments:
        for each in node.targets:
            path = dotted(each.target)
            if path is not None:
                found[path] = None if path in found else node.value
    partials = {
        path: made
        for path, made in found.items()
        if isinstance(made, cst.Call) and is_call_of(made, "partial") and len(made.args) > 1
        if not has_star(made)
    }
    return Definitions(
        lambdas={path: made for path, made in found.items() if isinstance(made, cst.Lambda)},
        partials={path: made for path, made in partials.items() if not _is_recursive(path, partials)},
        records=frozenset(
            path
            for path, made in found.items()
            if isinstance(made, cst.Call) and any(is_call_of(made, name) for name in _RECORDS)
        ),
        tables={path: made for path, made in found.items() if isinstance(made, cst.Dict)},
    )


def _is_recursive(path: str, partials: Mapping[str, cst.Call]) -> bool:
    """Return True for `step = partial(step, scale=2)`, where `step` was another function before."""
    seen = {path}
    while path in partials:
        path = dotted(partials[path].args[0].value) or ""
        if path in seen:
            return True
        seen.add(path)
    return False
