"""What each name holds as the code runs, as far as it can be read: which values carry a graph, what is kept where.

Every function is gone through with its statements in order, loops twice (what one round leaves the next one sees),
branches apart and then joined. The whole file is gone through until what functions return, what their callers give them
and whether they turned gradients off changes no more, then once again: that round alone notes facts for the rules.
The first round takes what a model is given for free of a graph, and follows the callers last: what a model gives back and is
given again has a graph only if the model itself puts one on it.

What cannot be told stays unknown, and no rule speaks of the unknown: a linter that is wrong is switched off.
"""

from collections.abc import Sequence

import libcst as cst

from legroom.diagnose.lint.flow.assignments import Assignments
from legroom.diagnose.lint.flow.call_graph import spread_over_calls
from legroom.diagnose.lint.flow.facts import CallSite, Function, LoopFact
from legroom.diagnose.lint.flow.narrowing import without_tensors
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import (
    Loop,
    dotted,
    innermost_iterable,
    last_name,
    names_in,
    path_of,
    walk,
)
from legroom.diagnose.lint.flow.values import (
    EXCEPTION,
    GRAPH,
    PLAIN,
    TENSOR,
    UNKNOWN,
    Value,
    ValueKind,
    by_name,
    container,
    joined,
)

_MOST_ROUNDS = 5


def follow(program: Program) -> None:
    """Fill in the program's facts."""
    known: list[object] = []
    for number in range(_MOST_ROUNDS - 1):
        _go_through(program, recording=False, first=number == 0)
        before, known = known, _known(program)
        if before == known:
            break
    _go_through(program, recording=True)
    spread_over_calls(program)


def _go_through(program: Program, *, recording: bool, first: bool = False) -> None:
    sites = {function: function.sites for function in program.functions.values()}
    for function in program.functions.values():
        function.sites = []
        function.returned_nodes = []
    for function in sorted(program.functions.values(), key=lambda each: first and each is program.top):
        _Walker(program, function, sites[function], recording=recording, first=first).run()
    for function in program.functions.values():
        if function.sites and not function.no_grad:
            function.no_grad = all(site.no_grad for site in function.sites)


def _known(program: Program) -> list[object]:
    """What a further round would start from."""
    return [
        (function.returns, function.no_grad, [site.values for site in function.sites])
        for function in program.functions.values()
    ]


