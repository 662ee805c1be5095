"""Lint fixes: safe fixes by default, unsafe fixes with `--unsafe-fixes`."""

import pytest
from lint_cases import STEP, findings, fixed, snippets

REPORTED = snippets("lint_rules/reported")

SAFE_FIXES = {
    "LG201 after model.eval()": "with torch.no_grad():\n    for x, y in train_loader:\n        output = model(x)",
    "LG301 into a model on a GPU": 'torch.load("model.pt", map_location="cpu")',
    "LG302 a batch": "x = x.to(device, non_blocking=True)  # here\n    y = y.cuda(non_blocking=True)",
    "LG304 in every step": "    optimizer.zero_grad()\n",
    "LG316 hidden states": "encoder(ids.cuda())  # here",
    "LG402 full name": 'torch.amp.GradScaler("cuda")  # here\nwith torch.amp.autocast("cuda", dtype=torch.float16):',
    "LG402 imported": 'from torch.amp import GradScaler, autocast  # here\nscaler = GradScaler("cuda", init_scale=2.0)\nwith autocast("cuda"):',
    "LG405 size_average and reduce": 'nn.MSELoss(reduction="sum")  # here\nb = F.nll_loss(model(x), y, reduction="none")  # here\n'
    'c = nn.CrossEntropyLoss(weight=w, reduction="mean")',
    "LG503 a sampler of this file": "DataLoader(data, sampler=sampler)",
}
UNSAFE_FIXES = {
    "LG104 a hidden state": "model(x, hidden.detach())",
    "LG107 in a list": "errors.append(error.with_traceback(None))",
    "LG107 in a tuple": "failed.append((step, e.with_traceback(None)))",
    "LG108 in a loop": "loss.backward()  # here",
    "LG112 a frozen part": "AdamW((parameter for parameter in model.parameters() if parameter.requires_grad), lr=1e-3)",
    "LG112 by method": "Adam(parameter for parameter in model.parameters() if parameter.requires_grad)",
    "LG113 gradients are never cleared": "    optimizer.step()  # here\n    optimizer.zero_grad(set_to_none=True)\n",
    "LG110 a function": "features.append(output.detach())",
    "LG201 in a function named like an evaluation": "@torch.no_grad()\ndef validate(net, loader):",
    "LG403 in the block": "    loss = criterion(model(x), y)\nloss.backward()  # here\noptimizer.step()\n",
    "LG503 both": "DataLoader(data, sampler=sampler)",
    "LG301 on several ranks": 'torch.load("model.pt", map_location="cpu")',
    "LG303 a model": 'torch.save(model.state_dict(), "model.pt")',
    "LG404 clipped first": "    scaler.unscale_(optimizer)\n    nn.utils.clip_grad_norm_",
    "LG122 methods that are not called": "    optimizer.zero_grad()  # here\n",
    "LG122 a discarded result": "output = output.detach()  # here",
    "LG309 a misspelled name": "    parameter.requires_grad = False  # here\nmodel.weight.requires_grad = False",
    "LG309 a module": "net.layer4.requires_grad_(False)  # here\nfor child in net.children():\n    child.requires_grad_(False)",
    "LG502 set_epoch is never called": "for epoch in range(3):\n    sampler.set_epoch(epoch)\n    for x, y in loader:",
}


@pytest.mark.parametrize("title", SAFE_FIXES)
def test_safe_fixes_are_applied(title: str) -> None:
    assert SAFE_FIXES[title] in fixed(REPORTED[title], title[:5])


@pytest.mark.parametrize("title", UNSAFE_FIXES)
def test_unsafe_fixes_require_the_option(title: str) -> None:
    body, code = REPORTED[title], title[:5]
    assert fixed(body, code) == body
    assert UNSAFE_FIXES[title] in fixed(body, code, unsafe=True)


@pytest.mark.parametrize(
    "title", [title for title in UNSAFE_FIXES if title.startswith("LG1") and not title.startswith("LG110")]
)
def test_no_finding_remains_after_an_unsafe_fix(title: str) -> None:
    assert findings(fixed(REPORTED[title], title[:5], unsafe=True), title[:5]) == []


