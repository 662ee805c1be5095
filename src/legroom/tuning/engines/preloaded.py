"""Modules that the fork server imports before it forks: everything that a trial or the tracing process would import anyway.

Nothing here may use a GPU, because a process that has initialized CUDA cannot be forked. torch loads the optional
modules when the first optimizer is created and when a virtual GPU is entered, which takes nearly two seconds of CPU
time per process. This is a separate module because only the server process may import it.
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
