import re
from collections.abc import Sequence
from dataclasses import replace

import libcst as cst

from legroom.diagnose.lint.flow.call_results import (
    builtin_result,
    computed_from,
    inferred_model,
    loss_call,
    method_result,
    model_call,
    names_a_loss,
    new_instance,
    split_result,
    torch_result,
)
from legroom.diagnose.lint.flow.evidence.narrowing import without_tensors
from legroom.diagnose.lint.flow.facts import CallFact, FactContext, Function
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.retention.limits import is_small
from legroom.diagnose.lint.flow.syntax import (
    children,
    dotted,
    is_false,
    is_true,
    keyword,
    last_name,
    literal_key,
    method_name,
    moves_to_host,
    root,
    string_value,
)
from legroom.diagnose.lint.flow.values import (
    GRAPH,
    GRAPHLESS_ATTRIBUTES,
    MODEL,
    NUMBER_ATTRIBUTES,
    PARAMETER,
    PLAIN,
    TENSOR,
    UNKNOWN,
    Value,
    ValueKind,
    container,
    guess_from_name,
    join_values,
    prune,
    with_element,
    with_item,
    without_graph,
)


class Expressions:
    recording: bool
    no_grad: bool

    def __init__(self, program: Program, function: Function) -> None:
        self.program = program
        self.function = function
        self.names: dict[str, Value] = {}

    def record_call(self, call: CallFact) -> None:
        raise NotImplementedError

    def context_at(self, node: cst.CSTNode) -> FactContext:
        raise NotImplementedError

    def bind_iteration(
        self, target: cst.BaseExpression, source: cst.BaseExpression, iterable_path: Value
    ) -> None:
        raise NotImplementedError

    def kept_by(self, node: cst.Lambda | cst.FunctionDef) -> tuple[Value, ...]:
        raise NotImplementedError

    def evaluate_silently(self, node: cst.BaseExpression) -> Value:
        recording, self.recording = self.recording, False
        try:
            return self.value_of(node)
        finally:
            self.recording = recording

    def value_of(self, node: cst.CSTNode) -> Value:
        value = self._value_of(node)
        if self.recording:
            self.program.values[node] = value
        return value

    def _value_of(self, node: cst.CSTNode) -> Value:
        if type(node) is cst.Name:  # type() is faster than isinstance for the most frequent nodes
            return self._name(node.value)
        if type(node) is cst.Attribute:
            return self._attribute(node)
        if type(node) is cst.Call:
            return self._call(node)
        if isinstance(node, cst.BinaryOperation):
            result = self._computed([node.left, node.right])
            return PLAIN if self._formats_string(node) else result
        if isinstance(node, cst.UnaryOperation):
            return PLAIN if isinstance(node.operator, cst.Not) else self._computed([node.expression])
        if isinstance(node, cst.Subscript):
            return self._subscript(node)
        if isinstance(node, (cst.Tuple, cst.List, cst.Set)):
            items = tuple(prune(self.value_of(each.value)) for each in node.elements)
            return Value(ValueKind.CONTAINER, items=items) if items else container()
        if isinstance(node, cst.Dict):
            return self._dict(node)
        if isinstance(node, (cst.ListComp, cst.SetComp, cst.GeneratorExp, cst.DictComp)):
            return self._comprehension(node)
        if isinstance(node, cst.IfExp):
            self.value_of(node.test)
            return join_values(
                self._value_in_branch(node.body, without_tensors(node.test, self.names, holds=True)),
                self._value_in_branch(node.orelse, without_tensors(node.test, self.names, holds=False)),
            )
        if isinstance(node, cst.BooleanOperation):
            return join_values(self.value_of(node.left), self.value_of(node.right))
        if isinstance(node, cst.Comparison):
            values = [
                self.value_of(node.left),
                *(self.value_of(each.comparator) for each in node.comparisons),
            ]
            return TENSOR if any(each.is_tensor for each in values) else PLAIN
        if isinstance(node, cst.NamedExpr):
            value = self.value_of(node.value)
            path = dotted(node.target)
            if path is not None:
                self.names[path] = value
            return value
        if isinstance(node, (cst.BaseNumber, cst.BaseString, cst.Ellipsis)):
            self._record_nested(node)
            return PLAIN
        if isinstance(node, cst.Await):
            return self.value_of(node.expression)
        if isinstance(node, cst.Lambda):
            kept = self.kept_by(node)
            return Value(ValueKind.CONTAINER, items=kept) if kept else UNKNOWN
        if isinstance(node, cst.Yield) and isinstance(node.value, cst.From):
            return self.value_of(node.value.item).get(None) or UNKNOWN
        if isinstance(node, cst.Yield):
            return self.value_of(node.value) if isinstance(node.value, cst.BaseExpression) else UNKNOWN
        self._record_nested(node)
        return UNKNOWN

    def _formats_string(self, node: cst.BinaryOperation) -> bool:
        """Return True if `%` formats a string (`"%.3f" % loss`) instead of computing the remainder of a tensor."""
        return isinstance(node.operator, cst.Modulo) and not self.value_of(node.left).is_tensor

    def _value_in_branch(self, node: cst.BaseExpression, known: dict[str, Value]) -> Value:
        before = self.names
        self.names = {**before, **known}
        try:
            return self.value_of(node)
        finally:
            self.names = before

    def _record_nested(self, node: cst.CSTNode) -> None:
        for child in children(node):
            if isinstance(child, (cst.Call, cst.BinaryOperation, cst.Attribute, cst.Subscript, cst.IfExp)):
                self.value_of(child)
            else:
                self._record_nested(child)

    def _name(self, name: str) -> Value:
        if name in self.names:
            return self.names[name]
        if name in {"True", "False", "None"}:
            return PLAIN
        local = self.program.function_named(name, self.function)
        if local is not None:
            return Value(ValueKind.UNKNOWN, function=local.qualified_name)
        return UNKNOWN if self._is_class(name) else self.program.guess(name)

    def _is_class(self, name: str) -> bool:
        """Return True for a class in this file, and for a capitalized name that is imported or never assigned. Short
        names such as `G` and `D` usually refer to models, not to classes."""
        if name in self.program.classes:
            return True
        if not name[:1].isupper():
            return False
        return name in self.program.imports.full_names or (
            len(name) > 2 and name not in self.program.assigned_names
        )

    def _attribute(self, node: cst.Attribute) -> Value:
        path = dotted(node)
        if path is not None and path in self.names:
            return self.names[path]
        owner = self.value_of(node.value)
        return self._bound_method(owner, node.attr.value) or self._attribute_of(
            owner, node.attr.value, of_library=self._is_library(path)
        )

    def _bound_method(self, owner: Value, name: str) -> Value | None:
        """Return the method that an attribute refers to, such as `curve.add` in `train(on_step=curve.add)`."""
        if owner.class_name is None or owner.kind is not ValueKind.UNKNOWN:
            return None
        method = self.program.method(owner.class_name, name)
        if method is None or not isinstance(method.node, cst.FunctionDef) or method.node.decorators:
            return None
        return Value(ValueKind.UNKNOWN, function=method.qualified_name)

    def _is_library(self, path: str | None) -> bool:
        """Return True if a path starts with an imported module, such as `requests.head`, which is not a model."""
        first = root(path or "")
        known = self.names.get(first, UNKNOWN) if first in self.names else guess_from_name(first)
        return first in self.program.imports.full_names and known.kind is ValueKind.UNKNOWN

    def _attribute_of(self, owner: Value, name: str, *, of_library: bool = False) -> Value:
        if owner.kind is ValueKind.EXCEPTION:
            return owner if name in _FRAMES else UNKNOWN
        if owner.kind in (ValueKind.GRAPH, ValueKind.PARAMETER, ValueKind.TENSOR):
            if name in NUMBER_ATTRIBUTES:
                return PLAIN
            return TENSOR if name in GRAPHLESS_ATTRIBUTES else owner
        if owner.items is not None and len(owner.items) == 2 and name in _VALUES_AND_INDICES:
            return owner.items[_VALUES_AND_INDICES.index(name)]  # q.max(1).values
        if owner.kind is ValueKind.OPTIMIZER and name == "param_groups":
            return container(container(PLAIN, mapping=True, items_by_key=(("params", container(PARAMETER)),)))
        if owner.class_name is not None:
            known = self.program.classes[owner.class_name].attributes.get(f"self.{name}")
            if known is not None:
                return known
        if owner.kind is ValueKind.MODEL:
            if name in {"weight", "bias"}:
                return PARAMETER
            if _METHOD.match(name):
                return UNKNOWN
            if name in {"device", "dtype", "config", "training"}:
                return PLAIN
            return replace(MODEL, frozen=owner.frozen, trainable=owner.trainable)
        return owner if owner.output else UNKNOWN if of_library else guess_from_name(name)

    def _subscript(self, node: cst.Subscript) -> Value:
        owner = self.value_of(node.value)
        for each in node.slice:
            if isinstance(each.slice, cst.Index):
                self.value_of(each.slice.value)
        keys = [string_value(getattr(each.slice, "value", None)) for each in node.slice]
        if owner.kind is ValueKind.UNKNOWN and "params" in keys:
            return container(PARAMETER)  # an optimizer's parameter group
        if owner.kind is ValueKind.CONTAINER:
            if (
                owner.items is not None
                and len(node.slice) == 1
                and isinstance(node.slice[0].slice, cst.Index)
            ):
                index = node.slice[0].slice.value
                if isinstance(index, cst.Integer) and int(index.value) < len(owner.items):
                    return owner.items[int(index.value)]
            if any(isinstance(each.slice, cst.Slice) for each in node.slice):
                return owner
            return owner.get(literal_key(node)) or UNKNOWN
        if owner.kind is ValueKind.PARAMETER:
            return TENSOR if self.no_grad else GRAPH
        if owner.is_tensor or owner.kind is ValueKind.MODEL or owner.output:
            return owner
        return UNKNOWN

    def _dict(self, node: cst.Dict) -> Value:
        made = container(mapping=True)
        for each in node.elements:
            value = self.value_of(each.value)
            if isinstance(each, cst.DictElement):
                self.value_of(each.key)
                made = with_item(made, string_value(each.key), value)
            else:
                made = (
                    join_values(made, value)
                    if value.kind is ValueKind.CONTAINER
                    else with_element(made, value)
                )
        return made

    def _comprehension(self, node: cst.ListComp | cst.SetComp | cst.GeneratorExp | cst.DictComp) -> Value:
        names = dict(self.names)
        part: cst.CompFor | None = node.for_in
        while part is not None:
            self.bind_iteration(part.target, part.iter, self.value_of(part.iter))
            for condition in part.ifs:
                self.value_of(condition.test)
            part = part.inner_for_in
        if isinstance(node, cst.DictComp):
            self.value_of(node.key)
            element = self.value_of(node.value)
        else:
            element = self.value_of(node.elt)
        self.names = names
        return container(element, mapping=isinstance(node, cst.DictComp))

    def _computed(self, parts: Sequence[cst.BaseExpression]) -> Value:
        values = [self.value_of(each) for each in parts]
        lists = [each for each in values if each.kind is ValueKind.CONTAINER]
        if lists and len(parts) > 1:  # concatenated lists
            return join_values(values[0], values[1]) if len(lists) > 1 else lists[0]
        return computed_from(values, no_grad=self.no_grad)

    def _call(self, node: cst.Call) -> Value:
        name = self.program.imports.qualified(node.func)
        owner = UNKNOWN
        if isinstance(node.func, cst.Attribute):
            owner = self.value_of(node.func.value)
        elif not isinstance(node.func, cst.Name):
            owner = self.value_of(node.func)
        arguments = tuple(self.value_of(each.value) for each in node.args)
        called = self._called_value(node.func, owner)
        local = self._local_function(node, owner, called)
        result = self._result(node, name, owner, called, arguments, local)
        is_model = called.kind in (ValueKind.MODEL, ValueKind.CRITERION)
        if is_model and owner.kind in (ValueKind.UNKNOWN, ValueKind.PLAIN):
            owner = called
        elif local is None and owner.kind is ValueKind.UNKNOWN:
            owner = inferred_model(name, arguments) or owner
        self.record_call(
            CallFact(
                node=node,
                at=self.context_at(node),
                name=name,
                method=method_name(node),
                receiver=owner,
                arguments=arguments,
                result=result,
                local=local,
            )
        )
        return result

    def _called_value(self, func: cst.BaseExpression, owner: Value) -> Value:
        """Return the model, loss or function that is called. `owner` is the object whose attribute is called."""
        path = dotted(func)
        if path is not None and path in self.names:
            return self.names[path]
        if isinstance(func, cst.Name):
            return self._name(func.value)
        if isinstance(func, cst.Attribute):
            return self._attribute_of(owner, func.attr.value, of_library=self._is_library(path))
        return owner  # nn.Linear(2, 2)(x)

    def _local_function(self, node: cst.Call, owner: Value, called: Value) -> Function | None:
        if called.function is not None:
            return self.program.functions.get(called.function)
        if isinstance(node.func, cst.Attribute):
            name = node.func.attr.value
            if owner.class_name is not None:
                found = self.program.method(owner.class_name, name)
                if found is not None:
                    return found
            of_class = dotted(node.func.value)
            if of_class in self.program.classes and of_class not in self.names:
                return self.program.method(of_class, name)
            if isinstance(node.func.value, cst.Call) and dotted(node.func.value.func) == "super":
                return self.program.inherited(self.function.class_name, name)
        made = dotted(node.func)
        if made in self.program.classes and made not in self.names:
            return self.program.method(made, "__init__")
        if called.kind is ValueKind.MODEL and called.class_name is not None:
            return self.program.method(called.class_name, "forward")
        if called.class_name is not None and called.kind is ValueKind.UNKNOWN:
            return self.program.method(called.class_name, "__call__")
        return None

    def _result(
        self,
        node: cst.Call,
        name: str | None,
        owner: Value,
        called: Value,
        arguments: tuple[Value, ...],
        local: Function | None,
    ) -> Value:
        no_grad, path = self.no_grad, dotted(node.func)
        if path == "cls" and self.function.class_name is not None:
            path = self.function.class_name
        if path is not None and path in self.program.classes and path not in self.names:
            return new_instance(self.program, path, arguments)
        if name is not None:
            requires_grad = is_true(keyword(node, "requires_grad"))
            known = torch_result(name, arguments, requires_grad=requires_grad, no_grad=no_grad)
            if name.endswith("autograd.grad") and is_true(keyword(node, "create_graph")):
                return container(GRAPH)
            if known is None and (owner.kind is ValueKind.UNKNOWN or name.startswith("collections.")):
                known = self._builtin(node, name, arguments)
            if known is not None:
                return known
        if isinstance(node.func, cst.Name) and node.func.value not in self.names:
            guess = guess_from_name(node.func.value)
            if self._is_class(node.func.value):  # UNet(3, 2)
                return guess if guess.kind in (ValueKind.MODEL, ValueKind.CRITERION) else UNKNOWN
        if (
            called.kind is ValueKind.MODEL
            and local is None
            and arguments[:1]
            and arguments[0].kind is ValueKind.MODEL
        ):
            return arguments[0]  # accelerator.unwrap_model(model): a model does not receive a model
        is_other_method = local is not None and local.name not in {"forward", "__call__"}
        is_part = owner.kind is not ValueKind.MODEL or local is not None or self._is_submodule(node)
        if called.kind is ValueKind.MODEL and is_part and not is_other_method:
            no_grad = no_grad or (local is not None and local.no_grad)
            return split_result(model_call(called, arguments, no_grad=no_grad), local)
        if called.kind is ValueKind.CRITERION:
            return loss_call(arguments, no_grad=no_grad)
        if local is None and (run := inferred_model(name, arguments)) is not None:
            return model_call(run, arguments, no_grad=no_grad)
        if local is not None and local is not self.function:
            returned = self.program.returned_by(local, node)
            if returned.kind is ValueKind.UNKNOWN and not returned.function and names_a_loss(local.name):
                return loss_call(arguments, no_grad=no_grad)
            return without_graph(returned) if no_grad else returned
        if isinstance(node.func, cst.Attribute):
            if owner.kind is ValueKind.MODEL and node.func.attr.value == "requires_grad_":
                return self._frozen(node, owner)
            if owner.mapping and arguments and node.func.attr.value in {"get", "pop", "setdefault"}:
                stored = owner.get(literal_key(node)) or UNKNOWN
                return join_values(stored, arguments[1]) if len(arguments) > 1 else stored
            method = "cpu" if moves_to_host(node) else node.func.attr.value
            found = method_result(owner, method, arguments, no_grad=no_grad)
            if found is not None:
                return found
            # executor.submit(function, *arguments) returns a future.
            if node.func.attr.value == "submit" and len(arguments) > 1:
                return Value(ValueKind.CONTAINER, items=arguments[1:])
            if node.func.attr.value == "prepare" and len(arguments) > 1:  # accelerate, fabric
                return Value(ValueKind.CONTAINER, items=arguments)
            if node.func.attr.value == "prepare" and arguments:
                return arguments[0]
            if owner.kind is ValueKind.MODEL and self._is_submodule(node):
                return model_call(owner, arguments, no_grad=no_grad)
            if owner.kind is ValueKind.MODEL or is_true(keyword(node, "convert_to_tensor")):
                return Value(ValueKind.UNKNOWN, output=True)
        if name is not None and names_a_loss(name) and any(each.has_graph for each in arguments):
            return loss_call(arguments, no_grad=no_grad)
        return UNKNOWN

    def _frozen(self, node: cst.Call, model: Value) -> Value:
        unfrozen = not node.args or is_true(node.args[0])
        frozen = bool(node.args) and is_false(node.args[0])
        value = replace(model, frozen=frozen, trainable=model.trainable and unfrozen)
        path = dotted(node.func.value) if isinstance(node.func, cst.Attribute) else None
        if path is not None:
            self.names[path] = value
        return value

    def _is_submodule(self, node: cst.Call) -> bool:
        """Return True if `model.encoder(x)` calls a submodule instead of a method."""
        path = dotted(node.func)
        if path is not None and path in self.names:
            return self.names[path].kind is ValueKind.MODEL
        return path is not None and guess_from_name(last_name(path)).kind is ValueKind.MODEL

    def _builtin(self, node: cst.Call, name: str, arguments: tuple[Value, ...]) -> Value | None:
        known = builtin_result(name, arguments)
        if known is not None and name in {"dict", "collections.OrderedDict"}:
            known = known if known.mapping else container(known.get(None), mapping=True)
            for argument, value in zip(node.args, arguments, strict=True):
                if argument.keyword is not None:
                    known = with_item(known, argument.keyword.value, value)
                elif argument.star == "**" and value.kind is ValueKind.CONTAINER:
                    known = join_values(known, value)
            return known
        if known is not None and name.endswith("defaultdict") and node.args:
            made = dotted(node.args[0].value)
            if made in self.program.classes:
                return container(Value(ValueKind.UNKNOWN, class_name=made), mapping=True)
        if known is None and name.rpartition(".")[2] in _QUEUES and _QUEUE_MODULES.search(name):
            limit = keyword(node, "maxsize") or (node.args[0] if node.args else None)
            unlimited = limit is None or (isinstance(limit.value, cst.Integer) and limit.value.value == "0")
            return container(
                bounded=limit is not None
                and not unlimited
                and is_small(self.program, limit.value, self.function)
            )
        if known is not None and known.kind is ValueKind.CONTAINER and name.endswith("deque"):
            limit = keyword(node, "maxlen") or (node.args[1] if len(node.args) > 1 else None)
            if limit is not None and is_small(self.program, limit.value, self.function):
                return container(known.element, bounded=True)
        return known


_FRAMES = {"__traceback__", "__context__", "__cause__", "tb_frame", "tb_next"}
"""Attributes through which an exception keeps the variables of its frames alive."""
_QUEUES = {"Queue", "LifoQueue", "PriorityQueue", "SimpleQueue", "JoinableQueue"}
_QUEUE_MODULES = re.compile(r"^(?:queue|asyncio|multiprocessing|torch\.multiprocessing)\.")
_METHOD = re.compile(
    r"(?:encode|decode|embed|forward|generate|predict|transform)(?:_|$)|\w*(?:_fn|_function|similarity|tokenizer|processor)$"
)
"""Matches methods of a model. `model.encoder` is a submodule, not a method."""
_VALUES_AND_INDICES = ("values", "indices")
