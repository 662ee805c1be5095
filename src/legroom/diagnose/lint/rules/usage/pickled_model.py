"""LG303: The whole model is pickled

`torch.save(model)` stores the object with the paths of its classes: it breaks when the code moves, cannot be loaded with
`weights_only=True`, and brings the model back on the device that it was on, all at once.

```python
# instead of
torch.save(model, "model.pt")
model = torch.load("model.pt", weights_only=False)
# write
torch.save(model.state_dict(), "model.pt")
model.load_state_dict(torch.load("model.pt", map_location="cpu"))
```

**In code**: `torch.save` of a model.

**Fix**: unsafe: the state is saved instead, and what loads the file must change as well.
"""

from collections.abc import Iterator

from legroom.diagnose.lint.edits import append_to
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import dotted, positional
from legroom.diagnose.lint.flow.values import Kind
from legroom.diagnose.lint.rule import Problem

CODE = "LG303"


def check(program: Program) -> Iterator[Problem]:
    for call in program.calls:
        if call.name != "torch.save" or not positional(call.node):
            continue
        given = positional(call.node)[0].value
        if program.value(given).kind is Kind.MODEL and dotted(given) is not None:
            yield Problem(
                node=given,
                message=f"`{dotted(given)}` is saved as an object, bound to its code and its device",
                help="Save its state: `.state_dict()`",
                edits=tuple(append_to(program, given, ".state_dict()")),
                safe=False,
            )
