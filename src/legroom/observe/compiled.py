"""The effects of recording on programs that use `torch.compile`.

A dispatch mode observes each operation of eager code. While a dispatch mode is active, torch runs compiled functions
in eager mode, and rejects `fullgraph=True`. Recording from the history of the CUDA allocator does not affect
compiled functions.
"""

import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from legroom.log import log

IN_EAGER_MODE = (
    "`torch.compile` has no effect: without a GPU, `legroom run` runs compiled functions in eager mode. On "
    "a GPU, `torch.compile` works as usual."
)


def not_compiled(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Prevent the compiler from tracing `hook`, which a compiled optimizer step calls. In torch versions without
    `_disable_dynamo`, the compiler warns about code that it cannot trace.
    """
    disable: Any = getattr(torch, "_disable_dynamo", None)
    if disable is None:
        return hook

    def call(*args: Any) -> Any:  # torch sets an attribute of the function, which a method does not allow
        return hook(*args)

    disabled: Callable[..., Any] = disable(call)

    def outside_graphs(*args: Any) -> Any:
        # Calling `disabled` in eager mode takes several microseconds.
        return disabled(*args) if torch.compiler.is_compiling() else hook(*args)

    return outside_graphs


@contextmanager
def compiled_functions_run_in_eager_mode(on_compile: Callable[[], None]) -> Iterator[None]:
    """Within the block, `torch.compile(fullgraph=True)` works under a dispatch mode, and a warning says that nothing is
    compiled. `on_compile()` is called before the first function is compiled.
    """
    from legroom.observe.virtual.patching import replaced, table  # `legroom.watch` does not need it

    original = torch.compile

    @functools.cache
    def warn() -> None:
        on_compile()
        log.warning(IN_EAGER_MODE)
        # The warnings concern the recorder's hooks, not the user's code.
        warnings.filterwarnings(
            "ignore", message=r"Using `torch\.compile\(module\)` when there are global hooks"
        )

    def compile(model: Any = None, **options: Any) -> Any:
        if not options.get("disable"):
            warn()
        return original(model, **{**options, "fullgraph": False})

    with replaced(table(torch, {"compile": compile})):
        yield
