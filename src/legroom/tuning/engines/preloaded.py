"""Modules that the fork server imports before it forks: everything that a trial or the tracing process would import anyway.

These modules must not use a GPU, because a process that has initialized CUDA cannot be forked. Without this module,
torch would load the optional modules in each process, when the first optimizer is created and when a virtual GPU is
entered. Loading them takes nearly two seconds of CPU time. This is a separate module because only the server process
may import it.
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
    ):  # another version of torch: a trial then imports what that version has
        importlib.import_module(_name)