def test_fix_detaches_and_does_not_round_the_sum_differently() -> None:
    body = REPORTED["LG101 a running total"] + "print(f'{total / 10:.3f}')\n"
    assert "total += loss.detach()" in fixed(body, "LG101")
    body = REPORTED["LG101 a list"] + "print(torch.stack(losses).mean().item())\n"
    assert "losses.append(loss.detach())" in fixed(body, "LG101")


@pytest.mark.parametrize(
    "use",
    [
        "print(total)",
        "print('loss', total / 10)",
        "print(f'{total}')",
        "print('%s' % total)",
        "torch.save(total, 'total.pt')",
        "report(total)",
        "average = total / 10\nprint(average)",
    ],
)
def test_fix_is_unsafe_if_the_text_of_the_tensor_may_be_printed(use: str) -> None:
    body = REPORTED["LG101 a running total"] + f"{use}\n"
    (finding,) = findings(body, "LG101")
    assert finding.applicability == "unsafe"
    assert fixed(body, "LG101") == body


@pytest.mark.parametrize(
    "use",
    [
        "grads = torch.autograd.grad(total, list(model.parameters()))",
        "from torch import autograd\ngrads = autograd.grad(total, [weight])",
    ],
)
def test_fix_is_unsafe_if_the_graph_may_be_used(use: str) -> None:
    body = REPORTED["LG101 a running total"]
    assert fixed(body, "LG101") != body
    assert fixed(body + use + "\n", "LG101") == body + use + "\n"


def test_backward_proves_a_tensor_only_if_no_other_object_has_this_method() -> None:
    body = """
from somewhere import engine, loader
total = 0.0
for x in loader:
    loss = engine.loss(x)
    loss.backward()
    total += loss
"""
    assert "total += loss.detach()" in fixed(body, "LG101")
    other = "class Schedule:\n    def backward(self):\n        pass\n"
    assert "loss.detach()" not in fixed(body + other, "LG101")
    function = "class Scale(torch.autograd.Function):\n    @staticmethod\n    def backward(context, grad):\n        return grad\n"
    assert "loss.detach()" not in fixed(body + function, "LG101")  # a file that uses torch.autograd


@pytest.mark.parametrize(
    "value",
    ["raw.estimate(x)", "schedule(step)", "net(x)", "engine.loss(x)", "outputs[0]", "model(x) if x else 0.0"],
)
def test_fix_is_unsafe_without_proof_that_the_value_is_a_tensor(value: str) -> None:
    body = f"""
from somewhere import net, raw, schedule, engine
def train(model, loader):
    average, kept = 0.0, []
    for step, x in enumerate(loader):
        outputs = model(x)
        value = {value}
        average = 0.9 * average + 0.1 * value
        kept.append(value)
        outputs.mean().backward()
        optimizer.step()
"""
    assert fixed(body, "LG101") == body


def test_value_on_which_backward_ran_is_a_tensor() -> None:
    body = """
from somewhere import compute
def train(loader):
    total = 0.0
    for x in loader:
        loss = compute(x)
        loss.backward()
        total += loss
    print(f"{total:.3f}")
"""
    assert "total += loss.detach()" in fixed(body, "LG101")
    conditional = body.replace(
        "        loss.backward()\n", "        if x.sum() > 0:\n            loss.backward()\n"
    )
    assert fixed(conditional, "LG101") == conditional


def test_result_that_other_files_may_use_in_a_backward_pass_is_not_detached() -> None:
    body = """
def full_batch_loss(loader):
    total = 0.0
    for x, y in train_loader:
        total = total + criterion(model(x), y)
    return total
"""
    assert fixed(body, "LG101") == body


