from collections.abc import Iterator
from dataclasses import dataclass, field

import libcst as cst

from legroom.diagnose.lint.flow.syntax import Loop, walk
from legroom.diagnose.lint.flow.values import UNKNOWN, Value


@dataclass(slots=True, eq=False)
class Function:
    """A function or method in the file. The statements at module level form a function without a name."""

    name: str
    qualified_name: str
    """The name of the function, unique in its file, for example `Trainer.step` or `make_logger.log`."""
    node: cst.FunctionDef | cst.Module
    class_name: str | None
    outer: "Function | None"
    parameters: tuple[str, ...] = ()
    nonlocal_names: frozenset[str] = frozenset()
    """Names that the function declares global or nonlocal."""
    local_names: frozenset[str] = frozenset()
    """Names that the function assigns, except its parameters."""
    mutable_defaults: frozenset[str] = frozenset()
    """Parameters whose default is a list, dict or set. All calls that omit the argument share the default object."""
    no_grad: bool = False
    """True if a decorator or every caller disables gradients."""
    no_grad_in_callers: bool = False
    """True if all callers that are known so far disable gradients, but there may be other callers."""
    grad_mode_varies: bool = False
    """True if the gradient mode depends on a variable, as in `set_grad_enabled(training)`."""
    modes_left: set[bool] = field(default_factory=set)
    """The gradient modes at the `yield` statements, or at the end: True if gradients are then disabled.

    They are empty if the function does not change the mode. The body of a `with` statement runs in these modes.
    """
    backward: bool = False
    """True if the function calls `backward` outside loops."""
    optimizer_step: bool = False
    """True if the function calls an optimizer's `step` outside loops."""
    call_sites: "list[CallSite]" = field(default_factory=list)
    is_dispatched: bool = False
    """True if the method is called on an unknown object, as in
    `for callback in callbacks: callback.on_step_end(loss)`.
    """
    returns: Value = UNKNOWN
    returned_nodes: list[cst.BaseExpression] = field(default_factory=list)
    stored_parameters: dict[str, "StoreFact"] = field(default_factory=dict)
    """Parameters that the function stores in an object that outlives the call."""
    frozen_parameters: frozenset[str] = frozenset()
    """Parameters, including `self`, whose model the function freezes."""
    names_in_backward: frozenset[str] | None = None
    """The paths of the tensors that the function uses in `backward`.

    The value is None before the first pass of the analysis.
    """
    environment: dict[str, Value] = field(default_factory=dict)

    @property
    def body(self) -> cst.CSTNode:
        return self.node.body if isinstance(self.node, cst.FunctionDef) else self.node

    @property
    def class_of_self(self) -> str | None:
        """The class of `self`. A function in a method reads the `self` of the method."""
        return self.class_name or (self.outer.class_of_self if self.outer is not None else None)

    @property
    def is_generator(self) -> bool:
        return any(isinstance(each, cst.Yield) for each in walk(self.body, into_functions=False))

    @property
    def own_parameters(self) -> tuple[str, ...]:
        """The parameters without `self`."""
        is_method = self.class_name is not None and self.parameters[:1] in (("self",), ("cls",))
        return self.parameters[1:] if is_method else self.parameters

    def receives(self, call: cst.Call) -> Iterator[tuple[str, cst.Arg]]:
        names = self.own_parameters
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

    def uses_default(self, call: cst.Call, name: str) -> bool:
        return not any(each.star for each in call.args) and all(
            given != name for given, _ in self.receives(call)
        )

    def owns(self, path: str) -> bool:
        """Return True if a path starts with a local name."""
        first = path.partition(".")[0]
        if isinstance(self.node, cst.Module):
            return True
        return first in self.local_names and first not in self.nonlocal_names


@dataclass(slots=True, eq=False)
class LoopFact:
    """A loop, with facts about its body and about the functions that the body calls."""

    node: Loop
    function: Function
    outer: "LoopFact | None"
    iterable: Value = UNKNOWN
    iterable_path: str = ""
    """The iterated expression as written, for example `test_loader`."""
    bound: set[str] = field(default_factory=set)
    """The names that each iteration rebinds."""
    first: int = 0
    last: int = 0
    """The node numbers of the first and the last node in the loop body."""
    trains: bool = False
    backward: bool = False
    runs_model: bool = False
    """True if the loop calls a model with gradients enabled."""
    in_module: bool = False
    """True if the loop is in a method of a module."""


@dataclass(slots=True, eq=False)
class CallSite:
    """A call to a function that this file defines."""

    caller: Function
    loops: tuple[LoopFact, ...]
    no_grad: bool
    call: cst.Call
    values: dict[str, Value]


@dataclass(frozen=True, slots=True, eq=False)
class FactContext:
    """The location of a recorded fact: the enclosing function, loops and blocks."""

    order: int
    function: Function
    loops: tuple[LoopFact, ...]
    """The enclosing loops, innermost last."""
    no_grad: bool
    handler: cst.ExceptHandler | None
    contexts: tuple[str, ...]
    """The qualified names of the enclosing `with` blocks, for example `torch.autocast`."""


@dataclass(slots=True, eq=False, kw_only=True)
class Fact:
    """A fact about a node of the syntax tree."""

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
    """A call in the program."""

    node: cst.Call
    name: str | None
    """The qualified name of the function, for example `torch.load`."""
    method: str | None
    receiver: Value
    """The object whose method is called, or the called value itself."""
    arguments: tuple[Value, ...]
    result: Value
    local: Function | None = None
    """The called function, if this file defines it."""


@dataclass(slots=True, eq=False, kw_only=True)
class StoreFact(Fact):
    """A statement that stores a value in a variable, attribute or container."""

    target: str
    """The path under which the value is stored, for example `self.losses`."""
    how: str
    """`assign`, `augment`, `append`, or `item` for an item of a container."""
    expression: cst.BaseExpression
    value: Value
    uses_old_value: bool
    varying_key: bool = False
    """True if the key of an item is not constant. Each step may then add an item."""
    bounded: bool = False
    mapping: bool = False
    previous: Value = UNKNOWN

    @property
    def is_in_argument(self) -> bool:
        first = self.target.partition(".")[0]
        return first in self.function.parameters and first not in {"self", "cls"}


@dataclass(slots=True, eq=False, kw_only=True)
class ReleaseFact(Fact):
    """A statement that clears, replaces, truncates or deletes a stored value."""

    target: str
    how: str
    """`assign`, `empty`, `shrink`, `delete` or `detach`."""
