"""What an autograd graph keeps alive: the tensors its nodes saved for the backward pass.

Reading must change nothing: a tensor packed by hooks (activation checkpointing, offloading) is not unpacked,
since that would recompute it; whatever the hook stored is looked into instead. What was not packed can be unpacked at no cost.
"""

import contextlib
from collections.abc import Iterable, Iterator
from types import FunctionType
from typing import Any

import torch
import torch.utils.checkpoint

_saved_names: dict[type, tuple[str, ...]] = {}


def _names_saved_by(kind: type) -> tuple[str, ...]:
    names = _saved_names.get(kind)
    if names is None:
        names = tuple(name for name in dir(kind) if name.startswith("_raw_saved_"))
        _saved_names[kind] = names
    return names


_unpacks_freely = False
"""Whether what a node saved can be had by unpacking it, since nothing was packed: see `unpacking_what_was_not_packed`."""


@contextlib.contextmanager
def unpacking_what_was_not_packed() -> Iterator[None]:
    """Inside, where this torch tells nothing without unpacking (before `SavedTensor.data`), saved tensors are unpacked all the same
    until the program packs any for the first time. To be entered before it makes graphs: hooks that were there before are not known."""
    global _unpacks_freely
    if can_read_saved():
        yield
        return
    hooks: Any = torch.autograd.graph.saved_tensors_hooks
    enter = hooks.__enter__

    def entered(self: Any) -> Any:
        global _unpacks_freely
        _unpacks_freely = False
        return enter(self)

    hooks.__enter__, _unpacks_freely = entered, True
    try:
        yield
    finally:
        _unpacks_freely = False
        if hooks.__enter__ is entered:
            hooks.__enter__ = enter


def nodes(roots: Iterable[Any], limit: int = 2_000_000) -> Iterator[Any]:
    """Every node reachable from `roots` (nodes themselves), each once."""
    seen: set[Any] = set()
    stack = [root for root in roots if root is not None]
    while stack and len(seen) < limit:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        yield node
        stack.extend(next_node for next_node, _ in node.next_functions if next_node is not None)


def saved_by(node: Any) -> Iterator[torch.Tensor]:
    """The tensors one node saved, without unpacking any that was packed. Nothing if the graph was freed."""
    try:
        if _unpacks_freely:
            for name in _names_saved_by(type(node)):
                # `_saved_self`; of a custom Function `saved_tensors`.
                unpacked = name.removeprefix("_raw")
                yield from _tensors_in(
                    getattr(node, unpacked if hasattr(node, unpacked) else unpacked[1:], None)
                )
        else:
            for saved in _saved_variables(node):
                yield from _tensors_in(_stored(saved))
    except RuntimeError:  # freed by an earlier backward
        return
    attributes = getattr(node, "__dict__", None)  # a custom Function: ctx.anything = tensor
    if attributes:
        for value in attributes.values():
            yield from _tensors_in(value)


def _saved_variables(node: Any) -> Iterator[Any]:
    """What a node saved, still packed. Raises `RuntimeError` where the graph was freed."""
    for name in _names_saved_by(type(node)):
        raw = getattr(node, name)
        yield from raw if isinstance(raw, tuple | list) else (raw,)


def _stored(saved: Any) -> Any:
    """What a saved variable holds: the tensor itself, or whatever a pack hook made of it.

    Before torch had `SavedTensor.data`, nothing can be read without unpacking: once a program packs anything, the fallback gives nothing,
    and activations are then told by their lifetime alone.
    """
    try:
        return saved.data
    except (AttributeError, RuntimeError):
        return None


def kept_to_recompute(node: Any) -> Iterator[torch.Tensor]:
    """The inputs of the checkpointed block that a node belongs to, and what was computed again of it and not used yet: they lie behind the
    hook that would compute it again.

    torch keeps them in saved variables, and kept them before 2.13 with a node outside the graph. Where it keeps them otherwise, or does not
    tell the hook (2.6), nothing is given: in a forward pass, what holds such an input then remains unknown at a failure.
    """
    try:
        for saved in _saved_variables(node):
            for frame in _checkpoints_behind(getattr(saved, "unpack_hook", None)):
                yield from _tensors_in([_stored(each) for each in getattr(frame, "saved_args", ())])
                yield from saved_by(getattr(getattr(frame, "input_saver", None), "grad_fn", None))
                for recomputed in getattr(frame, "recomputed", {}).values():
                    yield from _tensors_in(list(recomputed.values()))
    except RuntimeError:  # freed by an earlier backward
        return


def _checkpoints_behind(hook: Any, depth: int = 2) -> Iterator[Any]:
    kind = getattr(torch.utils.checkpoint, "_CheckpointFrame", ())
    for value in enclosed(hook) if isinstance(hook, FunctionType) else ():
        if isinstance(value, kind):
            yield value
        elif depth:
            yield from _checkpoints_behind(value, depth - 1)


def enclosed(function: FunctionType) -> Iterator[Any]:
    """What the variables hold that a function took along from around it."""
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # not yet set, or deleted
            yield cell.cell_contents


def hides_tensors(node: Any) -> bool:
    """Whether a pack hook stands between a node and what it saved (checkpointing, offloading)."""
    for name in _names_saved_by(type(node)):
        try:
            raw = getattr(node, name)
        except RuntimeError:
            return False
        for saved in raw if isinstance(raw, tuple | list) else (raw,):
            if getattr(saved, "unpack_hook", None) is not None:
                return True
    return not can_read_saved()


def can_read_saved() -> bool:
    """Whether this torch tells what a node saved without unpacking it."""
    kind = getattr(torch._C._autograd, "SavedTensor", None)
    return kind is not None and hasattr(kind, "data")


def tells_saved() -> bool:
    """Whether what graphs keep can be read now: where it cannot, a storage that no graph seems to save may be saved all the same."""
    return can_read_saved() or _unpacks_freely


def _tensors_in(value: Any, depth: int = 3) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif depth and isinstance(value, tuple | list):
        for item in value:
            yield from _tensors_in(item, depth - 1)
    elif depth and isinstance(value, dict):
        for item in value.values():
            yield from _tensors_in(item, depth - 1)


def saved_tensors(roots: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Every tensor saved anywhere in the graphs below `roots`."""
    for node in nodes(roots):
        yield from saved_by(node)