class _Walker(Assignments):
    """Goes through one function."""

    def __init__(
        self,
        program: Program,
        function: Function,
        sites: Sequence[CallSite],
        *,
        recording: bool,
        first: bool,
    ) -> None:
        super().__init__(program, function, recording=recording)
        self.given_to_models = TENSOR if first else GRAPH
        self.returns: Value | None = None
        self.yields: Value | None = None
        self._begin(sites)

    def run(self) -> None:
        node = self.function.node
        self.function.keeps = {}
        self.block(node.body if isinstance(node, cst.Module) else [node.body])
        self.function.returns = container(self.yields) if self.yields is not None else self.returns or PLAIN
        self.function.environment = self.names
        if self.function.class_name is not None:
            attributes = self.program.classes[self.function.class_name].attributes
            for path, value in self.names.items():
                if path.startswith("self.") and path.count(".") == 1:
                    known = attributes.get(path)
                    attributes[path] = value if known is None else joined(known, value)

    def _begin(self, sites: Sequence[CallSite]) -> None:
        function = self.function
        outer = function.outer
        while outer is not None:
            for path, value in outer.environment.items():
                self.names.setdefault(path, value)
            outer = outer.outer
        for name in function.parameters:
            given = [site.values[name] for site in sites if name in site.values]
            value = given[0] if given else UNKNOWN
            for each in given[1:]:
                value = joined(value, each)
            self.names[name] = (
                value if value.kind is not ValueKind.UNKNOWN or value.class_name else by_name(name)
            )
            for path in [path for path in self.names if path.startswith(f"{name}.")]:
                del self.names[path]
        if function.class_name is not None and function.parameters[:1] in (("self",), ("cls",)):
            known = self.program.classes[function.class_name]
            is_module = self.program.is_module_class(known.name)
            self.names[function.parameters[0]] = Value(
                ValueKind.MODEL if is_module else ValueKind.UNKNOWN, class_name=known.name
            )
            self.names.update(known.attributes)
            if function.parameters[0] == "cls":
                self.names.update({f"cls.{path[5:]}": value for path, value in known.attributes.items()})
            if is_module and function.name == "forward" and isinstance(function.node, cst.FunctionDef):
                for parameter in function.node.params.params[1:]:
                    if (
                        parameter.default is None
                        and self.names[parameter.name.value].kind is ValueKind.UNKNOWN
                    ):
                        self.names[parameter.name.value] = self.given_to_models  # by other layers

    # Statements ----------------------------------------------------------------------------------------------------

    def block(self, body: Sequence[cst.CSTNode]) -> None:
        for node in body:
            if isinstance(node, (cst.SimpleStatementLine, cst.IndentedBlock, cst.SimpleStatementSuite)):
                self.block(node.body)
            else:
                self.statement(node)

    def statement(self, node: cst.CSTNode) -> None:
        if isinstance(node, cst.Assign):
            value = self.value_of(node.value)
            for target in node.targets:
                self.assign(target.target, value, node.value, node)
        elif isinstance(node, cst.AnnAssign):
            if node.value is not None:
                self.assign(node.target, self.value_of(node.value), node.value, node)
        elif isinstance(node, cst.AugAssign):
            self.augment(node)
        elif isinstance(node, cst.Expr):
            value = self.value_of(node.value)
            if isinstance(node.value, cst.Yield):
                self.yields = value if self.yields is None else joined(self.yields, value)
        elif isinstance(node, cst.Return):
            if node.value is not None:
                value = self.value_of(node.value)
                self.returns = value if self.returns is None else joined(self.returns, value)
                self.function.returned_nodes.append(node.value)
        elif isinstance(node, (cst.For, cst.While)):
            self.loop(node)
        elif isinstance(node, cst.If):
            self.branch(node)
        elif isinstance(node, cst.With):
            self.with_block(node)
        elif isinstance(node, (cst.Try, cst.TryStar)):
            self.try_block(node)
        elif isinstance(node, cst.Del):
            self.delete(node.target)
        elif isinstance(node, cst.FunctionDef):
            self.names[node.name.value] = Value(ValueKind.UNKNOWN, function=self._place(node.name.value))
        elif isinstance(node, cst.ClassDef):
            self._class_body(node)
        elif isinstance(node, cst.Match):
            self.value_of(node.subject)
            for case in node.cases:
                self.block([case.body])
        elif isinstance(node, (cst.Raise, cst.Assert)):
            for each in walk(node, into_functions=False):
                if isinstance(each, cst.Call):
                    self.value_of(each)
                    break

    def _place(self, name: str) -> str:
        return f"{self.function.place}.{name}" if self.function.place else name

    def _class_body(self, node: cst.ClassDef) -> None:
        """Class-level names are reached as `Class.name` and `self.name`."""
        known = self.program.classes.get(node.name.value)
        for each in node.body.body:
            small = each.body if isinstance(each, cst.SimpleStatementLine) else ()
            for statement in small:
                if isinstance(statement, cst.Assign) and known is not None:
                    value = self.value_of(statement.value)
                    for target in statement.targets:
                        if isinstance(target.target, cst.Name):
                            self.names[f"{known.name}.{target.target.value}"] = value
                            known.attributes.setdefault(f"self.{target.target.value}", value)

    def loop(self, node: Loop) -> None:
        fact = self.loop_fact(node)
        before = dict(self.names)
        if isinstance(node, cst.For):
            fact.iterates = self.value_of(node.iter)
            fact.iterated = path_of(innermost_iterable(node.iter)) or ""
            self.bind_iteration(node.target, node.iter, fact.iterates)
        else:
            self.value_of(node.test)
        outer_loops = self.loops
        self.loops = (*outer_loops, fact)
        rounds = 2 if len(self.loops) <= 2 else 1
        recording = self.recording
        for number in range(rounds):
            self.recording = recording and number == rounds - 1
            self.block([node.body])
            if isinstance(node, cst.For):
                self.bind_iteration(node.target, node.iter, fact.iterates)
        self.recording = recording
        self.loops = outer_loops
        self.join_with(before)
        if node.orelse is not None:
            self.block([node.orelse.body])

    def loop_fact(self, node: Loop) -> LoopFact:
        for known in self.program.loops:
            if known.node is node:
                return known
        fact = LoopFact(node, self.function, self.loops[-1] if self.loops else None)
        fact.bound = names_in(node.target) if isinstance(node, cst.For) else set()
        fact.first = self.program.order[node]
        fact.last = self.program.order[_last_node(node)]
        self.program.loops.append(fact)
        return fact

    def branch(self, node: cst.If) -> None:
        self.value_of(node.test)
        otherwise = without_tensors(node.test, self.names, holds=False)
        here = without_tensors(node.test, self.names, holds=True)
        before = {**self.names, **otherwise}
        sources = {path: source for path, source in self.comes_from.items() if path not in otherwise}
        self.names.update(here)
        self.comes_from = {path: source for path, source in self.comes_from.items() if path not in here}
        self.block([node.body])
        after, sources_after = self.names, self.comes_from
        self.names, self.comes_from = before, sources
        if isinstance(node.orelse, cst.If):
            self.branch(node.orelse)
        elif node.orelse is not None:
            self.block([node.orelse.body])
        detached = [path for path in self.names if self._is_detached_in(node.body, after, path)]
        self.join_with(after)
        self.names.update(dict.fromkeys(detached, UNKNOWN))
        self.comes_from = {**sources_after, **self.comes_from}

    def _is_detached_in(self, body: cst.BaseSuite, after: dict[str, Value], path: str) -> bool:
        """`if backward_here: loss.backward(); loss = loss.detach()`: where it is not detached, someone else goes backward."""
        if not self.names[path].carries_graph or after.get(path, GRAPH).carries_graph:
            return False
        return any(
            isinstance(each, cst.Assign)
            and path in names_in(each.value)
            and any(dotted(target.target) == path for target in each.targets)
            for each in walk(body, into_functions=False)
        )

    def with_block(self, node: cst.With) -> None:
        no_grad, contexts = self.no_grad, self.contexts
        for item in node.items:
            entered = self.value_of(item.item)
            called = item.item.func if isinstance(item.item, cst.Call) else item.item
            name = self.program.imports.qualified(called) or ""
            self.contexts = (*self.contexts, name)
            self.no_grad = self.grad_after(name, item.item)
            if dotted(called) in self.grad_contexts:
                self.function.grad_is_chosen = True
            if item.asname is not None and isinstance(item.asname.name, cst.Name):
                self.bind(item.asname.name, entered if entered.class_name else UNKNOWN)
        self.block([node.body])
        self.no_grad, self.contexts = no_grad, contexts

    def grad_after(self, name: str, expression: cst.CSTNode) -> bool:
        """Whether gradients are off after a switch such as `torch.no_grad()`."""
        switch = last_name(name)
        if switch in {"no_grad", "inference_mode"}:
            return True
        if switch == "enable_grad":
            return False
        if switch == "set_grad_enabled" and isinstance(expression, cst.Call) and expression.args:
            given = expression.args[0].value
            if isinstance(given, cst.Name) and given.value in {"True", "False"}:
                return given.value == "False"
            self.function.grad_is_chosen = True
        return self.no_grad

    def try_block(self, node: cst.Try | cst.TryStar) -> None:
        before = dict(self.names)
        self.block([node.body])
        self.join_with(before)
        for handler in node.handlers:
            names, outer = dict(self.names), self.handler
            if isinstance(handler, cst.ExceptHandler):
                self.handler = handler
            if handler.name is not None and isinstance(handler.name.name, cst.Name):
                self.names[handler.name.name.value] = EXCEPTION
            self.block([handler.body])
            self.handler = outer
            self.join_with(names)
        if node.orelse is not None:
            self.block([node.orelse.body])
        if node.finalbody is not None:
            self.block([node.finalbody.body])

    def join_with(self, others: dict[str, Value]) -> None:
        for path, value in others.items():
            known = self.names.get(path)
            self.names[path] = value if known is None else joined(known, value)


def _last_node(node: cst.CSTNode) -> cst.CSTNode:
    *_, last = walk(node)
    return last
