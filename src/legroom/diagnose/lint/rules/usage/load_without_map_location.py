"""LG301: torch.load restores tensors to their original device

## What it detects
The rule checks for `torch.load` without `map_location` in two cases: the source file uses several ranks, or the program
uses CUDA and passes the result to `load_state_dict`. A device that another file or an option selects, as in
`batch.to(self.device)`, counts as CUDA.

The rule also checks for `map_location=device` if the program restores a model from the checkpoint and does not delete
the checkpoint afterwards. In this case, the rule applies only if the program also restores an optimizer, or trains the
model in the same function.

The rule does not flag `model.load_state_dict(torch.load(path))` if the program uses one rank and moves the model to the
GPU afterwards, because the loaded copy is released before.

In a program with several ranks, the rule also checks for a fixed GPU, such as `map_location="cuda:0"`, unless only one
rank runs the code. `"cuda"` without an index counts as a fixed GPU if no code selects a GPU for each process.

## Why this is a problem
A checkpoint stores the device of each tensor. Without `map_location`, every rank loads the tensors onto the
GPU that they were saved from, usually `cuda:0`. Then `cuda:0` contains one copy of the checkpoint per rank.
`map_location="cuda:0"` has the same effect. Each process on `cuda:0` also allocates a CUDA context there.
On a single GPU, the weights exist twice until the loaded copy is released.

## Example
```python
state = torch.load(path)
```

## Use instead
```python
state = torch.load(path, map_location="cpu")   # load_state_dict copies to the right device
```

## Fix safety
The fix sets `map_location="cpu"`. The fix is safe if the result is used only as the argument of `load_state_dict`,
which copies the tensors to the right device. Otherwise, and if the file defines a method with this name, the fix is
unsafe.
"""

import re
from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.edits import add_argument, replace
from legroom.diagnose.lint.flow.facts import CallFact, Function
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import (
    dotted,
    has_star,
    is_call_of,
    keyword,
    last_name,
    method_name,
    names_in,
    positional,
    receiver,
    root,
    string_value,
    walk,
)
from legroom.diagnose.lint.flow.values import ValueKind
from legroom.diagnose.lint.rule import Problem

CODE = "LG301"
_SMALL = re.compile(r"sched|scaler|rng|random", re.IGNORECASE)
_CHECKPOINT = re.compile(
    r"ckpt|checkpoint|weights|state|model|resume|snapshot|pretrained|\.pth?\b", re.IGNORECASE
)
_RANKS = (
    "init_process_group",
    "DistributedDataParallel",
    "DDP",
    "local_rank",
    "LOCAL_RANK",
    "DistributedSampler",
)


def check(program: Program) -> Iterator[Problem]:
    ranks = program.mentions(*_RANKS) or '"LOCAL_RANK"' in program.text
    cuda = (
        program.mentions("cuda", "is_available")
        or '"cuda' in program.text
        or "'cuda" in program.text
        or _moves_to_device(program)
    )
    for call in program.calls:
        if call.name != "torch.load" or has_star(call.node):
            continue
        if _is_small(program, call):
            continue
        into_state = _is_loaded_into_model(program, call)
        is_checkpoint = into_state or _names_a_checkpoint(program, call)
        location = keyword(call.node, "map_location") or next(iter(positional(call.node)[1:]), None)
        if location is not None:
            if ranks and is_checkpoint and _is_one_gpu_for_all_ranks(program, call, location.value):
                yield Problem(
                    node=call.node,
                    message=f"Every rank loads the checkpoint onto the same GPU (`{program.source(location.value)}`)",
                    help='Load the checkpoint into host memory: use `map_location="cpu"`',
                    edits=(replace(program, location.value, '"cpu"'),),
                    safe=into_state and _is_only_copied(program, call),
                )
            elif program.uses_gpu and _names_a_gpu(location.value) and _restores_training(program, call):
                yield Problem(
                    node=call.node,
                    message="The checkpoint is loaded onto the GPU in addition to the model's own weights",
                    help='Load the checkpoint into host memory: use `map_location="cpu"`. `load_state_dict` copies the weights to the right device',
                    edits=(replace(program, location.value, '"cpu"'),),
                    safe=_is_only_copied(program, call),
                )
            continue
        if not (into_state and cuda) and not (ranks and is_checkpoint):
            continue
        if not ranks and _is_released_before_move(program, call):
            continue
        yield Problem(
            node=call.node,
            message="Every rank loads the checkpoint onto the device that it was saved from"
            if ranks
            else "The checkpoint is loaded onto the GPU in addition to the model's own weights",
            help='Load the checkpoint into host memory: add `map_location="cpu"`',
            edits=(add_argument(program, call.node, 'map_location="cpu"'),),
            safe=into_state and _is_only_copied(program, call),
        )


