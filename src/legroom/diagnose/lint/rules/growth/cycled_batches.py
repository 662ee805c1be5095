"""LG117: Every batch of the data stays in memory

## What it detects
The rule reports the following cases:

- The code calls `itertools.cycle` on a data loader, on a class whose `__iter__` reads a data loader, or on a generator that
  yields tensors. The rule does not flag `cycle` over a list or a tuple, because the list or tuple keeps the items alive
  anyway.
- A container stores all batches from a data loader on the GPU. A loop, a function or an object in the file may add the
  batches to the container. The rule does not flag containers of labels, which are small.
- The constructor of a dataset reads files in a loop and stores each sample on the GPU.
- The constructor of a dataset moves all samples to the GPU, although the training loop moves each batch.
- A loader of images uses the length of the dataset as its batch size.
- A function moves all frames of a video to the GPU, and then runs a model on parts of the video.
- A loop over a data loader, or a thread that reads files, adds tensors on the GPU to a `queue.Queue` without `maxsize`.
  If the loader is faster than the training step, the queue collects all batches of the epoch.

## Why this is a problem
A list of all batches on the GPU uses as much GPU memory as the whole dataset before the first step starts.

`itertools.cycle` keeps a reference to every item from the first pass, because it cannot restart an iterator. After one
epoch, all batches are in memory. If the iterator yields batches on the GPU, these batches fill the GPU memory. Later
epochs also repeat the same order and the same augmentation.

## Example
```python
batches = itertools.cycle(loader)

batches = [(x.cuda(), y.cuda()) for x, y in loader]
```

## Use instead
```python
def repeat(loader):
    while True:
        yield from loader                # starts a new epoch and stores nothing

batches = repeat(loader)

for x, y in loader:
    x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)   # one batch at a time
```

## Fix safety
No automatic fix is available.
"""

from collections.abc import Iterator

import libcst as cst

from legroom.diagnose.lint.collected.on_gpu import collected_batches
from legroom.diagnose.lint.collected.queues import unlimited_queues
from legroom.diagnose.lint.collected.whole_data import whole_batches, whole_datasets, whole_videos
from legroom.diagnose.lint.flow.facts import Function
from legroom.diagnose.lint.flow.program import Program
from legroom.diagnose.lint.flow.syntax import positional, walk
from legroom.diagnose.lint.flow.values import Value, ValueKind
from legroom.diagnose.lint.rule import Problem

CODE = "LG117"


def check(program: Program) -> Iterator[Problem]:
    for call in program.calls:
        if call.name == "itertools.cycle" and positional(call.node):
            given = positional(call.node)[0].value
            if _yields_batches(program, given):
                yield Problem(
                    node=call.node,
                    message="`itertools.cycle` stores every batch of the first epoch",
                    help="Iterate over the loader again in each epoch: `while True: yield from loader`",
                )
    yield from collected_batches(program)
    yield from unlimited_queues(program)
    yield from whole_datasets(program)
    yield from whole_batches(program)
    yield from whole_videos(program)


def _yields_batches(program: Program, given: cst.BaseExpression) -> bool:
    value = program.value(given)
    if value.kind is ValueKind.LOADER:
        return True
    if isinstance(given, cst.GeneratorExp):
        return _has_tensors(value) or program.value(given.for_in.iter).kind is ValueKind.LOADER
    made = program.call_of(given)
    generator = program.method(value.class_name, "__iter__") or (made.local if made is not None else None)
    return (
        generator is not None
        and generator.is_generator
        and (_has_tensors(value) or _iterates_a_loader(program, generator))
    )


def _has_tensors(value: Value, levels: int = 3) -> bool:
    return value.is_tensor or (levels > 0 and any(_has_tensors(each, levels - 1) for each in value.contents))


def _iterates_a_loader(program: Program, function: Function) -> bool:
    return any(
        isinstance(node, (cst.For, cst.CompFor)) and program.value(node.iter).kind is ValueKind.LOADER
        for node in walk(function.body, into_functions=False)
    )
