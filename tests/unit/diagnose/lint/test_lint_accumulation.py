"""LG101 and LG116: what adds up, and what only looks as if."""

import pytest
from linted import check_marks, findings, mended

STEP = """
    loss = criterion(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

ADDS_UP = {
    "a running total": f"""
total = 0
for x, y in train_loader:{STEP}
    total += loss  # here
""",
    "a total written out": f"""
total = 0
for x, y in train_loader:{STEP}
    total = total + loss  # here
""",
    "a moving average": f"""
average = 0
for x, y in train_loader:{STEP}
    average = 0.9 * average + 0.1 * loss  # here
""",
    "a list": f"""
losses = []
for x, y in train_loader:{STEP}
    losses.append(loss)  # here
""",
    "a list by +=": f"""
losses = []
for x, y in train_loader:{STEP}
    losses += [loss]  # here
""",
    "a tuple in a list": f"""
losses = []
for step, (x, y) in enumerate(train_loader):{STEP}
    losses.append((step, loss))  # here
""",
    "a list in a dict": f"""
history = {{"loss": []}}
for x, y in train_loader:{STEP}
    history["loss"].append(loss)  # here
""",
    "a list that setdefault makes": f"""
history = {{}}
for x, y in train_loader:{STEP}
    history.setdefault("loss", []).append(loss)  # here
""",
    "a new key with every step": f"""
by_step = {{}}
for step, (x, y) in enumerate(train_loader):{STEP}
    by_step[step] = loss  # here
""",
    "moved to the host with its graph": f"""
losses = []
for x, y in train_loader:{STEP}
    losses.append(loss.cpu())  # here
""",
    "an output of a model that returns an object": """
kept = []
for batch in train_loader:
    output = model(**batch)
    output.loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    kept.append(output.logits)  # here
""",
    "a loss that is only known to go backward": """
from elsewhere import compute
losses = []
for batch in train_loader:
    value = compute(batch)
    value.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(value)  # here
""",
    "a loss that accelerate takes backward": """
total = 0
for batch in train_loader:
    value = compute(batch)
    accelerator.backward(value)
    optimizer.step()
    total += value  # here
""",
    "per epoch": f"""
for epoch in range(3):
    total = 0
    for x, y in train_loader:{STEP.replace(chr(10) + "    ", chr(10) + "        ")}
        total += loss  # here
    print(total)
""",
    "an attribute in a method that is a step": """
class Trainer:
    def __init__(self, model):
        self.model = model
        self.losses = []

    def step(self, x, y):
        loss = criterion(self.model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        self.losses.append(loss)  # here

    def fit(self):
        for x, y in train_loader:
            self.step(x, y)
""",
    "an attribute in a framework's step": """
class Lit(nn.Module):
    def training_step(self, batch, index):
        loss = F.mse_loss(self.net(batch), batch)
        self.outputs.append(loss)  # here
        return loss
""",
    "a list of the class, filled in forward": """
class Probe(nn.Module):
    seen = []

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x):
        y = self.linear(x)
        Probe.seen.append(y)  # here
        return y
""",
    "a function that a loop calls": """
kept = []

def step(x, y):
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    kept.append(loss)  # here

for x, y in train_loader:
    step(x, y)
""",
    "an object that keeps what it is given": """
class Meter:
    def __init__(self):
        self.sum = 0

    def update(self, value):
        self.sum += value

meter = Meter()
for x, y in train_loader:
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    meter.update(loss)  # here
""",
    "a total in a dict": f"""
stats = {{"loss": 0.0}}
for x, y in train_loader:{STEP}
    stats["loss"] += loss  # here
""",
    "a total changed in place": f"""
total = torch.zeros(1)
for x, y in train_loader:{STEP}
    total.add_(loss)  # here
""",
    "a total by a function": f"""
total = torch.zeros(1)
for x, y in train_loader:{STEP}
    total = torch.add(total, loss)  # here
""",
    "an average that begins with the first loss": f"""
average = None
for x, y in train_loader:{STEP}
    average = loss if average is None else 0.9 * average + 0.1 * loss  # here
""",
    "a list made anew": f"""
losses = []
for x, y in train_loader:{STEP}
    losses = [*losses, loss]  # here
""",
    "a row of a table": f"""
rows = []
for step, (x, y) in enumerate(train_loader):{STEP}
    rows.append(dict(step=step, loss=loss))  # here
""",
    "a place of a tensor": f"""
results = torch.zeros(100)
for step, (x, y) in enumerate(train_loader):{STEP}
    results[step] = loss  # here
""",
    "a place of a list": f"""
results = [None] * 100
for step, (x, y) in enumerate(train_loader):{STEP}
    results[step] = loss  # here
""",
    "a dict that is updated": f"""
by_step = {{}}
for step, (x, y) in enumerate(train_loader):{STEP}
    by_step.update({{step: loss}})  # here