def _moves_to_device(program: Program) -> bool:
    """Return True if a program moves its data to a device that another file or an option selects, as in
    `batch.to(self.device)`.

    A model that follows the device of its input, as in `mask.to(x.device)`, may run anywhere.
    """
    return not re.search(r"[\"']cpu\b", program.text) and any(
        call.method == "to"
        and not program.is_module_class(call.function.class_of_self)
        and any(_SELECTED_DEVICE.search(dotted(each.value) or "") for each in call.node.args)
        for call in program.calls
    )


_SELECTED_DEVICE = re.compile(
    r"^(?:self\.)?(?:\w*(?:args?|opts?|options?|cfg|conf|config|params|flags)\.)?(?:\w+_)?device$",
    re.IGNORECASE,
)


def _is_released_before_move(program: Program, call: CallFact) -> bool:
    """Return True for `model.load_state_dict(torch.load(path))` before `model.to(device)`. The loaded copy is released
    before the weights of the model are on the GPU.
    """
    loading = next(
        (
            other
            for other in program.calls
            if other.method == "load_state_dict"
            and other.node.args
            and call.node in _parts(other.node.args[0].value)
        ),
        None,
    )
    path = dotted(receiver(loading.node)) if loading is not None else None
    if loading is None or path is None or program.mentions("set_default_device", "set_default_tensor_type"):
        return False
    made = [
        each
        for each in program.stores
        if each.target == path and each.function is call.function and each.how == "assign"
    ]
    before = [each for each in made if each.order < loading.order]
    if not before or any(_may_be_on_gpu(program, each.expression) for each in before):
        return False
    moved = [
        each.order
        for each in program.calls
        if each.method in {"cuda", "to"}
        and each.function is call.function
        and dotted(receiver(each.node)) in {path, *(each.target for each in made)}
    ]
    return bool(moved) and min(moved) > loading.order


def _may_be_on_gpu(program: Program, made: cst.BaseExpression) -> bool:
    """Return True if the expression that creates a model, or a function that it calls, names a device."""
    text = program.source(made)
    for node in walk(made):
        call = program.call_of(node)
        if call is None:
            continue
        if call.local is not None:
            text += program.source(call.local.node)
        elif not _creates_on_cpu(call):
            return True
    return _PLACES.search(text) is not None


def _creates_on_cpu(call: CallFact) -> bool:
    """Return True for a class or a function of a library. A function of another file may move its model to the GPU."""
    name = call.name or call.method or ""
    return last_name(name)[:1].isupper() or name.startswith(("torch.", "torchvision.", "timm."))


_PLACES = re.compile(r"cuda|device|gpu|\.to\(|accelerat|from_pretrained|torch\.load", re.IGNORECASE)


def _names_a_gpu(node: cst.BaseExpression) -> bool:
    """Return True if an expression may refer to a GPU, as in `"cuda:0"`, `torch.device("cuda")`, `device` and
    `args.device`.
    """
    text = string_value(node)
    if text is not None:
        return text.startswith(("cuda", "mps", "xpu"))
    if isinstance(node, cst.Call):
        return is_call_of(node, "device") and bool(node.args) and _names_a_gpu(node.args[0].value)
    return bool(_DEVICE.search(last_name(dotted(node) or "")))


_DEVICE = re.compile(r"^(?:\w*_)?(?:device|dev|gpu)$", re.IGNORECASE)


