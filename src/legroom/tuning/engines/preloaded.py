"""What the fork server imports before trials are started from it: everything that a trial's process, or the one that traces, would import anyway.

Nothing here may touch a GPU: a process that has used CUDA cannot be forked. The optional parts of torch are those that it loads by itself
when the first optimizer is made and when a virtual GPU is entered, nearly two seconds of processor time in each process.
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
    with contextlib.suppress(Exception):  # another version of torch: then a trial loads what it has
        importlib.import_module(_name)