""",
    "what every step returns": """
def step(x, y):
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss

losses = [step(x, y) for x, y in train_loader]  # here
""",
    "a logger of keyword arguments": f"""
class Logger:
    def __init__(self):
        self.rows = {{}}

    def log(self, **metrics):
        for name, value in metrics.items():
            self.rows[name].append(value)

logger = Logger()
for x, y in train_loader:{STEP}
    logger.log(loss=loss)  # here
""",
    "a callback that is given a dict": f"""
class History:
    def on_batch_end(self, logs):
        self.logs.append(logs)

history = History()
for x, y in train_loader:{STEP}
    history.on_batch_end({{"loss": loss}})  # here
""",
    "a closure for the optimizer": """
losses = []

def closure():
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    losses.append(loss)  # here
    return loss

for x, y in train_loader:
    optimizer.step(closure)
""",
    "what a module is given": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inputs = []

    def forward(self, x):
        self.inputs.append(x)  # here
        return x
""",
    "parameters by hand": """
weight = torch.zeros(3)
weight.requires_grad = True
total = 0
for step in range(10):
    loss = (weight * 2).sum()
    loss.backward()
    weight.grad = None
    total += loss  # here
""",
    "a total by way of another name": f"""
total = 0
for x, y in train_loader:{STEP}
    new_total = total + loss
    total = new_total  # here
""",
    "a total by stacking": f"""
total = torch.zeros(1)
for x, y in train_loader:{STEP}
    total = torch.stack([total, loss]).sum()  # here
""",
    "a reset before the loop only": f"""
class Metric:
    def reset(self):
        self.values = []

    def update(self, value):
        self.values.append(value)

metric = Metric()
metric.reset()
for x, y in train_loader:{STEP}
    metric.update(loss)  # here
""",
    "a generator that trains": """
def training():
    for x, y in train_loader:
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss

history = []
for value in training():
    history.append(value)  # here
""",
    "averages of parameters by name": f"""
shadow = {{name: p.detach().clone() for name, p in model.named_parameters()}}
for x, y in train_loader:{STEP}
    for name, p in model.named_parameters():
        shadow[name] = 0.9 * shadow[name] + 0.1 * p  # here
""",
    "averages of parameters as a list": f"""
average = [p.detach().clone() for p in model.parameters()]
for x, y in train_loader:{STEP}
    average = [0.9 * a + 0.1 * p for a, p in zip(average, model.parameters())]  # here
""",
    "a bound method by another name": f"""
losses = []
record = losses.append
for x, y in train_loader:{STEP}
    record(loss)  # here
""",
    "transitions of a memory": """
class Memory:
    def __init__(self):
        self.rows = []

    def push(self, *args):
        self.rows.append(Transition(*args))

memory = Memory()
for x, y in train_loader:
    value = model(x)
    value.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    memory.push(x, y, value)  # here
""",
    "a reset that no one calls": f"""
class Metric:
    def reset(self):
        self.values = []

    def update(self, value):
        self.values.append(value)

metric = Metric()
for x, y in train_loader:{STEP}
    metric.update(loss)  # here
""",
    "an evaluation of made data": """
kept = []
for _ in range(10):
    kept.append(model(torch.randn(2, 4)))  # here
""",
    "an evaluation with gradients on": """
def evaluate():
    total = 0
    for x, y in train_loader:
        total += criterion(model(x), y)  # here
    return total / len(train_loader)
""",
    "what goes through autograd.grad": """
weights = [torch.randn(4, 2, requires_grad=True)]
trace = []
for x, y in train_loader:
    loss = ((x @ weights[0] - y) ** 2).mean()
    grads = torch.autograd.grad(loss, weights)
    trace.append(loss)  # here
""",
    "a frozen model with a new head": """
for parameter in model.parameters():
    parameter.requires_grad = False
model.head = nn.Linear(2, 2)
outputs = []
for x, y in train_loader:
    outputs.append(model(x))  # here
""",
    "parts of what is given": f"""
class Bank:
    def __init__(self):
        self.rows = {{}}
    def write(self, indices, rows):
        for index, row in zip(indices.tolist(), rows):
            self.rows.setdefault(index, []).append(row)
bank = Bank()
for x, y in train_loader:{STEP}
    rows = model(x)
    bank.write(y, rows)  # here
""",
    "an attribute that another class empties": f"""
class Limited:
    def __init__(self):
        self.data = []
    def push(self, item):
        self.data.append(item)
        if len(self.data) > 9:
            self.data.pop(0)
class Unlimited:
    def __init__(self):
        self.data = []
    def push(self, item):
        self.data.append(item)
limited, unlimited = Limited(), Unlimited()
for x, y in train_loader:{STEP}
    limited.push(loss)
    unlimited.push(loss)  # here
""",
    "a penalty over a list of layers": """
layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3)).to("cpu")
penalty = 0
for x, y in train_loader:
    for layer in layers:
        x = layer(x)
        penalty = penalty + x.abs().mean()  # here
    loss = x.mean()
    loss.backward()
""",
}

