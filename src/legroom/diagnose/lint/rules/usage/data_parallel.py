"""LG501: DataParallel gathers everything on the first GPU

`nn.DataParallel` copies the model to every GPU in each step, from one process, and collects all outputs on the first: that GPU runs out of memory
first, the others wait. PyTorch's own documentation advises `DistributedDataParallel` even on one machine.

```python
# instead of
model = nn.DataParallel(model)
# write
model = nn.parallel.DistributedDataParallel(model, device_ids=[local_rank])   # torchrun --nproc-per-node=gpu train.py
```

**In code**: `nn.DataParallel(...)`.

**Fix**: none: one process for each GPU must be started.
"""

from collections.abc import Iterator

from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.rule import Problem

CODE = "LG501"


def check(program: Program) -> Iterator[Problem]:
    for call in program.calls:
        name = call.name or ""
        if name.startswith("torch.nn.") and name.endswith(".DataParallel"):
            yield Problem(
                node=call.node,
                message="`DataParallel` collects outputs and gradients on the first GPU, which runs out of memory first",
                help="Use `DistributedDataParallel`, one process for each GPU",
            )
