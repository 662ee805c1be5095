"""LG104 to LG115: states, exceptions, graphs, hooks, caches, optimizers that keep what they should not."""

import pytest
from linted import check_marks, findings, mended

TELLS = {
    "LG110 a hook that a method makes": """
class Tap:
    def __init__(self):
        self.seen = {"a": []}
        model.register_forward_hook(self.make("a"))
    def make(self, name):
        def hook(module, inputs, output):
            self.seen[name].append(output)  # here
        return hook
Tap()
""",
    "LG104 parameters made anew by a function": """
weights = {"w": torch.randn(4, 2, requires_grad=True)}
def update(old, grads):
    return {name: value - 0.1 * grad for (name, value), grad in zip(old.items(), grads)}
for x, y in train_loader:
    loss = (x @ weights["w"] - y).pow(2).mean()
    grads = torch.autograd.grad(loss, list(weights.values()))
    weights = update(weights, grads)  # here
""",
    "LG108 by autograd.grad": """
for x, y in train_loader:
    loss = criterion(model(x), y)
    grads = torch.autograd.grad(loss, model.parameters(), retain_graph=True)  # here
    optimizer.step()
""",
    "LG104 a hidden state": """
hidden = torch.zeros(1, 4)
for x, y in train_loader:
    output, hidden = model(x, hidden)  # here
    criterion(output, y).backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "LG104 a pair of states": """
cell = nn.LSTMCell(4, 4)
h, c = torch.zeros(1, 4), torch.zeros(1, 4)
for x, y in train_loader:
    h, c = cell(x, (h, c))  # here
    criterion(h, y).backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "LG104 by way of another name": """
hidden = torch.zeros(1, 4)
for x, y in train_loader:
    output, new_hidden = model(x, hidden)
    criterion(output, y).backward()
    optimizer.step()
    optimizer.zero_grad()
    hidden = new_hidden  # here
""",
    "LG104 by a formula": """
inner, outer = nn.Linear(4, 4), nn.Linear(4, 4)
state = torch.zeros(4)
for x, y in train_loader:
    state = torch.tanh(inner(x) + outer(state))  # here
    criterion(state, y).backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "LG104 in a dict": """
memory = {"h": torch.zeros(4)}
for x, y in train_loader:
    memory["h"] = model(x, memory["h"])  # here
    criterion(memory["h"], y).backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "LG104 a global state": """
state = None

def step(x, y):
    global state
    output, state = model(x, state)  # here
    criterion(output, y).backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "LG104 in a trainer": """
class Trainer:
    def __init__(self):
        self.hidden = None

    def fit(self, loader):
        for x, y in loader:
            output, self.hidden = model(x, self.hidden)  # here
            criterion(output, y).backward()
            optimizer.step()
            optimizer.zero_grad()
""",
    "LG104 a state that a module keeps": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(4, 4)
        self.hidden = None

    def forward(self, x):
        output, self.hidden = self.gru(x, self.hidden)  # here
        return output
""",
    "LG106 a smaller batch in the except block": """
def step(x):
    model(x).sum().backward()

for x, y in train_loader:
    try:
        step(x)
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        step(x[:2])  # here
""",
    "LG106 the model again": """
for x, y in train_loader:
    try:
        output = model(x)
    except RuntimeError as error:
        if "out of memory" in str(error):
            output = model(x[:2])  # here
""",
    "LG106 a function from elsewhere": """
from elsewhere import train_step

for x, y in train_loader:
    try:
        train_step(model, x)
    except RuntimeError as error:
        if "out of memory" not in str(error):
            raise
        torch.cuda.empty_cache()
        train_step(model, x[:2])  # here
""",
    "LG106 the function itself": """
def attempt(x, size):
    try:
        model(x[:size]).sum().backward()
    except RuntimeError:
        attempt(x, size // 2)  # here
""",
    "LG107 in a list": """
errors = []
for x, y in train_loader:
    try:
        model(x).sum().backward()
    except RuntimeError as error:
        errors.append(error)  # here
""",
    "LG107 with sys.exc_info": """
import sys
failures = []
for x, y in train_loader:
    try:
        model(x).sum().backward()
    except RuntimeError:
        failures.append(sys.exc_info())  # here
""",
    "LG107 returned and kept": """
def attempt(x):
    try:
        return model(x)
    except RuntimeError as error:
        return error

results = []
for x, y in train_loader:
    problem = attempt(x)
    if isinstance(problem, Exception):
        results.append(problem)
try:
    model(x)
except RuntimeError as error:
    last_traceback = error.__traceback__  # here
""",
    "LG107 in an attribute": """
class Trainer:
    def step(self, x):
        try:
            return model(x)
        except Exception as problem:
            self.last_error = problem  # here
""",
    "LG107 in a tuple": """
failed = []
for step, (x, y) in enumerate(train_loader):
    try:
        model(x)
    except Exception as e:
        failed.append((step, e))  # here
""",
    "LG108 in a loop": """
for x, y in train_loader:
    loss = criterion(model(x), y)
    loss.backward(retain_graph=True)  # here
    optimizer.step()
    optimizer.zero_grad()
""",
    "LG109 in backward": """
for x, y in train_loader:
    criterion(model(x), y).backward(create_graph=True)  # here
""",
    "LG110 a function": """
features = []

def hook(module, inputs, output):
    features.append(output)  # here

model.register_forward_hook(hook)
""",
    "LG110 detached, but never emptied": """
features = []

def hook(module, inputs, output):
    features.append(output.detach())  # here

model.register_forward_hook(hook)
""",
    "LG110 an object": """
class Recorder:
    def __init__(self):
        self.outputs = []

    def __call__(self, module, inputs, output):
        self.outputs.append(output)  # here

model.register_forward_hook(Recorder())
""",
    "LG110 one more with every step": """
for x, y in train_loader:
    model.register_forward_hook(log)  # here
    criterion(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "LG110 a lambda": """
features = []
model.register_forward_hook(lambda module, inputs, output: features.append(output))  # here
""",
    "LG110 a function that makes hooks": """
seen = {}

def make(name):
    def hook(module, inputs, output):
        seen[name].append(output)  # here
    return hook

model.register_forward_hook(make("fc"))
""",
    "LG111 a method of a module": """
from functools import lru_cache

class Net(nn.Module):
    @lru_cache(maxsize=None)  # here
    def mask(self, size):
        return torch.ones(size, size)
""",
    "LG111 a function of tensors": """
import functools

@functools.lru_cache  # here
def embed(x: torch.Tensor):
    return x * 2
""",
    "LG111 around a method": """
import functools

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mask = functools.lru_cache(maxsize=None)(self.make_mask)  # here

    def make_mask(self, size):
        return torch.ones(size, size)
""",
    "LG111 without a limit": """
from functools import cache

@cache  # here
def table(size):
    return torch.arange(size).float()
""",
    "LG112 a frozen part": """
for parameter in model.backbone.parameters():
    parameter.requires_grad = False
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)  # here
""",
    "LG112 by method": """
