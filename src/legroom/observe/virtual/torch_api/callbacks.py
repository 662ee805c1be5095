"""The user's code that torch calls back finds `cuda` served, too.

Torch switches a function mode off to run a function of its own. Some of these call the user's code again: backward passes, hooks.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from legroom.observe.dispatch.device_placement import HOST, INHERIT
from legroom.observe.virtual.patching import replaced, table
from legroom.observe.virtual.placement import Placement, is_on


@contextlib.contextmanager
def in_callbacks_too(make_mode: Callable[[], Placement]) -> Iterator[None]:
    """The user's code that torch calls back runs with the mode on, though torch switched it off on the way:
    backward passes (checkpointing, custom functions, hooks) and hooks that pack saved tensors.

    Without torch's private `_engine_run_backward`, the user's code inside a backward pass cannot name `cuda`.
    """

    def on(function: Callable[..., Any]) -> Callable[..., Any]:
        def with_mode(*args: Any, **kwargs: Any) -> Any:
            if is_on():
                return function(*args, **kwargs)
            with make_mode():
                return function(*args, **kwargs)

        return with_mode

    def run_engine(engine: Callable[..., Any]) -> Callable[..., Any]:
        def with_mode(roots: Any, *args: Any, **kwargs: Any) -> Any:
            mode = make_mode()
            context = mode.recorder.context
            outer = context.factory_target, context.call
            # What the engine itself makes (zeros for a gradient that nobody gave) lives where the backward pass began.
            index = mode.where(roots[0]) if roots else None
            context.factory_target, context.call = HOST if index is None else index, None
            try:
                return on(engine)(roots, *args, **kwargs)
            finally:
                context.factory_target, context.call = outer

        return with_mode

    def on_its_own(hook: Callable[..., Any]) -> Callable[..., Any]:
        """What a hook makes from nothing is not a part of the operation that saves: it lives where the hook says."""
        with_mode = on(hook)

        def call(*args: Any) -> Any:
            context = make_mode().recorder.context
            outer = context.factory_target, context.call, context.target, context.category
            context.factory_target, context.call, context.target, context.category = HOST, None, INHERIT, None
            try:
                return with_mode(*args)
            finally:
                context.factory_target, context.call, context.target, context.category = outer

        return call

    def take_hooks(hooks: Any, pack_hook: Callable[..., Any], unpack_hook: Callable[..., Any]) -> None:
        original_init(hooks, on_its_own(pack_hook), on_its_own(unpack_hook))

    graph: Any = torch.autograd.graph
    original_init = graph.saved_tensors_hooks.__init__
    replacements = table(graph.saved_tensors_hooks, {"__init__": take_hooks})
    for module in (torch.autograd, graph):
        engine = getattr(module, "_engine_run_backward", None)
        if engine is not None:
            replacements += table(module, {"_engine_run_backward": run_engine(engine)})
    with replaced(replacements):
        yield
