"""Fixes: safe ones by default, unsafe ones with the option."""

import pytest
from lint_cases import STEP, findings, fixed, snippets

REPORTED = snippets("lint_rules/reported")

SAFE_FIXES = {
    "LG201 after model.eval()": "with torch.no_grad():\n    for x, y in train_loader:\n        output = model(x)",
    "LG201 in a function named like an evaluation": "@torch.no_grad()\ndef validate(net, loader):",
    "LG301 into a model on a GPU": 'torch.load("model.pt", map_location="cpu")',
    "LG302 a batch": "x = x.to(device, non_blocking=True)  # here\n    y = y.cuda(non_blocking=True)",
    "LG304 in every step": "    optimizer.zero_grad()\n",
    "LG402 full name": 'torch.amp.GradScaler("cuda")  # here\nwith torch.amp.autocast("cuda", dtype=torch.float16):',
    "LG402 imported": 'from torch.amp import GradScaler, autocast  # here\nscaler = GradScaler("cuda", init_scale=2.0)\nwith autocast("cuda"):',
    "LG403 in the block": "    loss = criterion(model(x), y)\nloss.backward()  # here\noptimizer.step()\n",
    "LG405 size_average and reduce": 'nn.MSELoss(reduction="sum")  # here\nb = F.nll_loss(model(x), y, reduction="none")  # here\n'
    'c = nn.CrossEntropyLoss(weight=w, reduction="mean")',
    "LG406 of tensors": "total += loss.detach()",
    "LG503 both": "DataLoader(data, sampler=sampler)",
}
UNSAFE_FIXES = {
    "LG104 a hidden state": "model(x, hidden.detach())",
    "LG107 in a list": "errors.append(error.with_traceback(None))",
    "LG107 in a tuple": "failed.append((step, e.with_traceback(None)))",
    "LG108 in a loop": "loss.backward()  # here",
    "LG112 a frozen part": "AdamW((parameter for parameter in model.parameters() if parameter.requires_grad), lr=1e-3)",
    "LG112 by method": "Adam(parameter for parameter in model.parameters() if parameter.requires_grad)",
    "LG113 gradients are never cleared": "    optimizer.step()  # here\n    optimizer.zero_grad(set_to_none=True)\n",
    "LG301 on several ranks": 'torch.load("model.pt", map_location="cpu")',
    "LG303 a model": 'torch.save(model.state_dict(), "model.pt")',
    "LG404 clipped first": "    scaler.unscale_(optimizer)\n    nn.utils.clip_grad_norm_",
    "LG502 set_epoch is never called": "for epoch in range(3):\n    sampler.set_epoch(epoch)\n    for x, y in loader:",
}


@pytest.mark.parametrize("title", SAFE_FIXES)
def test_safe_fixes(title: str) -> None:
    assert SAFE_FIXES[title] in fixed(REPORTED[title], title[:5])


@pytest.mark.parametrize("title", UNSAFE_FIXES)
def test_unsafe_fixes_require_the_option(title: str) -> None:
    body, code = REPORTED[title], title[:5]
    assert fixed(body, code) == body
    assert UNSAFE_FIXES[title] in fixed(body, code, unsafe=True)


@pytest.mark.parametrize("title", [title for title in UNSAFE_FIXES if title.startswith("LG1")])
def test_no_finding_remains_after_an_unsafe_fix(title: str) -> None:
    assert findings(fixed(REPORTED[title], title[:5], unsafe=True), title[:5]) == []


def test_item_is_used_if_only_the_number_is_needed() -> None:
    body = REPORTED["LG101 a running total"] + "print(total / 10)\n"
    assert "total += loss.item()" in fixed(body, "LG101")


def test_detach_is_used_if_a_tensor_is_needed() -> None:
    body = REPORTED["LG101 a list"] + "print(torch.stack(losses).mean())\n"
    assert "losses.append(loss.detach())" in fixed(body, "LG101")
    body = REPORTED["LG101 a running total"] + "print(total.item())\n"
    assert "total += loss.detach()" in fixed(body, "LG101")


def test_only_the_part_with_the_graph_is_fixed() -> None:
    assert "losses.append((step, loss.item()))" in fixed(REPORTED["LG101 a tuple in a list"], "LG101")
    assert "0.9 * average + 0.1 * loss.item()" in fixed(REPORTED["LG101 a moving average"], "LG101")


def test_computed_value_gets_parentheses() -> None:
    body = f"total = 0\nfor x, y in train_loader:\n{STEP}    total += loss * 2 + loss\n"
    assert "total += (loss * 2 + loss).item()" in fixed(body, "LG101")


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
    assert finding.fix == "Clear `self.saved` after each step"


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


def test_hook_stores_detached_outputs() -> None:
    assert "features.append(output.detach())" in fixed(REPORTED["LG110 a function"], "LG110")


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


def test_modified_data_attribute_is_reported_but_not_fixed() -> None:
    edits = [finding.edits for finding in findings(REPORTED["LG406 of tensors"], "LG406")]
    assert [bool(each) for each in edits] == [True, False, False, True]


def test_decorator_is_added_below_existing_ones() -> None:
    body = """
class Trainer:
    @staticmethod
    def evaluate(net, loader):
        for x, y in loader:
            print(net(x).sum().item())
"""
    assert "    @staticmethod\n    @torch.no_grad()\n    def evaluate" in fixed(body, "LG201")


def test_multiline_string_is_not_indented() -> None:
    body = 'model.eval()\nfor x, y in train_loader:\n    print(model(x), """a\nb""")\n'
    assert fixed(body, "LG201") == body
