"""Finds caches that keep a result of a model for every request, session or text (LG101).

Nothing removes old entries, so the cache of a long-running service fills the GPU.
"""

import re
from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.collected.additions import is_visible
from legroom.diagnose.lint.collected.new_keys import key_of, key_repeats
from legroom.diagnose.lint.collected.replay import is_put_on_gpu
from legroom.diagnose.lint.flow.backward_uses import is_used_in_backward
from legroom.diagnose.lint.flow.facts import Function, StoreFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.retention.releases import encloses, is_length_limited
from legroom.diagnose.lint.flow.steps import is_in_step_code
from legroom.diagnose.lint.flow.syntax import (
    contained_parts,
    dotted,
    is_call_of,
    last_name,
    method_name,
    names_in,
    receiver,
    walk,
)
from legroom.diagnose.lint.flow.values import ValueKind, split_words
from legroom.diagnose.lint.rule import Problem

_TEXT = r"caption|prompt|text|sentence|query|question|utterance|message|url"
_TEXTS = re.compile(rf"(?:^|_)(?:{_TEXT})$", re.IGNORECASE)
_REQUESTS = re.compile(
    rf"(?:^|_)(?:{_TEXT}|session|user|request|client|conversation|customer|visitor)$"
    r"|^(?:session|user|request|client|chat|conversation|job|image|doc|document|customer|thread|item|video|clip)_?id$|^[usc]id$",
    re.IGNORECASE,
)
"""Names of keys that differ for each request or text."""
_UNLIMITED = re.compile(
    r"^(?:session|user|request|client|chat|conversation|job|customer|thread|crop|query|prompt)_?(?:id|key)$|^u(?:u)?id$"
)
"""Names of keys that take new values as long as the program runs."""
_STARTING = re.compile(r"^(?:__init__|\w*(?:start|startup|setup|init|load|lifespan)\w*)$")
_CREATED = r"\b{name}\b[^=\n]*=\s*(?:\{{\}}|\[\]|dict\(\)|(?:\w+\.)?(?:OrderedDict|defaultdict|field)\()"
_NEW_DICTS = {"dict", "OrderedDict", "defaultdict"}


def kept_for_requests(program: Program) -> Iterator[Problem]:
    """Find containers that keep a result for every request, as in `self.sessions[session_id] = features` and
    `self.audit.append({"id": request_id, "scores": scores})`.
    """
    if not program.uses_gpu:
        return
    for store in program.stores:
        if _is_log_of_service(program, store) and _is_unbounded(program, store):
            yield Problem(
                node=store.expression,
                message=f"`{store.target}` keeps a result on the GPU for every request, and nothing removes old entries",
                help="Limit the number of entries with `deque(maxlen=…)`, or store numbers or copies in host memory",
            )
            continue
        key = _request_of(program, store)
        if key is None or not _is_unbounded(program, store):
            continue
        if store.value.has_graph:
            if program.mentions("backward") and is_used_in_backward(program, store.target):
                continue
            if not is_in_step_code(program, store) or (store.how == "item" and not store.mapping):
                yield Problem(
                    node=store.expression,
                    message=f"`{store.target}` keeps a result with its autograd graph for every `{key}`, and nothing removes "
                    "old entries",
                    help="Run the model in `torch.no_grad()`, and limit the number of entries or copy each to host memory",
                )
        elif bool(_key_of(store)) and not _is_read_at_once(program, store.target) and store.value.has_output:
            yield Problem(
                node=store.expression,
                message=f"`{store.target}` keeps a result on the GPU for every `{key}`, and nothing removes old entries",
                help="Limit the number of entries, or copy each entry to host memory: add `.cpu()`",
            )


