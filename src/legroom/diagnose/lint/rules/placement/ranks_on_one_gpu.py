"""LG505: All ranks use the first GPU

## What it detects
The rule checks for programs that call `init_process_group`, wrap a model in `DistributedDataParallel` without
`device_ids`, and move the model to `"cuda"` without an index. The rule applies if the file does not select a GPU for each
process, for example with `torch.cuda.set_device(local_rank)`.

## Why this is a problem
`"cuda"` refers to the current device, which is GPU 0 in every process. All processes of a machine then allocate their
model, gradients, optimizer state and activations on GPU 0, and the other GPUs stay empty. NCCL also fails or stops
responding if two ranks use the same GPU.

## Example
```python
dist.init_process_group("nccl")
model = DistributedDataParallel(model.to("cuda"))
```

## Use instead
```python
dist.init_process_group("nccl")
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
model = DistributedDataParallel(model.to(local_rank), device_ids=[local_rank])
```

## Fix safety
No automatic fix is available.
"""

import re
from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import keyword, last_name, method_name, receiver, string_value
from legroom.diagnose.lint.flow.values import ValueKind
from legroom.diagnose.lint.rule import Problem

CODE = "LG505"
_SELECTION = re.compile(
    r"set_device|device_ids|device_index|CUDA_VISIBLE_DEVICES|cuda\.device\(|cuda:[{%]|cuda:[\"'] *\+|gloo|mpi\b|xla|cuda\(\w"
    r"|device\([\"']cuda[\"'], *\w|local_rank *\)|fully_shard|FullyShardedDataParallel|DeviceMesh|init_device_mesh|device_id ?="
)
"""Matches code that selects, or may select, a GPU for each process."""


def check(program: Program) -> Iterator[Problem]:
    if not program.mentions("init_process_group") or not program.mentions("DistributedDataParallel", "DDP"):
        return
    wrapped = [
        call
        for call in program.calls
        if last_name(call.name or "") in {"DistributedDataParallel", "DDP"} and len(call.node.args) >= 1
    ]
    started = any(last_name(call.name or "") == "init_process_group" for call in program.calls)
    if not wrapped or not started or _SELECTION.search(_without_environment(program.text)):
        return
    if any(len(call.node.args) > 1 and call.node.args[1].keyword is None for call in wrapped):
        return
    placed = _bare_device(program)
    if placed is not None:
        yield Problem(
            node=placed,
            message='`"cuda"` is GPU 0 in every process, so all ranks on a machine allocate their memory on GPU 0',
            help="Call `torch.cuda.set_device(local_rank)` first, or use `torch.device('cuda', local_rank)`",
        )


def _without_environment(text: str) -> str:
    """Return the text without reads of environment variables, such as `os.environ.get("LOCAL_RANK", 0)`, because
    reading the rank does not select a GPU.
    """
    return re.sub(r"os\.(?:environ|getenv)\S*", "", text)


def _bare_device(program: Program) -> cst.CSTNode | None:
    """Return the first call that uses `"cuda"` without an index: `torch.device("cuda")`, or a call that moves a model
    to the GPU.
    """
    for call in program.calls:
        given = call.node.args[0] if call.node.args else keyword(call.node, "device")
        text = string_value(given.value) if given is not None else None
        if call.name == "torch.device" and text == "cuda" and len(call.node.args) == 1:
            return call.node
        owner = receiver(call.node)
        if owner is None or program.value(owner).kind is not ValueKind.MODEL:
            continue
        if (method_name(call.node) == "cuda" and given is None) or (
            method_name(call.node) == "to" and text == "cuda"
        ):
            return call.node
    return None
