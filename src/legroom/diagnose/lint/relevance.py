"""Decides quickly whether a rule can report anything in a file.

Most files of a library define models and never run them. For these files, parsing with libcst and the flow analysis
take 25 times as long as this check, which uses Python's own parser. The check may accept a file without findings, but
it must not reject a file with findings.
"""

import ast
import builtins
import re
from collections.abc import Iterator

from legroom.diagnose.lint.flow.steps import STEP_FUNCTIONS
from legroom.diagnose.lint.flow.values import LOADER_NAMES, MODEL_NAMES, SAMPLING_NAMES, split_words

_WORDS = split_words(
    "Callback DataLoader DataParallel Dataset DistributedSampler Function GradScaler LPIPS Queue SentenceTransformer TrainerCallback add_param_group "
    "all_gather_object autocast autograd backward cache checkpoint_sequential clip_grad_norm_ clip_grad_value_ compute_metrics create_graph create_model cycle "
    "deepcopy empty_cache eval exc_info from_pretrained gather_object inference_mode init_process_group lru_cache manual_backward optim pipeline read_video "
    "register_backward_hook register_forward_hook register_forward_pre_hook register_full_backward_hook register_hook "
    "register_module_forward_hook retain_graph set_user_attr size_average tril triu vgg16 vgg19 zero_grad"
)
"""Most rules report nothing in a file that contains none of these names."""
_AMP = re.compile(r"torch\.(?:cuda|cpu)\.amp")
_ADDING = split_words(
    "add append appendleft extend insert put put_nowait setdefault update heappush register register_buffer"
)
_IN_PLACE = split_words(
    "add_ sub_ lerp_ addcmul_ copy_ index_add_ index_copy_ index_put_ scatter_ scatter_add_"
)
"""Methods that change a tensor. A changed buffer of a model may keep a graph alive."""
_TRAINING = split_words("fit aggregate local_train local_update train_epoch train_one_epoch")
"""Methods of the project that train a model, or combine trained models."""
_BUILTINS = frozenset(dir(builtins))
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_LOOPS = {ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp}


def may_have_findings(tree: ast.Module, text: str) -> bool:
    if _AMP.search(text):
        return True
    nodes = walk_ast(tree)
    names = Names(nodes)
    if any(_is_relevant(node, names) for node in nodes if type(node) in _CHECKED):
        return True
    if any(_is_large(node) for node in nodes if type(node) is ast.Constant) and re.search(
        r"cuda|device", text
    ):
        return True
    loops = [node for node in nodes if type(node) in _LOOPS]
    building = (
        {id(each) for node in nodes if _builds_model(node) for each in walk_ast(node)} if loops else set()
    )
    if any(id(node) not in building and runs_model(node, names) for node in loops):
        return True
    return any(map(stores_beyond_call, _functions_of_forward(nodes)))


def walk_ast(node: ast.AST) -> list[ast.AST]:
    """Return a node and all its descendants, except operators and contexts. `ast.walk` takes three times as long."""
    nodes = [node]
    for each in nodes:  # also visits the nodes that the loop appends
        for name in _CHILD_FIELDS[type(each)]:
            value = getattr(each, name, None)
            if type(value) is list:
                nodes.extend([item for item in value if isinstance(item, ast.AST)])
            elif isinstance(value, ast.AST):
                nodes.append(value)
    return nodes


_CHILD_FIELDS = {
    kind: tuple(name for name in kind._fields if name not in {"ctx", "op", "ops", "id", "attr"})
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, ast.AST)
}


def _discards_result(node: ast.Expr) -> bool:
    """Return True for a statement that discards a result, such as `x.detach()` or `torch.cuda.empty_cache`."""
    made = node.value
    if isinstance(made, ast.Call):
        return isinstance(made.func, ast.Attribute) and made.func.attr in {"detach", "cpu"}
    return isinstance(made, ast.Attribute)


def _is_large(node: ast.AST) -> bool:
    value = getattr(node, "value", None)
    return isinstance(value, (int, float)) and value >= _LARGE


_LARGE = 100_000
"""The smallest number in a file that may be the size of a tensor of several GiB."""


def _builds_model(node: ast.AST) -> bool:
    """Return True for a method whose loops iterate over the layers of a model, and not over steps."""
    return isinstance(node, _Function) and node.name in {"forward", "__init__"}


def _functions_of_forward(nodes: list[ast.AST]) -> list[_Function]:
    functions = [node for node in nodes if isinstance(node, _Function)]
    reached, pending = set[str](), {"forward"}
    while pending:
        reached |= pending
        pending = {
            each.attr if isinstance(each, ast.Attribute) else each.id
            for function in functions
            if function.name in pending
            for each in walk_ast(function)
            if isinstance(each, (ast.Attribute, ast.Name))
        } & {function.name for function in functions} - reached
    return [function for function in functions if function.name in reached]


class Names:
    """The names that a file imports or defines, and the names under which it imports torch."""

    def __init__(self, nodes: list[ast.AST]) -> None:
        self.defined: set[str] = set()
        self.torch: set[str] = set()
        for node in nodes:
            kind = type(node)
            if kind is ast.Name or kind is ast.Attribute or kind is ast.Constant or kind is ast.Call:
                continue
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                self.defined.add(node.name)
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                for alias in node.names:
                    bound = (alias.asname or alias.name).partition(".")[0]
                    self.defined.add(bound)
                    if alias.name.partition(".")[0] == "torch":
                        self.torch.add(bound)


