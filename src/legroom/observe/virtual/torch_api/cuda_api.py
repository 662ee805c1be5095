"""The functions of `torch.cuda`, `torch.accelerator` and related modules, replaced for virtual GPUs.

Inside `with patches(host):`, `torch.cuda.is_available()` returns True, even on a CPU build of torch.
`torch.cuda.memory_allocated()` returns the value from the simulated allocator. After the block, every attribute is
restored, even after an error.

The modes of `VirtualGPU` handle tensor methods (`.to("cuda")`, `device=`, `.is_cuda`). Each module in this package
returns a table of names and replacements, and `patching` installs the replacements. If torch's Python code calls a C
function, the C function is replaced, so the Python code keeps its argument handling, its errors and its warnings.
"""

import contextlib
from collections.abc import Iterator

from legroom.observe.virtual import storages
from legroom.observe.virtual.host import VirtualHost
from legroom.observe.virtual.patching import replaced
from legroom.observe.virtual.torch_api import (
    autograd_functions,
    backends,
    devices,
    eager_compile,
    functions,
    memory,
    random,
    script,
    streams,
    unsupported,
)
from legroom.observe.virtual.torch_api.parallel import data_parallel, distributed, dtensor
from legroom.observe.virtual.torch_api.tensors import dlpack, pinned, tensor_types


@contextlib.contextmanager
def patches(host: VirtualHost) -> Iterator[None]:
    """Inside the `with` block, torch reports the virtual devices of `host`. These `with` blocks cannot be nested."""
    with contextlib.ExitStack() as stack:
        current = stack.enter_context(streams.streams(host))
        generators = stack.enter_context(random.generators(host))
        pinned_memory = stack.enter_context(pinned.pinned_memory(host))
        math_attention = stack.enter_context(backends.math_attention_allowed())
        stack.callback(memory.remove_oom_observers)
        for replacements in (
            devices.replacements(host),
            memory.replacements(host),
            streams.replacements(current),
            generators,
            pinned_memory,
            storages.replacements(host),
            tensor_types.replacements(host),
            data_parallel.replacements(),
            functions.replacements(host),
            autograd_functions.replacements(host),
            dlpack.replacements(host),
            script.replacements(host),
            distributed.replacements(host),
            backends.replacements(),
            math_attention,
            eager_compile.replacements(),
            unsupported.replacements(),
        ):
            stack.enter_context(replaced(replacements))
        stack.enter_context(dtensor.sharded_random_numbers())
        stack.enter_context(storages.saved_and_loaded(host))
        yield
