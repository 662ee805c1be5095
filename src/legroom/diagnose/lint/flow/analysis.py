"""The flow analysis determines the possible values of each name, which values have an autograd graph, and where
values are stored.

Each function is analyzed statement by statement. Loop bodies are analyzed twice, so that the second analysis includes
the results of the first iteration. Branches are analyzed separately, and then their values are merged. The file is
analyzed repeatedly until return values, arguments and gradient modes no longer change. The lint rules use the facts
of the last pass.

The first pass assumes that the inputs of a model have no graph, and analyzes callers last. If a model receives its
own output in the next step, the output therefore has a graph only if the model itself creates one.

A value that cannot be determined stays unknown, and the rules report nothing for unknown values.
"""

from collections.abc import Sequence
from typing import Any

import libcst as cst

from legroom.diagnose.lint.flow.assignments import Assignments
from legroom.diagnose.lint.flow.evidence.host_copies import converted_by_loop
from legroom.diagnose.lint.flow.evidence.narrowing import leaves, narrowed_names
from legroom.diagnose.lint.flow.evidence.object_classes import merged_parameters
from legroom.diagnose.lint.flow.facts import CallFact, CallSite, Function, LoopFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import (
    Loop,
    bound_paths,
    children,
    detaches_other,
    disables_gradients,
    dotted,
    innermost_iterable,
    is_call_of,
    is_false,
    keyword,
    last_name,
    names_in,
    path_of,
    root,
    walk,
)
from legroom.diagnose.lint.flow.values import (
    EXCEPTION,
    GRAPH,
    MODEL,
    PLAIN,
    TENSOR,
    UNKNOWN,
    Value,
    ValueKind,
    container,
    join_values,
    with_item,
    without_graph,
)

_MAX_PASSES = 5
_BLOCKS = {cst.SimpleStatementLine, cst.IndentedBlock, cst.SimpleStatementSuite}


def analyze_program(program: Program) -> None:
    state: list[object] = []
    for number in range(_MAX_PASSES):
        _run_pass(program, first=number == 0)
        before, state = state, _state(program)
        if before == state:
            break
    _propagate_through_calls(program)


def _run_pass(program: Program, *, first: bool) -> None:
    program.calls, program.stores, program.releases, program.values = [], [], [], {}
    call_sites = {function: function.call_sites for function in program.functions.values()}
    for function in program.functions.values():
        function.call_sites = []
        function.returned_nodes = []
        function.is_dispatched = False
    for function in _in_first_order(program) if first else program.functions.values():
        _Walker(program, function, call_sites[function], first=first).run()
    for function in program.functions.values():
        if _is_decorated_without_gradients(program, function):
            function.no_grad, function.no_grad_in_callers = True, False
        elif not function.no_grad or function.no_grad_in_callers:  # a later pass may find more callers
            function.no_grad = bool(function.call_sites) and all(site.no_grad for site in function.call_sites)
            function.no_grad_in_callers = function.no_grad


def _in_first_order(program: Program) -> list[Function]:
    """Return the functions in the order of the first pass.

    A class is created after the classes whose objects it contains, because the attributes of a module show whether the
    module has parameters. The statements at module level come last.
    """
    ordered: dict[Function, None] = {}
    seen: set[str] = set()

    def visit(name: str) -> None:
        created = program.classes[name].methods.get("__init__")
        if name in seen or created is None or program.functions[created.qualified_name] is not created:
            return  # a later definition with the same name replaces an overload
        seen.add(name)
        for node in walk(created.body):
            if type(node) is cst.Name and node.value in program.classes:
                visit(node.value)
        ordered[created] = None

    for name in program.classes:
        visit(name)
    others = (each for each in program.functions.values() if each is not program.top)
    return list(dict.fromkeys([*ordered, *others, program.top]))


def _is_decorated_without_gradients(program: Program, function: Function) -> bool:
    """Return True if a decorator in the program runs the function with gradients disabled."""
    for each in function.node.decorators if isinstance(function.node, cst.FunctionDef) else ():
        path = program.defined_path(
            each.decorator.func if isinstance(each.decorator, cst.Call) else each.decorator
        )
        made = program.functions.get(path or "")
        if path in program.classes or (made is not None and made.is_generator):
            return program.modes_in(path, made) == {True}
        if made is not None:
            runs = [call.no_grad for call in program.calls if _runs_decorated(call, made)]
            return bool(runs) and all(runs)
    return False