def _is_relevant(node: ast.AST, names: Names) -> bool:
    if isinstance(node, ast.Name):
        return node.id in _WORDS
    if isinstance(node, ast.Attribute):
        if node.attr in _WORDS:
            return True
        if node.attr == "requires_grad" and isinstance(node.ctx, ast.Store):
            return isinstance(node.value, ast.Attribute)
        return (
            node.attr in {"load", "save"}
            and isinstance(node.value, ast.Name)
            and node.value.id in names.torch
        )
    if isinstance(node, (ast.alias, ast.keyword)):
        name = node.name if isinstance(node, ast.alias) else node.arg or ""
        others = {"load", "save"} if isinstance(node, ast.alias) else {"reduce"}
        return name.rpartition(".")[2] in _WORDS or name in others
    if isinstance(node, _Function):
        return node.name in STEP_FUNCTIONS or SAMPLING_NAMES.search(node.name) is not None
    if isinstance(node, ast.Global):
        return True
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
        return _adds_axis(node.left) and _adds_axis(node.right)
    if isinstance(node, ast.Expr):
        return _discards_result(node)
    return isinstance(node, ast.ExceptHandler) and _keeps_or_retries(node)


_CHECKED = {
    ast.Name, ast.Attribute, ast.alias, ast.keyword, ast.FunctionDef, ast.AsyncFunctionDef, ast.Global, ast.BinOp,
    ast.Expr, ast.ExceptHandler,
}  # fmt: skip
"""The classes of nodes that `_is_relevant` checks."""


def _adds_axis(node: ast.expr) -> bool:
    """Return True if an expression adds an axis to a tensor, as in `x.unsqueeze(1)` and `x[:, None]`."""
    if isinstance(node, ast.Subscript):
        return any(isinstance(each, ast.Constant) and each.value is None for each in walk_ast(node.slice))
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "unsqueeze"
    )


def _keeps_or_retries(handler: ast.ExceptHandler) -> bool:
    """Return True if an `except` block stores its exception, or may handle an out-of-memory error."""
    for node in walk_ast(handler):
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and handler.name is not None:
            if node.value is not None and _reads(node.value, handler.name):
                return True
        elif isinstance(node, ast.Call):
            kept = isinstance(node.func, ast.Attribute) and node.func.attr in _ADDING
            if kept and handler.name is not None and any(_reads(each, handler.name) for each in node.args):
                return True
    kinds = ast.unparse(handler.type) if handler.type is not None else "Exception"
    return bool(re.search(r"Runtime|OutOfMemory|Memory|\bException|BaseException", kinds))


def _reads(node: ast.AST, name: str) -> bool:
    return any(isinstance(each, ast.Name) and each.id == name for each in walk_ast(node))


def runs_model(loop: ast.AST, names: Names) -> bool:
    """Return True if a loop calls a name that suggests a model, or an object that the file does not define."""
    iterated = loop.iter if isinstance(loop, (ast.For, ast.AsyncFor)) else None
    sources = [iterated] if iterated is not None else [each.iter for each in getattr(loop, "generators", [])]
    if any(LOADER_NAMES.search(ast.unparse(each)) for each in sources):
        return True
    bound = {
        each.id for each in walk_ast(loop) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
    }
    for node in walk_ast(loop):
        if not isinstance(node, ast.Call):
            continue
        func = node.func
        if isinstance(func, ast.Attribute):
            if isinstance(func.value, ast.Constant):
                continue
            owner = func.value.attr if isinstance(func.value, ast.Attribute) else ast.unparse(func.value)
            if (
                func.attr in names.defined
                or func.attr in _TRAINING
                or MODEL_NAMES.search(func.attr)
                or MODEL_NAMES.search(owner)
            ):
                return True
        elif isinstance(func, ast.Name):
            known = func.id in names.defined or func.id in _BUILTINS or func.id in bound
            if MODEL_NAMES.search(func.id) or not known:
                return True
        else:
            return True
    return False


def stores_beyond_call(function: _Function) -> bool:
    """Return True if a function stores a value in an argument, an attribute or a global."""
    if function.name == "__init__":
        return False
    local = {
        each.id
        for each in walk_ast(function)
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
    }
    read: set[str] = set()
    written: set[str] = set()
    changed: list[ast.expr] = []
    for node in _own_nodes(function):
        if isinstance(node, ast.AugAssign) and not isinstance(node.target, ast.Name):
            return True
        if isinstance(node, ast.Attribute):
            (written if isinstance(node.ctx, ast.Store) else read).add(node.attr)
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            changed.append(node.value)
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _ADDING
        ):
            changed.append(node.func.value)
        elif isinstance(node, ast.Call) and _changes_attribute(node):
            return True
    return bool(read & written) or any(_outlives(each, local) for each in changed)


def _changes_attribute(node: ast.Call) -> bool:
    """Return True for a call such as `self.mean.mul_(0.9).add_(x)`."""
    if not isinstance(node.func, ast.Attribute) or node.func.attr not in _IN_PLACE:
        return False
    changed = node.func.value
    while True:
        if isinstance(changed, ast.Subscript):
            changed = changed.value
        elif isinstance(changed, ast.Call) and isinstance(changed.func, ast.Attribute):
            changed = changed.func.value
        else:
            break
    return isinstance(changed, ast.Attribute) and changed.attr != "data"


def _own_nodes(function: _Function) -> Iterator[ast.AST]:
    for statement in function.body:
        yield from walk_ast(statement)


def _outlives(node: ast.expr, local: set[str]) -> bool:
    while isinstance(node, (ast.Subscript, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return not (isinstance(node, ast.Name) and node.id in local)