model.encoder.requires_grad_(False)
optimizer = torch.optim.Adam(model.parameters())  # here
""",
    "LG113 nothing clears": """
for x, y in train_loader:
    criterion(model(x), y).backward()
    optimizer.step()  # here
""",
    "LG114 an input": """
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input):
        ctx.input = input  # here
        return input.pow(2)
""",
    "LG114 a result": """
class Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        result = torch.exp(x)
        ctx.result = torch.exp(x)  # here
        return result
""",
    "LG115 in the loop": """
for x, y in train_loader:
    optimizer.add_param_group({"params": model.parameters()})  # here
    criterion(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
""",
}

IS_SILENT = {
    "LG104 an inner loop that differentiates through itself": """
for task in range(9):
    fast = dict(model.named_parameters())
    for x, y in train_loader:
        loss = criterion(torch.func.functional_call(model, fast, (x,)), y)
        grads = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
        fast = {name: p - 0.1 * g for (name, p), g in zip(fast.items(), grads)}
    criterion(torch.func.functional_call(model, fast, (x,)), y).backward()
    optimizer.step()
""",
    "LG104 detached in the loop": """
hidden = torch.zeros(1, 4)
for x, y in train_loader:
    hidden = hidden.detach()
    output, hidden = model(x, hidden)
    criterion(output, y).backward()
""",
    "LG104 detached where it goes in": """
hidden = torch.zeros(1, 4)
for x, y in train_loader:
    output, hidden = model(x, hidden.detach())
    criterion(output, y).backward()
""",
    "LG104 detached in place": """
hidden = torch.zeros(1, 4)
for x, y in train_loader:
    output, hidden = model(x, hidden)
    criterion(output, y).backward()
    hidden.detach_()
""",
    "LG104 repackaged": """
hidden = init()
for x, y in train_loader:
    hidden = repackage_hidden(hidden)
    output, hidden = model(x, hidden)
    criterion(output, y).backward()
""",
    "LG104 repackaged by a function of the file": """
def repackage(h):
    return h.detach() if isinstance(h, torch.Tensor) else tuple(repackage(v) for v in h)

hidden = init()
for x, y in train_loader:
    hidden = repackage(hidden)
    output, hidden = model(x, hidden)
    criterion(output, y).backward()
""",
    "LG104 places that are detached": """
states = [None, None]
for x, y in train_loader:
    output, states[0] = model(x, states[0])
    criterion(output, y).backward()
    for i in range(len(states)):
        states[i] = states[i].detach()
""",
    "LG104 over the time steps of one batch": """
for x, y in train_loader:
    hidden = torch.zeros(1, 4)
    for t in range(10):
        hidden = model(x[t], hidden)
    criterion(hidden, y).backward()
    optimizer.step()
""",
    "LG104 kept by a module, reset by someone": """
class Net(nn.Module):
    def forward(self, x):
        output, self.hidden = self.gru(x, self.hidden)
        return output

    def reset(self):
        self.hidden = None
""",
    "LG106 after the except block": """
def step(x):
    model(x).sum().backward()

for x, y in train_loader:
    failed = False
    try:
        step(x)
    except torch.cuda.OutOfMemoryError:
        failed = True
    if failed:
        step(x[:2])
""",
    "LG106 another kind of error": """
for x, y in train_loader:
    try:
        output = model(x)
    except KeyError:
        output = model(y)
""",
    "LG106 only cleaning": """
try:
    model(x)
except RuntimeError:
    print("out of memory")
    torch.cuda.empty_cache()
""",
    "LG107 its text": """
for x, y in train_loader:
    try:
        model(x)
    except RuntimeError as error:
        errors.append(str(error))
        errors.append(error.with_traceback(None))
""",
    "LG107 of a search that no step repeats": """
def fails(node):
    try:
        torch.ones(2).to(node)
    except ValueError as error:
        return error
seen = {}
for node in nodes:
    seen[node] = fails(node)
""",
    "LG107 held until the function ends, which computes no more": """
def run(x):
    failure = None
    try:
        model(x)
    except RuntimeError as error:
        failure = error
    if failure is not None:
        raise ValueError("failed") from failure
for x, y in train_loader:
    run(x)
""",
    "LG107 nothing to do with tensors": """
def read(path):
    try:
        return open(path)
    except OSError as error:
        problems.append(error)
""",
    "LG108 a second backward pass follows": """
for x, y in train_loader:
    output = model(x)
    criterion(output, y).backward(retain_graph=True)
    output.sum().backward()
    optimizer.step()
""",
    "LG108 through the same graph again": """
loss = model(x).sum()
for _ in range(10):
    loss.backward(retain_graph=True)
""",
    "LG108 losses computed before and fetched one by one": """
losses = {name: model(x).mean() for name in ("actor", "critic")}
for name in list(losses):
    loss = losses.pop(name)
    loss.backward(retain_graph=True)
""",
    "LG108 in a function that gives gradients back": """
def gradients(x, parameters):
    return torch.autograd.grad(model(x).sum(), parameters, retain_graph=True)
for x, y in train_loader:
    for parameter, gradient in zip(parameters, gradients(x, parameters)):
        parameter.grad = gradient
    optimizer.step()
""",
    "LG108 once": "model(x).sum().backward(retain_graph=True)\n",
    "LG109 in autograd.grad": """
for x, y in train_loader:
    gradients = torch.autograd.grad(criterion(model(x), y), model.parameters(), create_graph=True)
""",
    "LG110 the last one": """
features = {}

def hook(module, inputs, output):
    features["fc"] = output.detach()

model.register_forward_hook(hook)
""",
    "LG110 emptied": """
features = []

def hook(module, inputs, output):
    features.append(output.detach())

model.register_forward_hook(hook)
for x, y in train_loader:
    features.clear()
    model(x)
""",
    "LG110 a number": """
norms = []

def hook(module, inputs, output):
    norms.append(output.norm().item())

model.register_forward_hook(hook)
""",
    "LG111 numbers": """
from functools import lru_cache

@lru_cache
def size_of(name):
    return len(name) * 2
""",
    "LG111 tensors on the way to something else": """
@functools.cache
def promoted(kind):
    made = torch.empty([], dtype=kind)
    _, found = resolve(made)
    return found
""",
    "LG111 with a limit": """
from functools import lru_cache

@lru_cache(maxsize=8)
def mask(size):
    return torch.ones(size, size)
""",
    "LG112 filtered": """
for parameter in model.backbone.parameters():
    parameter.requires_grad = False
optimizer = torch.optim.AdamW(filter(lambda p: p.requires_grad, model.parameters()))
""",
    "LG112 the head only": """
for parameter in model.parameters():
    parameter.requires_grad = False
optimizer = torch.optim.AdamW(head.parameters())
""",
    "LG112 unfrozen later": """
for parameter in model.backbone.parameters():
    parameter.requires_grad = False
optimizer = torch.optim.AdamW(model.parameters())
for parameter in model.backbone.parameters():
    parameter.requires_grad = True
""",
    "LG113 cleared by the model": """
for x, y in train_loader:
    model.zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()
""",
    "LG113 cleared in a function": """
def clear():
    optimizer.zero_grad(set_to_none=True)

for x, y in train_loader:
    clear()
    criterion(model(x), y).backward()
    optimizer.step()
""",
    "LG113 cleared by hand": """
for x, y in train_loader:
    criterion(model(x), y).backward()
    optimizer.step()
    for p in model.parameters():
        p.grad = None
""",
    "LG114 a setting": """
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        ctx.shape = x.shape
        ctx.save_for_backward(x)
        return x * factor
""",
    "LG115 once": """
for epoch in range(3):
    if epoch == 1:
        optimizer.add_param_group({"params": model.parameters()})
    for x, y in train_loader:
        criterion(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
""",
}


@pytest.mark.parametrize("name", TELLS)
def test_is_told(name: str) -> None:
    check_marks(TELLS[name], name[:5])
    assert findings(TELLS[name], name[:5])


@pytest.mark.parametrize("name", IS_SILENT)
def test_is_not_told(name: str) -> None:
    assert findings(IS_SILENT[name], name[:5]) == []


FIXES = {
    "LG104 a hidden state": "model(x, hidden.detach())",
    "LG107 in a list": "errors.append(error.with_traceback(None))",
    "LG107 in a tuple": "failed.append((step, e.with_traceback(None)))",
    "LG108 in a loop": "loss.backward()  # here",
    "LG112 a frozen part": "AdamW((parameter for parameter in model.parameters() if parameter.requires_grad), lr=1e-3)",
    "LG112 by method": "Adam(parameter for parameter in model.parameters() if parameter.requires_grad)",
    "LG113 nothing clears": "    optimizer.step()  # here\n    optimizer.zero_grad(set_to_none=True)\n",
}


@pytest.mark.parametrize("name", FIXES)
def test_unsafe_fixes_are_made_only_when_asked_for(name: str) -> None:
    body, code = TELLS[name], name[:5]
    assert mended(body, code) == body
    assert FIXES[name] in mended(body, code, unsafe=True)
    assert findings(mended(body, code, unsafe=True), code) == []


def test_a_state_that_begins_as_none_stays_none() -> None:
    body = """
state = None
for x, y in train_loader:
    output, state = model(x, state)
    output.mean().backward()
"""
    detached = "tuple(part.detach() for part in state) if isinstance(state, tuple) else state.detach()"
    assert f"model(x, None if state is None else {detached})" in mended(body, "LG104", unsafe=True)


@pytest.mark.parametrize(
    "begins", ["(torch.zeros(2), torch.zeros(2))", "start(4)", "tuple(torch.zeros(2) for _ in range(2))"]
)
def test_a_tuple_of_states_is_detached_part_by_part(begins: str) -> None:
    body = f"""
def start(size):
    return torch.zeros(size), torch.zeros(size)
state = {begins}
for x, y in train_loader:
    output, state = model(x, state)
    output.mean().backward()
"""
    after = mended(body, "LG104", unsafe=True)
    assert "model(x, tuple(part.detach() for part in state))" in after
    assert findings(after, "LG104") == []


def test_a_list_of_states_is_detached_part_by_part_and_a_dict_or_object_left_alone() -> None:
    body = """
state = [torch.zeros(2), torch.zeros(2)]
for x, y in train_loader:
    output, state = model(x, state)
    output.mean().backward()
"""
    assert "model(x, [part.detach() for part in state])" in mended(body, "LG104", unsafe=True)
    for beginning in ('{"h": torch.zeros(2)}', "StreamState(torch.zeros(2))"):
        other = body.replace("[torch.zeros(2), torch.zeros(2)]", beginning)
        assert findings(other, "LG104")
        assert mended(other, "LG104", unsafe=True) == other


def test_retain_graph_stays_where_all_steps_go_backward_together() -> None:
    body = """
total = torch.zeros(())
for x, y in train_loader:
    total = total + model(x).mean()
    total.backward(retain_graph=True)
"""
    assert findings(body, "LG108")
    assert mended(body, "LG108", unsafe=True) == body


def test_an_old_average_is_left_as_it_is() -> None:
    body = """
smoothed = [0.0] * 4
for x, y in train_loader:
    each = model(x).mean()
    each.backward()
    for i in range(4):
        smoothed[i] = 0.7 * smoothed[i] + 0.3 * each
"""
    assert "0.7 * smoothed[i] + 0.3 * each." in mended(body, "LG101")


def test_a_hook_keeps_outputs_without_their_graph() -> None:
    assert "features.append(output.detach())" in mended(TELLS["LG110 a function"], "LG110")


@pytest.mark.parametrize(
    "step",
    [
        "raise BadSample(model(x))",
        "try:\n            model(x).item()\n        except RuntimeError as why:\n            raise BadSample(x.shape) from why",
    ],
    ids=["as an attribute", "by the one that it came from"],
)
def test_an_exception_that_keeps_tensors_otherwise_is_told_and_not_mended(step: str) -> None:
    body = f"""
class BadSample(Exception):
    def __init__(self, output):
        self.output = output
bad = []
for x, y in train_loader:
    try:
        {step}
    except BadSample as problem:
        bad.append(problem)
"""
    assert findings(body, "LG107")
    assert mended(body, "LG107", unsafe=True) == body