IS_FINE = {
    "a number": f"""
total, losses = 0, []
for x, y in train_loader:{STEP}
    total += loss.item()
    losses.append(float(loss))
    losses.append(loss.detach())
    losses.append(loss.detach().cpu().numpy())
""",
    "logging": f"""
for x, y in train_loader:{STEP}
    print(f"loss {{loss}}")
    texts.append(f"{{loss:.3f}}")
    bar.set_postfix(loss=loss)
""",
    "a sum of several losses that goes backward": """
for x, y in train_loader:
    loss = 0
    for head in heads:
        loss += criterion(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "a list of one step's losses": """
for x, y in train_loader:
    parts = []
    for head in heads:
        parts.append(criterion(model(x), y))
    torch.stack(parts).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "a list that is emptied": f"""
window = []
for x, y in train_loader:{STEP}
    window.append(loss)
    if len(window) == 10:
        window.clear()
""",
    "a list that is cut": f"""
window = []
for x, y in train_loader:{STEP}
    window.append(loss)
    window = window[-10:]
""",
    "a deque with a limit": f"""
from collections import deque
window = deque(maxlen=10)
for x, y in train_loader:{STEP}
    window.append(loss)
""",
    "a list with a condition on its length": f"""
first = []
for x, y in train_loader:{STEP}
    if len(first) < 5:
        first.append(loss)
""",
    "the same key again": f"""
last = {{}}
for x, y in train_loader:{STEP}
    last["loss"] = loss
""",
    "the same few keys again": """
last = {}
for x, y in train_loader:
    losses = {"a": criterion(model(x), y), "b": criterion(model(x), y)}
    sum(losses.values()).backward()
    optimizer.step()
    optimizer.zero_grad()
    for name, value in losses.items():
        last[name] = value
""",
    "the last one in an attribute": """
class Trainer:
    def training_step(self, batch):
        loss = F.mse_loss(self.net(batch), batch)
        self.last_loss = loss
        return loss
""",
    "under no_grad": """
outputs = []
with torch.no_grad():
    for x, y in train_loader:
        outputs.append(model(x))
""",
    "in a function without gradients": """
@torch.no_grad()
def evaluate():
    total = 0
    for x, y in train_loader:
        total += criterion(model(x), y)
    return total
""",
    "in a function that is only called under no_grad": """
def run():
    total = 0
    for x, y in train_loader:
        total += criterion(model(x), y)
    return total

with torch.no_grad():
    print(run())
""",
    "hidden states of a model's own layers": """
class Net(nn.Module):
    def forward(self, x):
        states = []
        for layer in self.layers:
            x = x + layer(x)
            states.append(x)
        return states
""",
    "log probabilities of one episode, emptied after it": """
for episode in range(10):
    for t in range(5):
        policy.log_probs.append(policy(state).log())
    loss = torch.stack(policy.log_probs).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    del policy.log_probs[:]
""",
    "predictions as numbers": f"""
hits = 0
for x, y in train_loader:{STEP}
    output = model(x)
    hits += (output.argmax(1) == y).sum()
    _, predicted = torch.max(output, 1)
    predictions.append(predicted)
""",
    "a meter that takes the number itself": f"""
class Meter:
    def update(self, value):
        self.sum += value.item()

meter = Meter()
for x, y in train_loader:{STEP}
    meter.update(loss)
""",
    "a loss divided by the steps of accumulation": """
for x, y in train_loader:
    loss = criterion(model(x), y)
    loss = loss / 4
    loss /= 4
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "a reset that is called": f"""
class Metric:
    def reset(self):
        self.values = []

    def update(self, value):
        self.values.append(value)

metric = Metric()
for epoch in range(3):
    metric.reset()
    for x, y in train_loader:{STEP.replace(chr(10) + "    ", chr(10) + "        ")}
        metric.update(loss)
""",
    "a ring of places": f"""
ring, place = [None] * 8, 0
for x, y in train_loader:{STEP}
    ring[place] = loss
    place = (place + 1) % 8
""",
    "results that the caller gets": """
def unroll(cell, x, steps):
    outputs = []
    for _ in range(steps):
        x = model(x)
        outputs.append(x)
    return torch.stack(outputs)
""",
    "the layers of a model, outside of a module": """
def features(x, layers):
    kept = []
    for layer in layers:
        x = layer(x)
        kept.append(x)
    return kept
""",
    "losses of a list that go backward after the loop": """
losses = []
for x, y in train_loader:
    losses.append(criterion(model(x), y))
total = torch.stack(losses).mean()
total.backward()
""",
    "a list that a function is given and its caller makes anew": """
from torch.distributions import Categorical
def select(state, kept):
    choice = Categorical(logits=model(state))
    action = choice.sample()
    kept.append(choice.log_prob(action))
    return action
for episode in range(9):
    kept = []
    for _ in range(5):
        select(torch.randn(4), kept)
    loss = -torch.stack(kept).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "features of a frozen model": """
for parameter in model.parameters():
    parameter.requires_grad = False
features = []
for x, y in train_loader:
    features.append(model(x))
""",
    "features of a model frozen at once": """
backbone = nn.Linear(4, 4).requires_grad_(False)
features = []
for x, y in train_loader:
    features.append(backbone(x))
""",
}


