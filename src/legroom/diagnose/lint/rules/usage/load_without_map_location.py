"""LG301: torch.load puts tensors where they were saved

A checkpoint remembers the device of each tensor. Without `map_location` every rank loads onto the GPU of the rank that saved it, usually
`cuda:0`, which then holds one copy for each rank; on one GPU the weights are there twice until the loaded ones are dropped.

```python
# instead of
state = torch.load(path)
# write
state = torch.load(path, map_location="cpu")   # load_state_dict copies to the right device
```

**In code**: `torch.load` without `map_location` in a file that works with several ranks, or whose result goes into `load_state_dict`
of a program that uses CUDA.

**Fix**: safe where the result is a state that `load_state_dict` copies, else unsafe: `map_location="cpu"`.
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
        into_state = _goes_into_a_model(program, call)
        if not ranks and not (into_state and cuda):
            continue
        yield Problem(
            node=call.node,
            message="Every rank loads onto the device that the checkpoint was saved from"
            if ranks
            else "The checkpoint is loaded onto the GPU, beside the weights that are there already",
            help='Load to the host: `map_location="cpu"`',
            edits=(add_argument(program, call.node, 'map_location="cpu"'),),
            safe=into_state,
        )


def _is_small(program: Program, call: CallFact) -> bool:
    """The state of a scheduler, a scaler or a random generator: nothing to speak of."""
    line = program.statement_line(call.node)
    return line is not None and bool(_SMALL.search(program.source(line)))


def _goes_into_a_model(program: Program, call: CallFact) -> bool:
    """Whether the result, or something of it, is given to `load_state_dict`."""
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
