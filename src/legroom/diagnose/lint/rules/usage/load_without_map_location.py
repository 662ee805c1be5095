"""LG301: torch.load restores tensors to their original device

## What it detects
The rule checks for `torch.load` without `map_location` in two cases: the source file uses several ranks, or the program
uses CUDA and passes the result to `load_state_dict`.

## Why this is a problem
A checkpoint stores the device of each tensor. Without `map_location`, every rank loads the tensors to the GPU from
which they were saved, usually `cuda:0`. The memory of `cuda:0` then contains one copy per rank. On a single GPU, the
weights exist twice until the loaded copy is released.

## Example
```python
state = torch.load(path)
```

## Use instead
```python
state = torch.load(path, map_location="cpu")   # load_state_dict copies to the right device
```

## Fix safety
The fix adds `map_location="cpu"`. The fix is safe if the result is a state dict that `load_state_dict` copies, and
unsafe otherwise.
"""

import re
from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.edits import add_argument
from legroom.diagnose.lint.flow.facts import CallFact
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import has_star, keyword, names_in, positional, walk
from legroom.diagnose.lint.rule import Problem

CODE = "LG301"
_SMALL = re.compile(r"sched|scaler|rng|random", re.IGNORECASE)
_RANKS = (
    "init_process_group",
    "DistributedDataParallel",
    "DDP",
    "local_rank",
    "LOCAL_RANK",
    "DistributedSampler",
)


def check(program: Program) -> Iterator[Problem]:
    ranks = program.mentions(*_RANKS) or '"LOCAL_RANK"' in program.text
    cuda = program.mentions("cuda", "is_available") or '"cuda' in program.text or "'cuda" in program.text
    for call in program.calls:
        if call.name != "torch.load" or keyword(call.node, "map_location") or has_star(call.node):
            continue
        if len(positional(call.node)) > 1 or _is_small(program, call):
            continue
        into_state = _is_loaded_into_model(program, call)
        if not ranks and not (into_state and cuda):
            continue
        yield Problem(
            node=call.node,
            message="Every rank loads the checkpoint onto the device from which it was saved"
            if ranks
            else "The checkpoint is loaded onto the GPU in addition to the model's own weights",
            help='Load to host memory: add `map_location="cpu"`',
            edits=(add_argument(program, call.node, 'map_location="cpu"'),),
            safe=into_state,
        )


def _is_small(program: Program, call: CallFact) -> bool:
    """Return True if the file contains the state of a scheduler, a scaler or a random generator. Such a state is
    small."""
    line = program.statement_line(call.node)
    return line is not None and bool(_SMALL.search(program.source(line)))


def _is_loaded_into_model(program: Program, call: CallFact) -> bool:
    """Return True if the result, or a part of it, is passed to `load_state_dict`."""
    loaded = {
        store.target
        for store in program.stores
        if store.function is call.function and program.inside(call.node, store.expression)
    }
    for other in program.calls:
        if other.method == "load_state_dict" and other.node.args:
            given = other.node.args[0].value
            if call.node in set(walk(given)) or (
                other.function is call.function and names_in(given) & loaded
            ):
                return True
    return isinstance(program.parent.get(call.node), cst.Return) and program.mentions("load_state_dict")
