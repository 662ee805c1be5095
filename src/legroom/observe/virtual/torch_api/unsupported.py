"""Features that a virtual GPU does not support.

CUDA graphs and private memory pools use device memory outside the allocator, and exporting needs tensors on a real
device. All of these features raise `Unsupported`.
"""

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import torch

from legroom.errors import Unsupported
from legroom.observe.virtual.patching import Replacement, optional_module, table

GRAPHS = "A virtual GPU does not support CUDA graphs. Run the step without a graph, which does not change its memory use."
POOLS = (
    "A virtual GPU does not support private memory pools. Remove `torch.cuda.MemPool` to use the default "
    "pool."
)
EXPORT = "Models cannot be exported on a virtual GPU. Move the model and its inputs to the CPU first: `torch.export.export(model.cpu(), ...)`."


def replacements() -> Iterable[Replacement]:
    graphs, memory = optional_module("torch.cuda.graphs"), optional_module("torch.cuda.memory")
    for owner in (graphs, torch.cuda):
        yield from table(
            owner, {"make_graphed_callables": _raiser(GRAPHS), "graph_pool_handle": _raiser(GRAPHS)}
        )
    for owner, name in ((graphs, "CUDAGraph"), (optional_module("torch.accelerator"), "Graph")):
        yield from table(getattr(owner, name, None), {"__new__": staticmethod(_raiser(GRAPHS))})
    yield from table(getattr(graphs, "graph", None), {"__init__": _raiser(GRAPHS)})
    for owner in (memory, torch.cuda):
        yield from table(owner, {"MemPool": _raiser(POOLS), "use_mem_pool": _raiser(POOLS)})
    # Tracing creates tensors without data on the device of a tensor, which terminates the process on a CPU build.
    export = optional_module("torch.export")
    yield from table(
        export, dict.fromkeys(("export", "export_for_training", "draft_export"), _raiser(EXPORT))
    )


def _raiser(message: str) -> Callable[..., NoReturn]:
    def unsupported(*_arguments: Any, **_options: Any) -> NoReturn:
        raise Unsupported(message)

    return unsupported