@pytest.mark.parametrize(
    ("model", "rest"),
    [
        ("from models import Net\nnet = Net()", ""),
        ("net = nn.TransformerEncoderLayer(4, 2)", ""),
        ("net = torch.compile(nn.Linear(4, 2))", ""),
        ("net = nn.Linear(4, 2)", "        print(output)\n"),
        ("net = nn.Linear(4, 2)", "        plot(output)\n"),
        ("net = nn.Linear(4, 2)", "        self.outputs.append(output)\n"),
        ("net = nn.Linear(4, 2)", "    return output\n"),
        (
            "class Net(nn.Module):\n    def forward(self, x):\n"
            "        return torch.autograd.grad(self.energy(x), x)[0]\nnet = Net()",
            "",
        ),
    ],
)
def test_no_grad_is_unsafe_without_proof_that_results_stay_the_same(model: str, rest: str) -> None:
    body = f"{model}\ndef evaluate(loader):\n    net.eval()\n    for x, y in loader:\n        output = net(x)\n{rest}"
    assert fixed(body, "LG201") == body
    proven = "net = nn.Linear(4, 2)\ndef evaluate(loader):\n    net.eval()\n    for x, y in loader:\n        output = net(x)\n"
    assert "@torch.no_grad()" in fixed(proven, "LG201")


@pytest.mark.parametrize("loader", ["collate_fn=pack", "batch_size=None", "**options"])
def test_non_blocking_is_unsafe_if_batches_may_not_be_tensors(loader: str) -> None:
    body = """
loader = DataLoader(data, pin_memory=True, LOADER)
for x, y in loader:
    x = x.to(device)
"""
    assert fixed(body.replace("LOADER", loader), "LG302") == body.replace("LOADER", loader)
    assert "x.to(device, non_blocking=True)" in fixed(body.replace(", LOADER", ""), "LG302")


def test_map_location_is_unsafe_if_the_checkpoint_has_other_uses() -> None:
    body = """
def load(path):
    checkpoint = torch.load(path)
    model.cuda().load_state_dict(checkpoint["model"])
"""
    assert 'torch.load(path, map_location="cpu")' in fixed(body, "LG301")
    for use in ("    noise = checkpoint['noise']\n", "    return checkpoint\n"):
        assert fixed(body + use, "LG301") == body + use
    stored = "class Average:\n    def load_state_dict(self, state):\n        self.state = state\n"
    assert fixed(body + stored, "LG301") == body + stored
    assigned = body.replace('["model"])', '["model"], assign=True)')
    assert fixed(assigned, "LG301") == assigned


def test_only_the_part_with_the_graph_is_fixed() -> None:
    assert "losses.append((step, loss.detach()))" in fixed(REPORTED["LG101 a tuple in a list"], "LG101")
    assert "0.9 * average + 0.1 * loss.detach()" in fixed(REPORTED["LG101 a moving average"], "LG101")


def test_computed_value_gets_parentheses() -> None:
    body = f"total = 0\nfor x, y in train_loader:\n{STEP}    total += loss * 2 + loss\n"
    assert "total += (loss * 2 + loss).detach()" in fixed(body, "LG101")


def test_value_used_in_a_later_backward_is_not_detached() -> None:
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
    assert finding.fix == (
        "If no later backward pass needs the graph of `self.net(x).log()`, add `.detach()`. "
        "Otherwise, clear `self.saved` after each step"
    )


def test_growing_tensor_is_detached() -> None:
    assert "history = torch.cat((history, output)).detach()" in fixed(
        REPORTED["LG116 created in the first step"], "LG116"
    )


def test_state_initialized_with_none_stays_none() -> None:
    body = """
state = None
for x, y in train_loader:
    output, state = model(x, state)
    output.mean().backward()
"""
    detached = "tuple(part.detach() for part in state) if isinstance(state, tuple) else state.detach()"
    assert f"model(x, None if state is None else {detached})" in fixed(body, "LG104", unsafe=True)


@pytest.mark.parametrize(
    "begins", ["(torch.zeros(2), torch.zeros(2))", "start(4)", "tuple(torch.zeros(2) for _ in range(2))"]
)
def test_tuple_of_states_is_detached_per_item(begins: str) -> None:
    body = f"""
def start(size):
    return torch.zeros(size), torch.zeros(size)
state = {begins}
for x, y in train_loader:
    output, state = model(x, state)
    output.mean().backward()
"""
    after = fixed(body, "LG104", unsafe=True)
    assert "model(x, tuple(part.detach() for part in state))" in after
    assert findings(after, "LG104") == []


