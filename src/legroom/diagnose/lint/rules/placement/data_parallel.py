"""LG501: DataParallel gathers all outputs on the first GPU

## What it detects
The rule checks for `nn.DataParallel(...)`.

This rule is off by default. Enable it with `--select LG501` or `--select ALL`.

## Why this is a problem
In each step, `nn.DataParallel` copies the model to every GPU from a single process and gathers all outputs on the first
GPU. The first GPU runs out of memory before the other GPUs, which wait for the first GPU. The PyTorch documentation
recommends `DistributedDataParallel` even on a single machine.

## Example
```python
model = nn.DataParallel(model)
```

## Use instead
```python
model = nn.parallel.DistributedDataParallel(model, device_ids=[local_rank])   # torchrun --nproc-per-node=gpu train.py
```

## Fix safety
No automatic fix is available, because `DistributedDataParallel` needs one process per GPU.
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
                message="`DataParallel` gathers outputs and gradients on the first GPU, which runs out of memory first",
                help="Use `DistributedDataParallel` with one process per GPU",
            )
