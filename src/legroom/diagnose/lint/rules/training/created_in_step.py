"""LG118: An optimizer, a pretrained model or a wrapper is created in every step

## What it detects
The rule reports the following cases:

- The loop over training steps creates an optimizer for a model that was created before the loop. The rule does not flag
  an optimizer that is created once per epoch, fold or task.
- The loop over the data, or a function that each step calls, loads a pretrained model, for example for a perceptual
  loss. The rule does not flag a model that is loaded once and cached, or a model that the loop trains.
- A function that answers a request, such as `@app.post("/predict")`, loads a pretrained model for each request.
- Each iteration of a loop wraps the same model in `DataParallel` or `DistributedDataParallel` again.
- Each epoch passes a new object to `Accelerator.prepare`. The accelerator keeps all prepared objects.

The report of an out-of-memory error also uses this code for optimizers that are still alive, although a newer optimizer
updates the same parameters.

## Why this is a problem
Adam and most other optimizers keep state for each parameter. Creating a new optimizer in each step discards
this state, so momentum and adaptive learning rates have no effect. The state is also allocated again in each
step, while the old optimizer may still exist.

A pretrained model that is loaded in each step is read from disk and copied to the GPU each time. If the graph of the
previous step still refers to the old copy, two copies of the model are in memory. Each additional wrapper copies or
broadcasts the model again.

## Example
```python
for x, y in loader:
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate(step))
```

## Use instead
```python
optimizer = torch.optim.Adam(model.parameters())
for x, y in loader:
    optimizer.param_groups[0]["lr"] = learning_rate(step)   # or a scheduler from torch.optim.lr_scheduler
```

## Fix safety
No automatic fix is available.
"""

import re
from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.flow.facts import CallFact, Function, LoopFact, StoreFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.retention.releases import survives
from legroom.diagnose.lint.flow.steps import (
    STEP_FUNCTIONS,
    has_step_loop,
    is_forward,
    is_innermost_step_loop,
    iterates_data,
    iterates_data_set,
)
from legroom.diagnose.lint.flow.syntax import (
    dotted,
    is_false,
    keyword,
    last_name,
    method_name,
    names_in,
    positional,
    receiver,
    root,
    walk,
)
from legroom.diagnose.lint.rule import Problem

CODE = "LG118"
_MAX_DEPTH = 3
_LOADERS = re.compile(
    r"^(?:torch\.hub\.load|lpips\.LPIPS|transformers\.pipeline|clip\.load|open_clip\.create_model\w*|whisper\.load_model"
    r"|sentence_transformers\.SentenceTransformer|.*(?:Model\w*|For[A-Z]\w*|Pipeline|AutoencoderKL)\.from_pretrained)$"
)
_ROUTES = {"post", "get", "put", "route", "api_route", "websocket"}
_CACHES = re.compile(r"cache|memo|singleton|fixture|st\.", re.IGNORECASE)
_OWN_WEIGHTS = {"load_state_dict", "parameters", "train", "state_dict", "named_parameters"}


def check(program: Program) -> Iterator[Problem]:
    yield from _reloaded_models(program)
    yield from _rewrapped_models(program)
    yield from _prepared_again(program)
    for call in program.calls:
        name = call.name or ""
        if not name.startswith("torch.optim.") or not last_name(name)[:1].isupper() or "lr_scheduler" in name:
            continue
        if (
            last_name(name) == "SGD"
            and keyword(call.node, "momentum") is None
            and len(positional(call.node)) < 3
        ):
            continue  # has no state
        if not _is_conditional(program, call.node) and _is_created_in_step(program, call, _model(call)):
            yield Problem(
                node=call.node,
                message=f"`{last_name(name)}` is created in every step, so its state is discarded and allocated again",
                help="Create the optimizer once before the loop, and change its learning rate with a scheduler",
            )


def _is_created_in_step(program: Program, call: CallFact, model: str | None) -> bool:
    if model is None:
        return False
    if call.loops:
        loop = call.loops[-1]
        return loop.backward and is_innermost_step_loop(program, loop) and survives(program, model, loop)
    function = call.function
    return (
        function.backward
        and not function.owns(model)
        and (root(model) not in function.parameters or root(model) == "self")
        and any(
            bool(site.loops) and is_innermost_step_loop(program, site.loops[-1])
            for site in function.call_sites
        )
    )


def _model(call: CallFact) -> str | None:
    """Return the model whose parameters an optimizer receives, such as `model` for `Adam(model.parameters())`."""
    given = positional(call.node)[0].value if positional(call.node) else None
    if isinstance(given, cst.Call) and method_name(given) == "parameters":
        return dotted(receiver(given))
    return None


def _reloaded_models(program: Program) -> Iterator[Problem]:
    """Find `vgg = vgg16(weights="DEFAULT").eval()` in a loss function that every step calls.

    The model is the same in every step, and the program does not train it.
    """
    for store in program.stores:
        made = _loading_call(program, store.expression)
        if made is None or store.how != "assign" or "." in store.target:
            continue
        function = store.function
        if store.target in function.nonlocal_names or not function.owns(store.target):
            continue
        if _is_conditional(program, store.node) or _reads_variables(made, store):
            continue
        if _is_kept_or_trained(program, store) or not _runs_for_each_batch(program, function, store.loops):
            continue
        yield Problem(
            node=made,
            message=f"The pretrained model `{store.target}` is loaded again in every step, while the previous model may still be in memory",
            help="Load the model once before the loop, and pass it to the function",
        )


def _loading_call(program: Program, expression: cst.BaseExpression) -> cst.Call | None:
    node: cst.BaseExpression | None = expression
    while node is not None:
        if isinstance(node, cst.Call) and _loads_weights(program, node):
            return node
        if isinstance(node, cst.Call):
            node = receiver(node)
        elif isinstance(node, (cst.Attribute, cst.Subscript)):
            node = node.value
        else:
            return None
    return None


