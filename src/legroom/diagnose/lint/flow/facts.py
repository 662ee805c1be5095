"""What the flow analysis notes down for the rules: functions, loops, calls and what is stored where."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import libcst as cst

from legroom.diagnose.lint.flow.syntax import Loop
from legroom.diagnose.lint.flow.values import UNKNOWN, Value


@dataclass(slots=True, eq=False)
class Function:
    """A function or method of the file; the file's own statements are one as well, without a name."""

    name: str
    place: str
    """`Trainer.step`, `make_logger.log`: unique in a file."""
    node: cst.FunctionDef | cst.Module
    class_name: str | None
    outer: "Function | None"
    parameters: tuple[str, ...] = ()
    declared_outside: frozenset[str] = frozenset()
    """Names that it says are global or nonlocal."""
    local_names: frozenset[str] = frozenset()
    """Names that it assigns, without its parameters."""
    no_grad: bool = False
    """A decorator, or every call of it, turns gradients off."""
    grad_is_chosen: bool = False
    """`set_grad_enabled(training)`: the caller decides."""
    backward: bool = False
    """Calls `backward` outside its loops."""
    steps: bool = False
    """Calls an optimizer's `step` outside its loops."""
    sites: "list[CallSite]" = field(default_factory=list)
    returns: Value = UNKNOWN
    returned_nodes: list[cst.BaseExpression] = field(default_factory=list)
    keeps: dict[str, "StoreFact"] = field(default_factory=dict)
    """Parameters that it puts into something that outlives the call."""
    environment: dict[str, Value] = field(default_factory=dict)
    """What its names were at its end."""

    @property
    def body(self) -> cst.CSTNode:
        return self.node.body if isinstance(self.node, cst.FunctionDef) else self.node

    def receives(self, call: cst.Call) -> Iterator[tuple[str, cst.Arg]]:
        """The arguments of a call of it, each with the parameter that gets it; the rest goes into `*args`."""
        names = list(self.parameters)
        if self.class_name is not None and names[:1] in (["self"], ["cls"]):
            names = names[1:]
        place = 0
        for argument in call.args:
            if argument.star:
                return
            if argument.keyword is not None:
                name = argument.keyword.value
                yield (name if name in names else names[-1] if names else name), argument
            elif names:
                yield names[min(place, len(names) - 1)], argument
                place += 1

    def owns(self, path: str) -> bool:
        """Whether a path begins with a name that dies with the call."""
        first = path.partition(".")[0]
        if isinstance(self.node, cst.Module):
            return True
        return first in self.local_names and first not in self.declared_outside


@dataclass(slots=True, eq=False)
class LoopFact:
    """A loop, and what happens in it, in functions of this file that it calls as well."""

    node: Loop
    function: Function
    outer: "LoopFact | None"
    iterates: Value = UNKNOWN
    iterated: str = ""
    """What it iterates over, as written: `test_loader`."""
    bound: set[str] = field(default_factory=set)
    """The names that it gives a new value with every round."""
    first: int = 0
    last: int = 0
    """The span of its body in the order of nodes."""
    trains: bool = False
    """There is a backward pass or an optimizer step in it."""
    backward: bool = False
    """There is a backward pass in it."""
    computes: bool = False
    """A model is called in it with gradients on."""


@dataclass(slots=True, eq=False)
class CallSite:
    """Where a function of the file is called."""

    caller: Function
    loops: tuple[LoopFact, ...]
    no_grad: bool
    call: cst.Call
    values: dict[str, Value]
    """What its parameters were given."""


@dataclass(frozen=True, slots=True, eq=False)
class FactContext:
    """Where in the program something happens."""

    order: int
    function: Function
    loops: tuple[LoopFact, ...]
    """Innermost last."""
    no_grad: bool
    handler: cst.ExceptHandler | None
    """The `except` block around it."""
    contexts: tuple[str, ...]
    """The `with` blocks around it, by qualified name: `torch.autocast`."""


@dataclass(slots=True, eq=False, kw_only=True)
class Fact:
    node: cst.CSTNode
    at: FactContext

    @property
    def order(self) -> int:
        return self.at.order

    @property
    def function(self) -> Function:
        return self.at.function

    @property
    def loops(self) -> tuple[LoopFact, ...]:
        return self.at.loops

    @property
    def no_grad(self) -> bool:
        return self.at.no_grad

    @property
    def handler(self) -> cst.ExceptHandler | None:
        return self.at.handler

    @property
    def contexts(self) -> tuple[str, ...]:
        return self.at.contexts


@dataclass(slots=True, eq=False, kw_only=True)
class CallFact(Fact):
    """A call."""

    node: cst.Call
    name: str | None
    """What is called, qualified where imports say more: `torch.load`."""
    method: str | None
    receiver: Value
    """What the method belongs to, or what is called."""
    arguments: tuple[Value, ...]
    result: Value
    local: Function | None = None
    """The function of this file that is called."""


@dataclass(slots=True, eq=False, kw_only=True)
class StoreFact(Fact):
    """Something is put somewhere."""

    target: str
    """The path that it is put under: `self.losses`."""
    how: str
    """`assign`, `augment`, `append`, `item` (a place in a container)."""
    expression: cst.BaseExpression
    """What is stored."""
    value: Value
    uses_itself: bool
    """The new value is made from the old one."""
    varying_key: bool = False
    """For `item`: the key is not a constant, so that each step may add one."""
    bounded: bool = False
    """The container forgets by itself."""
    mapping: bool = False
    """The container is a dict."""
    into: Value = UNKNOWN
    """What the target held before."""


@dataclass(slots=True, eq=False, kw_only=True)
class ReleaseFact(Fact):
    """What a path held is let go: emptied, replaced, cut, deleted."""

    target: str
    how: str
    """`assign`, `empty`, `shrink`, `delete`, `detach`."""
