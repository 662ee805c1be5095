"""LG123: The whole model computes gradients, but the optimizer trains only a part

## What it detects
The rule checks for optimizers that receive the parameters of one part of a pretrained model, such as
`model.fc.parameters()`, or the parameters whose names contain a given string, such as `"lora"`. The rule applies if the
program runs the whole model in training and freezes nothing.

## Why this is a problem
The other parameters still require gradients. The step saves the activations of all their layers and allocates a gradient
for each of them. `optimizer.zero_grad()` clears only the gradients of the trained part, so the other gradients stay
allocated during the whole run.

## Example
```python
model = torchvision.models.resnet50(weights="DEFAULT")
model.fc = nn.Linear(2048, 10)
optimizer = torch.optim.SGD(model.fc.parameters(), lr=0.01)
```

## Use instead
```python
model = torchvision.models.resnet50(weights="DEFAULT").requires_grad_(False)
model.fc = nn.Linear(2048, 10)           # a new layer requires gradients
optimizer = torch.optim.SGD(model.fc.parameters(), lr=0.01)
```

## Fix safety
No automatic fix is available, because the right place for the call depends on the order of the statements.
"""

import re
from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.flow.facts import CallFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import dotted, method_name, names_in, receiver, walk
from legroom.diagnose.lint.flow.values import ValueKind
from legroom.diagnose.lint.rule import Problem

CODE = "LG123"
_HEADS = re.compile(
    r"^(?:fc|classifier|heads?|last_linear|score|cls|top|lm_head|out_proj|adapters?|prompts?|final_?\w*|linear)$"
)
_FREEZING = re.compile(r"requires_grad|no_grad|inference_mode|freeze|get_peft_model|trainable|detach")


def check(program: Program) -> Iterator[Problem]:
    made = [call for call in program.calls if call.result.kind is ValueKind.OPTIMIZER and call.node.args]
    if not made or _FREEZING.search(_without_evaluation(program)):
        return
    sources = [_source(program, call.node.args[0].value) for call in made]
    for call, given in zip(made, sources, strict=True):
        model = _partly_trained_model(given) if given is not None else None
        others = [each for each in sources if each is not given]
        if model is None or any(each is None or model in names_in(each) for each in others):
            continue
        if any(_trains_whole(each, model) for each in program.calls):
            yield Problem(
                node=call.node,
                message=f"The optimizer trains only part of `{model}`, but all parameters of `{model}` get gradients",
                help=f"Freeze the other parameters: call `{model}.requires_grad_(False)`, and then `requires_grad_(True)` on the trained part",
            )


def _without_evaluation(program: Program) -> str:
    """Return the source code of the file without `no_grad` blocks, torch decorators and `.detach()`, which evaluation
    code uses.
    """
    return re.sub(
        r"@torch\.\w+\(\)|with torch\.(?:no_grad|inference_mode)\(\)|\.detach\(\)", "", program.text
    )


def _source(program: Program, node: cst.BaseExpression) -> cst.BaseExpression | None:
    """Return the expression that creates a list of parameters."""
    path = dotted(node)
    if path is None:
        return node
    assigned = program.assigned(path)
    return assigned[0] if len(assigned) == 1 else None


def _partly_trained_model(node: cst.BaseExpression) -> str | None:
    """Return the model of which an expression selects only some parameters. For example, return `model` for
    `model.fc.parameters()` and `[p for n, p in model.named_parameters() if "lora" in n]`.
    """
    if isinstance(node, cst.Call) and method_name(node) == "parameters":
        owner, _, part = (dotted(receiver(node)) or "").rpartition(".")
        return owner if owner and _HEADS.search(part) else None
    if not isinstance(node, (cst.ListComp, cst.GeneratorExp)) or len(node.for_in.ifs) != 1:
        return None
    source, test = node.for_in.iter, node.for_in.ifs[0].test
    if not isinstance(source, cst.Call) or method_name(source) != "named_parameters":
        return None
    if not isinstance(test, cst.Comparison) or not isinstance(test.left, cst.BaseString):
        return None
    return dotted(receiver(source)) if isinstance(test.comparisons[0].operator, cst.In) else None


def _trains_whole(call: CallFact, model: str) -> bool:
    """Return True if a training loop runs the whole model, and a library defines the class of the model."""
    return (
        dotted(call.node.func) == model
        and call.receiver.trainable
        and call.receiver.class_name is None
        and not call.receiver.frozen
        and not call.no_grad
        and call.result.has_graph
        and any(loop.backward for loop in call.loops)
        and not any(isinstance(each, cst.Lambda) for each in walk(call.node))
    )