def test_list_of_states_is_detached_per_item_but_not_a_dict_or_object() -> None:
    body = """
state = [torch.zeros(2), torch.zeros(2)]
for x, y in train_loader:
    output, state = model(x, state)
    output.mean().backward()
"""
    assert "model(x, [part.detach() for part in state])" in fixed(body, "LG104", unsafe=True)
    for beginning in ('{"h": torch.zeros(2)}', "StreamState(torch.zeros(2))"):
        other = body.replace("[torch.zeros(2), torch.zeros(2)]", beginning)
        assert findings(other, "LG104")
        assert fixed(other, "LG104", unsafe=True) == other


def test_retain_graph_stays_if_steps_share_a_backward_pass() -> None:
    body = """
total = torch.zeros(())
for x, y in train_loader:
    total = total + model(x).mean()
    total.backward(retain_graph=True)
"""
    assert findings(body, "LG108")
    assert fixed(body, "LG108", unsafe=True) == body


def test_previous_average_is_not_changed() -> None:
    body = """
smoothed = [0.0] * 4
for x, y in train_loader:
    each = model(x).mean()
    each.backward()
    for i in range(4):
        smoothed[i] = 0.7 * smoothed[i] + 0.3 * each
"""
    assert "0.7 * smoothed[i] + 0.3 * each." in fixed(body, "LG101")


@pytest.mark.parametrize(
    "step",
    [
        "raise BadSample(model(x))",
        "try:\n            model(x).item()\n        except RuntimeError as why:\n            raise BadSample(x.shape) from why",
    ],
    ids=["as an attribute", "by the one that it came from"],
)
def test_exception_with_tensor_attributes_is_reported_but_not_fixed(step: str) -> None:
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
    assert fixed(body, "LG107", unsafe=True) == body


def test_decorator_is_added_below_existing_ones() -> None:
    body = """
class Trainer:
    @staticmethod
    def evaluate(net, loader):
        for x, y in loader:
            print(net(x).sum().item())
"""
    assert "    @staticmethod\n    @torch.no_grad()\n    def evaluate" in fixed(body, "LG201", unsafe=True)


def test_multiline_string_is_not_indented() -> None:
    body = 'model.eval()\nfor x, y in train_loader:\n    print(model(x), """a\nb""")\n'
    assert fixed(body, "LG201") == body


@pytest.mark.parametrize(
    "value",
    [
        "output[:, 0]",
        "output.select(1, 0).float()",
        "output.view(-1)[:8]",
        "first",
        "left",
        "head(x)",
    ],
)
def test_a_collected_view_is_copied_because_a_detached_view_keeps_the_whole_tensor_alive(value: str) -> None:
    body = f"""
def head(x):
    return model(x).narrow(1, 0, 1)

collected, total = [], 0
for x, y in train_loader:
{STEP}    output = model(x)
    first = output[0]
    left, right = output.chunk(2)
    collected.append({value})
    total += output[0]
"""
    for_list, for_sum = findings(body, "LG101")
    assert ".detach().clone()" in str(for_list.fix)
    assert for_list.applicability == "unsafe"
    assert "`.detach()`" in str(for_sum.fix)
    repaired = fixed(body, "LG101", unsafe=True)
    assert f"collected.append({value}.detach().clone())" in repaired
    assert "total += output[0].detach()\n" in repaired


@pytest.mark.parametrize("value", ["loss", "output", "output.mean()", "losses['all']", "parts[0]"])
def test_a_whole_tensor_is_detached_without_a_copy(value: str) -> None:
    body = f"""
collected = []
for x, y in train_loader:
{STEP}    output = model(x)
    losses, parts = {{"all": loss}}, [loss, output]
    collected.append({value})
"""
    assert f"collected.append({value}.detach())" in fixed(body, "LG101", unsafe=True)


def test_a_view_that_is_passed_to_a_storing_method_is_copied() -> None:
    body = f"""
class Meter:
    def __init__(self):
        self.values = []
    def update(self, value):
        self.values.append(value)

meter = Meter()
for x, y in train_loader:
{STEP}    output = model(x)
    meter.update(output[:, 0])
"""
    assert "meter.update(output[:, 0].detach().clone())" in fixed(body, "LG101", unsafe=True)
