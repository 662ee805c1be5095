"""The facts that the flow analysis records for the rules: functions, loops, calls, stores and releases."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import libcst as cst

from legroom.diagnose.lint.flow.syntax import Loop
from legroom.diagnose.lint.flow.values import UNKNOWN, Value


@dataclass(slots=True, eq=False)
class Function:
    """A function or method of the file. The statements at module level form a function without a name."""

    name: str
    qualified_name: str
    """`Trainer.step`, `make_logger.log`; unique in a file."""
    node: cst.FunctionDef | cst.Module
    class_name: str | None
    outer: "Function | None"
    parameters: tuple[str, ...] = ()
    nonlocal_names: frozenset[str] = frozenset()
    """Names that it declares global or nonlocal."""
    local_names: frozenset[str] = frozenset()
    """Names that it assigns, except parameters."""
    no_grad: bool = False
    """Whether a decorator or every caller disables gradients."""
    grad_mode_varies: bool = False
    """Whether the gradient mode depends on a variable: `set_grad_enabled(training)`."""
    backward: bool = False
    """Whether it calls `backward` outside loops."""
    optimizer_step: bool = False
    """Whether it calls an optimizer's `step` outside loops."""
    call_sites: "list[CallSite]" = field(default_factory=list)
    returns: Value = UNKNOWN
    returned_nodes: list[cst.BaseExpression] = field(default_factory=list)
    stored_parameters: dict[str, "StoreFact"] = field(default_factory=dict)
    """Parameters that it stores in an object that outlives the call."""
    environment: dict[str, Value] = field(default_factory=dict)
    """The values of its names at its end."""

    @property
    def body(self) -> cst.CSTNode:
        return self.node.body if isinstance(self.node, cst.FunctionDef) else self.node

    def receives(self, call: cst.Call) -> Iterator[tuple[str, cst.Arg]]:
        """The arguments of a call, each with the parameter that receives it."""
        names = list(self.parameters)
        if self.class_name is not None and names[:1] in (["self"], ["cls"]):
            names = names[1:]
        index = 0
        for argument in call.args:
            if argument.star:
                return
            if argument.keyword is not None:
                name = argument.keyword.value
                yield (name if name in names else names[-1] if names else name), argument
            elif names:
                yield names[min(index, len(names) - 1)], argument
                index += 1

    def owns(self, path: str) -> bool:
        """Whether a path starts with a local name."""
        first = path.partition(".")[0]
        if isinstance(self.node, cst.Module):
            return True
        return first in self.local_names and first not in self.nonlocal_names


@dataclass(slots=True, eq=False)
class LoopFact:
    """A loop and the facts about its body, including functions of this file that it calls."""

    node: Loop
    function: Function
    outer: "LoopFact | None"
    iterable: Value = UNKNOWN
    iterable_path: str = ""
    """The iterated expression as written: `test_loader`."""
    bound: set[str] = field(default_factory=set)
    """The names that each iteration rebinds."""
    first: int = 0
    last: int = 0
    """The span of its body in the numbering of nodes."""
    trains: bool = False
    """Whether it contains a backward pass or an optimizer step."""
    backward: bool = False
    """Whether it contains a backward pass."""
    runs_model: bool = False
    """Whether it calls a model with gradients enabled."""


@dataclass(slots=True, eq=False)
class CallSite:
    """A call of a function of this file."""

    caller: Function
    loops: tuple[LoopFact, ...]
    no_grad: bool
    call: cst.Call
    values: dict[str, Value]
    """The values of the parameters."""


@dataclass(frozen=True, slots=True, eq=False)
class FactContext:
    """The position of a fact in the program."""

    order: int
    function: Function
    loops: tuple[LoopFact, ...]
    """The enclosing loops, innermost last."""
    no_grad: bool
    handler: cst.ExceptHandler | None
    """The enclosing `except` block."""
    contexts: tuple[str, ...]
    """The enclosing `with` blocks by qualified name: `torch.autocast`."""


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
    """The qualified name of the function: `torch.load`."""
    method: str | None
    receiver: Value
    """The object of the method, or the called value."""
    arguments: tuple[Value, ...]
    result: Value
    local: Function | None = None
    """The called function, if it is defined in this file."""


@dataclass(slots=True, eq=False, kw_only=True)
class StoreFact(Fact):
    """A value is stored."""

    target: str
    """The path under which it is stored: `self.losses`."""
    how: str
    """`assign`, `augment`, `append` or `item` (an item of a container)."""
    expression: cst.BaseExpression
    """The stored expression."""
    value: Value
    uses_old_value: bool
    """Whether the new value is computed from the old one."""
    varying_key: bool = False
    """For `item`: whether the key is not constant, so that each step may add an item."""
    bounded: bool = False
    """Whether the container has a limited size."""
    mapping: bool = False
    """Whether the container is a dict."""
    previous: Value = UNKNOWN
    """The previous value of the target."""


@dataclass(slots=True, eq=False, kw_only=True)
class ReleaseFact(Fact):
    """The content of a path is released: cleared, replaced, truncated or deleted."""

    target: str
    how: str
    """`assign`, `empty`, `shrink`, `delete`, `detach`."""