def _loads_weights(program: Program, call: cst.Call, depth: int = 0) -> bool:
    name = program.imports.qualified(call.func) or ""
    if name in program.classes:
        init = program.method(name, "__init__")
        nodes = walk(init.body) if init is not None and depth < _MAX_DEPTH else ()
        return any(isinstance(each, cst.Call) and _loads_weights(program, each, depth + 1) for each in nodes)
    if _LOADERS.search(name):
        return True
    if not name.startswith(("torchvision.models.", "models.", "timm.create_model")):
        return False
    given = keyword(call, "weights") or keyword(call, "pretrained")
    return given is not None and not is_false(given) and dotted(given.value) != "None"


def _is_conditional(program: Program, node: cst.CSTNode) -> bool:
    """Return True if only some iterations run a statement.

    A condition on the number of devices does not count, because its result never changes.
    """
    for each in program.ancestors(node):
        if isinstance(each, (cst.For, cst.While, cst.FunctionDef)):
            return False
        if isinstance(each, (cst.Try, cst.ExceptHandler, cst.Match)):
            return True
        if isinstance(each, cst.If) and not _is_about_devices(each.test):
            return True
    return False


def _is_about_devices(test: cst.BaseExpression) -> bool:
    """Return True if a condition depends only on the available devices, as in `torch.cuda.device_count() > 1`."""
    called = [last_name(dotted(each.func) or "") for each in walk(test) if isinstance(each, cst.Call)]
    return bool(called) and set(called) <= {"device_count", "is_available"}


def _reads_variables(made: cst.Call, store: StoreFact) -> bool:
    """Return True if the arguments of the call differ between steps, as in `create_model(name)` for several names."""
    read = {root(path) for each in made.args for path in names_in(each.value)}
    function = store.function
    varying = set(function.parameters) - {"self"}
    varying |= {root(path) for loop in store.loops for path in loop.bound}
    return not read.isdisjoint(varying | (function.local_names - {store.target}))


def _is_kept_or_trained(program: Program, store: StoreFact) -> bool:
    for node in walk(store.function.body):
        if not isinstance(node, cst.Name) or node.value != store.target:
            continue
        parent = program.parent.get(node)
        runs = isinstance(parent, cst.Call) and parent.func is node
        is_read = isinstance(parent, cst.Attribute) and parent.attr.value not in _OWN_WEIGHTS
        if not (runs or is_read or isinstance(parent, cst.AssignTarget)):
            return True
    return False


def _is_route(node: cst.BaseExpression) -> bool:
    """Return True for a decorator such as `@app.post("/predict")`, whose function runs for each request."""
    return isinstance(node, cst.Call) and method_name(node) in _ROUTES


def _runs_for_each_batch(
    program: Program, function: Function, loops: tuple[LoopFact, ...], seen: frozenset[Function] = frozenset()
) -> bool:
    """Return True if the code runs once for each batch: in the innermost loop over data, or in a function that this
    loop calls.
    """
    if loops:
        loop = loops[-1]
        nested = any(isinstance(node, (cst.For, cst.While)) for node in walk(loop.node.body))  # folds
        return not nested and (iterates_data(loop) or iterates_data_set(loop))
    if isinstance(function.node, cst.Module) or function in seen or function.name == "__init__":
        return False
    decorators = function.node.decorators
    if any(_is_route(each.decorator) for each in decorators):
        return True
    if has_step_loop(program, function) or any(_CACHES.search(program.source(each)) for each in decorators):
        return False
    if function.name in STEP_FUNCTIONS or is_forward(program, function):
        return True
    sites = function.call_sites
    return any(_runs_for_each_batch(program, site.caller, site.loops, seen | {function}) for site in sites)


def _rewrapped_models(program: Program) -> Iterator[Problem]:
    """Find `model = nn.DataParallel(model)` in a loop over epochs, or in a method that such a loop calls."""
    for store in program.stores:
        made = store.expression
        if store.how != "assign" or not isinstance(made, cst.Call) or not made.args:
            continue
        wrapper = last_name(program.imports.qualified(made.func) or "")
        if wrapper not in _WRAPPERS or dotted(made.args[0].value) != store.target:
            continue
        if _is_conditional(program, store.node) or not _is_repeated(program, store):
            continue
        yield Problem(
            node=made,
            message=f"`{store.target}` is wrapped in another `{wrapper}` in every iteration",
            help=f"Wrap `{store.target}` once before the loop",
        )


def _prepared_again(program: Program) -> Iterator[Problem]:
    """Find objects that are prepared again in each epoch, such as `loader = accelerator.prepare(loader)` in a loop
    over epochs.
    """
    for call in program.calls if program.mentions("Accelerator") else ():
        loop = call.loops[-1] if call.method == "prepare" and call.loops else None
        if loop is not None and loop.trains and not program.is_conditional(call.node, loop.node):
            yield Problem(
                node=call.node,
                message="The accelerator keeps every object that it prepares, and this loop prepares new objects in each iteration",
                help="Call `prepare` once before the loop",
            )


_WRAPPERS = {"DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "DDP"}


def _is_repeated(program: Program, store: StoreFact) -> bool:
    if store.loops:
        loop = store.loops[-1]
        return loop.trains and survives(program, store.target, loop)
    function = store.function
    if not store.target.startswith("self.") or function.name == "__init__":
        return False
    others = [
        each
        for each in program.stores
        if each.target == store.target and each is not store and each.function.name != "__init__"
    ]
    return not others and any(loop.trains for site in function.call_sites for loop in site.loops[-1:])
