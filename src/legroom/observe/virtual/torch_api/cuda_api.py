"""Every module-level question to `torch.cuda` and `torch.accelerator`, answered for virtual GPUs.

    with patches(host):
        torch.cuda.is_available()      # True, on a machine and a build of torch that have never seen CUDA
        torch.cuda.memory_allocated()  # from the replayed allocator
    torch.cuda.is_available()          # False again: every attribute is what it was, also after an error

What tensors do (`.to("cuda")`, `device=`, `.is_cuda`) is not answered here but by the modes of `VirtualGPU`, which is
the `Host`. One file per group of questions; each gives a table of names and replacements, and `patching`
installs them. Wherever torch's Python code ends in a C function it is that function which is replaced, so the code
above it keeps its argument handling, its errors and its warnings.
"""

import contextlib
from collections.abc import Iterator

from legroom.observe.virtual import child_processes, storages
from legroom.observe.virtual.patching import replaced
from legroom.observe.virtual.protocols import Device, Host
from legroom.observe.virtual.torch_api import (
    autocast,
    backends,
    custom_ops,
    data_parallel,
    devices,
    distributed,
    fast_paths,
    grouping,
    memory,
    nested,
    pinned,
    random,
    streams,
    tensor_types,
    torchscript,
    unsupported,
)

__all__ = ["Device", "Host", "patches"]


@contextlib.contextmanager
def patches(host: Host) -> Iterator[None]:
    """Within the block, torch answers for the devices of `host`. Not to be nested."""
    with contextlib.ExitStack() as stack:
        current = stack.enter_context(streams.streams(host))
        generators = stack.enter_context(random.generators(host))
        pinned_memory = stack.enter_context(pinned.pinned_memory(host))
        math_attention = stack.enter_context(backends.math_attention_at_hand())
        stack.callback(memory.forget_observers)
        for replacements in (
            devices.replacements(host),
            memory.replacements(host),
            streams.replacements(current),
            generators,
            autocast.replacements(),
            pinned_memory,
            storages.replacements(host),
            tensor_types.replacements(host),
            data_parallel.replacements(),
            grouping.replacements(host),
            fast_paths.replacements(),
            torchscript.replacements(),
            nested.replacements(),
            custom_ops.replacements(),
            distributed.replacements(),
            child_processes.replacements(host),
            backends.replacements(),
            math_attention,
            unsupported.replacements(),
        ):
            stack.enter_context(replaced(replacements))
        stack.enter_context(storages.saved_and_loaded(host))
        yield