def _runs_decorated(call: CallFact, decorator: Function) -> bool:
    """Return True for a call in a decorator that runs the decorated function."""
    function: Function | None = call.function
    given: set[str] = set()
    while function is not None and function is not decorator:
        given.update(function.parameters)
        function = function.outer
    return function is decorator and dotted(call.node.func) in {*given, *decorator.parameters}


def _state(program: Program) -> list[object]:
    return [
        *(
            (
                function.returns,
                function.no_grad,
                function.modes_left,
                function.frozen_parameters,
                [site.values for site in function.call_sites],
            )
            for function in program.functions.values()
        ),
        *(dict(known.attributes) for known in program.classes.values()),
    ]


class _Walker(Assignments):
    def __init__(
        self,
        program: Program,
        function: Function,
        call_sites: Sequence[CallSite],
        *,
        first: bool,
    ) -> None:
        super().__init__(program, function)
        self.model_input = TENSOR if first else GRAPH
        self.returns: Value | None = None
        self.yields: Value | None = None
        self.modes_left: set[bool] = set()
        self._bind_parameters(call_sites)
        self.trainable_parameters = [name for name in function.parameters if not self.names[name].frozen]

    def run(self) -> None:
        node = self.function.node
        self.function.stored_parameters = {}
        self.block(node.body if isinstance(node, cst.Module) else [node.body])
        if self.yields is None:
            self._leave_mode()
        is_changed = self.modes_left != {self.function.no_grad}
        self.function.modes_left = self.modes_left if is_changed else set()
        self.function.returns = container(self.yields) if self.yields is not None else self.returns or PLAIN
        self.function.environment = self.names
        self.function.frozen_parameters |= {
            name for name in self.trainable_parameters if self.names.get(name, UNKNOWN).frozen
        }
        if self.function.class_name is not None:
            attributes = self.program.classes[self.function.class_name].attributes
            for path, value in self.names.items():
                if path.count(".") == 1 and path.startswith("self."):
                    known = attributes.get(path)
                    attributes[path] = value if known is None else join_values(known, value)

    def _bind_parameters(self, call_sites: Sequence[CallSite]) -> None:
        function = self.function
        outer = function.outer
        while outer is not None:
            for path, value in outer.environment.items():
                self.names.setdefault(path, value)
            outer = outer.outer
        given_names = set(function.parameters)
        for path in [path for path in self.names if "." in path and root(path) in given_names]:
            del self.names[path]
        for name in function.parameters:
            given = [site.values[name] for site in call_sites if name in site.values]
            if name in function.mutable_defaults:
                given.append(self._default(name))
            value = given[0] if given else UNKNOWN
            for each in given[1:]:
                value = join_values(value, each)
            if value.kind is ValueKind.UNKNOWN and not (value.class_name or value.function):
                value = self._guess_parameter(name)
            elif value == MODEL:
                value = self.program.object_used_as(name, function, is_model=True) or value
            self.names[name] = value
        self._bind_outputs_of_step()
        for name in merged_parameters(function.node) if function.class_name is not None else ():
            self.names[name] = self.program.instance(function.class_name or "")
        if self.program.runs_without_gradients and function is not self.program.top:
            self.no_grad = function.no_grad = True
        if self.program.is_torchmetric(function.class_name):
            self.no_grad = function.no_grad = True
        if self.program.is_autograd_function(function.class_name):
            self.no_grad = function.no_grad = True
            for name in function.parameters[1:2] if function.name == "forward" else ():
                self.names[name] = TENSOR if self.names[name].kind is ValueKind.UNKNOWN else self.names[name]
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
                        self.names[parameter.name.value] = self.model_input  # from other layers

    def _bind_outputs_of_step(self) -> None:
        """Bind the results of a step to the names under which an Ignite or Lightning handler receives them.

        In these results, Lightning detaches only the loss.
        """
        function = self.function
        step = self.program.handlers.steps.get(function)
        if step is not None and function.parameters:
            self.names[f"{function.parameters[0]}.state.output"] = step.returns
        if function.name == "on_train_batch_end" and "outputs" in function.parameters:
            for each in self.program.methods.get("training_step", [])[:1]:
                returned = each.returns if each.returns.mapping else container(mapping=True)
                self.names["outputs"] = with_item(returned, "loss", TENSOR)

    def _default(self, name: str) -> Value:
        assert isinstance(self.function.node, cst.FunctionDef)
        parameters = self.function.node.params
        for group in (parameters.posonly_params, parameters.params, parameters.kwonly_params):
            for each in group:
                if each.name.value == name and each.default is not None:
                    return self.evaluate_silently(each.default)
        return UNKNOWN

    def _guess_parameter(self, name: str) -> Value:
        """Return the value that the name, annotation or use of a parameter suggests.

        For example, `agent` is an instance of the class `Agent`, and the parameter of a decorator is the decorated
        function.
        """
        if name in self.function.parameters[:1] and (
            decorated := self.program.decorated.get(self.function.name)
        ):
            return Value(ValueKind.UNKNOWN, function=decorated)
        guess = self.program.guess(name)
        found = self.program.annotated(self.function, name)
        found = found or self.program.object_used_as(
            name, self.function, is_model=guess.kind is ValueKind.MODEL
        )
        if found is not None and guess.kind in (ValueKind.UNKNOWN, found.kind):
            return found
        if guess.kind is ValueKind.UNKNOWN:
            known = self.program.class_by_lower_name.get(name.replace("_", "").lower())
            if known is not None:
                return self.program.instance(known)
        return guess

    # Statements ----------------------------------------------------------------------------------------------------

    def block(self, body: Sequence[cst.CSTNode]) -> None:
        for node in body:
            if type(node) in _BLOCKS:
                self.block(children(node))
            else:
                self.statement(node)

    def statement(self, node: Any) -> None:
        kind = type(node)  # isinstance is slow for libcst's abstract classes
        if kind is cst.Expr:
            self._expression_statement(node)
        elif kind is cst.Assign:
            value = self.value_of(node.value)
            for target in node.targets:
                self.assign(target.target, value, node.value, node)
        elif kind is cst.AnnAssign:
            if node.value is not None:
                self.assign(node.target, self.value_of(node.value), node.value, node)
        elif kind is cst.If:
            self.branch(node)
        elif kind is cst.Return:
            if node.value is not None:
                value = self.value_of(node.value)
                if any(detaches_other(each, node.value) for each in self.function.returned_nodes):
                    self.returns = without_graph(join_values(self.returns or value, value), UNKNOWN)
                else:
                    self.returns = value if self.returns is None else join_values(self.returns, value)
                self.function.returned_nodes.append(node.value)
        elif kind is cst.FunctionDef:
            self.names[node.name.value] = Value(
                ValueKind.UNKNOWN,
                function=self._qualified_name(node.name.value),
                items=self.kept_by(node) or None,
            )
        elif kind is cst.AugAssign:
            self.augment(node)
        elif kind is cst.For or kind is cst.While:
            self.loop(node)
        elif kind is cst.With:
            self.with_block(node)
        elif kind is cst.Try or kind is cst.TryStar:
            self.try_block(node)
        elif kind is cst.Del:
            self.delete(node.target)
        elif kind is cst.ClassDef:
            self._class_body(node)
        elif kind is cst.Match:
            self.value_of(node.subject)
            for case in node.cases:
                self.block([case.body])
        elif kind is cst.Raise or kind is cst.Assert:
            for each in walk(node, into_functions=False):
                if isinstance(each, cst.Call):
                    self.value_of(each)
                    break

    def _expression_statement(self, node: cst.Expr) -> None:
        value = self.value_of(node.value)
        if type(node.value) is cst.Yield:
            self.yields = value if self.yields is None else join_values(self.yields, value)
            self._leave_mode()

    def _leave_mode(self) -> None:
        self.modes_left |= {True, False} if self.function.grad_mode_varies else {self.no_grad}

    def _qualified_name(self, name: str) -> str:
        return f"{self.function.qualified_name}.{name}" if self.function.qualified_name else name

    def _class_body(self, node: cst.ClassDef) -> None:
        """Record class attributes, which are read as `Class.name` or `self.name`."""
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
        fact = self.fact_for_loop(node)
        before = dict(self.names)
        if isinstance(node, cst.For):
            fact.iterable = self.value_of(node.iter)
            fact.iterable_path = path_of(innermost_iterable(node.iter)) or ""
            self.bind_iteration(node.target, node.iter, fact.iterable)
        else:
            self.value_of(node.test)
        outer_loops = self.loops
        self.loops = (*outer_loops, fact)
        passes = 2 if len(self.loops) <= 2 else 1
        recording = self.recording
        for number in range(passes):
            self.recording = recording and number == passes - 1
            self.block([node.body])
            if isinstance(node, cst.For):
                self.bind_iteration(node.target, node.iter, fact.iterable)
        self.recording = recording
        self.loops = outer_loops
        self.join_with(before)
        converted = converted_by_loop(node) if isinstance(node, cst.For) else None
        if converted is not None and converted[0] in self.names:
            path, copy = converted
            self.names[path] = copy.convert(self.names[path])
        if node.orelse is not None:
            self.block([node.orelse.body])

    def fact_for_loop(self, node: Loop) -> LoopFact:
        for known in self.program.loops:
            if known.node is node:
                return known
        fact = LoopFact(node, self.function, self.loops[-1] if self.loops else None)
        fact.bound = bound_paths(node.target) if isinstance(node, cst.For) else set()
        fact.in_module = self.program.is_module_class(self.function.class_name)
        fact.first = self.program.order[node]
        fact.last = self.program.order[_last_node(node)]
        self.program.loops.append(fact)
        return fact

    def branch(self, node: cst.If) -> None:
        self.value_of(node.test)
        if_false = narrowed_names(node.test, self.names, holds=False)
        if_true = narrowed_names(node.test, self.names, holds=True)
        before = {**self.names, **if_false}
        sources = {path: source for path, source in self.parameter_of.items() if path not in if_false}
        self.names.update(if_true)
        self.parameter_of = {
            path: source for path, source in self.parameter_of.items() if path not in if_true
        }
        self.block([node.body])
        after, sources_after = self.names, self.parameter_of
        self.names, self.parameter_of = before, sources
        if isinstance(node.orelse, cst.If):
            self.branch(node.orelse)
        elif node.orelse is not None:
            self.block([node.orelse.body])
        detached = [
            path
            for path, value in self.names.items()
            if after.get(path) is not value and self._is_detached_in(node.body, after, path)
        ]
        if isinstance(node.orelse, cst.Else) and not names_in(node.test).isdisjoint(self.function.parameters):
            first, second = _assigned_in(node.body), _assigned_in(node.orelse.body)
            detached += [
                path for path in first if path in second and detaches_other(first[path], second[path])
            ]
        self.join_with(after)
        if node.orelse is None and leaves(node.body):
            self.names.update(if_false)
        self.names.update(dict.fromkeys(detached, UNKNOWN))
        self.parameter_of = {**sources_after, **self.parameter_of}

    def _is_detached_in(self, body: cst.BaseSuite, after: dict[str, Value], path: str) -> bool:
        """Return True if one branch runs the backward pass and detaches the loss.

        In such code, the other branch leaves the backward pass to the caller.
        """
        if not self.names[path].has_graph or after.get(path, GRAPH).has_graph:
            return False
        return any(
            isinstance(each, cst.Assign)
            and path in names_in(each.value)
            and any(path in bound_paths(target.target) for target in each.targets)
            for each in walk(body, into_functions=False)
        )

    def with_block(self, node: cst.With) -> None:
        no_grad, contexts = self.no_grad, self.contexts
        for item in node.items:
            entered = self.value_of(item.item)
            called = item.item.func if isinstance(item.item, cst.Call) else item.item
            name = self.program.imports.qualified(called) or ""
            self.contexts = (*self.contexts, name)
            self.no_grad = self.is_grad_disabled_after(name, item.item)
            made = self.called_function(item.item) if isinstance(item.item, cst.Call) else None
            self.enter(self.program.modes_in(entered.class_name, made))
            if dotted(called) in self.grad_mode_names:
                self.function.grad_mode_varies = True
            if item.asname is not None and isinstance(item.asname.name, cst.Name):
                self.bind(item.asname.name, entered if entered.class_name else UNKNOWN)
        self.block([node.body])
        self.no_grad, self.contexts = no_grad, contexts

    def enter(self, modes: set[bool]) -> None:
        """Set the gradient mode after a function that changes it."""
        if len(modes) == 1:
            (self.no_grad,) = modes
        elif modes:
            self.function.grad_mode_varies = True
            self.no_grad = self.no_grad or not self.names_in_backward

    def is_grad_disabled_after(self, name: str, expression: cst.CSTNode) -> bool:
        switch = last_name(name)
        if disables_gradients(name):
            return True
        if switch == "enable_grad":
            return False
        if switch == "set_grad_enabled" and isinstance(expression, cst.Call) and expression.args:
            given = expression.args[0].value
            if isinstance(given, cst.Name) and given.value in {"True", "False"}:
                return given.value == "False"
            if any(is_call_of(each, "is_grad_enabled") for each in self.program.assigned(dotted(given))):
                return self.function.no_grad  # restores the mode
            self.function.grad_mode_varies = True
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
            if known is not value:
                self.names[path] = value if known is None else join_values(known, value)


