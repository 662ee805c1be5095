"""Imports the modules that a trial or the tracing process needs, before the fork server forks.

These modules must not use a GPU, because a process that has initialized CUDA cannot be forked. Creating the first
optimizer and a virtual GPU loads optional modules of torch, which takes nearly two seconds of CPU time. The imports
are in a separate module, so that the process that runs the search does not execute them.
"""

import contextlib
import importlib

OURS = (
    "legroom.observe.virtual.gpu",
    "legroom.train.guarding.guard",
    "legroom.tuning.trial.process",
    "legroom.tuning.memory.tracing_process",
)
OPTIONAL = ("torch._dynamo", "torch.distributed.tensor", "torch.utils.data")

for _name in OURS:
    importlib.import_module(_name)
for _name in OPTIONAL:
    with contextlib.suppress(
        Exception
    ):  # in another version of torch, a trial imports the modules of that version
        importlib.import_module(_name)
