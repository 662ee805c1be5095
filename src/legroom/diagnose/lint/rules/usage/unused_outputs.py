"""LG316: The model returns hidden states that nothing reads

## What it detects
The rule checks for calls with `output_hidden_states=True` or `output_attentions=True` if the file never reads
`hidden_states` or `attentions`, and reads the result only through attributes such as `logits`.

## Why this is a problem
The output keeps the hidden states or attention weights of all layers alive until the result is deleted. Without these
options, an evaluation frees them after each layer. Attention weights need memory that grows with the square of the
length, and they prevent the use of fused attention kernels.

## Example
```python
output = model(ids, output_hidden_states=True, output_attentions=True)
prediction = output.logits.argmax(-1)
```

## Use instead
```python
output = model(ids)
prediction = output.logits.argmax(-1)
```

## Fix safety
The fix removes the argument. The fix is safe, because nothing reads the values.
"""

from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.edits import remove_argument
from legroom.diagnose.lint.flow.facts import CallFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import is_true, keyword, walk
from legroom.diagnose.lint.flow.values import ValueKind
from legroom.diagnose.lint.rule import Problem

CODE = "LG316"
_OPTIONS = {
    "output_hidden_states": ("hidden_states", "encoder_hidden_states", "decoder_hidden_states"),
    "output_attentions": ("attentions", "cross_attentions", "encoder_attentions", "decoder_attentions"),
}


def check(program: Program) -> Iterator[Problem]:
    for option, names in _OPTIONS.items():
        if (
            not program.mentions(option)
            or program.mentions(*names)
            or any(f'"{each}"' in program.text for each in names)
        ):
            continue
        for call in program.calls:
            given = keyword(call.node, option)
            if call.receiver.kind is not ValueKind.MODEL or given is None or not is_true(given):
                continue
            if call.method in {None, "forward"} and _reads_attributes(program, call):
                yield Problem(
                    node=given,
                    message=f"The output keeps the `{names[0]}` of all layers alive, but the program never reads them",
                    help=f"Remove `{option}=True`",
                    edits=(remove_argument(program, call.node, given),),
                )


def _reads_attributes(program: Program, call: CallFact) -> bool:
    """Return True if the program reads only attributes of the result, and does not unpack, index or return it."""
    parent = program.parent.get(call.node)
    if isinstance(parent, cst.Attribute):
        return True
    targets = {
        each.target
        for each in program.stores
        if each.expression is call.node and each.how == "assign" and "." not in each.target
    }
    if (
        len(targets) != 1
        or not isinstance(parent, cst.Assign)
        or not isinstance(parent.targets[0].target, cst.Name)
    ):
        return False
    reads = [
        node
        for node in walk(call.function.body)
        if isinstance(node, cst.Name)
        and node.value in targets
        and not isinstance(program.parent.get(node), cst.AssignTarget)
    ]
    return bool(reads) and all(_is_attribute(program, node) for node in reads)


def _is_attribute(program: Program, node: cst.Name) -> bool:
    parent = program.parent.get(node)
    return isinstance(parent, cst.Attribute) and parent.value is node
