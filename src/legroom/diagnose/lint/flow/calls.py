"""Determines the results of calls."""

import re
from dataclasses import replace

import libcst as cst

from legroom.diagnose.lint.flow.call_results import (
    builtin_result,
    element_of,
    inferred_model,
    loss_call,
    method_result,
    model_call,
    names_a_loss,
    new_instance,
    split_result,
    torch_result,
)
from legroom.diagnose.lint.flow.evidence.host_copies import argument_of, host_copy_of, mapped_copy
from legroom.diagnose.lint.flow.expressions import Expressions
from legroom.diagnose.lint.flow.facts import CallFact, Function
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.retention.limits import is_small
from legroom.diagnose.lint.flow.syntax import (
    append_method,
    dotted,
    has_star,
    is_call_of,
    is_false,
    is_true,
    keyword,
    last_name,
    literal_key,
    method_name,
    moves_to_host,
    positional,
    receiver,
)
from legroom.diagnose.lint.flow.values import (
    GRAPH,
    MODEL,
    SELF_METHODS,
    UNKNOWN,
    Value,
    ValueKind,
    container,
    guess_from_name,
    join_values,
    with_item,
    without_graph,
)


class Calls(Expressions):
    def __init__(self, program: Program, function: Function) -> None:
        super().__init__(program, function)
        self._inlined: set[cst.Lambda] = set()

    def call(self, node: cst.Call) -> Value:
        path = dotted(node.func) or ""
        defined = self.program.definitions
        if path in defined.partials and path not in self.function.parameters and not has_star(node):
            full = defined.apply(node, path)
            self.program.order[full], self.program.parent[full] = (
                self.program.order[node],
                self.program.parent[node],
            )
            return self.call(full)
        name = self.program.imports.qualified(node.func)
        owner = UNKNOWN
        if type(node.func) is cst.Attribute:
            owner = self.value_of(node.func.value)
        elif type(node.func) is not cst.Name:
            owner = self.value_of(node.func)
        arguments = tuple(self.value_of(each.value) for each in node.args)
        called = self._called_value(node.func, owner)
        local = self._local_function(node, owner, called)
        result = self._converted(node, arguments, local)
        if result is None:
            result = self._result(node, name, owner, called, arguments, local)
        if result == UNKNOWN and path in defined.lambdas and path not in self.function.parameters:
            result = self._result_of_lambda(defined.lambdas[path], node, arguments)
        elif result == UNKNOWN and type(node.func) is cst.Subscript:
            result = self._result_of_table(node.func, node, arguments)
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

    def _converted(
        self, node: cst.Call, arguments: tuple[Value, ...], local: Function | None
    ) -> Value | None:
        """Return the result of a function that copies all tensors in its argument to the host or detaches them."""
        if local is None:
            mapped = mapped_copy(self.program, node)
            if mapped is None:
                return None
            copy, given = mapped
            return copy.convert(self._argument(node, arguments, given))
        found = host_copy_of(self.program, local, node)
        argument = argument_of(local, node, found.parameter) if found is not None else None
        if found is None or argument is None:
            return None
        result = found.convert(self._argument(node, arguments, argument))
        path = dotted(argument)
        if found.in_place and path is not None and path in self.names:
            self.names[path] = result
        return result

    def _argument(self, node: cst.Call, arguments: tuple[Value, ...], given: cst.BaseExpression) -> Value:
        index = next(number for number, each in enumerate(node.args) if each.value is given)
        return element_of(arguments[index]) if node.args[index].star else arguments[index]

    def _result_of_lambda(self, made: cst.Lambda, node: cst.Call, arguments: tuple[Value, ...]) -> Value:
        """Evaluate the body of a lambda as if the call contained it."""
        if made in self._inlined or append_method(made) is not None:
            return UNKNOWN
        names = [each.name.value for each in made.params.params]
        given = dict(zip(names, arguments, strict=False))
        given |= {
            each.keyword.value: value
            for each, value in zip(node.args, arguments, strict=True)
            if each.keyword is not None
        }
        outer, self.names = self.names, {**self.names, **given}
        self._inlined.add(made)
        result = self.value_of(made.body)
        self._inlined.remove(made)
        outer.update({path: value for path, value in self.names.items() if path not in given})
        self.names = outer
        return result

    def _result_of_table(self, item: cst.Subscript, node: cst.Call, arguments: tuple[Value, ...]) -> Value:
        """Return the model that a call such as `{"small": lambda: Net(8), "large": build}[name]()` creates. The result
        is known only if all entries of the dict create models.
        """
        table = item.value
        if not isinstance(table, cst.Dict):
            path = dotted(table) or ""
            defined = self.program.definitions.tables.get(path)
            if defined is None or path in self.function.parameters:
                return UNKNOWN
            table = defined
        made = [self._made_by(each.value, node, arguments) for each in table.elements]
        if not made or any(each.kind is not ValueKind.MODEL for each in made):
            return UNKNOWN
        known = made[0].class_name if len({each.class_name for each in made}) == 1 else None
        is_frozen = any(each.frozen for each in made)
        trainable = not is_frozen and all(each.trainable for each in made)
        return replace(MODEL, class_name=known, frozen=is_frozen, trainable=trainable)

    def _made_by(self, entry: cst.BaseExpression, node: cst.Call, arguments: tuple[Value, ...]) -> Value:
        if isinstance(entry, cst.Lambda):
            return self._result_of_lambda(entry, node, arguments)
        path = self.program.defined_path(entry)
        if path in self.names and self.names[path].function is None:
            return UNKNOWN
        if path in self.program.classes:
            return new_instance(self.program, path, arguments)
        if path in self.program.functions:
            return self.program.functions[path].returns
        name = self.program.imports.qualified(entry)
        known = torch_result(name, arguments, requires_grad=False, no_grad=self.no_grad) if name else None
        return known or UNKNOWN

    def _called_value(self, func: cst.BaseExpression, owner: Value) -> Value:
        """Return the model, loss or function that is called. `owner` is the object whose attribute is called."""
        path = dotted(func)
        if path is not None and path in self.names:
            return self.names[path]
        if path is not None and path in self.program.aliases:
            return self._name(self.program.aliases[path])
        if type(func) is cst.Name:
            return self._name(func.value)
        if type(func) is cst.Attribute:
            return self._attribute_of(owner, func.attr.value, of_library=self._is_library(path))
        return owner  # nn.Linear(2, 2)(x)

    def called_function(self, node: cst.Call) -> Function | None:
        """Return the function that a call runs, if this file defines it."""
        owner = self.evaluate_silently(node.func.value) if type(node.func) is cst.Attribute else UNKNOWN
        return self._local_function(node, owner, self._called_value(node.func, owner))

    def _local_function(self, node: cst.Call, owner: Value, called: Value) -> Function | None:
        if called.function is not None:
            return self.program.functions.get(called.function)
        if type(node.func) is cst.Attribute:
            name = node.func.attr.value
            if owner.class_name is not None:
                found = self.program.method(owner.class_name, name)
                if found is not None:
                    return found
            of_class = self.program.defined_path(node.func.value)
            if of_class in self.program.classes and of_class not in self.names:
                return self.program.method(of_class, name)
            if type(node.func.value) is cst.Call and dotted(node.func.value.func) == "super":
                return self.program.inherited(self.function.class_name, name)
        made = self.program.defined_path(node.func)
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
        no_grad, path = self.no_grad, self.program.defined_path(node.func)
        if path == "cls" and self.function.class_name is not None:
            path = self.function.class_name
        if path is not None and path in self.program.classes and path not in self.names:
            return new_instance(self.program, path, arguments)
        if path in self.program.definitions.records:
            return Value(ValueKind.CONTAINER, items=arguments)
        if name == "types.SimpleNamespace":
            return self._keyed(container(), node, arguments)
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
        runs_other = local is not None and any(each.kind is ValueKind.MODEL for each in arguments)
        is_other_method = local is not None and local.name not in {"forward", "__call__"}
        is_part = owner.kind is not ValueKind.MODEL or local is not None or self._is_submodule(node)
        if called.kind is ValueKind.MODEL and is_part and not is_other_method and not runs_other:
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
            if node.func.attr.value == "submit" and len(arguments) > 1:  # a future keeps its arguments
                result = self._result_of_passed(arguments[0], arguments[1:])
                return Value(ValueKind.CONTAINER, items=(result, *arguments[1:]))
            if node.func.attr.value == "map" and len(arguments) > 1 and self.program.mentions(*_THREADS):
                return container(self._result_of_passed(arguments[0], tuple(map(element_of, arguments[1:]))))
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

    def _result_of_passed(self, function: Value, arguments: tuple[Value, ...]) -> Value:
        """Return the result of a function or model that another thread runs. `no_grad` applies only to the thread that
        enters it.
        """
        if function.kind is ValueKind.MODEL:
            return model_call(function, arguments, no_grad=False)
        known = self.program.functions.get(function.function or "")
        return known.returns if known is not None else UNKNOWN

    def _frozen(self, node: cst.Call, model: Value) -> Value:
        unfrozen = not node.args or is_true(node.args[0])
        frozen = bool(node.args) and is_false(node.args[0])
        value = replace(model, frozen=frozen, trainable=model.trainable and unfrozen)
        owner = receiver(node)
        while (
            isinstance(owner, cst.Call) and method_name(owner) in SELF_METHODS
        ):  # model.eval().requires_grad_(False)
            owner = receiver(owner)
        path = dotted(owner)
        if path is not None:
            self.names[path] = value
        return value

    def _is_submodule(self, node: cst.Call) -> bool:
        """Return True if a call such as `model.encoder(x)` runs a submodule instead of a method."""
        path = dotted(node.func)
        if path is not None and path in self.names:
            return self.names[path].kind is ValueKind.MODEL
        return path is not None and guess_from_name(last_name(path)).kind is ValueKind.MODEL

    def _keyed(self, known: Value, node: cst.Call, arguments: tuple[Value, ...]) -> Value:
        for argument, value in zip(node.args, arguments, strict=True):
            if argument.keyword is not None:
                known = with_item(known, argument.keyword.value, value)
            elif argument.star == "**" and value.kind is ValueKind.CONTAINER:
                known = join_values(known, value)
        return known

    def _builtin(self, node: cst.Call, name: str, arguments: tuple[Value, ...]) -> Value | None:
        known = builtin_result(name, arguments)
        if known is not None and name in {"dict", "collections.OrderedDict"}:
            pairs = node.args[0].value if node.args else None
            if isinstance(pairs, cst.Call) and is_call_of(pairs, "zip") and len(positional(pairs)) == 2:
                known = container(element_of(self.evaluate_silently(pairs.args[1].value)))
            known = known if known.mapping else container(known.get(None), mapping=True)
            return self._keyed(known, node, arguments)
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


_THREADS = ("ThreadPoolExecutor", "ThreadPool")
_QUEUES = {"Queue", "LifoQueue", "PriorityQueue", "SimpleQueue", "JoinableQueue"}
_QUEUE_MODULES = re.compile(r"^(?:queue|asyncio|multiprocessing|torch\.multiprocessing)\.")