@pytest.mark.parametrize("body", ADDS_UP.values(), ids=ADDS_UP)
def test_what_adds_up_is_told(body: str) -> None:
    check_marks(body, "LG101")
    assert findings(body, "LG101")


@pytest.mark.parametrize("body", IS_FINE.values(), ids=IS_FINE)
def test_what_does_not_add_up_is_not_told(body: str) -> None:
    assert findings(body, "LG101") == []


def test_a_number_is_enough_where_only_the_number_is_used() -> None:
    body = ADDS_UP["a running total"] + "print(total / 10)\n"
    assert "total += loss.item()" in mended(body, "LG101")


def test_a_tensor_stays_a_tensor_where_it_is_used_as_one() -> None:
    body = ADDS_UP["a list"] + "print(torch.stack(losses).mean())\n"
    assert "losses.append(loss.detach())" in mended(body, "LG101")
    body = ADDS_UP["a running total"] + "print(total.item())\n"
    assert "total += loss.detach()" in mended(body, "LG101")


def test_only_the_part_with_the_graph_is_mended() -> None:
    assert "losses.append((step, loss.item()))" in mended(ADDS_UP["a tuple in a list"], "LG101")
    assert "0.9 * average + 0.1 * loss.item()" in mended(ADDS_UP["a moving average"], "LG101")


def test_a_computed_value_is_bracketed() -> None:
    body = f"total = 0\nfor x, y in train_loader:{STEP}\n    total += loss * 2 + loss\n"
    assert "total += (loss * 2 + loss).item()" in mended(body, "LG101")


def test_what_goes_backward_elsewhere_is_not_detached() -> None:
    body = """
class Policy(nn.Module):
    def act(self, x):
        self.saved.append(self.net(x).log())

policy = Policy()
for episode in range(3):
    policy.act(state)
    loss = torch.stack(policy.saved).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    (finding,) = findings(body, "LG101")
    assert finding.edits == ()
    assert finding.fix == "Empty `self.saved` once its step is over"


GROWS = {
    "a history": f"""
history = torch.zeros(0)
for x, y in train_loader:{STEP}
    history = torch.cat([history, model(x)])  # here
""",
    "made on the first step": f"""
history = None
for x, y in train_loader:{STEP}
    output = model(x)
    if history is None:
        history = output
    else:
        history = torch.cat((history, output))  # here
""",
    "as a choice": f"""
history = None
for x, y in train_loader:{STEP}
    history = x if history is None else torch.cat([history, x.detach()]).contiguous()  # here
""",
    "of a module": """
class Net(nn.Module):
    def forward(self, x):
        self.queue = torch.cat((self.queue, x), 0)  # here
        return x
""",
    "without a graph": f"""
history = torch.zeros(0)
for x, y in train_loader:{STEP}
    history = torch.cat([history, x.detach()])  # here
""",
}

STAYS = {
    "the last ones": f"""
history = torch.zeros(0)
for x, y in train_loader:{STEP}
    history = torch.cat([history, x])[-100:]
""",
    "cut on the next line": f"""
history = torch.zeros(0)
for x, y in train_loader:{STEP}
    history = torch.cat([history, x])
    history = history[-100:]
""",
    "of one step": """
for x, y in train_loader:
    x = torch.cat([x, y])
    criterion(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "a text that is generated": """
tokens = torch.zeros(1)
with torch.no_grad():
    for _ in range(20):
        tokens = torch.cat([tokens, model(tokens).argmax(-1)])
""",
}


@pytest.mark.parametrize("body", GROWS.values(), ids=GROWS)
def test_a_tensor_that_grows_is_told(body: str) -> None:
    check_marks(body, "LG116")
    assert findings(body, "LG116")


@pytest.mark.parametrize("body", STAYS.values(), ids=STAYS)
def test_a_tensor_that_stays_as_large_is_not_told(body: str) -> None:
    assert findings(body, "LG116") == []


def test_a_growing_history_loses_its_graph() -> None:
    assert "history = torch.cat((history, output)).detach()" in mended(
        GROWS["made on the first step"], "LG116"
    )
