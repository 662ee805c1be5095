"""Every module-level question to `torch.cuda` and `torch.accelerator`, answered for virtual GPUs.

    with patches(host):
        torch.cuda.is_available()      # True, on a machine and a build of torch that have never seen CUDA
        torch.cuda.memory_allocated()  # from the replayed allocator
    torch.cuda.is_available()          # False again: every attribute is what it was, also after an error

What tensors do (`.to("cuda")`, `device=`, `.is_cuda`) is not answered here but by the modes of `VirtualGPU`, which is
the `Host`. One file per group of questions; each gives a table of names and replacements, and `virtual_patching`
installs them. Wherever torch's Python code ends in a C function it is that function which is replaced, so the code
above it keeps its argument handling, its errors and its warnings.
"""

import contextlib
from collections.abc import Iterator

from legroom.observe import (
    virtual_autocast,
    virtual_backends,
    virtual_devices,
    virtual_memory,
    virtual_parallel,
    virtual_pinned,
    virtual_random,
    virtual_refusals,
    virtual_storages,
    virtual_streams,
    virtual_types,
)
from legroom.observe.virtual_host import Device, Host
from legroom.observe.virtual_patching import replaced

__all__ = ["Device", "Host", "patches"]


@contextlib.contextmanager
def patches(host: Host) -> Iterator[None]:
    """Within the block, torch answers for the devices of `host`. Not to be nested."""
    with contextlib.ExitStack() as stack:
        streams = stack.enter_context(virtual_streams.streams(host))
        generators = stack.enter_context(virtual_random.generators(host))
        pinned_memory = stack.enter_context(virtual_pinned.pinned_memory(host))
        math_attention = stack.enter_context(virtual_backends.math_attention_at_hand())
        stack.callback(virtual_memory.forget_observers)
        for replacements in (
            virtual_devices.replacements(host),
            virtual_memory.replacements(host),
            virtual_streams.replacements(streams),
            generators,
            virtual_autocast.replacements(),
            pinned_memory,
            virtual_storages.replacements(host),
            virtual_types.replacements(host),
            virtual_parallel.replacements(),
            virtual_backends.replacements(),
            math_attention,
            virtual_refusals.replacements(),
        ):
            stack.enter_context(replaced(replacements))
        stack.enter_context(virtual_storages.saved_and_loaded(host))
        yield
