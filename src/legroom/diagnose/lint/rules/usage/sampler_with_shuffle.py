"""LG503: A loader has both a sampler and shuffle

The sampler decides the order; `DataLoader` refuses `shuffle=True` beside it with a `ValueError`.

```python
# instead of
DataLoader(data, sampler=sampler, shuffle=True)
# write
DataLoader(data, sampler=sampler)        # DistributedSampler shuffles by itself
```

**In code**: `sampler=` (or `batch_sampler=`) and `shuffle=True` in one call.

**Fix**: safe: `shuffle=True` is removed.
"""

from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.edits import remove_argument
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import is_true, keyword
from legroom.diagnose.lint.rule import Problem

CODE = "LG503"


def check(program: Program) -> Iterator[Problem]:
    for call in program.calls:
        shuffle = keyword(call.node, "shuffle")
        sampler = keyword(call.node, "sampler") or keyword(call.node, "batch_sampler")
        if (
            not (call.name or "").endswith("DataLoader")
            or shuffle is None
            or not is_true(shuffle)
            or sampler is None
        ):
            continue
        if isinstance(sampler.value, cst.Name) and sampler.value.value == "None":
            continue
        yield Problem(
            node=shuffle,
            message="A loader with a sampler cannot shuffle: this raises a ValueError",
            help="Remove `shuffle=True`; the sampler decides the order",
            edits=(remove_argument(program, call.node, shuffle),),
        )
