"""LG303: The whole model is pickled

## What it detects
The rule checks for calls to `torch.save` on a model.

## Why this is a problem
`torch.save(model)` stores the object and the import paths of its classes. The file cannot be loaded with
`weights_only=True`, or after a class has been moved to another module. Loading the file restores the whole
model on the device that it was saved from.

## Example
```python
torch.save(model, "model.pt")
model = torch.load("model.pt", weights_only=False)
```

## Use instead
```python
torch.save(model.state_dict(), "model.pt")
model.load_state_dict(torch.load("model.pt", map_location="cpu"))
```

## Fix safety
The fix is unsafe: it saves the state dict instead, so code that loads the file must change as well.
"""

from collections.abc import Iterator

from legroom.diagnose.lint.edits import append_to
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import dotted, last_name, positional
from legroom.diagnose.lint.flow.values import ValueKind, guess_from_name
from legroom.diagnose.lint.rule import Problem

CODE = "LG303"


def check(program: Program) -> Iterator[Problem]:
    for call in program.calls:
        if call.name != "torch.save" or not positional(call.node):
            continue
        given = positional(call.node)[0].value
        path = dotted(given)
        if path is None or not _may_be_module(program, path):
            continue
        if program.value(given).kind is ValueKind.MODEL:
            yield Problem(
                node=given,
                message=f"`{path}` is saved as a pickled object, which depends on its class definition and its device",
                help="Save the model's state dict: add `.state_dict()`",
                edits=tuple(append_to(program, given, ".state_dict()")),
                safe=False,
            )


def _may_be_module(program: Program, path: str) -> bool:
    """Return False for an attribute of a module that may be a buffer, such as `self.prototypes`."""
    is_named = guess_from_name(last_name(path)).kind is ValueKind.MODEL
    return "." not in path or is_named or bool(program.assigned(path))
