"""Keeps the placement mode active in user code that torch calls, for example in backward passes and hooks.

PyTorch disables a function mode while one of its own functions runs.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from legroom.observe.dispatch.device_placement import HOST, INHERIT
from legroom.observe.virtual.patching import replaced, table
from legroom.observe.virtual.placement import PlacementMode, is_placement_active


@contextlib.contextmanager
def mode_in_callbacks(mode: PlacementMode) -> Iterator[None]:
    """Enter the mode again in backward passes (checkpointing, custom functions, hooks) and in hooks for saved tensors.

    If this version of torch lacks the private `_engine_run_backward`, user code inside a backward pass cannot use
    `cuda`.
    """

    context = mode.recorder.context

    def with_mode_on(function: Callable[..., Any]) -> Callable[..., Any]:
        def with_mode(*args: Any, **kwargs: Any) -> Any:
            if is_placement_active():
                return function(*args, **kwargs)
            with mode:
                return function(*args, **kwargs)

        return with_mode

    def run_engine(engine: Callable[..., Any]) -> Callable[..., Any]:
        engine_with_mode = with_mode_on(engine)

        def with_mode(roots: Any, *args: Any, **kwargs: Any) -> Any:
            _check_gradients(mode, roots, args[0] if args else ())
            outer = context.factory_target, context.call
            # Tensors that the engine creates (zeros for a missing gradient) are on the device of the first root.
            index = mode.device_index(roots[0]) if roots else None
            context.factory_target, context.call = HOST if index is None else index, None
            try:
                return engine_with_mode(roots, *args, **kwargs)
            finally:
                context.factory_target, context.call = outer

        return with_mode

    def as_user_code(hook: Callable[..., Any]) -> Callable[..., Any]:
        """Run a hook as user code. Tensors that the hook creates are placed on the device that the hook specifies, not
        on the device of the operation that saves the tensor.
        """
        with_mode = with_mode_on(hook)

        def call(*args: Any) -> Any:
            outer = context.factory_target, context.call, context.target, context.category
            context.factory_target, context.call, context.target, context.category = HOST, None, INHERIT, None
            try:
                return with_mode(*args)
            finally:
                context.factory_target, context.call, context.target, context.category = outer

        return call

    def init(hooks: Any, pack_hook: Callable[..., Any], unpack_hook: Callable[..., Any]) -> None:
        original_init(hooks, as_user_code(pack_hook), as_user_code(unpack_hook))

    graph: Any = torch.autograd.graph
    original_init = graph.saved_tensors_hooks.__init__
    replacements = table(graph.saved_tensors_hooks, {"__init__": init})
    for module in (torch.autograd, graph):
        engine = getattr(module, "_engine_run_backward", None)
        if engine is not None:
            replacements += table(module, {"_engine_run_backward": run_engine(engine)})
    with replaced(replacements):
        yield


def _check_gradients(mode: PlacementMode, roots: Any, gradients: Any) -> None:
    """Raise the same error as torch if a result and its gradient are on different devices. A scalar gradient is
    accepted on any device.
    """
    with torch._C.DisableTorchFunction():
        for number, (root, gradient) in enumerate(zip(roots, gradients, strict=False)):
            if isinstance(root, torch.Tensor) and isinstance(gradient, torch.Tensor) and gradient.dim():
                expected, found = mode.device_index(root), mode.device_index(gradient)
                if expected != found:
                    names = ["cpu" if index is None else f"cuda:{index}" for index in (expected, found)]
                    raise RuntimeError(
                        f"invalid gradient at index {number} - expected device {names[0]} but got {names[1]}"
                    )
