"""Finds the tensors that an autograd graph keeps alive because its nodes saved them for the backward pass.

Reading the graph must not change the program. A tensor packed by hooks (activation checkpointing, offloading) is not
unpacked, because unpacking would recompute or copy the tensor. Instead, the search reads the object that the hook
stored. A tensor without hooks can be unpacked at no cost.
"""

import contextlib
from collections.abc import Iterable, Iterator
from types import FunctionType
from typing import Any

import torch
import torch.utils.checkpoint

_saved_names: dict[type, tuple[str, ...]] = {}


def _saved_attributes(node_type: type) -> tuple[str, ...]:
    names = _saved_names.get(node_type)
    if names is None:
        names = tuple(name for name in dir(node_type) if name.startswith("_raw_saved_"))
        _saved_names[node_type] = names
    return names


_unpacks_freely = False
"""True if saved tensors may be unpacked. Unpacking is safe as long as the program has not packed a tensor with hooks
(see `unpack_until_packed`).
"""


@contextlib.contextmanager
def unpack_until_packed() -> Iterator[None]:
    """Within the block, the search may read saved tensors by unpacking them, until the program uses a pack hook.

    Versions of torch without `SavedTensor.data` have no other way to read saved tensors. Enter this context before the
    program builds graphs, because hooks that were entered earlier are not detected.
    """
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
    """Yield the tensors that one node saved. Tensors that a hook has packed are not unpacked. A freed graph yields
    nothing.
    """
    try:
        if _unpacks_freely:
            for name in _saved_attributes(type(node)):
                # `_saved_self`; for a custom Function, `saved_tensors`.
                unpacked = name.removeprefix("_raw")
                yield from _tensors_in(
                    getattr(node, unpacked if hasattr(node, unpacked) else unpacked[1:], None)
                )
        else:
            for saved in _saved_variables(node):
                yield from _tensors_in(_data_of(saved))
    except RuntimeError:  # freed by an earlier backward pass
        return
    attributes = getattr(node, "__dict__", None)  # a custom Function: `ctx.attribute = tensor`
    if attributes:
        for value in attributes.values():
            yield from _tensors_in(value)


def saved_and_packed(node: Any) -> tuple[Iterable[torch.Tensor], bool]:
    # For a node without pack hooks, the saved variables are read only once.
    if not _unpacks_freely and _can_read_saved:
        names = _saved_attributes(type(node))
        if not names:
            return (saved_by(node) if hasattr(node, "__dict__") else ()), False
        found: list[torch.Tensor] = []
        try:
            for name in names:
                saved = getattr(node, name)
                if type(saved) is not _SAVED_TENSOR or saved.unpack_hook is not None:
                    break
                data = saved.data
                if isinstance(data, torch.Tensor):
                    found.append(data)
                elif data is not None:
                    break
            else:
                if not getattr(node, "__dict__", None):
                    return found, False
        except (AttributeError, RuntimeError):
            pass
    return saved_by(node), has_pack_hooks(node)


def _saved_variables(node: Any) -> Iterator[Any]:
    """Yield the saved variables of a node, still packed. Raises `RuntimeError` if the graph was freed."""
    for name in _saved_attributes(type(node)):
        raw = getattr(node, name)
        yield from raw if isinstance(raw, tuple | list) else (raw,)


def _data_of(saved: Any) -> Any:
    """Return the content of a saved variable: the tensor itself, or the object that a pack hook returned.

    In versions of torch without `SavedTensor.data`, the result is always None. If a program uses a pack hook with one
    of these versions, activations are recognized only by their lifetime.
    """
    try:
        return saved.data
    except (AttributeError, RuntimeError):
        return None


def checkpoint_tensors(node: Any) -> Iterator[torch.Tensor]:
    """Yield the inputs of the checkpointed block that a node belongs to, and recomputed tensors that are not used yet.

    The unpack hook of the checkpoint references these tensors. Since 2.13, torch stores the inputs in saved variables.
    Before 2.13, torch stored the inputs in a node outside the graph. If torch stores the tensors elsewhere or does not
    expose the hook (2.6), nothing is yielded. A report then cannot show which variable retains the inputs of a
    checkpointed block.
    """
    try:
        for saved in _saved_variables(node):
            for frame in _checkpoint_frames(getattr(saved, "unpack_hook", None)):
                yield from _tensors_in([_data_of(each) for each in getattr(frame, "saved_args", ())])
                yield from saved_by(getattr(getattr(frame, "input_saver", None), "grad_fn", None))
                for recomputed in getattr(frame, "recomputed", {}).values():
                    yield from _tensors_in(list(recomputed.values()))
    except RuntimeError:  # freed by an earlier backward pass
        return


def _checkpoint_frames(hook: Any, depth: int = 2) -> Iterator[Any]:
    frame_type = getattr(torch.utils.checkpoint, "_CheckpointFrame", ())
    for value in closure_values(hook) if isinstance(hook, FunctionType) else ():
        if isinstance(value, frame_type):
            yield value
        elif depth:
            yield from _checkpoint_frames(value, depth - 1)


def closure_values(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # the variable is not yet set, or was deleted
            yield cell.cell_contents


def has_pack_hooks(node: Any) -> bool:
    for name in _saved_attributes(type(node)):
        try:
            raw = getattr(node, name)
        except RuntimeError:
            return False
        for saved in raw if isinstance(raw, tuple | list) else (raw,):
            if getattr(saved, "unpack_hook", None) is not None:
                return True
    return not can_read_saved()


def can_read_saved() -> bool:
    saved_type = getattr(torch._C._autograd, "SavedTensor", None)
    return saved_type is not None and hasattr(saved_type, "data")


_SAVED_TENSOR: Any = getattr(torch._C._autograd, "SavedTensor", None)
_can_read_saved = can_read_saved()


def saved_tensors_are_readable() -> bool:
    """Return whether saved tensors can be read now. If not, the search does not find the storages that a graph saved."""
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