def _is_log_of_service(program: Program, store: StoreFact) -> bool:
    """Return True for a log such as `self.requests.append({"inputs": x, "scores": scores})` in a method of a service,
    if the entries contain tensors of the model on the GPU.
    """
    function = store.function
    known = program.classes.get(function.class_name or "")
    if store.how != "append" or not store.target.startswith("self.") or known is None or store.loops:
        return False
    if isinstance(receiver(store.node) if isinstance(store.node, cst.Call) else None, cst.Subscript):
        return False  # one list for each key
    if program.is_module_class(known.name) or not _ANSWERING.search(function.name):
        return False
    if any(_STARTING.search(site.caller.name) for site in function.call_sites):
        return False  # for prompt in prompts: self.encode(prompt)
    if not (program.mentions(*_SERVERS) or _SERVICE.search(known.name)):
        return False
    if store.value.has_graph or is_in_step_code(program, store):
        return False
    if any(
        loop for site in function.call_sites for loop in site.loops if loop.iterable.kind is ValueKind.LOADER
    ):
        return False
    if program.is_conditional(store.node, function.node):
        return False
    return any(
        program.value(each).has_output
        and not program.value(each).host
        and not _SMALL.search(program.source(each))
        for each in contained_parts(store.expression) or [store.expression]
    )


_SERVERS = split_words(
    "HTTPServer ThreadingHTTPServer BaseHTTPRequestHandler FastAPI APIRouter Flask Sanic Starlette uvicorn grpc "
    "socketserver StreamRequestHandler websockets bottle tornado LitAPI LitServer"
)
"""Names that a program uses if it answers requests."""
_ANSWERING = re.compile(
    r"(?:^|_)(?:predict|infer|inference|score|embed|encode|generate|handle|classify|process|run|answer|respond|transcribe"
    r"|translate|detect|segment|search|query|complete|chat|rank|recommend|forward|do_POST|do_GET|__call__)"
)
"""Matches the names of methods that answer a request."""
_SERVICE = re.compile(r"(?:Service|Server|Servicer|Endpoint|Handler)$")
_SMALL = re.compile(r"arg(?:max|min)|\.(?:mean|sum|max|min|any|all)\(\)$|loss|acc", re.IGNORECASE)


def _request_of(program: Program, store: StoreFact) -> str | None:
    function = store.function
    if isinstance(function.node, cst.Module) or function.name in {"__init__", "__post_init__"}:
        return None
    if function.owns(store.target) or store.value.host:
        return None
    key = _key_of(store)
    if program.is_module_class(function.class_name):
        name = dotted(key[0].value) if len(key) == 1 and isinstance(key[0], cst.Index) else None
        is_given = store.no_grad and name in function.parameters and _is_moved_to_gpu(program, function)
        return name if is_given and _UNLIMITED.search(name or "") else None
    if not key and store.how == "append" and store.value.has_graph:
        return next((name for name in function.parameters if _REQUESTS.search(name)), None)
    if not key or (store.how == "item" and not store.varying_key):
        return None
    known = _TEXTS if is_in_step_code(program, store) and not store.value.has_graph else _REQUESTS
    if any(key_repeats(program, each) for each in key):
        return None
    return next((name for each in key for name in _sources(program, store, each) if known.search(name)), None)


def _is_moved_to_gpu(program: Program, function: Function) -> bool:
    """Return True if a method moves a parameter to the GPU, as in `x.to(self.device)`."""
    return any(
        isinstance(node, cst.Call)
        and method_name(node) in {"to", "cuda"}
        and dotted(receiver(node)) in function.parameters
        and is_put_on_gpu(program, node)
        for node in walk(function.body)
    )


def _key_of(store: StoreFact) -> list[cst.CSTNode]:
    """Return the key in a statement such as `cache[key] = value`, `cache[key].append(value)` or
    `cache.setdefault(key, []).append(value)`.
    """
    if store.how == "item":
        return key_of(store) if isinstance(store.node, cst.Assign) else []
    owner = receiver(store.node) if store.how == "append" and isinstance(store.node, cst.Call) else None
    if isinstance(owner, cst.Subscript):
        return [each.slice for each in owner.slice]
    is_default = isinstance(owner, cst.Call) and method_name(owner) == "setdefault" and bool(owner.args)
    return [owner.args[0].value] if isinstance(owner, cst.Call) and is_default else []


