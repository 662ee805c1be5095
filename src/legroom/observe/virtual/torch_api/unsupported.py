"""What a virtual GPU does not do, and how it says so.

CUDA graphs and private memory pools replay or hold device memory behind the allocator's back, and exporting needs
tensors of a device that is not there: asking for one raises `Unsupported` with a sentence. `torch.compile` is different: leaving the function as it is gives the same results, so
the run goes on, and one warning says that the eager step is what is measured.
"""

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import torch

from legroom.errors import Unsupported
from legroom.observe.virtual.patching import Replacement, answer, once_warner, optional_module, table

GRAPHS = "a virtual GPU has no CUDA graphs: run the step itself, its memory is what a graph would replay"
POOLS = "a virtual GPU has no private memory pools: leave out torch.cuda.MemPool, allocations go to the common pools"
EXPORT = "a virtual GPU cannot export a model: move it and its inputs to the CPU first, as in torch.export.export(model.cpu(), ...)"
COMPILED = "a virtual GPU runs the eager step: torch.compile leaves this function as it is"


def replacements() -> Iterable[Replacement]:
    """Graphs, pools and the compiler."""
    graphs, memory = optional_module("torch.cuda.graphs"), optional_module("torch.cuda.memory")
    for owner in (graphs, torch.cuda):
        yield from table(
            owner, {"make_graphed_callables": _refusal(GRAPHS), "graph_pool_handle": _refusal(GRAPHS)}
        )
    for owner, name in ((graphs, "CUDAGraph"), (optional_module("torch.accelerator"), "Graph")):
        yield from table(getattr(owner, name, None), {"__new__": staticmethod(_refusal(GRAPHS))})
    yield from table(getattr(graphs, "graph", None), {"__init__": _refusal(GRAPHS)})
    for owner in (memory, torch.cuda):
        yield from table(owner, {"MemPool": _refusal(POOLS), "use_mem_pool": _refusal(POOLS)})
    # Tracing makes tensors without data on the device that a tensor names: on a CPU build that ends the process.
    export = optional_module("torch.export")
    yield from table(
        export, dict.fromkeys(("export", "export_for_training", "draft_export"), _refusal(EXPORT))
    )
    yield from table(torch, {"compile": _leave_eager()})
    # Its own way of finding out loads the compiler, and that asks a CUDA build for names that a CPU build lacks.
    yield from table(optional_module("torch.compiler"), {"cudagraph_mark_step_begin": answer()})


def _refusal(sentence: str) -> Callable[..., NoReturn]:
    def refuse(*_arguments: Any, **_options: Any) -> NoReturn:
        raise Unsupported(sentence)

    return refuse


def _leave_eager() -> Callable[..., Any]:
    warn = once_warner()

    def compile(model: Any = None, **options: Any) -> Any:
        if model is None:
            return lambda function: compile(function, **options)
        if not options.get("disable"):
            warn(COMPILED)
        return model

    return compile