def _assigned_in(body: cst.BaseSuite) -> dict[str, cst.BaseExpression]:
    return {
        path: each.value
        for each in walk(body, into_functions=False)
        if isinstance(each, cst.Assign)
        for target in each.targets
        if (path := dotted(target.target)) is not None
    }


def _last_node(node: cst.CSTNode) -> cst.CSTNode:
    while below := children(node):
        node = below[-1]
    return node


_BACKWARD_FUNCTIONS = {"torch.autograd.backward", "torch.autograd.grad"}


def _propagate_through_calls(program: Program) -> None:
    """Mark the loops that call a function that trains or runs a model."""
    trains = {call.function for call in program.calls if _is_backward(call) or _is_step(call)}
    backward = {call.function for call in program.calls if _is_backward(call)}
    computing = {call.function for call in program.calls if _runs_a_model(call)}
    sites = [(call.local, call.function, call.no_grad) for call in program.calls if call.local is not None]
    dispatched = [  # self.train_step(batch) may run the method of a subclass
        (each, site) for each in program.functions.values() if each.is_dispatched for site in each.call_sites
    ]
    sites += [(function, site.caller, site.no_grad) for function, site in dispatched]
    for _ in range(3):
        trains |= {caller for function, caller, _ in sites if function in trains}
        backward |= {caller for function, caller, _ in sites if function in backward}
        computing |= {caller for function, caller, no_grad in sites if function in computing and not no_grad}
    for function, site in dispatched:
        for loop in site.loops:
            loop.backward |= function in backward
            loop.trains |= function in trains
            loop.runs_model |= function in computing and not site.no_grad
        if not site.loops:
            site.caller.backward |= function in backward
    for loop in program.loops:  # a loop over a generator that trains
        source = innermost_iterable(loop.node.iter) if isinstance(loop.node, cst.For) else None
        for call in program.calls:
            if (
                call.local in backward
                and isinstance(loop.node, cst.For)
                and call.node in (source, loop.node.iter)
            ):
                loop.trains = loop.backward = True
    for call in program.calls:
        does_backward = _is_backward(call) or call.local in backward
        does_step = _is_step(call)
        for loop in call.loops:
            loop.backward |= does_backward
            loop.trains |= does_backward or does_step or call.local in trains
            runs = _runs_a_model(call) or (call.local in computing and not call.no_grad)
            loop.runs_model |= runs and root(dotted(call.node.func) or "") not in loop.bound
        if not call.loops:
            call.function.backward |= does_backward
            call.function.optimizer_step |= does_step


def _runs_a_model(call: CallFact) -> bool:
    run = call.arguments[0] if call.method == "submit" and call.arguments else call.receiver
    return run.kind is ValueKind.MODEL and call.result.has_graph


def _is_backward(call: CallFact) -> bool:
    creates_graph = keyword(call.node, "create_graph")
    if call.name == "torch.autograd.grad" and creates_graph is not None and not is_false(creates_graph):
        return False  # part of a step: another backward pass uses the result
    return call.method in {"backward", "manual_backward"} or call.name in _BACKWARD_FUNCTIONS


def _is_step(call: CallFact) -> bool:
    return call.method == "step" and call.receiver.kind in (ValueKind.OPTIMIZER, ValueKind.SCALER)