def _sources(program: Program, store: StoreFact, key: cst.CSTNode) -> list[str]:
    """Return the last component of each name in a key, and of each name from which the key is computed."""
    names = sorted(names_in(key))
    made = [
        each.expression
        for each in program.stores
        if each.target in names and each.function is store.function and each.how == "assign"
    ]
    bound = [
        loop.node.iter
        for loop in store.loops
        if isinstance(loop.node, cst.For) and not loop.bound.isdisjoint(names)
    ]
    made += [
        each.iter
        for node in bound
        for made_by in program.stores
        if made_by.target in names_in(node) and isinstance(made_by.expression, cst.ListComp)
        for each in (made_by.expression.for_in,)
    ]
    found = [*names, *(name for each in (*made, *bound) for name in sorted(names_in(each)))]
    return [name for path in found for name in (last_name(path), last_name(path).removesuffix("s"))]


def _is_unbounded(program: Program, store: StoreFact) -> bool:
    """Return True if the container is a plain dict or list, and the file neither removes entries nor passes the
    container to other code.
    """
    if store.bounded or is_length_limited(program, store):
        return False
    known = program.classes.get(store.function.class_name or "")
    is_thread = known is not None and all(last_name(base) in {"Thread", "ABC"} for base in known.bases)
    if not is_thread and not is_visible(program, store):
        return False
    name, is_attribute = last_name(store.target), "." in store.target
    if any(last_name(each.target) == name for each in program.releases):
        return False
    made = [
        each
        for each in program.stores
        if last_name(each.target) == name and each.how == "assign" and ("." in each.target) == is_attribute
    ]
    if any(
        not _STARTING.search(each.function.name) and not encloses(each.function, store.function)
        for each in made
    ):
        return False
    if not made and re.search(_CREATED.format(name=re.escape(name)), program.text) is None:
        return False
    if any(not _is_new_container(each.expression) for each in made):
        return False
    for node in (*program.nodes_of(cst.Name), *program.nodes_of(cst.Attribute)):
        if last_name(dotted(node) or "") != name:
            continue
        parent = program.parent.get(node)
        if isinstance(parent, cst.Attribute) and parent.attr is node:
            continue
        if is_attribute and isinstance(node, cst.Name):
            continue  # a local variable with the same name
        if isinstance(parent, cst.Arg) and not _only_reads(program.parent.get(parent)):
            return False
        if any(isinstance(each, cst.Comparison) for each in _measuring(program, node)):
            return False
    return True


def _is_read_at_once(program: Program, target: str) -> bool:
    """Return True if the program reads all entries together, as in `torch.stack(list(self.classes.values()))`."""
    return any(
        node.attr.value in {"values", "items"} and last_name(dotted(node.value) or "") == last_name(target)
        for node in program.nodes_of(cst.Attribute)
    )


def _is_new_container(node: cst.BaseExpression) -> bool:
    if isinstance(node, cst.Call):
        return last_name(dotted(node.func) or "") in _NEW_DICTS
    return isinstance(node, (cst.Dict, cst.List)) and not node.elements


def _only_reads(call: cst.CSTNode | None) -> bool:
    names = ("len", "list", "sorted", "sum", "max", "min", "print", "any", "all", "enumerate", "tuple")
    return call is not None and any(is_call_of(call, name) for name in names)


def _measuring(program: Program, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield the expressions that contain `len(cache)`, from the innermost to the outermost."""
    argument = program.parent.get(node)
    call = program.parent.get(argument) if isinstance(argument, cst.Arg) else None
    if call is not None and is_call_of(call, "len"):
        for each in program.ancestors(call):
            if isinstance(each, cst.BaseStatement):
                return
            yield each
