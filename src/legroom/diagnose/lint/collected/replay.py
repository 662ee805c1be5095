"""Finds replay buffers on the GPU in programs that move each sample to the GPU again (LG101)."""

from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.collected.additions import additions_by_calls
from legroom.diagnose.lint.flow.facts import StoreFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.retention.limits import is_replayed
from legroom.diagnose.lint.flow.syntax import (
    contained_parts,
    dotted,
    keyword,
    last_name,
    method_name,
    names_in,
    positional,
    string_value,
    walk,
)
from legroom.diagnose.lint.flow.values import TENSOR_FACTORIES, ValueKind
from legroom.diagnose.lint.rule import Problem


def replayed_on_gpu(program: Program) -> Iterator[Problem]:
    """Find `memory.append((state, action))` with a state on the GPU.

    The container `memory` has no limit, or a limit of more than 10,000 entries. If a program moves each sample to the
    GPU, the entries are probably meant to be in host memory.
    """
    if not program.drawn_names or not program.uses_gpu:
        return
    reported: set[str] = set()
    added = [(each.target, each) for each in program.stores if each.how in {"append", "item"}]
    added += [(store.target, addition) for _, addition, store in additions_by_calls(program)]
    for target, store in added:
        if target in reported or store.bounded or not store.loops or not is_replayed(program, target):
            continue
        for part in (store.expression, *contained_parts(store.expression)):
            value = program.value(part)
            made = _made_on_gpu(program, part, store) if value.kind is ValueKind.TENSOR else None
            if value.host or made is None or not _moves_samples(program, last_name(target)):
                continue
            reported.add(target)
            in_function = store.function.node is not program.top.node and program.inside(
                made, store.function.node
            )
            yield Problem(
                node=part if in_function else made,
                message=f"`{target}` keeps this tensor on the GPU for many steps, so the whole replay buffer is on the GPU",
                help="Create and store the tensor in host memory",
            )
            break


def _made_on_gpu(program: Program, part: cst.BaseExpression, store: StoreFact) -> cst.BaseExpression | None:
    """Return the call that creates a tensor on the GPU or moves it there. The call is in the expression itself, in an
    assignment to the variable that it names, or in a function whose result it uses.
    """
    path = dotted(part)
    sources: list[cst.BaseExpression] = [part]
    if path is not None:
        sources = [
            each.expression
            for each in program.stores
            if each.target == path and each.function is store.function and each.how == "assign"
        ]
    found = [node for each in sources for node in walk(each) if isinstance(node, cst.Call)]
    found += [
        node
        for call in program.calls
        if call.local is not None and call.node in found
        for each in call.local.returned_nodes
        for node in walk(each)
        if isinstance(node, cst.Call)
    ]
    return next((each for each in found if is_put_on_gpu(program, each)), None)


def is_put_on_gpu(program: Program, node: cst.Call) -> bool:
    """Return True if a call creates a tensor on the GPU or moves it there. Examples are
    `torch.tensor(x, device=device)`, `x.to(device)` and `x.cuda()`.
    """
    given = keyword(node, "device")
    if given is None and method_name(node) == "to":
        given = next(iter(positional(node)), None)
    elif method_name(node) == "cuda":
        return True
    elif last_name(program.imports.qualified(node.func) or "") not in TENSOR_FACTORIES:
        return False
    if given is None:
        return False
    text = string_value(given.value)
    if text is not None:
        return text.startswith("cuda")
    return any("device" in last_name(name).lower() for name in names_in(given.value))


def _moves_samples(program: Program, name: str) -> bool:
    """Return True if a function that draws samples moves tensors to the GPU.

    The result is also True if the program uses `Conv2d`. In this case, the samples are probably images, which are too
    large for a buffer on the GPU.
    """
    if program.mentions("Conv2d"):
        return True
    drawing = {
        function
        for function in program.functions.values()
        if function.name
        and any(isinstance(each, cst.Call) and _draws(each, name) for each in walk(function.body))
    }
    drawing |= {call.function for call in program.calls if call.local in drawing}
    return any(
        function in drawing
        and any(
            isinstance(each, cst.Call)
            and method_name(each) in {"to", "cuda"}
            and is_put_on_gpu(program, each)
            and any(isinstance(inner, cst.Call) for inner in walk(each.func))
            for each in walk(function.body)
        )
        for function in program.functions.values()
        if function.name
    )


def _draws(node: cst.Call, name: str) -> bool:
    return method_name(node) in {"sample", "choice", "choices"} and any(
        last_name(path) == name for each in node.args for path in names_in(each.value)
    )