def _is_one_gpu_for_all_ranks(program: Program, call: CallFact, location: cst.BaseExpression) -> bool:
    """Return True if all ranks use the same GPU as `map_location`, and not only one rank loads the file."""
    index = _gpu_index(program, call.function, location)
    if index is None or "CUDA_VISIBLE_DEVICES" in program.text:
        return False
    if not index and (not program.mentions("init_process_group") or _CURRENT_GPU.search(program.text)):
        return False
    return not _runs_on_one_rank(program, call.node, call.function)


_CURRENT_GPU = re.compile(
    r"set_device|set_current|CUDA_VISIBLE_DEVICES|cuda\.device\(|device_id ?=|init_device_mesh|DeviceMesh|gloo|Accelerator"
)
"""Code that may select the current GPU of each process."""


def _gpu_index(program: Program, function: Function, node: cst.BaseExpression, depth: int = 0) -> str | None:
    """Return the index of a fixed GPU, "" for the current GPU, and None for other devices."""
    text = string_value(node)
    if text is not None:
        found = re.fullmatch(r"(?:cuda|xpu)(?::(\d+))?", text)
        return None if found is None else found[1] or ""
    if isinstance(node, cst.Integer):
        return node.value
    if isinstance(node, cst.IfExp) and "is_available" in program.source(node.test):
        return _gpu_index(program, function, node.body, depth)
    if isinstance(node, cst.Dict) and node.elements:
        found_indices = {_gpu_index(program, function, each.value, depth) for each in node.elements}
        return found_indices.pop() if len(found_indices) == 1 else None
    if isinstance(node, cst.Lambda) and isinstance(node.body, cst.Call) and method_name(node.body) == "cuda":
        given = node.body.args
        return _gpu_index(program, function, given[0].value, depth) if given else ""
    if isinstance(node, cst.Call) and is_call_of(node, "device") and node.args:
        indices = [_gpu_index(program, function, each.value, depth) for each in node.args]
        return indices[-1] if None not in indices else None
    path = dotted(node)
    default = _default(function, path) if path in function.parameters else None
    if default is not None and any(
        function.uses_default(site.call, path or "") for site in function.call_sites
    ):
        return _gpu_index(program, program.top, default, depth + 1)
    made = [
        each for each in program.stores if each.target == path and each.function in (function, program.top)
    ]
    if path is None or path in function.parameters or len(made) != 1 or depth > 2:
        return None
    return _gpu_index(program, made[0].function, made[0].expression, depth + 1)


def _default(function: Function, name: str | None) -> cst.BaseExpression | None:
    parameters = function.node.params if isinstance(function.node, cst.FunctionDef) else cst.Parameters()
    given = (*parameters.params, *parameters.kwonly_params)
    return next((each.default for each in given if each.name.value == name), None)


def _runs_on_one_rank(
    program: Program, node: cst.CSTNode, function: Function, seen: frozenset[Function] = frozenset()
) -> bool:
    """Return True if an `if` statement may select the rank that runs a node, such as `if rank == 0:`."""
    tests = [
        each.test
        for each in (*program.ancestors(node), *walk(function.body, into_functions=False))
        if isinstance(each, cst.If)
        and (program.inside(node, each) or (_leaves(each) and not isinstance(function.node, cst.Module)))
    ]
    if any(_ONE_RANK.search(program.source(each)) for each in tests) or _SINGLE.search(function.name):
        return True
    sites = [each for each in function.call_sites if each.caller not in seen and each.caller is not function]
    return bool(sites) and all(
        _runs_on_one_rank(program, each.call, each.caller, seen | {function}) for each in sites
    )


_ONE_RANK = re.compile(
    r"rank|main|master|distributed|world_size|ddp|local|gpu|primary|parallel", re.IGNORECASE
)
_SINGLE = re.compile(
    r"(?:^|_)(?:infer|inference|predict|export|convert|demo|sample|generate|visualize)", re.IGNORECASE
)
"""Names of functions that a program may run in a single process."""


def _leaves(node: cst.If) -> bool:
    """Return True for `if rank != 0: return`."""
    return any(isinstance(each, (cst.Return, cst.Raise)) for each in walk(node.body))


def _restores_training(program: Program, call: CallFact) -> bool:
    """Return True if the program restores a model and continues training without deleting the checkpoint."""
    if keyword(call.node, "mmap") is not None:
        return False
    names = {
        store.target
        for store in program.stores
        if store.function is call.function and store.expression is call.node
    }
    restored = {
        other.receiver.kind
        for other in program.calls
        if other.method == "load_state_dict"
        and other.function is call.function
        and other.node.args
        and keyword(other.node, "assign") is None
        and not names.isdisjoint(names_in(other.node.args[0].value))
    }
    trains = any(
        loop.trains and loop.function is call.function and loop.first > call.order for loop in program.loops
    )
    if ValueKind.MODEL not in restored or not (trains or ValueKind.OPTIMIZER in restored):
        return False
    deleted = any(
        each.target in names and each.function is call.function and each.order > call.order
        for each in program.releases
    )
    replaced = any(
        each.target in names and each.function is call.function and each.order > program.order[call.node]
        for each in program.stores
        if each.expression is not call.node
    )
    return not (deleted or replaced)


def _is_small(program: Program, call: CallFact) -> bool:
    """Return True if the loaded file probably contains only the small state of a scheduler, a scaler or a random
    generator.
    """
    line = program.statement_line(call.node)
    return line is not None and bool(_SMALL.search(program.source(line)))


def _names_a_checkpoint(program: Program, call: CallFact) -> bool:
    """Return True if the names in the call suggest a checkpoint, and not another file such as a cached dataset."""
    given = [program.source(each) for each in positional(call.node)[:1]]
    targets = [store.target for store in program.stores if program.inside(call.node, store.expression)]
    return any(_CHECKPOINT.search(each) for each in (*given, *targets))


def _is_only_copied(program: Program, call: CallFact) -> bool:
    if any("load_state_dict" in each.methods for each in program.classes.values()):
        return False  # the method of the project may store the tensors
    copying = {
        each
        for other in program.calls
        if other.method == "load_state_dict"
        and other.receiver.kind in (ValueKind.MODEL, ValueKind.OPTIMIZER, ValueKind.UNKNOWN)
        and keyword(other.node, "assign") is None
        for argument in other.node.args[:1]
        for each in _parts(argument.value)
    }
    if call.node in copying:
        return True
    names = {
        store.target
        for store in program.stores
        if store.function is call.function and store.expression is call.node
    }
    if len(names) != 1 or "." in (name := next(iter(names))) or name in call.function.nonlocal_names:
        return False
    if isinstance(call.function.node, cst.Module):
        return False  # other functions may read a global
    reads = [
        each
        for each in walk(call.function.body)
        if isinstance(each, cst.Name)
        and each.value == name
        and not isinstance(program.parent.get(each), (cst.AssignTarget, cst.Del))
    ]
    return bool(reads) and all(each in copying for each in reads)


def _parts(node: cst.BaseExpression) -> Iterator[cst.CSTNode]:
    """Yield an expression and the object that it reads, such as `checkpoint["model"]` and `checkpoint`."""
    yield node
    while isinstance(node, cst.Subscript):
        node = node.value
        yield node


def _is_loaded_into_model(program: Program, call: CallFact) -> bool:
    loaded = {
        store.target
        for store in program.stores
        if store.function is call.function and program.inside(call.node, store.expression)
    }
    loaded |= {  # state[key] = value, in `for key, value in checkpoint["model"].items()`
        root(store.target)
        for store in program.stores
        if store.how == "item"
        and store.function is call.function
        and any(
            isinstance(loop.node, cst.For)
            and names_in(loop.node.iter) & loaded
            and names_in(store.expression) & loop.bound
            for loop in store.loops
        )
    }
    for other in program.calls:
        if other.method == "load_state_dict" and other.node.args:
            given = other.node.args[0].value
            if call.node in set(walk(given)) or (
                other.function is call.function and names_in(given) & loaded
            ):
                return True
    return isinstance(program.parent.get(call.node), cst.Return) and program.mentions("load_state_dict")
